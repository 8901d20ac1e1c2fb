"""Integer division without traps and without undefined results, for scalars and vectors of any width.

`/` truncates, `//` and `%` floor. By zero all three give 0, as NumPy's do; the least number by -1 wraps to itself.
"""

from __future__ import annotations

from renorm.codegen.llvm.lanes import Lanes, Variable, where
from renorm.codegen.llvm.ssa import Function, Value, constant


def truncated(f: Function, x: Value, y: Value, remainder: bool, unsigned: bool = False) -> Value:
    """Quotient toward zero, or the remainder, which has the sign of `x`."""
    name = ("u" if unsigned else "s") + ("rem" if remainder else "div")
    t = x.type
    zero, one = constant(t, 0), constant(t, 1)
    if y.number is not None and y.number not in (0, -1):
        return f.op(name, x, y)
    is_zero = f.compare("icmp eq", y, zero)
    if unsigned:
        return f.select(is_zero, zero, f.op(name, x, f.select(is_zero, one, y)))
    is_minus = f.compare("icmp eq", y, constant(t, -1))
    safe = f.select(f.op("or", is_zero, is_minus), one, y)
    by_minus = zero if remainder else f.op("sub", zero, x)
    return f.select(is_zero, zero, f.select(is_minus, by_minus, f.op(name, x, safe)))


def shifted(f: Function, x: Value, y: Value, is_left: bool, unsigned: bool) -> Value:
    """`x` shifted by `y` bits; by a negative number, or all of its bits or more, to 0, or to the right to its sign."""
    t, zero = x.type, constant(x.type, 0)
    bits = int(t.element.removeprefix("i"))
    inside = f.compare("icmp ult", y, constant(t, bits))
    if not is_left and not unsigned:
        return f.op("ashr", x, f.select(inside, y, constant(t, bits - 1)))
    return f.select(inside, f.op("shl" if is_left else "lshr", x, f.select(inside, y, zero)), zero)


def floored(f: Function, x: Value, y: Value, remainder: bool, unsigned: bool = False) -> Value:
    """Quotient toward minus infinity, or the remainder, which has the sign of `y`."""
    if unsigned:
        return truncated(f, x, y, remainder, unsigned)
    t = x.type
    divisor = int(y.number) if y.number is not None else 0
    if divisor > 0 and divisor & (divisor - 1) == 0:
        if remainder:
            return f.op("and", x, constant(t, divisor - 1))
        return f.op("ashr", x, constant(t, divisor.bit_length() - 1))
    rest = truncated(f, x, y, remainder=True)
    # truncation went the wrong way where there is a rest and its sign is not the divisor's
    opposite = f.compare("icmp slt", f.op("xor", rest, y), constant(t, 0))
    wrong = f.op("and", f.compare("icmp ne", rest, constant(t, 0)), opposite)
    if remainder:
        return f.select(wrong, f.op("add", rest, y), rest)
    return f.op("add", truncated(f, x, y, remainder=False), f.convert("sext", wrong, t.element))


def power(f: Function, base: Value, exponent: Value, unsigned: bool) -> Value:
    """base ** exponent by squaring, wrapping; 0 ** 0 is 1, and a negative exponent counts as 0."""
    start = exponent if unsigned else f.intrinsic("smax", exponent, constant(base.type, 0))
    result, square, left = (Variable(Lanes(f, v)) for v in (constant(base.type, 1), base, start))
    with f.forever():
        odd = (left.value & 1).differs(0)
        result.value = where(odd, result.value * square.value, result.value)
        square.value *= square.value
        left.value = left.value.logical_shift(1)
        f.leave((~left.value.differs(0).any).value)
    return result.value.value
