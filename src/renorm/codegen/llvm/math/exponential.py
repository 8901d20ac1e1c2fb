"""exp, log and what is made of them: sigmoid, tanh, sinh, cosh, asinh, acosh, atanh, log1p.

exp reduces to r = x - n*log(2), |r| <= log(2)/2, and evaluates e**r = 1 + r + r**2 q(r). log takes the exponent out
and evaluates the rest near 1. The coefficients are minimax (Remez exchange, relative weight), rounded to the format
from the lowest up with the rest fitted again; the comments give the relative error of the polynomial alone.
"""

from __future__ import annotations

from renorm.codegen.llvm.lanes import Lanes, fma, polynomial, where
from renorm.codegen.llvm.math.formats import (
    format_of,
    is_double,
    power_of_two,
    round_to_integer,
    scale,
    split_exponent,
)

_LOG2_E = 1.4426950408889634
_INFINITY = float("inf")
_NAN = float("nan")

# q of e**r = 1 + r + r*r*q(r)
_EXP_SINGLE = (0.5, 0.166666478, 0.0416664779, 0.00833777431, 0.00139337603, 0.000174424422)  # 2**-31
_POWER_SINGLE = (1.0, 1.0, 0.49999994, 0.16666523, 0.041668292, 0.008368532, 0.0013818302)  # e**r; 2**-28
_EXP_DOUBLE = (  # 2**-63
    0.5, 0.16666666666666688, 0.041666666666666824, 0.008333333333313892, 0.0013888888888777835, 0.0001984126990337669,
    2.480158755957075e-05, 2.755722866999614e-06, 2.755706746949846e-07, 2.511393853845154e-08, 2.097778128115229e-09,
)  # fmt: skip

# q of log(1 + f) = f - f*f/2 + f**3 q(f)
_LOG_SINGLE = (  # 2**-27
    0.333333135, -0.250000268, 0.200020432, -0.166666701, 0.142200693, -0.124361224, 0.119245261, -0.114585258,
    0.0633239225,
)  # fmt: skip

# q of log((1 + s) / (1 - s)) = 2 s + s**3 q(s*s)
_LOG_DOUBLE = (  # 2**-66
    0.6666666666666666, 0.40000000000004926, 0.28571428569409785, 0.2222222260723594, 0.18181778330281104,
    0.15386990059812278, 0.13252119158452588, 0.13235050236208387,
)  # fmt: skip

# p of tanh(x) = x + x**3 p(x*x), |x| <= 0.605
_TANH_SINGLE = (-0.333332956, 0.133318454, -0.053776186, 0.0207674205, -0.00585900852)  # 2**-28
_TANH_DOUBLE = (  # 2**-57
    -0.3333333333333309, 0.13333333333294164, -0.05396825394654965, 0.021869487935064342, -0.008863225828801313,
    0.003592029167263779, -0.0014551700856277594, 0.0005870290219547194, -0.00023005010270414297,
    7.888941629831835e-05, -1.695498870900372e-05,
)  # fmt: skip


