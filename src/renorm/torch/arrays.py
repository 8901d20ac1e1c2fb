"""Tensors of PyTorch as NumPy arrays over the same memory, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch.autograd import forward_ad
from torch.jit._trace import is_tracing

from renorm.core import dtypes

Array = np.ndarray[Any, Any]

PLAIN = (Tensor, torch.nn.Parameter)
_BFLOAT16 = dtypes.numpy_dtype("bfloat16")
DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: _BFLOAT16,
}


def is_ours(x: Tensor, *others: Tensor | None) -> bool:
    """Whether renorm's kernels may work on these tensors: strided memory of the CPU with elements of a dtype that it
    has, and nobody who wants to see the calls (torch.compile, tracing, transforms of torch.func, tangents of forward
    mode, subclasses of Tensor)."""
    if torch.compiler.is_compiling() or is_tracing() or _are_functorch_transforms_active():
        return False
    has_tangents = forward_ad._current_level >= 0
    for t in (x, *others):
        if t is None:
            continue
        if not (type(t) in PLAIN and t.is_cpu and t.dtype in DTYPES and t.layout is torch.strided) or t.is_neg():
            return False
        if has_tangents and forward_ad.unpack_dual(t).tangent is not None:
            return False
    return True


def array_of(x: Tensor) -> Array:
    """The memory of a tensor, with its strides."""
    x = x.detach()
    return x.view(torch.int16).numpy().view(_BFLOAT16) if x.dtype is torch.bfloat16 else x.numpy()


def array_or_none(x: Tensor | None) -> Array | None:
    return None if x is None else array_of(x)


def tensor_of(array: Array) -> Tensor:
    """A tensor over the memory of an array, which lives as long as one of the two. It is no view of another tensor,
    so that autograd lets operations in place follow."""
    if array.dtype != _BFLOAT16:
        return torch.from_numpy(array)
    bits = torch.from_numpy(array.view(np.int16))
    whole = torch.empty(0, dtype=torch.bfloat16)
    return whole.set_(bits.untyped_storage(), bits.storage_offset(), bits.shape, bits.stride())


class Order(NamedTuple):
    """In which order memory holds a tensor [N, C, *S]: as that (axis 1), or as [N, *S, C] (axis -1)."""

    axis: int

    @staticmethod
    def of(x: Tensor) -> Order:
        return Order(1 if x.is_contiguous() or not _last(x).is_contiguous() else -1)

    def array(self, x: Tensor) -> Array:
        """C-contiguous; a copy only where memory is in another order."""
        return array_of(self.contiguous(x))

    def contiguous(self, x: Tensor) -> Tensor:
        """Over the same memory as `array`: with its axes in the order of memory."""
        return (x if self.axis == 1 else _last(x)).contiguous()

    def tensor(self, array: Array) -> Tensor:
        """[N, C, *S] over the memory of an array in this order."""
        return tensor_of(array if self.axis == 1 else np.moveaxis(array, -1, 1))


def _last(x: Tensor) -> Tensor:
    return x.permute(0, *range(2, x.dim()), 1)
