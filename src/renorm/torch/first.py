"""A layer's first call with a shape, whose kernels must be compiled.

Meanwhile it computes with torch's function, and kernels are compiled in the background, unless somebody has to have the
same bits in each run.
"""

from __future__ import annotations

import torch
from torch._C._autograd import _top_saved_tensors_default_hooks

from renorm.training.background import BACKGROUND
from renorm.training.kernels import NotYet

__all__ = ["NotYet", "set_background", "wait", "waits"]

_is_on = True


def set_background(enabled: bool) -> None:
    """Set whether layers compute with torch's functions while kernels for a shape that they meet for the first time are
    compiled in the background (the default); otherwise such a call takes until they are, some tenths of a second.

    When renorm's kernels take over depends on time, and they round otherwise: without it a run repeats bit by bit. It
    is off as well where torch.use_deterministic_algorithms(True) was said."""
    global _is_on
    _is_on = bool(enabled)


def wait(timeout: float | None = None) -> bool:
    """Wait until all that is compiled in the background is, at most `timeout` seconds. Return whether it is."""
    return BACKGROUND.finish(timeout)


def waits() -> bool:
    """Return whether a kernel that is not there is waited for. So it is where what a forward pass saves is handed to
    others: a checkpoint is compared with that of a second pass."""
    return not _is_on or torch.are_deterministic_algorithms_enabled() or bool(_top_saved_tensors_default_hooks(True))
