"""Scales and extents of resampled axes.

A scale that comes as float32 stands for the simplest fraction that rounds to it: 0.6 is 3/5.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from math import floor, lcm, prod
from typing import Any, Union, cast

import numpy as np

from renorm.core.dims import Dim, Quotient, Sym, maximum, minimum, take
from renorm.core.errors import OperandError
from renorm.expr.extents import same_extent
from renorm.expr.nodes import Expr
from renorm.te.open_dims import OpenDims

HALF = Fraction(1, 2)

Scale = Union[Fraction, Quotient]


def parts_of(scale: Scale) -> tuple[Any, Any]:
    """Return two extents, the second of which over the first is the scale."""
    return (scale.denominator, scale.numerator) if isinstance(scale, Fraction) else (scale.over, scale.extent)


def simplest(value: float) -> Fraction:
    """The fraction with the least denominator among those that float32 rounds to `value`."""
    exact = Fraction(float(np.float32(value)))
    room = Fraction(float(np.spacing(np.float32(value)))) * Fraction(499, 1000)
    return _simplest_between(exact - room, exact + room)


def _simplest_between(low: Fraction, high: Fraction) -> Fraction:
    whole = floor(low)
    if whole == low:
        return low
    if whole + 1 <= high:
        return Fraction(whole + 1)
    return whole + 1 / _simplest_between(1 / (high - whole), 1 / (low - whole))


def resized(
    shape: Sequence[Dim], axes: Sequence[int], scales: Any, sizes: Any, policy: str
) -> tuple[list[Dim | None], list[Scale | None]]:
    """Extents of the result, and its scales: None where they are not known yet.

    scales, sizes: elements for `axes`, one of both None; policy: ONNX's keep_aspect_ratio_policy.
    """
    result, factors = list[Dim | None](shape), list[Scale | None]([Fraction(1)] * len(shape))
    if scales is not None:
        if not all(s > 0 for s in scales if not isinstance(s, (Sym, Expr, Quotient))):
            raise OperandError(f"resize: scales {scales.tolist()} must be positive")
        for a, s in zip(axes, scales):
            if isinstance(s, Quotient):  # of an extent and that of the axis, which the result has then
                is_known = same_extent(cast(Any, s.over), cast(Any, shape[a]))
                for d in (s.over, s.extent) if isinstance(s.over, Sym) else ():
                    take(1, "<=", d)
                factors[a], result[a] = None, s.extent if is_known else None
                continue
            if isinstance(s, (Sym, Expr)):  # a whole number, which is what the extents say as well
                if isinstance(s, Sym):
                    take(1, "<=", s)
                factors[a], result[a] = None, shape[a] * cast(Any, s)
                continue
            factors[a] = f = simplest(s)
            result[a] = shape[a] * f.numerator // f.denominator
        return result, factors
    if any(isinstance(n, int) and n < 0 for n in sizes.tolist()):
        raise OperandError(f"resize: sizes {sizes.tolist()} must not be negative")
    for a, n in zip(axes, sizes.tolist()):
        own, extent = shape[a], cast(Any, shape[a])
        if isinstance(own, int) and not own and n != 0:
            raise OperandError(f"resize: axis {a} has no elements, and cannot have {n}")
        if isinstance(own, Sym) and n != 0:
            take(1, "<=", own)
        result[a] = n
        factors[a] = Fraction(n, extent) if isinstance(n, int) and isinstance(extent, int) and extent and n else None
        factors[a] = Fraction(1) if factors[a] is None and same_extent(n, extent) else factors[a]
    if policy == "stretch":
        return result, factors
    if not all(isinstance(d, int) for a in axes for d in (shape[a], result[a])):
        return _open_aspect(shape, axes, result, policy)
    known = [f for a in axes if isinstance(f := factors[a], Fraction)]
    common = (min if policy == "not_larger" else max)(known) if len(known) == len(axes) else None
    for a in axes:
        extent = shape[a]
        factors[a] = common
        result[a] = None if common is None or not isinstance(extent, int) else floor(common * extent + HALF)
    return result, factors


def _open_aspect(
    shape: Sequence[Dim], axes: Sequence[int], sizes: Sequence[Dim | None], policy: str
) -> tuple[list[Dim | None], list[Scale | None]]:
    """`resized` to sizes of which some, or extents, are open, by one scale for all axes.

    The least of n/e, where e is an extent and n what it is to be, is L over the greatest of e*(L/n), L being a multiple
    of each n. An extent becomes floor(e*n/e + 1/2) by the axis that decides: the least, or greatest, of those by each.
    """
    result, factors = list[Dim | None](sizes), list[Scale | None]([Fraction(1)] * len(shape))
    open_dims = OpenDims()
    pairs = [(open_dims.dim(shape[a]), open_dims.dim(sizes[a])) for a in axes]
    if any(n == 0 for _, n in pairs):
        return [None if a in axes else d for a, d in enumerate(sizes)], [None] * len(shape)
    for n in (n for _, n in pairs if isinstance(n, Sym)):
        take(1, "<=", n)
    least, most = (minimum, maximum) if policy == "not_larger" else (maximum, minimum)
    whole: Dim = lcm(*(n for _, n in pairs if isinstance(n, int)))
    whole = prod((n for _, n in pairs if not isinstance(n, int)), start=whole)
    over = reduce(most, (e * (whole // n) for e, n in pairs))
    of_symbols = any(isinstance(d, Sym) for a in axes for d in (shape[a], sizes[a]))
    made: Any = (lambda d: d) if of_symbols else open_dims.extent
    for a, (extent, n) in zip(axes, pairs):
        lengths = (n if e == extent else (2 * n * extent + e) // (2 * e) for e, n in pairs)
        result[a], factors[a] = made(reduce(least, lengths)), Quotient(made(whole), made(over))
    return result, factors
