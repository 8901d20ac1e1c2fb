"""Tensors of PyTorch as arrays over the same memory, and fresh ones.

Neither Tensor.numpy() nor torch.from_numpy() is used: the first forbids for good to resize the storage of a tensor,
which belongs to the user, the second gives one that cannot be resized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from renorm.core import dtypes
from renorm.torch import caching_allocator
from renorm.torch.caching_allocator import CPU

Array = np.ndarray[Any, Any]

_BFLOAT16 = dtypes.numpy_dtype("bfloat16")
DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: _BFLOAT16,
}
TORCH_DTYPES = {d.name: t for t, d in DTYPES.items()}
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # of images [N, *S, C] in memory, by rank
_AS_NUMPY = {torch.float32: "<f4", torch.float64: "<f8", torch.float16: "<f2", torch.bfloat16: "<u2", torch.bool: "|b1"}


class _Memory:
    """The memory of a tensor, which NumPy keeps as long as an array over it."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, x: Tensor):
        self.tensor, size = x, x.element_size()
        self.__array_interface__ = {
            "data": (x.data_ptr(), False),
            "shape": tuple(x.shape),
            "strides": tuple(s * size for s in x.stride()),
            "typestr": _AS_NUMPY[x.dtype],
            "version": 3,
        }


def array_of(x: Tensor) -> Array:
    """Return the memory of a tensor, with its strides; of booleans too."""
    seen = np.asarray(_Memory(x)) if x.numel() else np.empty(tuple(x.shape), _AS_NUMPY[x.dtype])
    return seen.view(_BFLOAT16) if x.dtype is torch.bfloat16 else seen


def array_or_none(x: Tensor | None) -> Array | None:
    return None if x is None else array_of(x)


def tensor_of(array: Array) -> Tensor:
    """Return a tensor over the memory of an array."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def copied(array: Array) -> Tensor:
    """Return a fresh tensor with the elements of a C-contiguous array."""
    fresh = torch.empty(array.shape, dtype=TORCH_DTYPES[array.dtype.name], device=CPU)
    np.copyto(array_of(fresh), array)
    return fresh


class Order(NamedTuple):
    """The order in which memory holds a tensor [N, C, *S]: as that (axis 1), or as [N, *S, C] (axis -1)."""

    axis: int

    @staticmethod
    def of(x: Tensor) -> Order:
        return Order(1 if x.is_contiguous() or not _last(x).is_contiguous() else -1)

    def array(self, x: Tensor) -> Array:
        """Return x as a C-contiguous array; a copy only where memory is in another order."""
        return array_of(self.contiguous(x))

    def contiguous(self, x: Tensor) -> Tensor:
        """Return the tensor over the same memory as `array`: its axes are in the order of memory."""
        return (x if self.axis == 1 else _last(x)).contiguous()

    def like(self, x: Tensor) -> Tensor:
        """Return a fresh tensor in this order, where x [N, C, *S] is, whose elements are undefined."""
        return caching_allocator.empty(x.shape, self.strides(x.shape), x.dtype, x.device)

    def strides(self, shape: Sequence[int]) -> list[int]:
        """Return the strides of a dense tensor [N, C, *S] in this order."""
        rank = len(shape)
        return dense_strides(shape, (0, *range(2, rank), 1)[:rank] if self.axis == -1 else range(rank))


def dense_strides(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Return the strides of a tensor without gaps whose memory has its axes in this order, the outermost first."""
    steps, step = [1] * len(shape), 1
    for a in reversed(axes):
        steps[a], step = step, step * max(1, shape[a])
    return steps


def _last(x: Tensor) -> Tensor:
    return x.permute(0, *range(2, x.dim()), 1)