def _reduced(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """(r, n, n) with x = n*log(2) + r; n as a float and as an integer."""
    form = format_of(x)
    n, bits = round_to_integer(x, _LOG2_E)
    # the first step is exact: n*ln2 and x agree in all bits above those that r keeps
    return fma(-n, form.ln2_rest, fma(-n, form.ln2, x)), n, bits


def _quotient(r: Lanes) -> Lanes:
    """(e**r - 1 - r) / r**2 for a reduced r."""
    return polynomial(r, _EXP_DOUBLE if is_double(r) else _EXP_SINGLE)


def _less_one(r: Lanes) -> Lanes:
    """e**r - 1 for a reduced r, relative error 0.6 ulp."""
    return fma(r * r, _quotient(r), r)


def _between(x: Lanes, low: float, high: float) -> Lanes:
    """x within [low, high]; NaN stays."""
    above = where(x < low, low, x)
    return where(above > high, high, above)


def _power(r: Lanes) -> Lanes:
    """e**r for a reduced r, error 0.8 ulp; 0.6 in float64."""
    return _less_one(r) + 1.0 if is_double(r) else polynomial(r, _POWER_SINGLE)


def exp(x: Lanes) -> Lanes:
    """Error below 1 ulp, results in the denormal range and overflow included.

    Where the result is 0 something else is computed first: an instruction whose result is below the normal range takes
    some 250 cycles on Sapphire Rapids, and masked scores of attention are far below it."""
    form = format_of(x)
    is_zero = x < form.exp_low
    inside = where(is_zero, 0.0, x)
    r, *n = _reduced(where(inside > form.exp_high, form.exp_high, inside))
    return where(is_zero, 0.0, scale(_power(r), *n))


def _careful(r: Lanes, low: Lanes) -> Lanes:
    """e**(r + low) for a reduced r and a tiny low; error 0.6 ulp, since what 1 + r rounds off is put back."""
    head, square, quotient = r + 1.0, r * r, _quotient(r)
    rest = fma(low, fma(square, quotient, r), low)
    return head + (fma(square, quotient, (1.0 - head) + r) + rest)


def exp_of_sum(high: Lanes, low: Lanes) -> Lanes:
    """exp(high + low) where |low| is far below an ulp of 1; error 0.6 ulp."""
    form = format_of(high)
    r, *n = _reduced(_between(high, form.exp_low, form.exp_high))
    return scale(_careful(r, low), *n)


def exp_small(x: Lanes) -> Lanes:
    """exp for results in the normal range."""
    r, _, n = _reduced(x)
    return (_less_one(r) + 1.0) * power_of_two(n, x)


def log(x: Lanes) -> Lanes:
    """Error below 1 ulp; -inf at 0, NaN below."""
    form = format_of(x)
    e, m = split_exponent(x)
    exponent = e.convert("sitofp", x.type.element)
    f = m - 1.0
    half = f * f * 0.5
    if is_double(x):
        s = f / (m + 1.0)
        z = s * s
        rest = z * polynomial(z, _LOG_DOUBLE)
        # log(1 + f) = f - (f*f/2 - s*(f*f/2 + rest))
        low = fma(exponent, form.ln2_short_rest, s * (half + rest))
        result = fma(exponent, form.ln2_short, f - (half - low))
    else:
        low = fma(exponent, form.ln2_short_rest, f * (f * f) * polynomial(f, _LOG_SINGLE))
        result = fma(exponent, form.ln2_short, f + (low - half))
    return _outside_of_positive(x, result)


def _outside_of_positive(x: Lanes, result: Lanes) -> Lanes:
    """The logarithm's values where x is 0, negative, infinite or NaN; `result` elsewhere."""
    special = where(x.equals(0.0), x.like(-_INFINITY), where(x < 0.0, x.like(_NAN), x))
    return where((x > 0.0) & (x < _INFINITY), result, special)


def log1p(x: Lanes) -> Lanes:
    """log(1 + x), error below 2 ulp; what 1 + x rounds off is put back as a correction."""
    u = x + 1.0
    lost = where(x < 1.0, x - (u - 1.0), 1.0 - (u - x))
    corrected = log(u) + where(u > 0.0, lost / u, x.like(0.0))
    return where(u.equals(1.0) | u.equals(_INFINITY), x, corrected)


def sigmoid(x: Lanes) -> Lanes:
    """1 / (1 + exp(-x)), error below 2.5 ulp, 2 in float64; keeps its relative accuracy for negative x, denormal
    results included."""
    low, away = format_of(x).exp_low, -x.intrinsic("fabs")
    r, *n = _reduced(where(away < low, low, away))
    e = scale(_power(r), *n)
    upper, lower = where(x < 0.0, e, x.like(1.0)), e + 1.0
    if not is_double(x):
        return upper / lower
    reciprocal = 1.0 / lower
    first = upper * reciprocal
    # one Newton step, against the sum 1 + e before rounding
    rest = fma(-first, (1.0 - lower) + e, fma(-first, lower, upper))
    return fma(rest, reciprocal, first)


def tanh(x: Lanes) -> Lanes:
    """Error below 2 ulp: a polynomial near 0, then 1 - 2/(e**2x + 1), where the quotient is less than half."""
    a = x.intrinsic("fabs")
    z = a * a
    near = fma(a * z, polynomial(z, _TANH_DOUBLE if is_double(x) else _TANH_SINGLE), a)
    limit = 20.0 if is_double(x) else 9.5  # there and beyond tanh rounds to 1
    r, _, n = _reduced(where(a > limit, limit, a) * 2.0)
    s = power_of_two(n, x)
    far = 1.0 - 2.0 / fma(s, _less_one(r), s + 1.0)
    return where(a < 0.6, near, far).with_sign_of(x)


def _quarter_exponentials(x: Lanes) -> tuple[Lanes, Lanes, Lanes, Lanes]:
    """(s, p, t, q) with e**x = 4 s (1 + p) and e**-x = 4 t (1 + q), for 0 <= x. What is beyond 710.6 counts as that:
    sinh and cosh overflow at 710.48, s does at 711.
    """
    r, _, n = _reduced(where(x > 710.6, 710.6, x))
    s = power_of_two(n - 2, x)
    t = where(n > 100, x.like(0.0), power_of_two(-n - 2, x))
    return s, _less_one(r), t, _less_one(-r)


def sinh(x: Lanes) -> Lanes:
    """float64; error below 3 ulp."""
    a = x.intrinsic("fabs")
    s, p, t, q = _quarter_exponentials(a)
    value = fma(s, p, (s - t) - t * q) * 2.0
    return where(a < 2.0**-28, a, value).with_sign_of(x)


def cosh(x: Lanes) -> Lanes:
    """float64; error below 2 ulp."""
    s, p, t, q = _quarter_exponentials(x.intrinsic("fabs"))
    return (fma(s, p, s) + fma(t, q, t)) * 2.0


def asinh(x: Lanes) -> Lanes:
    """float64; error below 3 ulp."""
    a = x.intrinsic("fabs")
    square = a * a
    near = log1p(a + square / ((square + 1.0).intrinsic("sqrt") + 1.0))
    far = log(a) + 0.6931471805599453
    return where(a > 2.0**28, far, near).with_sign_of(x)


def acosh(x: Lanes) -> Lanes:
    """float64; error below 3 ulp; NaN below 1."""
    t = x - 1.0
    near = log1p(t + fma(t, t, t * 2.0).intrinsic("sqrt"))
    far = where(x < 1.0, x.like(_NAN), log(x) + 0.6931471805599453)
    return where((x < 1.0) | (x > 2.0**28), far, near)


def atanh(x: Lanes) -> Lanes:
    """float64; error below 3 ulp; infinite at -1 and 1, NaN beyond."""
    a = x.intrinsic("fabs")
    return (log1p((a + a) / (1.0 - a)) * 0.5).with_sign_of(x)
