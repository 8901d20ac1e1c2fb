"""sin, cos, tan and their inverses, in float64; for float32 operands the caller widens and rounds once at the end.

Arguments are reduced to |r| <= pi/4: by three-part constants (Cody and Waite) below 2**27, beyond that by multiplying
with as many bits of 2/pi as the exponent asks for (Payne and Hanek), which only runs where a lane needs it.
"""

from __future__ import annotations

from itertools import pairwise

from renorm.codegen.llvm.lanes import Lanes, Variable, fma, polynomial, where
from renorm.codegen.llvm.math.formats import round_to_integer
from renorm.codegen.llvm.ssa import I64, Function, Value, constant, poison, vector

_TWO_OVER_PI = 0.6366197723675814
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)  # their sum is pi/2 to 160 bits
_LARGE = 2.0**27
_INFINITY = float("inf")

# bits of 2/pi after 64 zeros, in words of 64, enough for the exponents of float64
_BITS = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
)  # fmt: skip

_SIN = (  # p of sin(x) = x + x**3 p(x*x); 2**-63
    -0.16666666666666666, 0.008333333333333042, -0.00019841269840962473, 2.755731907398516e-06,
    -2.5052070923597957e-08, 1.6054311677718167e-10, -7.389469708043677e-13,
)  # fmt: skip
_COS = (  # p of cos(x) = 1 - x*x/2 + x**4 p(x*x); 2**-64
    0.041666666666666595, -0.0013888888888873307, 2.4801587288965237e-05, -2.7557314203084316e-07,
    2.0875703140659682e-09, -1.1358617084836986e-11,
)  # fmt: skip
_ATAN = (  # p of atan(x) = x + x**3 p(x*x), |x| <= sqrt(2) - 1; 2**-63
    -0.33333333333333326, 0.19999999999997095, -0.142857142853164, 0.11111111083745688, -0.0909090798585015,
    0.07692279200291184, -0.06666174661524094, 0.058765161399412784, -0.052151783539682174, 0.04490549290172167,
    -0.03317452176245893, 0.014893274663240698,
)  # fmt: skip
_ASIN = (  # p of asin(x) = x + x**3 p(x*x), |x| <= 1/2; 2**-59
    0.16666666666666763, 0.07499999999970118, 0.04464285717527161, 0.030381942675850378, 0.022372215892158858,
    0.01735159571677817, 0.01398101621196935, 0.011397310291447898, 0.010789232615319605, 0.0036724937565733406,
    0.021789949771457873, -0.02111579829496807, 0.03270162216582519,
)  # fmt: skip


