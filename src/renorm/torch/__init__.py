"""Normalization layers for PyTorch on a CPU: drop-in modules with gradients, computed by renorm's kernels.

    import renorm.torch
    renorm.torch.replace_norms(model)       # or use renorm.torch.BatchNorm2d, ... in place of torch.nn's

Constructors, shapes, state_dict and meaning are those of torch.nn's layers of the same names. Nothing is copied between
the two: tensors are seen as arrays where they lie. What renorm has no kernels for goes to torch's own function.
"""

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

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "RMSNorm",
    "Replaced",
    "SyncBatchNorm",
    "replace_norms",
    "restore",
    "set_background",
    "wait",
]
