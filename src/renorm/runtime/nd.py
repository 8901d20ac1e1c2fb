"""Arrays as the tutorials of tensor expressions use them: `nd.array(x)`, `.asnumpy()`.

An NDArray owns its memory; functions that `renorm.build` makes read it, and write it where it stands for an output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidInput
from renorm.runtime.device import Device, cpu


class NDArray:
    """A C-contiguous array in CPU memory."""

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray[Any, Any]):
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> str:
        """Its name, as "float32"."""
        return dtypes.from_numpy(self._array.dtype)

    @property
    def ndim(self) -> int:
        return self._array.ndim

    @property
    def device(self) -> Device:
        return cpu(0)

    ctx = device

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy."""
        return self._array.copy()

    asnumpy = numpy

    def copyfrom(self, source: Any) -> NDArray:
        """Overwrites it with an array of the same shape, converted to its dtype."""
        source = source.numpy() if isinstance(source, NDArray) else np.asarray(source)
        if source.shape != self.shape:
            raise InvalidInput(f"cannot copy an array of shape {source.shape} into one of shape {self.shape}")
        self._array[...] = source
        return self

    def copyto(self, target: NDArray | Device) -> NDArray:
        """Copies it into another array of its shape, converted to that dtype, or into a new one on a device; gives
        that array."""
        if isinstance(target, NDArray):
            return target.copyfrom(self)
        return array(self, target)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._array, dtype, copy=copy)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        return self._array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[index] = value

    def __repr__(self) -> str:
        return f"<NDArray {self.dtype}{list(self.shape)}>\n{self._array!r}"


def array(arr: Any, device: Device | None = None, *, dtype: str | None = None, ctx: Device | None = None) -> NDArray:
    """An NDArray with a copy of `arr`: a NumPy array, nested lists, or another NDArray.

    dtype: a name; by default that of `arr`, and float32 for Python numbers. device (ctx in TVM 0.6 and 0.7): cpu(0).
    Raises InvalidInput for what is no array, InvalidTarget for another device.
    """
    _place(device if ctx is None else ctx)
    if isinstance(arr, NDArray):
        arr = arr.numpy()
    if dtype is None and not hasattr(arr, "dtype"):
        dtype = "float32"
    try:
        copy = np.array(arr, dtype=None if dtype is None else dtypes.numpy_dtype(dtype), order="C")
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"nd.array: {type(arr).__name__} {arr!r} is no array", [str(error)]) from None
    dtypes.from_numpy(copy.dtype)  # refuses dtypes that no program can have
    return NDArray(copy)


def empty(
    shape: tuple[int, ...] | int,
    dtype: str = "float32",
    device: Device | None = None,
    *,
    ctx: Device | None = None,
) -> NDArray:
    """An NDArray that is not initialised; device as in `array`."""
    _place(device if ctx is None else ctx)
    try:
        return NDArray(np.empty(shape, dtypes.numpy_dtype(dtype)))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"nd.empty: {shape!r} is not a shape", [str(error)]) from None


def _place(device: Device | None) -> None:
    if device is None:
        return
    if not isinstance(device, Device):
        raise InvalidInput(f"{device!r} is not a device", do="use renorm.cpu(0); a dtype is given by name, dtype=")
    device.require()
