"""Constants that are computed when somebody asks for them, whole or in parts.

    deferred ::= times(array | deferred, factor) | rounded(array | deferred, dtype)
                 and what ops make of weights (ops.shared.winograd_weight)

A large weight goes from the model to where its kernel reads it in parts that stay in cache: what folding and algorithms
make of it is computed in float64 on the way and rounded once, and nothing in between is ever held as a whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from math import prod
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.conversion import converted

Array = np.ndarray[Any, Any]

LARGE = 1 << 14  # elements from which it is worth it
PART = 1 << 19  # bytes in float64 of a part: a share of the second-level cache


class Deferred(ABC):
    """An array in float64 that is not computed yet. shape: its own."""

    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @abstractmethod
    def part(self, axis: int, begin: int, end: int) -> Array:
        """The elements [begin, end) along an axis, in float64."""

    @abstractmethod
    def bound(self) -> float:
        """No element has a larger magnitude; not finite where one of them is not."""

    @abstractmethod
    def key(self) -> Hashable:
        """Equal for those that are computed alike from the same arrays, as long as these live."""

    def exact(self) -> Array:
        """All of it, in float64."""
        with np.errstate(all="ignore"):
            return self.part(0, 0, self.shape[0])

    def rounded(self, dtype: str) -> Array:
        """All of it, rounded once to a dtype; infinite where that cannot hold an element."""
        made = np.empty(self.shape, dtypes.numpy_dtype(dtype))
        with np.errstate(all="ignore"):
            for begin, end in parts(self.shape):
                made[begin:end] = converted(self.part(0, begin, end), dtype)
        return made

    def is_finite(self, dtype: str) -> bool:
        """Return whether all elements are finite, and stay so when they are rounded to a dtype."""
        return fits(self.bound(), dtype) or bool(np.isfinite(self.rounded(dtype)).all())


class Product(Deferred):
    """data * factor, where factor has as many axes and broadcasts to the shape of data."""

    def __init__(self, data: Array | Deferred, factor: Array):
        self.data, self.factor, self.shape = data, factor, data.shape
        self._reached: Array | None = None

    def times(self, factor: Array) -> Product:
        """The product with one more factor."""
        made = Product(self.data, self.factor * factor)
        if made.factor.shape == self.factor.shape:
            made._reached = self._reached
        return made

    def reached(self) -> Array:
        """For each factor the largest magnitude in data that it multiplies, or a bound of it where data is deferred."""
        if self._reached is None:
            shape = self.factor.shape
            held = np.full(shape, self.data.bound()) if isinstance(self.data, Deferred) else extremes(self.data, shape)
            self._reached = held
        return self._reached

    def part(self, axis: int, begin: int, end: int) -> Array:
        factor = self.factor if self.factor.shape[axis] == 1 else cut(self.factor, axis, begin, end)
        made = cut(self.data, axis, begin, end).astype(np.float64)  # in one go, not by NumPy's small buffers
        made *= factor
        return made

    def exact(self) -> Array:
        data = self.data.exact() if isinstance(self.data, Deferred) else self.data
        with np.errstate(all="ignore"):
            return np.multiply(data, self.factor, dtype=np.float64)

    def bound(self) -> float:
        with np.errstate(all="ignore"):
            return largest(self.reached() * self.factor)

    def key(self) -> Hashable:
        return (Product, source_key(self.data), self.factor.shape, self.factor.tobytes())


class Rounded(Deferred):
    """data rounded to a dtype of fewer digits, whose numbers the value's own dtype holds."""

    def __init__(self, data: Array | Deferred, dtype: str):
        self.data, self.dtype, self.shape = data, dtype, data.shape

    def part(self, axis: int, begin: int, end: int) -> Array:
        return self._narrow(cut(self.data, axis, begin, end))

    def exact(self) -> Array:
        return self._narrow(self.data.exact() if isinstance(self.data, Deferred) else self.data)

    def _narrow(self, made: Array) -> Array:
        with np.errstate(all="ignore"):
            return converted(made, self.dtype).astype(np.float64)

    def bound(self) -> float:
        return largest(self.data) * (1.0 + dtypes.unit_roundoff(self.dtype))

    def key(self) -> Hashable:
        return (Rounded, source_key(self.data), self.dtype)


def times(data: Array | Deferred, factor: Array) -> Product:
    """data * factor, not computed yet. factor: broadcasts to the shape of data."""
    spread = factor.reshape((1,) * (len(data.shape) - factor.ndim) + factor.shape)
    return data.times(spread) if isinstance(data, Product) else Product(data, spread)


def cut(source: Array | Deferred, axis: int, begin: int, end: int) -> Array:
    """The elements [begin, end) along an axis; of what is deferred in float64."""
    if isinstance(source, Deferred):
        return source.part(axis, begin, end)
    return source[(slice(None),) * axis + (slice(begin, end),)]


def fits(number: float, dtype: str) -> bool:
    """Return whether a number is finite, and stays so when it is rounded to a dtype."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(converted(np.asarray(number), dtype).astype(np.float64)))


def survives(number: float, dtype: str) -> bool:
    """Return whether a number keeps two thirds of its digits when it is rounded to a dtype, or is 0."""
    kept = dtypes.unit_roundoff(dtype) ** (-2 / 3)
    return fits(number, dtype) and (number == 0 or abs(number) >= kept * dtypes.smallest_number(dtype))


def source_key(source: Array | Deferred) -> Hashable:
    return source.key() if isinstance(source, Deferred) else id(source)


def largest(source: Array | Deferred) -> float:
    """The largest magnitude, or of what is deferred a bound of it; not finite where an element is not."""
    if isinstance(source, Deferred):
        return source.bound()
    if source.size <= 1:
        return float(np.abs(source).max(initial=0.0))
    found = [0.0]
    for begin, end in parts(source.shape):
        piece = source[begin:end]
        found += [float(piece.max()), -float(piece.min())]
    return float(np.max(found))  # NaN where there is one


def extremes(data: Array, shape: tuple[int, ...]) -> Array:
    """The largest magnitudes over all axes along which `shape` has an extent of 1: of that shape, in float64."""
    if not shape:
        return np.abs(np.asarray(data, np.float64))
    if not data.size:
        return np.zeros(shape)
    axes = tuple(a for a, extent in enumerate(shape) if extent == 1)
    found = list[Array]()
    for begin, end in parts(data.shape):
        piece = data[begin:end]
        found.append(np.maximum(piece.max(axes, keepdims=True), -piece.min(axes, keepdims=True)).astype(np.float64))
    joined = np.concatenate(found)
    return joined.max(0, keepdims=True) if 0 in axes else joined


def parts(shape: tuple[int, ...], axis: int = 0, unit: int = 1) -> Iterator[tuple[int, int]]:
    """(begin, end) along an axis of parts that have about PART bytes in float64 and begin at multiples of `unit`."""
    extent, row = shape[axis], 8 * prod(shape[:axis]) * prod(shape[axis + 1 :])
    step = max(1, PART // max(1, row * unit)) * unit
    for begin in range(0, extent, step):
        yield begin, min(begin + step, extent)
