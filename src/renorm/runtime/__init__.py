"""Runs compiled programs: artifact format, loader, threads, arrays. Imports only NumPy beyond the standard library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from renorm.runtime.memory import Memory
from renorm.runtime.module import Module, load
from renorm.runtime.program import Argument, Code, Machine, Program, Step, TensorSpec, Weight

if TYPE_CHECKING:
    from renorm.runtime.function import load_module

__all__ = [
    "Argument", "Code", "Machine", "Memory", "Module", "Program", "Step", "TensorSpec", "Weight", "load", "load_module",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "load_module":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from renorm.runtime.function import load_module  # of single kernels, which who runs a network does not need

    return load_module
