"""How far results may be from the network's definition in float64. Whoever compares results asks here.

    tolerance(d) = sqrt(LAYERS) * (u(d) + sqrt(TERMS) * u(a))        a: the dtype in which arithmetic on d runs

u is half the distance from 1 to the next number. A layer stores its result in d, which rounds by u(d), and sums in a:
independent roundings of n terms add up to sqrt(n) roundings (Higham and Mary, SIAM J. Sci. Comput. 41, 2019), and those
of layers one behind the other in the same way. It is relative to the largest value of each channel. A channel in which
terms cancel is as sensitive as they are large, which no table can know: there `judge` takes what rounding the network
otherwise moves, as it was measured (passes.sensitivity), MARGIN times over.

Integers and truths have no tolerance: the next one is another one. They differ where roundings of floating values that
they are computed from do not decide them. NaN stands where NaN stands and an infinity where the same one does, but
where roundings decide that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.comparison import distances, is_counted, largest

Array = np.ndarray[Any, Any]

LAYERS = 256  # one behind the other, more than in any network that we know
TERMS = 10_000  # of one sum: 1,111 channels of 3 x 3
MARGIN = 4.0  # measured movements are those of roundings AMPLITUDE times as large, so that 16 deviations are allowed
AMPLITUDE = 4.0
DRAWS = (4, 16)  # with the first number of movements nearly all is decided; what they would refuse is asked again

Movements = Callable[[int], Sequence[Array]]
"""So many times how far the elements of a result move when the network is rounded otherwise, AMPLITUDE times as much;
inf where a number becomes NaN or infinite, or the other way round."""


def tolerance(dtype: str, layers: int = LAYERS) -> float:
    """The most that a value of this dtype may be off behind so many layers, relative to the largest of its channel; 0
    for integers and truths."""
    if not dtypes.is_float(dtype):
        return 0.0
    arithmetic = dtypes.unit_roundoff(dtypes.compute_dtype(dtype))
    return sqrt(layers) * (dtypes.unit_roundoff(dtype) + sqrt(TERMS) * arithmetic)


@dataclass(frozen=True)
class Judged:
    """How far an array is from what was expected.

    error: the largest difference, relative to the largest value of all; absolute for integers. differing: elements that
    are off by more than is allowed; worst: index of the one farthest beyond. open: elements that roundings decide
    (integers, NaN and infinities), which were not compared, nor count in `error`. blind: channels that roundings move
    as far as their values are large, in which zeros could not be told from results.
    """

    error: float
    differing: int = 0
    worst: tuple[int, ...] = ()
    open: int = 0
    blind: int = 0

    @property
    def agrees(self) -> bool:
        return not self.differing

    @property
    def reservation(self) -> str:
        """A part of a sentence on what was not compared; "" where all was."""
        parts = [f"{self.open} elements are decided by rounding"] if self.open else []
        parts += [f"{self.blind} channels are moved by rounding as far as they are large"] if self.blind else []
        return ", ".join(parts)


def judge(found: Array, expected: Array, relative: float, movements: Movements | None = None) -> Judged:
    """Compares an array with what was expected, element by element and channel by channel.

    relative: see `tolerance`. movements: of what is expected; None where the network's sensitivity is not known, and
    nothing but `relative` is allowed.
    """
    if found.shape != expected.shape:
        return Judged(float("inf"), expected.size)
    errors = distances(found, expected)
    counted = is_counted(expected)
    scale = 1.0 if counted else largest(expected) or 1.0
    within = np.zeros(()) if counted else _everywhere([relative * s for s in _by_channel(expected)])
    is_beyond = errors > within
    if not is_beyond.any():
        return Judged(float(errors.max(initial=0.0)) / scale)
    is_open, blind = np.zeros((), bool), 0
    for moved in map(movements, DRAWS) if movements else ():
        if counted:
            is_open = is_beyond & (errors <= np.maximum.reduce(moved))
            is_wrong = is_beyond & ~is_open
        else:
            is_open = np.logical_or.reduce([np.isinf(m) for m in moved])
            deviation = np.where(is_open, 0.0, np.sqrt(np.mean(np.square(moved), axis=0)))
            is_wrong, blind = _beyond(np.where(is_open, 0.0, errors), deviation, expected, relative)
        if not is_wrong.any():
            return Judged(_largest(errors, ~is_open) / scale, open=int(is_open.sum()), blind=blind)
        is_beyond = is_wrong
    worst = np.unravel_index(int(np.where(is_beyond, errors - within, -1.0).argmax()), errors.shape)
    error = _largest(errors, ~is_open) / scale
    return Judged(error, int(is_beyond.sum()), tuple(map(int, worst)), int(is_open.sum()), blind)


def _largest(errors: Array, which: Array) -> float:
    return float(np.where(which, errors, 0.0).max(initial=0.0))


def _beyond(errors: Array, deviation: Array, expected: Array, relative: float) -> tuple[Array, int]:
    """Elements that are too far off, and how many channels are blind.

    A channel may be off by what `relative` says anywhere. What is beyond that may be neither farther than MARGIN
    deviations of the element that moves most, nor in all (root of the sum of squares) than MARGIN of those of all.
    """
    is_wrong, blind = np.zeros(errors.shape, bool), errors.size
    columns = zip(_by_channel(expected), _by_channel(deviation), _squares(deviation), _axes(errors), strict=True)
    for size, most, squares, others in columns:
        is_beyond = errors > relative * size
        total = np.square(np.where(is_beyond, errors, 0.0)).sum(axis=others, keepdims=True)
        is_wrong |= is_beyond & ((errors > MARGIN * most) | (total > MARGIN**2 * squares))
        blind = min(blind, int(((size <= MARGIN * most) & (size > 0)).sum()))
    return is_wrong, blind


def _axes(array: Array) -> Iterator[tuple[int, ...]]:
    """All axes but the one that may be the channels': the second of images, the last of rows and sequences."""
    for axis in dict.fromkeys((min(1, array.ndim - 1), array.ndim - 1)) if array.ndim else (0,):
        yield tuple(a for a in range(array.ndim) if a != axis)


def _by_channel(array: Array) -> list[Array]:
    """The largest finite absolute value of each channel, for each axis that may be theirs."""
    wide = np.abs(np.asarray(array, np.float64))
    finite = np.where(np.isfinite(wide), wide, 0.0)
    return [finite.max(axis=others, keepdims=True, initial=0.0) for others in _axes(array)]


def _squares(array: Array) -> list[Array]:
    return [np.square(array).sum(axis=others, keepdims=True) for others in _axes(array)]


def _everywhere(limits: Sequence[Array]) -> Array:
    """The least of all limits for each element."""
    least = limits[0]
    for other in limits[1:]:
        least = np.minimum(least, other)
    return least
