"""Arrays in the memory of a GPU: those that callers give, by DLPack, and those that they get."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import static
from renorm.core.errors import InvalidInput
from renorm.runtime.arrays import Array, Slot
from renorm.runtime.dlpack import CUDA, borrowed
from renorm.runtime.gpu.device import Device
from renorm.runtime.program import TensorSpec


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
        """Return the bytes of its elements."""
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
        value.ready(stream)
        return Borrowed(value.address, spec.dtype, static(spec.shape), True, value.index, value)
    if is_ready and hasattr(value, "data_ptr"):  # a tensor of PyTorch, whose __dlpack__ takes 20 us
        kind, contiguous = str(value.dtype).rpartition(".")[2], value.is_contiguous()
        return Borrowed(value.data_ptr(), kind, tuple(value.shape), contiguous, value.get_device(), value)
    t = borrowed(value, stream)
    return Borrowed(t.address, t.dtype, t.shape, t.is_contiguous, t.index, (t, value))


class DeviceArray:
    """A result in the memory of a GPU, ready when `run` has returned, or in the order of the stream that it was given.
    torch.as_tensor and cupy.asarray take it where it lies (the CUDA array interface, which has no bfloat16); `numpy()`
    is a copy. Its memory is given back with it."""

    def __init__(self, spec: TensorSpec, index: int, device: Device, stream: int):
        """stream: in whose order it is ready; 0: it is."""
        self.spec, self.index, self.stream, self._device = spec, index, stream, device
        self.address = device.allocate(max(1, spec.nbytes))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the extents."""
        return static(self.spec.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""
        return self.spec.nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind, address = dtypes.numpy_dtype(self.spec.dtype), self.address if self.nbytes else 0
        if kind.isbuiltin == 2:  # of ml_dtypes
            of = f"{self.spec}: the CUDA array interface has no {self.spec.dtype}"
            raise InvalidInput(of, do="give run out=, or numpy()")
        return {
            "shape": self.shape, "typestr": kind.str, "data": (address, False), "version": 3,
            "stream": self.stream or None,
        }  # fmt: skip

    def numpy(self) -> Array:
        """Return a copy in the memory of the host."""
        array = np.empty(self.shape, dtypes.numpy_dtype(self.spec.dtype))
        if array.nbytes:
            self._device.read(array, self.address, self.stream)
        self._device.wait(self.stream)
        return array

    def ready(self, stream: int) -> None:
        """Wait until it can be read in the order of a stream."""
        if self.stream not in (0, stream):
            self._device.wait(self.stream)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._device.free(self.address)
