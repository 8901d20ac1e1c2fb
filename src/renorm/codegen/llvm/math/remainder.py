"""Remainders of floats, exact as they can be: by long division of the mantissas, one bit of the quotient a step."""

from __future__ import annotations

from renorm.codegen.llvm.lanes import Lanes, Variable, where
from renorm.codegen.llvm.math.formats import format_of, power_of_two

_INFINITY = float("inf")


def _parts(x: Lanes) -> tuple[Lanes, Lanes]:
    """(exponent, mantissa) of |x|: |x| = mantissa * 2**(exponent - bias - digits); denormals have exponent 1."""
    form = format_of(x)
    magnitude = x.intrinsic("fabs").bits
    exponent = magnitude >> form.digits
    denormal = exponent.equals(0)
    fraction = magnitude & ((1 << form.digits) - 1)
    return where(denormal, exponent.like(1), exponent), where(denormal, fraction, fraction | (1 << form.digits))


def fmod(x: Lanes, y: Lanes) -> Lanes:
    """x - trunc(x/y)*y, exact, with the sign of x; NaN for an infinite x or y = 0. As many steps as the exponents
    differ by.
    """
    f, form = x.f, format_of(x)
    exponent, mantissa = _parts(x)
    low_exponent, divisor = _parts(y)
    # a denormal divisor moves up to where its leading one is that of a normal number
    text = f"call {divisor.type} @llvm.ctlz.{divisor.type.suffix}({divisor.value.typed}, i1 false)"
    zeros = Lanes(f, f.pure(text, divisor.type, divisor.value)) - (divisor.type.bits - 1 - form.digits)
    divisor, low_exponent = divisor << zeros, low_exponent - zeros
    steps = exponent - low_exponent
    sensible = (x.intrinsic("fabs") < _INFINITY) & (y.intrinsic("fabs") > 0.0)
    smaller = steps < 0
    start = where(sensible & ~smaller & (y.intrinsic("fabs") < _INFINITY), steps, steps.like(0))

    def reduced(rest: Lanes) -> Lanes:
        return where(rest < divisor, rest, rest - divisor)

    rest, left = Variable(mantissa), Variable(start)
    with f.forever():
        active = left.value > 0
        rest.value = where(active, reduced(rest.value) << 1, rest.value)
        left.value = where(active, left.value - 1, left.value)
        f.leave((~(left.value > 0).any).value)
    rest = reduced(rest.value)
    # rest * 2**(low_exponent - bias - digits) in two exact steps, since the power alone may be denormal
    n = low_exponent - (form.bias + form.digits)
    half = n >> 1
    value = rest.convert("sitofp", x.type.element) * power_of_two(half, x) * power_of_two(n - half, x)
    whole = where(smaller | y.intrinsic("fabs").equals(_INFINITY), x.intrinsic("fabs"), value).with_sign_of(x)
    return where(sensible, whole, where(x.is_nan, x, where(y.is_nan, y, x.like(float("nan")))))


def floor_mod(x: Lanes, y: Lanes) -> Lanes:
    """The remainder of a flooring division: the sign of y, as Python's and NumPy's `%`."""
    rest = fmod(x, y)
    opposite = (rest.bits ^ y.bits) < 0
    moved = where(opposite & rest.differs(0.0), rest + y, rest)
    return where(rest.equals(0.0), rest.with_sign_of(y), moved)


def floor_divide(x: Lanes, y: Lanes) -> Lanes:
    """floor(x / y) computed from the exact remainder, as NumPy's `//`; x / y where y is 0."""
    rest = fmod(x, y)
    quotient = (x - rest) / y
    opposite = ((rest.bits ^ y.bits) < 0) & rest.differs(0.0)
    quotient = where(opposite, quotient - 1.0, quotient)
    # the division above is of a multiple of y up to rounding: its nearest integer is meant
    floor = quotient.intrinsic("floor")
    floor = where((quotient - floor) > 0.5, floor + 1.0, floor)
    exact = x / y
    signed = where(quotient.equals(0.0), exact.like(0.0).with_sign_of(exact), floor)
    return where(y.equals(0.0), exact, signed)
