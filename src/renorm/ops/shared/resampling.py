"""Resampling along axes as te stages: nearest, and means weighted by a linear or cubic filter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np

from renorm import te
from renorm.core import conversion, dtypes
from renorm.expr.nodes import call, cast
from renorm.ops.shared.positions import Line
from renorm.ops.shared.scales import HALF
from renorm.te import tag

NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "ceil_if_shrunk")  # last: before opset 11


def nearest(p: Line, rule: str, o: Any) -> Any:
    """The index of the element nearest to position o. rule: ONNX's nearest_mode."""
    match rule:
        case "floor":
            q = p
        case "ceil":
            q = p.above()
        case "ceil_if_shrunk" if not p.scale:  # of open extents, which say in each call what shrinks
            return p.clamped(te.select(p.length < p.extent, p.above().floor(o), p.floor(o)), *p.reach())
        case "ceil_if_shrunk":
            q = p.above() if p.scale < 1 else p
        case "round_prefer_ceil":
            q = p.moved(HALF)
        case _:  # round_prefer_floor: the ceiling of position - 1/2, whose denominator may be twice as large
            q = p.moved(-HALF).above()
    return q.clamped(q.floor(o), *q.reach())


def linear_weight(distance: Any) -> Any:
    """1 - |d| where that is positive."""
    return te.max(te.const(1.0, distance.dtype) - te.abs(distance), te.const(0.0, distance.dtype))


def cubic_weight(a: float) -> Callable[[Any], Any]:
    """Keys' kernel (Cubic convolution interpolation, 1981) with parameter a."""

    def weight(distance: Any) -> Any:
        d = te.abs(distance)

        def number(v: float) -> Any:
            return te.const(v, d.dtype)

        inner = (d * (a + 2) - number(a + 3)) * d * d + number(1.0)
        outer = ((d - number(5.0)) * d + number(8.0)) * d * a - number(4 * a)
        return te.select(d <= number(1.0), inner, te.select(d < number(2.0), outer, number(0.0)))

    return weight


def interpolated(
    x: te.Tensor, axis: int, p: Line, radius: int, weight: Callable[[Any], Any], stretch: bool, exclude: bool
) -> te.Tensor:
    """`x` resampled along one axis: a weighted mean of the elements within `radius` of each position.

    stretch: a filter for fewer elements is as much wider (antialias). exclude: elements outside do not count, and the
    other weights make up for them; otherwise the border is continued. Means of integers are float64 (see `stored`).
    """
    dtype = "float64" if dtypes.is_int(x.dtype) else dtypes.compute_dtype(x.dtype)
    narrow = min(p.scale, Fraction(1)) if stretch else Fraction(1)
    first = floor(-radius / narrow) + 1  # taps first .. -first + 1, counted from the element below the position
    taps = 2 - 2 * first
    low, high = p.reach(first, 1 - first)
    leaves = low < 0 or high >= p.extent
    t = te.reduce_axis((0, taps), name="tap") if taps > 4 else None
    shape = (*x.shape[:axis], p.length, *x.shape[axis + 1 :])

    def share(o: Any, tap: Any) -> Any:
        tap = te.const(tap, "int32") if isinstance(tap, int) else tap
        d = (tap + first).astype(dtype) - p.fraction(o, dtype)
        w = weight(d * te.const(float(narrow), dtype) if narrow != 1 else d)
        if not (exclude and leaves):
            return w
        index = p.floor(o) + tap + first
        return te.select(te.all(index >= 0, index < p.extent), w, te.const(0.0, dtype))

    def over_taps(term: Callable[[Any], Any]) -> Any:
        if t is not None:
            return te.sum(term(t.var), axis=t)
        total = term(0)
        for tap in range(1, taps):
            total = total + term(tap)
        return total

    def element(*index: Any) -> Any:
        o = index[axis]

        def term(tap: Any) -> Any:
            at = p.clamped(p.floor(o) + (tap + first), low, high)
            return cast(dtype, x[(*index[:axis], at, *index[axis + 1 :])]) * share(o, tap)

        return over_taps(term)

    kind = tag.INJECTIVE if t is None else tag.COMM_REDUCE
    y = te.compute(shape, element, name=f"resized_{axis}", tag=kind)
    if narrow == 1 and not (exclude and leaves):
        return y  # weights sum to one
    if t is not None:
        t = te.reduce_axis((0, taps), name="tap")
    norm = te.compute((p.length,), lambda o: over_taps(lambda tap: share(o, tap)), name=f"weights_{axis}", tag=kind)
    return te.compute(shape, lambda *i: y[i] / norm[i[axis]], name=f"resized_{axis}_mean", tag=tag.INJECTIVE)


