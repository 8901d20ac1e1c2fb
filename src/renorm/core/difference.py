"""The difference of two arrays: how large it is, which elements are off by too much, and by how much.

Errors are relative to the largest expected value, as all of renorm's promises are; those of integers are absolute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Shape, format_shape
from renorm.core.tolerance import DRAWS, MARGIN, Movements, Tolerance, tolerance

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Difference:
    """The difference of an array from the expected one.

    error: the largest |found - expected| among elements that were compared, relative to the largest expected value
    (absolute for integers, and where that value is 0). differing: elements that are off by more than is allowed; worst:
    index of the worst of them. undecided: elements that rounding decides (integers, NaN and infinities), which
    were not compared. blind: channels that rounding moves as far as their values are large, so that zeros could not be
    told from results. why: a sentence, where shapes or types differ.

    Of a tensor of two networks (see `differ`), `name` and `after` are its names in them, `moved` says how its axes were
    moved, `distance` is the largest |before - after|, `largest` the largest |before|, and `limit` what is allowed where
    the tensor is largest. node, op: what computes it, where that was searched for. own, departs: where it differs from
    a runtime, the errors of renorm and of the runtime beside the definition in float64; is_excused: renorm is right by
    that and the runtime is not.
    """

    error: float
    differing: int = 0
    worst: tuple[int, ...] = ()
    undecided: int = 0
    blind: int = 0
    why: str = ""
    name: str = ""
    after: str = ""
    before_type: str = ""
    after_type: str = ""
    moved: str = ""
    node: str = ""
    op: str = ""
    count: int = 0
    distance: float = 0.0
    largest: float = 0.0
    limit: float = 0.0
    own: float | None = None
    departs: float | None = None
    is_excused: bool = False

    @property
    def agrees(self) -> bool:
        return self.is_excused or not (self.differing or self.why)

    @property
    def badness(self) -> tuple[bool, float]:
        """Return what differences are ordered by."""
        return not self.agrees, self.error

    @property
    def unchecked(self) -> str:
        """Return what was not compared, as a part of a sentence; "" where all was."""
        parts = [f"{self.undecided} elements are decided by rounding"] if self.undecided else []
        parts += [f"{self.blind} channels are moved by rounding as far as they are large"] if self.blind else []
        return ", ".join(parts)

    def sentence(self, what: str, dtype: str) -> str:
        """Return what a report says of a result `what` that differs on random inputs."""
        if self.why:
            return f"on random inputs {what} differs: {self.why}"
        far = f"{self.error:.2g} of its largest element" if dtypes.is_float(dtype) else f"{self.error:g}"
        return f"on random inputs {what} differs by {far} ({self.differing} elements, most at {list(self.worst)})"


def largest(array: Array) -> float:
    """Return the largest finite absolute value; 0.0 where there is none."""
    return float(_finite(array).max(initial=0.0))


@np.errstate(all="ignore")
def distances(a: Array, b: Array) -> Array:
    """Return |a - b| element by element, without rounding for integers: 0 where both are NaN or the same infinity, inf
    where only one is. Shapes are equal."""
    # float64 has fewer digits than 64-bit integers, long double has 64 or more on every machine that code runs on
    dtype = np.longdouble if any(_is_counted(x) and x.itemsize == 8 for x in (a, b)) else np.float64
    wide, other = np.asarray(a, dtype), np.asarray(b, dtype)
    found = np.where((wide == other) | (np.isnan(wide) & np.isnan(other)), 0.0, np.abs(wide - other))
    return np.where(np.isnan(found), np.inf, found)


def relative_error(found: Array, expected: Array) -> float:
    """Return `Difference.error`; inf where shapes differ, or NaN and infinities do not stand in the same places."""
    return judge(found, expected, 0.0).error


@np.errstate(all="ignore")
def judge(
    found: Array, expected: Array, relative: float, movements: Movements | None = None, *, limit: float | None = None
) -> Difference:
    """Compare an array with the expected one, element by element.

    relative: to the largest value of each channel, see `core.tolerance.tolerance`. movements: of what is expected; None
    where the sensitivity of the network is not known, and nothing but `relative` is allowed. limit: allowed in the
    whole array, in the place of both.
    """
    is_counted, size = _is_counted(expected), largest(expected)
    if found.shape != expected.shape:
        why, far = f"shapes differ: {format_shape(expected.shape)} and {format_shape(found.shape)}", float("inf")
        return Difference(far, expected.size, why=why, count=expected.size, distance=far, largest=size)
    errors = distances(found, expected)
    if limit is not None or is_counted:
        is_beyond = errors > (limit or 0.0)
    else:
        is_beyond, _ = _beyond(errors, np.zeros(errors.shape), expected, relative)
    is_wrong, is_undecided, blind = is_beyond, np.zeros((), bool), 0
    for moved in map(movements, DRAWS) if movements is not None and limit is None and is_beyond.any() else ():
        most: Array = np.max(moved, axis=0)
        if is_counted:
            is_undecided = is_beyond & (errors <= most)
            is_wrong = is_beyond & ~is_undecided
        else:
            is_undecided, scale = np.isinf(most), np.where(most > 0, most, 1.0)  # squares of 1e200 are infinite
            deviation = np.where(is_undecided, 0.0, scale * np.sqrt(np.mean(np.square(moved / scale), axis=0)))
            is_wrong, blind = _beyond(np.where(is_undecided, 0.0, errors), deviation, expected, relative)
        if not is_wrong.any():
            break
    worst = np.where(is_wrong | ~is_wrong.any(), errors, -1.0).argmax() if errors.size else None
    return Difference(
        float(np.where(is_undecided, 0.0, errors).max(initial=0.0)) / (1.0 if is_counted else size or 1.0),
        int(is_wrong.sum()),
        () if worst is None else tuple(map(int, np.unravel_index(int(worst), errors.shape))),
        int(is_undecided.sum()),
        blind,
        count=errors.size,
        distance=float(errors.max(initial=0.0)),
        largest=size,
        limit=limit if limit is not None else 0.0 if is_counted else relative * size,
    )


def differ(
    name: str,
    before: Array,
    after: Array,
    allowed: Tolerance,
    judged: Callable[[Array], Difference] | None = None,
    after_name: str = "",
) -> Difference:
    """Return the difference of a tensor of two networks, one of which may have channels last and the other first.

    judged: compares `after` with `before` where `allowed` leaves that to dtype and sensitivity; None where the
    sensitivity is not known, and the dtype alone says what is allowed.
    """
    after, moved = move_axes(after, before.shape) or (after, "")
    if allowed.relative is not None:
        share = allowed.steps if _is_counted(before) else allowed.relative * largest(before)
        found = judge(after, before, 0.0, limit=max(allowed.absolute, share))
    else:
        found = judged(after) if judged else judge(after, before, tolerance(dtypes.from_numpy(before.dtype)))
    return replace(
        found,
        why=found.why or (f"types differ: {before.dtype} and {after.dtype}" if before.dtype != after.dtype else ""),
        name=name,
        after=after_name or name,
        before_type=type_of(before),
        after_type=type_of(after),
        moved=moved,
    )


def move_axes(array: Array, shape: Shape) -> tuple[Array, str] | None:
    """Return the array with its axes in the order of `shape`, whose open extents fit anything, and what was moved; None
    where neither order fits."""

    def fits(found: Sequence[int]) -> bool:
        return len(found) == len(shape) and all(not isinstance(d, int) or d == e for d, e in zip(shape, found))

    orders = [(array, "")]
    if array.ndim > 2:
        orders += [(np.moveaxis(array, -1, 1), "channels last to first")]
        orders += [(np.moveaxis(array, 1, -1), "channels first to last")]
    return next((order for order in orders if fits(order[0].shape)), None)


def type_of(array: Array) -> str:
    """Return dtype and shape, as types of graphs are printed."""
    return f"{dtypes.short(dtypes.from_numpy(array.dtype))}{format_shape(array.shape)}"


def _is_counted(array: Array) -> bool:
    """Return whether elements are integers or truths, whose differences are not relative to anything."""
    if array.dtype.kind == "V":  # of ml_dtypes
        return dtypes.is_int(dtypes.from_numpy(array.dtype))
    return array.dtype.kind in "iub"


def _finite(array: Array) -> Array:
    """Absolute values, 0 for NaN and infinities."""
    wide = np.abs(np.asarray(array, np.float64))
    return np.where(np.isfinite(wide), wide, 0.0)


def _beyond(errors: Array, deviation: Array, expected: Array, relative: float) -> tuple[Array, int]:
    """Return which elements are too far off, and how many channels are blind. deviation: of what rounding moves.

    A channel may be off by `relative` anywhere. Errors beyond that may exceed neither MARGIN deviations of the element
    that moves most, nor, as the root of the sum of their squares, MARGIN of those of the whole channel. Channels are
    those of the second axis, as in images, and those of the last one, as in rows and sequences.
    """
    is_wrong, blind, sizes = np.zeros(errors.shape, bool), errors.size, _finite(expected)
    for axis in dict.fromkeys((min(1, errors.ndim - 1), errors.ndim - 1)):
        others = tuple(a for a in range(errors.ndim) if a != axis)
        size, most = (a.max(axis=others, keepdims=True, initial=0.0) for a in (sizes, MARGIN * deviation))
        is_beyond = errors > relative * size
        scale = np.where(size > 0, size, 1.0)
        total = np.square(np.where(is_beyond, errors, 0.0) / scale).sum(axis=others, keepdims=True)
        squares = np.square(MARGIN * deviation / scale).sum(axis=others, keepdims=True)
        is_wrong |= is_beyond & ((errors > most) | (total > squares))
        blind = min(blind, int(((size <= most) & (size > 0)).sum()))
    return is_wrong, blind