def _reduced(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """(q, r, rest) with x = q*pi/2 + r + rest modulo 2*pi; the low two bits of q count."""
    f = x.f
    n, q = round_to_integer(x, _TWO_OVER_PI)
    first, second, third = _HALF_PI
    # exact: both are multiples of the last place of `first`, and their difference fits
    near = fma(-n, first, x)
    step = n * second
    step_rest = fma(n, second, -step)
    high = near - step
    back = high - near
    error = (near - (high - back)) - (step + back)
    low = error - (step_rest + n * third)
    r = high + low
    rest = (high - r) + low
    large = x.intrinsic("fabs") > _LARGE
    found = Variable(q), Variable(r), Variable(rest)
    with f.branch(large.any.value):
        for variable, far, near in zip(found, _reduced_far(x), (q, r, rest), strict=True):
            variable.value = where(large, far, near)
    return found[0].value, found[1].value, found[2].value


def _reduced_far(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """The same by Payne and Hanek's method, lane after lane."""
    f, lanes = x.f, x.type.lanes
    t = x.type
    if lanes == 1:
        q, r, rest = (Lanes(f, v) for v in _far(f, x.value))
        return q, r, rest
    q, r, rest = (Variable(Lanes(f, poison(type))) for type in (t.of("i64"), t, t))
    with f.loop(constant(I64, 0), constant(I64, lanes), at_least_once=True) as k:
        scalar = f.pure(f"extractelement {x.value.typed}, {k.typed}", vector("double", 1), x.value, k)
        for column, v in zip((q, r, rest), _far(f, scalar), strict=True):
            old = column.value.value
            text = f"insertelement {old.typed}, {v.typed}, {k.typed}"
            column.value = Lanes(f, f.pure(text, old.type, old, v, k))
    return q.value, r.value, rest.value


def _far(f: Function, x: Value) -> tuple[Value, Value, Value]:
    """(q, r, rest) of one number: its 53-bit integer times the 192 bits of 2/pi that matter modulo 4."""
    bits = Lanes(f, x).bits
    exponent = (bits.logical_shift(52) & 0x7FF) - 1075  # x = m * 2**exponent
    m = (bits & 0xFFFFFFFFFFFFF) | 0x10000000000000
    # bits of weight 4 and above drop out; for lanes that are not large any place inside the table does
    place = exponent + 62
    place = where(place < 0, place.like(0), place)
    last = 64 * (len(_BITS) - 3) - 1
    place = where(place > last, place.like(last), place)
    table = f.table("two_over_pi", I64, _BITS)
    word, shift = place.logical_shift(6), place & 63
    words = []
    for k in range(4):
        address = f.offset(table, "i64", (word + k).value)
        words.append(f.effect(f"load i64, ptr {address.text}, align 8", I64))
    a, b, c = (Lanes(f, f.intrinsic("fshl", high, low, shift.value)) for high, low in pairwise(words))
    # the upper 128 of the lower 192 bits of m * (a, b, c)
    wide = m.convert("zext", "i128")
    low = wide * c.convert("zext", "i128")
    middle = wide * b.convert("zext", "i128") + low.logical_shift(64)
    top = (m * a + middle.logical_shift(64).convert("trunc", "i64")).convert("zext", "i128")
    product = (top << 64) | (middle & 0xFFFFFFFFFFFFFFFF)
    # product * 2**-126 is x * 2/pi modulo 4
    q = (product + (1 << 125)).logical_shift(126)
    fraction = product - (q << 126)
    # in three pieces that are exact in float64, so that leading zeros of the fraction cost no accuracy
    pieces = ((fraction >> 80), (fraction >> 32) & 0xFFFFFFFFFFFF, fraction & 0xFFFFFFFF)
    first, second, third = (
        piece.convert("trunc", "i64").convert("sitofp", "double") * 2.0 ** (weight - 126)
        for piece, weight in zip(pieces, (80, 32, 0), strict=True)
    )
    high = first + second
    low = ((first - high) + second) + third
    r = high * _HALF_PI[0]
    rest = fma(high, _HALF_PI[0], -r) + fma(high, _HALF_PI[1], low * _HALF_PI[0])
    negative = bits < 0
    q = q.convert("trunc", "i64")
    return where(negative, -q, q).value, where(negative, -r, r).value, where(negative, -rest, rest).value


def _sin_cos(r: Lanes, rest: Lanes) -> tuple[Lanes, Lanes]:
    """Of r + rest, |r| <= pi/4."""
    z = r * r
    sine = r + fma(r * z, polynomial(z, _SIN), rest * fma(z, -0.5, 1.0))
    half = z * 0.5
    w = 1.0 - half
    cosine = w + (((1.0 - w) - half) + fma(z * z, polynomial(z, _COS), -(r * rest)))
    return sine, cosine


def _finish(x: Lanes, result: Lanes) -> Lanes:
    return where(x.intrinsic("fabs") < _INFINITY, result, x.like(float("nan")))


def sin(x: Lanes) -> Lanes:
    """Error below 1 ulp."""
    q, r, rest = _reduced(x)
    sine, cosine = _sin_cos(r, rest)
    chosen = where((q & 1).equals(0), sine, cosine)
    result = where((q & 2).equals(0), chosen, -chosen)
    return _finish(x, where(x.intrinsic("fabs") < 2.0**-27, x, result))


def cos(x: Lanes) -> Lanes:
    """Error below 1 ulp."""
    q, r, rest = _reduced(x)
    sine, cosine = _sin_cos(r, rest)
    chosen = where((q & 1).equals(0), cosine, sine)
    return _finish(x, where(((q + 1) & 2).equals(0), chosen, -chosen))


def tan(x: Lanes) -> Lanes:
    """Error below 3 ulp."""
    q, r, rest = _reduced(x)
    sine, cosine = _sin_cos(r, rest)
    even = (q & 1).equals(0)
    result = where(even, sine, -cosine) / where(even, cosine, sine)
    return _finish(x, where(x.intrinsic("fabs") < 2.0**-27, x, result))


def atan(x: Lanes) -> Lanes:
    """Error below 2 ulp."""
    a = x.intrinsic("fabs")
    steep, middle = a > 2.414213562373095, a > 0.4142135623730951
    # atan(a) = pi/2 + atan(-1/a) = pi/4 + atan((a - 1) / (a + 1))
    upper = where(steep, a.like(-1.0), where(middle, a - 1.0, a))
    lower = where(steep, a, where(middle, a + 1.0, a.like(1.0)))
    t = upper / lower
    base = where(steep, a.like(_HALF_PI[0]), where(middle, a.like(_HALF_PI[0] / 2), a.like(0.0)))
    base_rest = where(steep, a.like(_HALF_PI[1]), where(middle, a.like(_HALF_PI[1] / 2), a.like(0.0)))
    z = t * t
    return (base + (fma(t * z, polynomial(z, _ATAN), base_rest) + t)).with_sign_of(x)


def _half_angle(a: Lanes) -> tuple[Lanes, Lanes]:
    """asin(sqrt((1 - a) / 2)) as a leading part and a correction, for 1/2 <= a <= 1."""
    z = (1.0 - a) * 0.5
    s = z.intrinsic("sqrt")
    # what the square root rounded off
    lost = where(s > 0.0, fma(-s, s, z) / (s + s), s)
    return s, fma(s * z, polynomial(z, _ASIN), lost)


def asin(x: Lanes) -> Lanes:
    """Error below 2 ulp; NaN beyond -1 and 1."""
    a = x.intrinsic("fabs")
    z = a * a
    near = fma(a * z, polynomial(z, _ASIN), a)
    s, rest = _half_angle(a)
    far = (_HALF_PI[0] - 2.0 * s) + (_HALF_PI[1] - 2.0 * rest)
    return where(a < 0.5, near, far).with_sign_of(x)


def acos(x: Lanes) -> Lanes:
    """Error below 2 ulp; NaN beyond -1 and 1."""
    a = x.intrinsic("fabs")
    z = x * x
    near = _HALF_PI[0] - (x - (_HALF_PI[1] - x * z * polynomial(z, _ASIN)))
    s, rest = _half_angle(a)
    right = 2.0 * (s + rest)
    left = 2.0 * ((_HALF_PI[0] - s) + (_HALF_PI[1] - rest))
    return where(a < 0.5, near, where(x > 0.0, right, left))
