"""Arrays as the tutorials of tensor expressions use them: `nd.array(x)`, `.asnumpy()`.

An NDArray owns its memory; functions that `renorm.build` makes read it, and write it where it stands for an output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import dtypes


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

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy."""
        return self._array.copy()

    asnumpy = numpy

    def copyfrom(self, source: Any) -> NDArray:
        """Overwrites it with an array of the same shape, converted to its dtype."""
        source = source.numpy() if isinstance(source, NDArray) else np.asarray(source)
        if source.shape != self.shape:
            raise ValueError(f"cannot copy an array of shape {source.shape} into one of shape {self.shape}")
        self._array[...] = source
        return self

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._array.__array_interface__

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        return self._array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[index] = value

    def __repr__(self) -> str:
        return f"<NDArray {self.dtype}{list(self.shape)}>\n{self._array!r}"


def array(source: Any, dtype: str | None = None) -> NDArray:
    """An NDArray with a copy of `source`: a NumPy array, nested lists, or another NDArray.

    dtype: a name; by default that of `source`, and float32 for Python numbers.
    """
    if isinstance(source, NDArray):
        source = source.numpy()
    if dtype is None and not hasattr(source, "dtype"):
        dtype = "float32"
    copy = np.array(source, dtype=None if dtype is None else dtypes.numpy_dtype(dtype), order="C")
    dtypes.from_numpy(copy.dtype)  # refuses dtypes that no program can have
    return NDArray(copy)


def empty(shape: tuple[int, ...], dtype: str = "float32") -> NDArray:
    """An NDArray that is not initialised."""
    return NDArray(np.empty(shape, dtypes.numpy_dtype(dtype)))
