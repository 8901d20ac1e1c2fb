"""Arrays in the memory of a GPU: those that callers give, by DLPack, and those that they get."""

from __future__ import annotations

from dataclasses import dataclass, replace
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

_ANY = -1  # stream of DLPack: nobody has to be waited for


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
        if self.shape != slot.shape or dtypes.numpy_dtype(self.dtype) != dtypes.numpy_dtype(slot.spec.dtype):
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
    if isinstance(value, View):
        return replace(borrow(value.value, stream, is_ready), shape=value.shape)
    if isinstance(value, DeviceArray):
        spec = value.spec
        value.ready(stream)
        return Borrowed(value.address, spec.dtype, static(spec.shape), True, value.index, value)
    if is_ready and hasattr(value, "data_ptr"):  # a tensor of PyTorch, whose __dlpack__ takes 20 us
        kind, contiguous = str(value.dtype).rpartition(".")[2], value.is_contiguous()
        return Borrowed(value.data_ptr(), kind, tuple(value.shape), contiguous, value.get_device(), value)
    t = borrowed(value, stream)
    return Borrowed(t.address, t.dtype, t.shape, t.is_contiguous, t.index, (t, value))


@dataclass(frozen=True)
class View:
    """A caller's array of the GPU `index` in another shape. Its elements are read where a kernel or `numpy` is."""

    value: Any
    index: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_contiguous: bool = True
    is_cuda = True  # as PyTorch's tensors say it

    @staticmethod
    def of(value: Any) -> View:
        """Return an array as it is. Raises InvalidInput where NumPy has no such dtype."""
        if isinstance(value, DeviceArray):
            return View(value, value.index, dtypes.numpy_dtype(value.spec.dtype), value.shape)
        t = borrow(value, _ANY, True)
        if t.dtype not in dtypes.ALL:
            raise InvalidInput(
                f"an array on cuda({t.index}) is {t.dtype}", [f"expected one of {', '.join(dtypes.ALL)}"]
            )
        return View(value, t.index, dtypes.numpy_dtype(t.dtype), t.shape, t.is_contiguous)

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    def reshape(self, *shape: Any) -> View:
        """Return it in a shape of as many elements."""
        return replace(self, shape=_as_many(self.shape, shape))

    def numpy(self, device: Device) -> Array:
        """Return a copy in the memory of the host."""
        array = np.empty(self.shape, self.dtype)
        if array.nbytes:
            device.read(array, borrow(self.value, device.stream, False).address, device.stream)
            device.wait(device.stream)
        return array


class _Memory:
    """Memory of a device, given back with it."""

    def __init__(self, device: Device, nbytes: int):
        self._device = device
        self.address = device.allocate(max(1, nbytes))

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._device.free(self.address)


class DeviceArray:
    """A result in the memory of a GPU, ready when `run` has returned, or in the order of the stream that it was given.
    torch.as_tensor and cupy.asarray take it where it lies (the CUDA array interface, which has no bfloat16); `numpy()`
    is a copy. Its memory is given back with the last array that lies there."""

    def __init__(self, spec: TensorSpec, index: int, device: Device, stream: int, *, memory: Any = None):
        """stream: in whose order it is ready; 0: it is. memory: of another array, None: fresh."""
        self.spec, self.index, self.stream, self._device = spec, index, stream, device
        self._memory = _Memory(device, spec.nbytes) if memory is None else memory

    @staticmethod
    def of(array: Array, index: int, device: Device, stream: int) -> DeviceArray:
        """Return a copy of a C-contiguous array of the host, in the order of a stream; 0: it is there at once."""
        spec = TensorSpec("copy", dtypes.from_numpy(array.dtype), array.shape)
        found = DeviceArray(spec, index, device, stream)
        if array.nbytes:
            device.write(found.address, array, stream)
        if not stream:
            device.wait(stream)
        return found

    @property
    def address(self) -> int:
        """Return where its first element lies."""
        return self._memory.address

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the extents."""
        return static(self.spec.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype that NumPy has for its elements."""
        return dtypes.numpy_dtype(self.spec.dtype)

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""
        return self.spec.nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind, address = self.dtype, self.address if self.nbytes else 0
        if kind.isbuiltin == 2:  # of ml_dtypes
            of = f"{self.spec}: the CUDA array interface has no {self.spec.dtype}"
            raise InvalidInput(of, do="give run out=, or numpy()")
        return {
            "shape": self.shape, "typestr": kind.str, "data": (address, False), "version": 3,
            "stream": self.stream or None,
        }  # fmt: skip

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return an array over the same memory, in a shape of as many elements."""
        spec = replace(self.spec, shape=_as_many(self.shape, shape))
        return DeviceArray(spec, self.index, self._device, self.stream, memory=self._memory)

    def copy(self) -> DeviceArray:
        """Return a copy in the memory of the GPU, in the order of the same stream."""
        found = DeviceArray(self.spec, self.index, self._device, self.stream)
        if self.nbytes:
            self._device.copy(found.address, self.address, self.nbytes, self.stream)
        if not self.stream:
            self._device.wait(self.stream)
        return found

    def numpy(self) -> Array:
        """Return a copy in the memory of the host."""
        array = np.empty(self.shape, self.dtype)
        if array.nbytes:
            self._device.read(array, self.address, self.stream)
        self._device.wait(self.stream)
        return array

    def ready(self, stream: int) -> None:
        """Wait until it can be read in the order of a stream."""
        if self.stream not in (0, stream):
            self._device.wait(self.stream)


def _as_many(old: tuple[int, ...], given: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape that `reshape` was given, as one argument or several. Raises InvalidInput for another number of
    elements."""
    shape = tuple(given[0]) if len(given) == 1 and not isinstance(given[0], int) else given
    if prod(shape) != prod(old):
        raise InvalidInput(f"shape {list(old)} cannot become {list(shape)}", [f"expected {prod(old)} elements"])
    return shape
