"""Normalization layers for PyTorch on a CPU or an NVIDIA GPU: drop-in modules with gradients, by renorm's kernels.

    import renorm.torch
    renorm.torch.replace_norms(model)       # or use renorm.torch.BatchNorm2d, ... in place of torch.nn's

Constructors, shapes, state_dict and meaning are those of torch.nn's layers of the same names. Nothing is copied between
the two: tensors are seen as arrays where they lie. What renorm has no kernels for goes to torch's own function.

    print(renorm.torch.inspect(model, (x,)))        # which norms fold into which layers, and why others do not
    folded = renorm.torch.fold(model, (x,)).module  # the same classes, fewer norms; renorm.torch.unfold goes back
"""

from typing import TYPE_CHECKING, Any

from renorm.torch.kernels import set_background, wait
from renorm.torch.modules import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
    SyncBatchNorm,
)
from renorm.torch.replace import Replaced, replace_norms, restore

if TYPE_CHECKING:
    from renorm.torch.folding import Folded, fold, inspect, unfold

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Folded",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "RMSNorm",
    "Replaced",
    "SyncBatchNorm",
    "fold",
    "inspect",
    "replace_norms",
    "restore",
    "set_background",
    "unfold",
    "wait",
]


def __getattr__(name: str) -> Any:
    if name not in ("Folded", "fold", "inspect", "unfold"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from renorm.torch import folding  # the passes on graphs: who only trains needs none

    return globals().setdefault(name, getattr(folding, name))