def cropped(y: te.Tensor, lines: Mapping[int, Line], value: float) -> te.Tensor:
    """`y` where its positions, along the axes of `lines`, lie in the operand; `value` elsewhere."""
    outside = te.const(stored_array(np.asarray(value), y.dtype).item(), y.dtype)

    def element(*index: Any) -> Any:
        inside: list[Any] = []
        for axis, p in lines.items():
            a, b, c = p.integers
            inside += [index[axis] * a + b >= 0, index[axis] * a + b <= (p.extent - 1) * c]
        return te.if_then_else(te.all(*inside), y[index], outside)

    return te.compute(y.shape, element, name="cropped", tag=tag.INJECTIVE)


def stored(y: te.Tensor, dtype: str) -> te.Tensor:
    """Return `y` in a dtype: of means of integers, the nearest ones, halves to even, cut to the range.

    Those of 8 bits are rounded to float32 first: float64 may miss a half by some 1e-14, float32 is it then.
    """
    if not dtypes.is_int(dtype) or y.dtype == dtype:
        return y.astype(dtype)
    near = "float32" if dtypes.lookup(dtype).bits == 8 else "float64"
    return te.compute(y.shape, lambda *i: cast(dtype, call("round", cast(near, y[i]))), name="whole", tag=tag.INJECTIVE)


# --- for references ---------------------------------------------------------------------------------------------------


def stored_array(y: Any, dtype: Any) -> Any:
    """Return `stored` of all elements."""
    if (kind := dtypes.lookup(dtype)).kind not in ("int", "uint"):
        return y.astype(dtype)
    return conversion.converted(np.rint(np.asarray(y, np.float32 if kind.bits == 8 else None)), kind.name)


def nearest_matrix(positions: Any, p: Line, rule: str) -> Any:
    """[length, extent]: a one where an element of the result comes from."""
    matrix = np.zeros((p.length, p.extent))
    below, above = np.floor(positions), np.ceil(positions)
    chosen = {"floor": below, "ceil": above, "ceil_if_shrunk": above if p.scale < 1 else below}
    chosen |= {"round_prefer_floor": np.ceil(positions - 0.5), "round_prefer_ceil": np.floor(positions + 0.5)}
    matrix[np.arange(p.length), np.clip(chosen[rule], 0, p.extent - 1).astype(int)] = 1
    return matrix


def weighted(matrix: Any, x: Any, axis: int) -> Any:
    """Sums along an axis: row by row of a matrix [results, extent]. What has no weight is not read: an infinity there
    changes nothing."""
    count = int((matrix != 0).sum(axis=1).max(initial=1))
    read = np.argsort(matrix == 0, axis=1, kind="stable")[:, :count]
    weights = np.take_along_axis(matrix, read, 1).reshape(*read.shape, *[1] * (x.ndim - 1))
    terms = np.where(weights != 0, weights * np.moveaxis(x, axis, 0)[read], 0.0)
    return np.moveaxis(terms.sum(axis=1), 0, axis)


def mean_matrix(positions: Any, p: Line, cubic: float | None, stretch: bool, exclude: bool) -> Any:
    """[length, extent]: how much of every element of x an element of the result has. cubic: Keys' parameter, None for
    linear."""
    matrix = np.zeros((p.length, p.extent))
    narrow = min(1.0, float(p.scale)) if stretch else 1.0
    reach = int(2 / narrow) + 2
    for row, position in zip(matrix, positions):
        taps = np.arange(np.floor(position) - reach, np.floor(position) + reach + 1)
        d = np.abs(taps - position) * narrow
        weights = np.maximum(1 - d, 0)
        if cubic is not None:
            inner, outer = ((cubic + 2) * d - (cubic + 3)) * d * d + 1, cubic * (((d - 5) * d + 8) * d - 4)
            weights = np.where(d <= 1, inner, np.where(d < 2, outer, 0))
        if exclude:
            weights[(taps < 0) | (taps >= p.extent)] = 0
        np.add.at(row, np.clip(taps, 0, p.extent - 1).astype(int), weights / weights.sum())
    return matrix
