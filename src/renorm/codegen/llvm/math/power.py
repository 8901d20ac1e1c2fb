"""x ** y: by multiplications for constant integers, else exp(y * log(x)) with the logarithm to twice the precision."""

from __future__ import annotations

from renorm.codegen.llvm.lanes import Lanes, fma, polynomial, where
from renorm.codegen.llvm.math.exponential import exp, exp_of_sum, log
from renorm.codegen.llvm.math.formats import split_exponent
from renorm.codegen.llvm.ssa import Function, Value, constant

MULTIPLIED = 64  # integer exponents up to this one become multiplications
_INFINITY = float("inf")
_LN2, _LN2_REST = 0.6931471805599453, 2.3190468138462996e-17
_THIRD, _THIRD_REST = 0.3333333333333333, 1.850371707708594e-17
# q of atanh(s) = s + s**3/3 + s**5 q(s*s), for sqrt(1/2) <= (1+s)/(1-s) <= sqrt(2); 2**-73
_TAIL = (
    0.1999999999999999, 0.1428571428572192, 0.11111111108894882, 0.09090909421992689, 0.07692279214689357,
    0.0666813222743053, 0.058378909119535, 0.059908712863914,
)  # fmt: skip


def constant_power(f: Function, base: Value, exponent: float) -> Value | None:
    """base ** exponent by multiplications or a square root; None where the exponent is not one that they serve."""
    is_float = base.type.is_float
    if exponent in (0.5, -0.5) and is_float:
        x = Lanes(f, base)
        # 0.0 is added for -0 ** 0.5 = 0, and -inf ** 0.5 = inf
        root = where(x.equals(-_INFINITY), x.like(_INFINITY), x.intrinsic("sqrt") + 0.0)
        return (root if exponent > 0 else 1.0 / root).value
    if exponent != int(exponent) or abs(exponent) > MULTIPLIED or (exponent < 0 and not is_float):
        return None
    left, square = abs(int(exponent)), base
    result: Value | None = None
    multiply = "fmul" if is_float else "mul"
    while left:
        if left & 1:
            result = square if result is None else f.op(multiply, result, square)
        left >>= 1
        if left:
            square = f.op(multiply, square, square)
    if result is None:
        return constant(base.type, 1)
    return f.op("fdiv", constant(base.type, 1.0), result) if exponent < 0 else result


def pow_single(x: Lanes, y: Lanes) -> Lanes:
    """x ** y for x >= 0 of float32 numbers, in float64: what is lost there is far below an ulp."""
    return exp(y * log(x))


def pow_double(x: Lanes, y: Lanes) -> Lanes:
    """x ** y for x >= 0 in float64; error below 1 ulp where the result is normal."""
    high, low = _log_twice(x)
    product = y * high
    rest = fma(y, low, fma(y, high, -product))
    moderate = product.intrinsic("fabs") < 1000.0  # beyond that exp is 0 or infinite, and the rest no longer small
    return exp_of_sum(product, where(moderate, rest, product.like(0.0)))


def _two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """(s, e): a + b = s + e exactly, s being the rounded sum (Knuth)."""
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def _fast_two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """The same where |a| >= |b| (Dekker)."""
    s = a + b
    return s, b - (s - a)


def _log_twice(x: Lanes) -> tuple[Lanes, Lanes]:
    """log(x) as a sum of two float64 numbers, relative error below 2**-64; infinite at 0 and infinity."""
    e, m = split_exponent(x)
    exponent = e.convert("sitofp", "double")
    # s = (m - 1) / (m + 1) to twice the precision; m - 1 is exact
    numerator, (denominator, denominator_rest) = m - 1.0, _two_sum(m, m.like(1.0))
    s = numerator / denominator
    s_rest = (fma(-s, denominator, numerator) - s * denominator_rest) / denominator
    z = s * s
    z_rest = fma(s, s, -z) + 2.0 * (s * s_rest)
    cube = s * z
    cube_rest = fma(s, z, -cube) + fma(s, z_rest, s_rest * z)
    third = cube * _THIRD
    third_rest = fma(cube, _THIRD, -third) + fma(cube_rest, _THIRD, cube * _THIRD_REST)
    tail = cube * z * polynomial(z, _TAIL)
    # log(m) = 2 (s + s**3/3 + tail)
    high, rest = _fast_two_sum(s, third)
    low = rest + (s_rest + third_rest + tail)
    whole = exponent * _LN2
    whole_rest = fma(exponent, _LN2, -whole) + exponent * _LN2_REST
    total, error = _two_sum(whole, high * 2.0)
    low = error + (low * 2.0 + whole_rest)
    high, low = _fast_two_sum(total, low)
    at_zero, at_infinity = x.equals(0.0), x.equals(_INFINITY)
    edge = at_zero | at_infinity
    return (
        where(edge, where(at_zero, x.like(-_INFINITY), x.like(_INFINITY)), where(x.is_nan, x, high)),
        where(edge, x.like(0.0), low),
    )


def power(x: Lanes, y: Lanes) -> Lanes:
    """x ** y with the special values of C's pow: 1 ** y = x ** 0 = 1 even for NaN; NaN for a negative x and a y that
    is no integer; the sign of an odd y's result is that of x. float32 in float64 arithmetic, error below 1 ulp;
    float64 below 1 ulp where the result is normal.
    """
    a = x.intrinsic("fabs")
    if x.type.element == "double":
        magnitude = pow_double(a, y)
    else:
        wide = pow_single(a.convert("fpext", "double"), y.convert("fpext", "double"))
        magnitude = wide.convert("fptrunc", "float")
    magnitude = where(a.equals(1.0) | y.equals(0.0), x.like(1.0), magnitude)
    whole = y.intrinsic("trunc").equals(y)
    half = y * 0.5
    odd = whole & (y.intrinsic("fabs") < _INFINITY) & half.intrinsic("trunc").differs(half)
    negative = x.bits < 0
    signed = where(negative & odd, -magnitude, magnitude)
    # a base of -1, infinity or 0 has a value for any exponent that is an integer or infinite
    undefined = (x < 0.0) & ~whole & (a < _INFINITY)
    result = where(undefined, x.like(float("nan")), signed)
    is_one = x.equals(1.0) | y.equals(0.0)
    return where(is_one, x.like(1.0), where(x.is_nan, x, where(y.is_nan, y, result)))
