"""Tensor expressions: what to compute (placeholder, compute, reductions), how (schedules), and lowering to loops.

All of it is loaded when one of its names is first used: a network all of whose code is in the cache needs none.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from renorm.core.absent_names import missing

if TYPE_CHECKING:
    from renorm.te.names import *  # noqa: F403 - what __getattr__ finds


def __getattr__(name: str) -> Any:
    if name != "lower" and find_spec(f"{__name__}.{name}") is not None:  # a file; `lower` is a function
        return import_module(f"{__name__}.{name}")
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    names = import_module(f"{__name__}.names")
    globals().update({n: getattr(names, n) for n in names.__all__})
    if name not in names.__all__:
        raise missing("te", name)
    return globals()[name]
