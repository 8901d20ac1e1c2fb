"""Elements of at most 8 bits (`dtypes.STORED`): in registers, too, they are the byte that memory holds.

decoded makes float32, or an integer of 8 bits, of them; encoded the reverse. Floats are made by arithmetic on their
bits, the same for all formats:

    code      numbers with all digits: the exponent and the digits of float32, which begin 23 - digits bits higher
              smaller ones: the multiple of the smallest number that the code is
    rounding  half a unit of the last kept digit is added, less one where that digit is even; below the numbers with all
              digits, float32 rounds: beside 2**23 smallest numbers it has no bits for a fraction of one
"""

from __future__ import annotations

from renorm.codegen.llvm.ssa import Function, Value, constant
from renorm.core import dtypes
from renorm.core.conversion import stored_code
from renorm.core.dtypes import Format

_DIGITS, _BIAS, _SIZE, _INFINITY, _NAN = 23, 127, 0x7FFFFFFF, 0x7F800000, 0x7FC00000  # of float32


def held(dtype: str, number: float | int | bool) -> float | int | bool:
    """Return what stands for a constant of a dtype: the code of what is stored, any other number itself."""
    return stored_code(number, dtype) if dtypes.is_stored(dtype) else number


def decoded(f: Function, code: Value, dtype: str) -> Value:
    """Return what a byte stands for, in `compute_dtype(dtype)`."""
    if dtype in dtypes.FORMATS:
        return _float_of(f, code, dtypes.FORMATS[dtype])
    kind = dtypes.lookup(dtype)
    if kind.kind == "uint":
        return f.op("and", code, constant(code.type, (1 << kind.bits) - 1))
    unused = constant(code.type, 8 - kind.bits)
    return f.op("ashr", f.op("shl", code, unused), unused)


def encoded(f: Function, value: Value, dtype: str) -> Value:
    """Return the byte of a float32, or of an integer, whose lowest bits count."""
    if dtype in dtypes.FORMATS:
        return _code_of(f, value, dtypes.FORMATS[dtype])
    low = f.convert("trunc", value, "i8")
    return f.op("and", low, constant(low.type, (1 << dtypes.lookup(dtype).bits) - 1))


def _float_of(f: Function, code: Value, format: Format) -> Value:
    wide = f.convert("zext", code, "i32")
    t = wide.type
    size = f.op("and", wide, constant(t, format.sign - 1))
    shift = constant(t, _DIGITS - format.digits)
    full = f.op("add", f.op("shl", size, shift), constant(t, (_BIAS - format.bias) << _DIGITS))
    number = f.convert("uitofp", size, "float")
    part = f.convert("bitcast", f.op("fmul", number, constant(number.type, format.smallest)), "i32")
    bits = f.select(f.compare("icmp ult", size, constant(t, 1 << format.digits)), part, full)
    if format.has_one_zero:
        bits = f.select(f.compare("icmp eq", wide, constant(t, format.nan)), constant(t, _NAN), bits)
    elif format.beyond > format.most:
        special = constant(t, _NAN)
        if format.beyond != format.nan:
            is_infinite = f.compare("icmp eq", size, constant(t, format.beyond))
            special = f.select(is_infinite, constant(t, _INFINITY), special)
        bits = f.select(f.compare("icmp ugt", size, constant(t, format.most)), special, bits)
    sign = f.op("and", wide, constant(t, format.sign))
    up = constant(t, 32 - format.sign.bit_length())
    return f.convert("bitcast", f.op("or", bits, f.op("shl", sign, up)), "float")


def _code_of(f: Function, value: Value, format: Format) -> Value:
    bits = f.convert("bitcast", value, "i32")
    t = bits.type
    size = f.op("and", bits, constant(t, _SIZE))
    shift = constant(t, _DIGITS - format.digits)
    half = (1 << (_DIGITS - format.digits - 1)) - 1 - ((_BIAS - format.bias) << _DIGITS)
    odd = f.op("and", f.op("lshr", size, shift), constant(t, 1))
    full = f.op("lshr", f.op("add", f.op("add", size, odd), constant(t, half)), shift)
    whole = constant(value.type, format.smallest * 2.0**_DIGITS)
    beside = f.op("fadd", f.convert("bitcast", size, "float"), whole)
    part = f.op("sub", f.convert("bitcast", beside, "i32"), f.convert("bitcast", whole, "i32"))
    is_part = f.compare("fcmp olt", f.convert("bitcast", size, "float"), constant(value.type, format.normal))
    code = f.select(is_part, part, full)
    code = f.select(f.compare("icmp ugt", code, constant(t, format.most)), constant(t, format.beyond), code)
    code = f.select(f.compare("icmp ugt", size, constant(t, _INFINITY)), constant(t, format.nan), code)
    up = constant(t, 32 - format.sign.bit_length())
    signed = f.op("or", code, f.op("and", f.op("lshr", bits, up), constant(t, format.sign)))
    if format.has_one_zero:
        signed = f.select(f.compare("icmp eq", code, constant(t, 0)), code, signed)
    return f.convert("trunc", signed, "i8")
