"""Arrays in the memory of a GPU: those that callers give, by DLPack, and those that they get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import static
from renorm.runtime.arrays import Array, Slot
from renorm.runtime.dlpack import CUDA, borrowed
from renorm.runtime.program import TensorSpec

ALIGNED = 16  # bytes: the widest access of a thread; what lies otherwise is copied first


@dataclass(frozen=True)
class Borrowed:
    """A caller's array. address: of its first element. dtype: a name of core.dtypes, or what is none. holder: keeps the
    memory alive."""

    __slots__ = ("address", "dtype", "holder", "index", "is_contiguous", "shape")

    address: int
    dtype: str
    shape: tuple[int, ...]
    is_contiguous: bool
    index: int
    holder: Any

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * dtypes.itemsize(self.dtype)

    def mismatch(self, slot: Slot, index: int) -> str:
        """Return how it differs from what a device's module takes for a slot; "" where it fits."""
        if self.shape != slot.shape or self.dtype != slot.spec.dtype:
            return f"{self.dtype}{list(self.shape)}, expected {slot.spec.dtype}{list(slot.shape)}"
        if self.index != index:
            return f"on cuda({self.index}), expected cuda({index})"
        return "" if self.is_contiguous else "not C-contiguous"


def is_on_gpu(value: Any) -> bool:
    """Return whether an array that a caller gives lies in the memory of a GPU."""
    if isinstance(value, (DeviceArray, np.ndarray)):
        return isinstance(value, DeviceArray)
    if (is_cuda := getattr(value, "is_cuda", None)) is not None:  # PyTorch says so in a tenth of the time
        return bool(is_cuda)
    return hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] in CUDA


def borrow(value: Any, stream: int, is_ready: bool) -> Borrowed:
    """Return a caller's array. is_ready: in the order of a stream; else its producer makes it so."""
    if isinstance(value, DeviceArray):
        spec = value.spec
        return Borrowed(value.address, spec.dtype, static(spec.shape), True, value.index, value)
    if is_ready and hasattr(value, "data_ptr"):  # a tensor of PyTorch, whose __dlpack__ takes 20 us
        kind, contiguous = str(value.dtype).rpartition(".")[2], value.is_contiguous()
        return Borrowed(value.data_ptr(), kind, tuple(value.shape), contiguous, value.get_device(), value)
    t = borrowed(value, stream)
    return Borrowed(t.address, t.dtype, t.shape, t.is_contiguous, t.index, (t, value))


class DeviceArray:
    """A result in the memory of a GPU, ready when `run` has returned, or in the order of the stream that it was given.
    torch.as_tensor and cupy.asarray take it where it lies (the CUDA array
    interface); `numpy()` is a copy. Its memory is given back with it."""

    def __init__(self, spec: TensorSpec, index: int, allocate: Callable[[int], int], free: Callable[[int], None]):
        self.spec, self.index, self._free = spec, index, free
        self.address = allocate(max(1, spec.nbytes))
        self.read: Callable[[Array], None] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return static(self.spec.shape)

    @property
    def nbytes(self) -> int:
        return self.spec.nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind = dtypes.numpy_dtype(self.spec.dtype)
        return {"shape": self.shape, "typestr": kind.str, "data": (self.address, False), "version": 3}

    def numpy(self) -> Array:
        """Return a copy in the memory of the host."""
        array = np.empty(self.shape, dtypes.numpy_dtype(self.spec.dtype))
        assert self.read is not None
        self.read(array)
        return array

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._free(self.address)
