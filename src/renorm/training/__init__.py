"""Batch norm in training: every library's semantics, as parts and as one kernel, over any number of ranks.

    r = training.batch_norm(x, scale, bias, running_mean, running_var, convention="torch")
    dx, dscale, dbias = training.batch_norm_backward(dy, x, scale, r.saved_mean, r.saved_invstd)

Calls run through modules that are compiled from the ops of batch norm when a shape first comes, and kept. Names are
loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from renorm.core.lazy import imported

if TYPE_CHECKING:
    from renorm.training.backward import batch_norm_backward, batch_norm_backward_frozen
    from renorm.training.coalescing import together
    from renorm.training.communicators import Alone, Communicator
    from renorm.training.conventions import CONVENTIONS, DEFAULT, Convention
    from renorm.training.conversion import convert
    from renorm.training.drift import LayerDrift, Restated
    from renorm.training.forward import BatchNorm, Moments, batch_norm, batch_norm_inference, moments, normalize, update
    from renorm.training.kernels import on_stream
    from renorm.training.mpi import Mpi
    from renorm.training.reestimation import restat
    from renorm.training.thread_ranks import Threads
    from renorm.training.torch_group import TorchGroup

# module of this room -> public names that it has
_PUBLIC = {
    "forward": (
        "batch_norm", "batch_norm_inference", "moments", "update", "normalize", "BatchNorm", "Moments"
    ),
    "backward": ("batch_norm_backward", "batch_norm_backward_frozen"),
    "conversion": ("convert",),
    "conventions": ("CONVENTIONS", "Convention", "DEFAULT"),
    "communicators": ("Alone", "Communicator"),
    "mpi": ("Mpi",),
    "thread_ranks": ("Threads",),
    "torch_group": ("TorchGroup",),
    "drift": ("LayerDrift", "Restated"),
    "reestimation": ("restat",),
    "coalescing": ("together",),
    "kernels": ("on_stream",),
}  # fmt: skip
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "CONVENTIONS", "DEFAULT", "Alone", "BatchNorm", "Communicator", "Convention", "LayerDrift", "Moments", "Mpi",
    "Restated", "Threads", "TorchGroup", "batch_norm", "batch_norm_backward", "batch_norm_backward_frozen",
    "batch_norm_inference", "convert", "moments", "normalize", "on_stream", "restat", "together", "update",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'renorm.training' has no attribute {name!r}")
    value = getattr(imported(f"renorm.training.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
