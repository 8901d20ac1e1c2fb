"""Operands of callers, as the kernels see them: data as [N, C] or [N, C, S] without a copy, parameters as [C].

Where x lies on a GPU, results do, too. What is per channel may come from the host, and numbers that ranks exchange, or
that two kernels share, are read there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import index
from typing import Any

import numpy as np

from renorm.core.dtypes import FLOATS
from renorm.core.errors import InvalidInput
from renorm.core.lru import Latest
from renorm.ops.cast import Cast
from renorm.runtime.arrays import Array, view_of
from renorm.runtime.gpu import device as devices
from renorm.runtime.gpu.arrays import DeviceArray, View, is_on_gpu
from renorm.training import kernels

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_rates = Latest[Any, View]("a momentum on a GPU", 64)  # they seldom change


@dataclass(frozen=True)
class Channels:
    """How a shape falls into channels. outer, count, inner: what stands before the channels, they themselves, what
    stands after them; shape: of the channels; others: the shape without them; kernel: as kernels see it."""

    outer: int
    count: int
    inner: int
    shape: tuple[int, ...]
    others: tuple[int, ...]
    kernel: tuple[int, ...]
    mask: tuple[int, ...]

    @property
    def values(self) -> int:
        """The number of values per channel."""
        return self.outer * self.inner


@lru_cache(maxsize=1024)
def channels_of(shape: tuple[int, ...], axis: int | tuple[int, ...]) -> Channels:
    """Return how `shape` falls into channels. axis: theirs, or neighbouring axes that name a channel together; counted
    from the end if negative. Raises InvalidInput."""
    rank = len(shape)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    if rank < 2 or not axes or not all(-rank <= a < rank for a in axes):
        raise InvalidInput(
            f"axis {axis} of x {list(shape)}", [f"expected x of rank 2 or more and an axis of {-rank} to {rank - 1}"]
        )
    own = sorted(a % rank for a in axes)
    first, last = own[0], own[-1]
    if own != list(range(first, last + 1)):
        raise InvalidInput(f"axes {list(axis) if not isinstance(axis, int) else axis} are not neighbours")
    outer, count, inner = prod(shape[:first]), prod(shape[first : last + 1]), prod(shape[last + 1 :])
    small = (outer,) if inner == 1 else (outer, inner)
    kernel = (outer, count) if inner == 1 else (outer, count, inner)
    return Channels(outer, count, inner, shape[first : last + 1], (*shape[:first], *shape[last + 1 :]), kernel, small)


def channels_for(x: Array, axis: Any, mode: str, has_modes: bool = True) -> Channels:
    """Return the channels of x. mode: "spatial", or "per_activation": all axes but the first name a channel."""
    if mode == "per_activation" and has_modes:
        return channels_of(x.shape, tuple(range(1, x.ndim)))
    if mode != "spatial":
        known = "spatial, per_activation" if has_modes else "spatial (per_activation is cudnn's)"
        raise InvalidInput(f"mode is {mode!r}", [f"known: {known}"])
    try:
        axis = tuple(map(index, axis)) if isinstance(axis, (tuple, list, range)) else index(axis)
    except TypeError:
        raise InvalidInput(f"axis is {axis!r}", ["expected an integer, or a tuple of neighbouring ones"]) from None
    return channels_of(x.shape, axis)


def array_of(name: str, given: Any) -> Any:
    """Return the array of a caller, over the same memory: a View of one on a GPU."""
    a = given if type(given) is np.ndarray else View.of(given) if is_on_gpu(given) else view_of(given)
    if isinstance(a, str):
        raise InvalidInput(f"{name} is {a}")
    return a


def host(given: Any) -> Array:
    """Return an array in memory of the host: itself, or a copy, which waits for the GPU."""
    if isinstance(given, DeviceArray):
        return given.numpy()
    return given.numpy(_device(given.index)) if isinstance(given, View) else given


def converted(a: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array of a dtype where it lies: itself, or a copy."""
    if a.dtype == dtype:
        return a
    if isinstance(a, np.ndarray):
        return a.astype(dtype)
    view = View.of(a) if isinstance(a, DeviceArray) else a
    return kernels.run(Cast, (("to", dtype.name),), [view], None)[0]


