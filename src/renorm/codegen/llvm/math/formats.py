"""Constants of the two float formats in which elementary functions are computed, and scaling by powers of two."""

from __future__ import annotations

from dataclasses import dataclass

from renorm.codegen.llvm.lanes import Lanes, fma, where


@dataclass(frozen=True)
class Format:
    """An IEEE binary format.

    digits: bits after the leading one. ln2, ln2_rest: log(2) = ln2 + ln2_rest to twice the precision. ln2_short:
    log(2) with so many trailing zeros that e * ln2_short is exact for every exponent e; ln2_short_rest: the rest.
    exp_low, exp_high: beyond them exp is 0 and infinity.
    """

    digits: int
    bias: int
    least_normal: float
    ln2: float
    ln2_rest: float
    ln2_short: float
    ln2_short_rest: float
    exp_low: float
    exp_high: float

    @property
    def magic(self) -> float:
        """Adding it rounds |x| < 2**(digits - 1) to an integer (to nearest even), which then is in the low bits of the
        sum.
        """
        return 1.5 * 2.0**self.digits


_FORMATS = {
    "float": Format(
        digits=23,
        bias=127,
        least_normal=2.0**-126,
        ln2=0.6931471824645996,
        ln2_rest=-1.9046542121259336e-09,
        ln2_short=0.693145751953125,
        ln2_short_rest=1.42860682e-06,
        exp_low=-104.0,
        exp_high=89.0,
    ),
    "double": Format(
        digits=52,
        bias=1023,
        least_normal=2.0**-1022,
        ln2=0.6931471805599453,
        ln2_rest=2.3190468138462996e-17,
        ln2_short=0.6931471805598903,
        ln2_short_rest=5.497923018708371e-14,
        exp_low=-746.0,
        exp_high=710.0,
    ),
}


def format_of(x: Lanes) -> Format:
    return _FORMATS[x.type.element]


def is_double(x: Lanes) -> bool:
    return x.type.element == "double"


def round_to_integer(x: Lanes, factor: float) -> tuple[Lanes, Lanes]:
    """x * factor rounded to an integer, as a float and as an integer; for |x * factor| < 2**(digits - 1)."""
    form = format_of(x)
    moved = fma(x, factor, form.magic)
    return moved - form.magic, moved.bits - x.like(form.magic).bits


def power_of_two(n: Lanes, like: Lanes) -> Lanes:
    """2**n for integers n of the float's size, in the normal range."""
    form = format_of(like)
    return ((n + form.bias) << form.digits).floats


def scale(x: Lanes, n: Lanes, bits: Lanes) -> Lanes:
    """x * 2**n with one rounding, where results may be denormal or overflow; |n| at most twice the exponent range. n,
    bits: as `round_to_integer` gives them."""
    if x.f.is_avx512 and x.type.bits == 32 and x.type.lanes in (4, 8, 16):
        return Lanes(x.f, x.f.scaled(x.value, n.value))
    half = bits >> 1
    return x * power_of_two(half, x) * power_of_two(bits - half, x)


def split_exponent(x: Lanes) -> tuple[Lanes, Lanes]:
    """(e, m) with x = m * 2**e and sqrt(1/2) <= m < sqrt(2), for positive finite x, denormal too; e as an integer."""
    form = format_of(x)
    tiny = x < form.least_normal
    normal = where(tiny, x * 2.0 ** (form.digits + 1), x)
    low = normal.like(0.5**0.5).bits
    e = (normal.bits - low) >> form.digits
    m = (normal.bits - (e << form.digits)).floats
    return where(tiny, e - (form.digits + 1), e), m
