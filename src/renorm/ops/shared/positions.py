"""Where the elements of a resampled axis lie between those it is made from.

Positions are kept as fractions: result element o lies at (a*o + b) / c, with integers. So no rounding decides which
element is nearest, and twice as large an image reads x[o // 2]. A scale that comes as float32 stands for the simplest
fraction that rounds to it: 0.6 is 3/5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, gcd, lcm
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.errors import OperandError

HALF = Fraction(1, 2)

# ONNX's coordinate_transformation_mode
POSITIONS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)


@dataclass(frozen=True)
class Line:
    """Positions (a*o + b) / c of the elements o = 0 .. length - 1 on an axis of `extent` elements. scale: length over
    extent."""

    slope: Fraction
    start: Fraction
    extent: int
    length: int
    scale: Fraction

    @property
    def integers(self) -> tuple[int, int, int]:
        """a, b, c."""
        c = lcm(self.slope.denominator, self.start.denominator)
        return int(self.slope * c), int(self.start * c), c

    def moved(self, by: Fraction) -> Line:
        return Line(self.slope, self.start + by, self.extent, self.length, self.scale)

    def at(self, o: int) -> Fraction:
        return self.slope * o + self.start

    def floor(self, o: Any) -> Any:
        """The integer below position o, as an expression."""
        a, b, c = self.integers
        g = gcd(a, c)
        a, b, c = a // g, b // g, c // g  # floor((g*a*o + b) / (g*c)) = floor((a*o + floor(b/g)) / c)
        e = o * a + b if b else o * a if a != 1 else o
        return e if c == 1 else e // c

    def fraction(self, o: Any, dtype: str) -> Any:
        """Position o minus the integer below it, as a floating expression."""
        a, b, c = self.integers
        return ((o * a + b) % c).astype(dtype) * te.const(1 / c, dtype)

    def clamped(self, index: Any, low: int, high: int) -> Any:
        """`index`, whose values are known to lie in [low, high], moved into the axis."""
        index = te.max(index, 0) if low < 0 else index
        return te.min(index, self.extent - 1) if high >= self.extent else index

    def is_identity(self) -> bool:
        return self.slope == 1 and self.start == 0 and self.extent == self.length


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


def position_line(mode: str, extent: int, length: int, scale: Fraction, roi: tuple[float, float] | None) -> Line:
    """Positions by the rule `mode` of POSITIONS."""

    def at(slope: Fraction | int, start: Fraction | int) -> Line:
        return Line(Fraction(slope), Fraction(start), extent, length, scale)

    match mode:
        case "asymmetric":
            return at(1 / scale, 0)
        case "half_pixel":
            return at(1 / scale, HALF / scale - HALF)
        case "pytorch_half_pixel":
            return at(1 / scale, HALF / scale - HALF) if length > 1 else at(0, 0)
        case "tf_half_pixel_for_nn":
            return at(1 / scale, HALF / scale)
        case "half_pixel_symmetric":
            # a length that was rounded leaves a rest, which is shared by both ends
            rest = (1 - length / (scale * extent)) * extent * HALF
            return at(1 / scale, rest + HALF / scale - HALF)
        case "align_corners":
            return at(Fraction(extent - 1, length - 1), 0) if length > 1 else at(0, 0)
        case "tf_crop_and_resize":
            if roi is None:
                raise OperandError("resize: tf_crop_and_resize needs roi")
            first, last = simplest(roi[0]), simplest(roi[1])
            if length > 1:
                return at((last - first) * (extent - 1) / (length - 1), first * (extent - 1))
            return at(0, (first + last) * HALF * (extent - 1))
        case _:
            raise OperandError(f"resize: {mode!r} is not a rule for positions")


def resized(
    shape: Sequence[Dim], axes: Sequence[int], scales: Any, sizes: Any, policy: str
) -> tuple[list[Dim | None], list[Fraction | None]]:
    """Extents of the result, and its scales: None where they are not known yet.

    scales, sizes: elements for `axes`, one of both None; policy: ONNX's keep_aspect_ratio_policy.
    """
    result, factors = list[Dim | None](shape), list[Fraction | None]([Fraction(1)] * len(shape))
    if scales is not None:
        if not all(s > 0 for s in scales):
            raise OperandError(f"resize: scales {scales.tolist()} must be positive")
        for a, s in zip(axes, scales):
            factors[a] = f = simplest(s)
            result[a] = shape[a] * f.numerator // f.denominator
        return result, factors
    for a, n in zip(axes, sizes.tolist()):
        extent = shape[a]
        result[a] = n
        factors[a] = Fraction(n, extent) if isinstance(n, int) and isinstance(extent, int) and extent and n else None
    if policy == "stretch":
        return result, factors
    known = [f for a in axes if (f := factors[a]) is not None]
    common = (min if policy == "not_larger" else max)(known) if len(known) == len(axes) else None
    for a in axes:
        extent = shape[a]
        factors[a] = common
        result[a] = None if common is None or not isinstance(extent, int) else floor(common * extent + HALF)
    return result, factors


def stays(
    shape: Sequence[Dim], axis: int, axes: Sequence[int], scales: Any, sizes: Any, rule: str, policy: str
) -> bool:
    """Return whether elements along an axis stay where they are; arguments as those of `resized` and
    `position_line`."""
    extent = shape[axis]
    if not isinstance(extent, int) or not extent or (scales is None and sizes is None) or rule == "tf_crop_and_resize":
        return False  # the last one puts a number outside
    if axis not in axes:
        return True
    lengths, factors = resized(shape, axes, scales, sizes, policy)
    factor = factors[axis]
    return (
        factor is not None
        and lengths[axis] == extent
        and position_line(rule, extent, extent, factor, None).is_identity()
    )