def _device(index: int) -> devices.Device:
    return devices.device(kernels.gpu(index).arch, index)


def _place(a: Any) -> str:
    return f"cuda({a.index})" if isinstance(a, View) else "the host"


def data(name: str, given: Any, like: Any = None) -> Any:
    """Return a floating tensor where it lies. like: what it must have the shape and dtype of. Raises InvalidInput."""
    a = array_of(name, given)
    if not _is_float(a.dtype):
        raise InvalidInput(f"{name} is {a.dtype}", [f"expected one of {', '.join(FLOATS)}"])
    if like is not None and (a.shape != like.shape or a.dtype != like.dtype):
        raise InvalidInput(f"{name} is {_type(a)}", [f"expected {_type(like)}, as x"])
    if like is not None:
        _check_place(name, a, like)
    _check_layout(name, a)
    return a


def _check_place(name: str, a: Any, x: Any) -> None:
    """Raise InvalidInput where two arrays do not lie in one memory."""
    if isinstance(a, View) == isinstance(x, View) and (not isinstance(a, View) or a.index == x.index):
        return
    raise InvalidInput(f"{name} lies on {_place(a)}", [f"x on {_place(x)}"], f"move {name} to where x is")


@lru_cache  # the name of a dtype takes longer than all else here
def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.name in FLOATS and dtype.isnative


def _check_layout(name: str, a: Any) -> None:
    if isinstance(a, View):
        if not a.is_contiguous:
            do = f"give {name}.contiguous(), or the axis order it lies in and axis="
            raise InvalidInput(f"{name} is not C-contiguous", [f"shape {list(a.shape)}, on {_place(a)}"], do)
        return
    flags = a.flags
    if not (flags.c_contiguous and flags.aligned):
        wrong = "not C-contiguous" if not flags.c_contiguous else "not aligned to its elements"
        facts = [f"shape {list(a.shape)}, strides {list(a.strides)} bytes"]
        raise InvalidInput(
            f"{name} is {wrong}", facts, f"give np.ascontiguousarray({name}), or the axis order it lies in and axis="
        )


def statistics_dtype(x: Any) -> np.dtype[Any]:
    """Return the dtype of statistics of x: float64 for float64, else float32."""
    return FLOAT64 if x.dtype == FLOAT64 else FLOAT32


def per_channel(name: str, given: Any, channels: Channels, dtype: np.dtype[Any]) -> Any:
    """Return one number per channel, as [C] of `dtype`; narrower floats are widened, which is exact. Raises
    InvalidInput."""
    a = array_of(name, given)
    if isinstance(a, View):
        _check_layout(name, a)
    if a.shape != channels.shape and a.shape != (channels.count,):
        raise InvalidInput(
            f"{name} has shape {list(a.shape)}", [f"expected {list(channels.shape)}: one number for each channel of x"]
        )
    if a.dtype != dtype:
        if not _is_float(a.dtype) or a.dtype.itemsize >= dtype.itemsize:
            raise InvalidInput(
                f"{name} is {a.dtype}",
                [f"expected {dtype.name}, or a narrower float"],
                f"convert with {name}.astype(np.{dtype.name}); renorm never rounds silently",
            )
        a = converted(a, dtype)
    if not isinstance(a, np.ndarray):
        return array_of(name, a).reshape(channels.count)
    return a if a.ndim == 1 and a.flags.c_contiguous else np.ascontiguousarray(a).reshape(channels.count)


