"""Where the elements of a resampled axis lie between those it is made from.

Positions are kept as fractions: result element o lies at (a*o + b) / c, with integers. So no rounding decides which
element is nearest, and twice as large an image reads x[o // 2].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, gcd, lcm
from typing import Any

from renorm import te
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.expr.extents import same_extent
from renorm.expr.nodes import Expr, as_expr, cast
from renorm.ops.shared.scales import HALF, Scale, parts_of, resized, simplest
from renorm.te.open_dims import larger

# ONNX's coordinate_transformation_mode
POSITIONS = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip


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

    def above(self) -> Line:
        """Return positions the integers below which are those above these ones: further by less than 1, which is as
        much as they may be apart from an integer."""
        return self.moved(1 - Fraction(1, self.integers[2]))

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

    def reach(self, below: int = 0, above: int = 0) -> tuple[int, int]:
        """The least index and the greatest that is asked for, `below` and `above` an integer below a position."""
        ends = self.at(0), self.at(self.length - 1)
        return floor(min(ends)) + below, floor(max(ends)) + above

    def is_identity(self) -> bool:
        return self.slope == 1 and self.start == 0 and same_extent(self.extent, self.length)


@dataclass(frozen=True)
class OpenLine(Line):
    """Positions where extents are open: a, b, c may be expressions of them. slope, start: as far as they are known."""

    open_integers: tuple[Any, Any, Any] | None = None

    @property
    def integers(self) -> tuple[Any, Any, Any]:
        return super().integers if self.open_integers is None else self.open_integers

    def moved(self, by: Fraction) -> Line:
        if self.open_integers is None:
            return replace(self, start=self.start + by)
        a, b, c = self.open_integers
        p, q = by.numerator, by.denominator
        return replace(self, open_integers=(a * q, b * q + c * p, c * q))

    def above(self) -> Line:
        if self.open_integers is None:
            return super().above()
        a, b, c = self.open_integers
        return replace(self, open_integers=(a, b + c - 1, c))

    def reach(self, below: int = 0, above: int = 0) -> tuple[int, int]:
        return -1, self.extent  # whatever positions are

    def floor(self, o: Any) -> Any:
        if self.open_integers is None:
            return super().floor(o)
        a, b, c = self.open_integers
        return (o * a + b) // c

    def fraction(self, o: Any, dtype: str) -> Any:
        if self.open_integers is None:
            return super().fraction(o, dtype)
        a, b, c = self.open_integers
        return ((o * a + b) % c).astype(dtype) / cast(dtype, as_expr(larger(c, 1)))

    def clamped(self, index: Any, low: int, high: int) -> Any:
        """`index` moved into the axis, where it is not known to be there."""
        return te.max(te.min(index, self.extent - 1), 0)

    def is_identity(self) -> bool:
        return self.open_integers is None and super().is_identity()


def _open_line(mode: str, extent: Any, length: Any, scale: Scale | None, roi: tuple[float, float] | None) -> OpenLine:
    """`position_line` where extents are open. scale: None where it is length / extent, whatever that is."""
    p, q = (extent, length) if scale is None else parts_of(scale)  # 1 / scale is p / q

    def line(a: Any, b: Any, c: Any) -> OpenLine:
        known = scale if isinstance(scale, Fraction) else Fraction(0)
        return OpenLine(Fraction(0), Fraction(0), extent, length, known, (a, b, c))

    is_kept = same_extent(extent, length) and same_extent(p, q)
    if is_kept and mode not in ("tf_half_pixel_for_nn", "tf_crop_and_resize"):
        return OpenLine(Fraction(1), Fraction(0), extent, length, Fraction(1))
    if isinstance(scale, Fraction) and mode in ("asymmetric", "half_pixel", "tf_half_pixel_for_nn"):
        known = position_line(mode, 1, 1, scale, None)
        return OpenLine(known.slope, known.start, extent, length, scale)
    match mode:
        case "asymmetric":
            return line(p, 0, q)
        case "half_pixel":
            return line(p * 2, p - q, q * 2)
        case "tf_half_pixel_for_nn":
            return line(p * 2, p, q * 2)
        case "pytorch_half_pixel":  # at length 1 its position is 0
            a, b, c = _open_line("half_pixel", extent, length, scale, None).integers
            is_wide = te.min(length - 1, 1)
            return line(a * is_wide, b * is_wide, c)
        case "align_corners":  # at length 1, a quotient by 0 is 0
            return line(extent - 1, 0, length - 1)
        case "half_pixel_symmetric":
            rest = 0 if scale is None else extent * q - length * p  # of a length that was rounded
            return line(p * 2, p - q + rest, q * 2)
        case "tf_crop_and_resize":
            first, last = _crop(roi)
            d = lcm(first.denominator, last.denominator)
            begin, stop = int(first * d), int(last * d)
            is_wide, end = te.min(length - 1, 1), extent - 1  # at length 1 its position is in the middle
            start = end * (length - 1) * (2 * begin) + end * (begin + stop) * (1 - is_wide)
            return line(end * is_wide * (2 * (stop - begin)), start, larger(length - 1, 1) * (2 * d))
        case _:
            raise OperandError(f"resize: {mode!r} is not a rule for positions")


def _crop(roi: tuple[float, float] | None) -> tuple[Fraction, Fraction]:
    """Return where a part of an axis begins and ends, in parts of it."""
    if roi is None:
        raise OperandError("resize: tf_crop_and_resize needs roi")
    return simplest(roi[0]), simplest(roi[1])


def position_line(mode: str, extent: int, length: int, scale: Scale | None, roi: tuple[float, float] | None) -> Line:
    """Positions by the rule `mode` of POSITIONS. scale: None where extents are open and it is length / extent."""
    if not isinstance(scale, Fraction) or isinstance(extent, Expr) or isinstance(length, Expr):
        return _open_line(mode, extent, length, scale, roi)
    if not length:
        return Line(Fraction(0), Fraction(0), extent, 0, Fraction(1))

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
            first, last = _crop(roi)
            if length > 1:
                return at((last - first) * (extent - 1) / (length - 1), first * (extent - 1))
            return at(0, (first + last) * HALF * (extent - 1))
        case _:
            raise OperandError(f"resize: {mode!r} is not a rule for positions")


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
