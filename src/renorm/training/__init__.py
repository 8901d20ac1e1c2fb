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
    from renorm.training.mpi import Mpi
    from renorm.training.reestimation import restat
    from renorm.training.thread_ranks import Threads
    from renorm.training.torch_group import TorchGroup

# public name -> module of this room that has it
_PUBLIC = {
    "batch_norm": "forward",
    "batch_norm_inference": "forward",
    "moments": "forward",
    "update": "forward",
    "normalize": "forward",
    "BatchNorm": "forward",
    "Moments": "forward",
    "batch_norm_backward": "backward",
    "batch_norm_backward_frozen": "backward",
    "convert": "conversion",
    "CONVENTIONS": "conventions",
    "Convention": "conventions",
    "DEFAULT": "conventions",
    "Alone": "communicators",
    "Communicator": "communicators",
    "Mpi": "mpi",
    "Threads": "thread_ranks",
    "TorchGroup": "torch_group",
    "LayerDrift": "drift",
    "Restated": "drift",
    "restat": "reestimation",
    "together": "coalescing",
}

__all__ = [
    "CONVENTIONS",
    "DEFAULT",
    "Alone",
    "BatchNorm",
    "Communicator",
    "Convention",
    "LayerDrift",
    "Moments",
    "Mpi",
    "Restated",
    "Threads",
    "TorchGroup",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_backward_frozen",
    "batch_norm_inference",
    "convert",
    "moments",
    "normalize",
    "restat",
    "together",
    "update",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'renorm.training' has no attribute {name!r}")
    value = getattr(imported(f"renorm.training.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