def mask_of(given: Any, channels: Channels) -> Array:
    """Return the mask as bool[N] or bool[N, S]. Raises InvalidInput."""
    a = np.asarray(given) if isinstance(given, (list, tuple)) else host(array_of("mask", given))
    if a.dtype != np.bool_:
        is_binary = a.dtype.kind in "iuf" and bool(np.isin(a, (0, 1)).all())
        if not is_binary:
            raise InvalidInput(f"mask is {a.dtype} with other values than 0 and 1", ["expected bool"])
        a = a.astype(np.bool_)
    try:
        whole = np.broadcast_to(a, channels.others)
    except ValueError:
        raise InvalidInput(
            f"mask has shape {list(a.shape)}",
            [f"expected one that broadcasts to {list(channels.others)}: x without its channels"],
        ) from None
    return np.ascontiguousarray(whole).reshape(channels.mask)


def _type(a: Any) -> str:
    return f"{a.dtype.name}{list(a.shape)}"


class Batch:
    """A tensor as batch norm sees it. x: as the caller gave it; kernel: [N, C] or [N, C, S] over the same memory;
    dtype: of its statistics; mask: bool[N] or bool[N, S], or None."""

    __slots__ = ("channels", "dtype", "kernel", "mask", "x")

    def __init__(self, x: Any, axis: Any, mode: str = "spatial", mask: Any = None, *, has_modes: bool = True):
        self.x = data("x", x)
        self.channels = channels_for(self.x, axis, mode, has_modes)
        self.dtype = statistics_dtype(self.x)
        self.kernel = self.x.reshape(self.channels.kernel)
        self.mask = None if mask is None else mask_of(mask, self.channels)

    def __str__(self) -> str:
        return f"x {_type(self.x)}"

    @property
    def is_on_gpu(self) -> bool:
        return isinstance(self.x, View)

    @property
    def named(self) -> str:
        """Return what its parts on all ranks have in common. Their layout and size they need not."""
        return f"{self.channels.count} channels of {self.x.dtype.name}"

    @property
    def count(self) -> int:
        """Values per channel that the mask lets through."""
        return self.channels.values if self.mask is None else int(np.count_nonzero(self.mask))

    def per_channel(self, name: str, given: Any) -> Any:
        return None if given is None else self._of_channels(name, given, self.dtype)

    def wide(self, name: str, given: Any) -> Any:
        """Return `per_channel` in float64."""
        return self._of_channels(name, given, FLOAT64)

    def _of_channels(self, name: str, given: Any, dtype: np.dtype[Any]) -> Any:
        a = per_channel(name, given, self.channels, dtype)
        if isinstance(a, View):
            _check_place(name, a, self.x)
        return a

    def rate(self, share: float) -> Any:
        """Return a momentum as kernels read it."""
        number = np.array([share])
        if not self.is_on_gpu:
            return number
        key = share, self.x.index
        return _rates.get(key) or _rates.made(key, lambda: View.of(self._placed(number)))

    def tensor(self, name: str, given: Any) -> Any:
        """Return another tensor of the type of x, as kernels see it."""
        return None if given is None else data(name, given, self.x).reshape(self.channels.kernel)

    def output(self, name: str, given: Any) -> Any:
        """Return an array of the caller's to write into, as kernels see it."""
        a = self.tensor(name, given)
        if isinstance(a, np.ndarray) and not array_of(name, given).flags.writeable:
            raise InvalidInput(f"{name} is read-only", [f"expected writable {_type(self.x)}"])
        return a

    def shaped(self, array: Any) -> Any:
        """Return a result of a kernel in the shape of x."""
        return array.reshape(self.x.shape)

    def result(self, array: Any, out: Any) -> Any:
        """Return `out`, which a kernel has written, or where it is None a result of a kernel in the shape of x."""
        return self.shaped(array) if out is None else out

    def of_channels(self, array: Any) -> Any:
        """Return a result [C] in the shape of the channels, where x lies."""
        return (self._placed(array) if self.is_on_gpu else array).reshape(self.channels.shape)

    def _placed(self, array: Any) -> DeviceArray:
        if isinstance(array, DeviceArray):
            return array
        return DeviceArray.of(np.ascontiguousarray(array), self.x.index, _device(self.x.index), 0)
