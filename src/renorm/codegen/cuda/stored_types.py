"""CUDA C of elements of at most 8 bits (`dtypes.STORED`), written out: no header of CUDA has them all.

They are the byte that memory holds everywhere but in casts, which call a device function that makes float or an integer
of 8 bits of them, or the reverse. The arithmetic is that of codegen/llvm/stored_types.py.
"""

from __future__ import annotations

from renorm.core import dtypes
from renorm.core.conversion import stored_code
from renorm.core.dtypes import FORMATS, STORED

TYPE = "unsigned char"
TYPES = dict.fromkeys(STORED, TYPE)
_DIGITS, _BIAS = 23, 127  # of float32
_HEAD = "static __device__ __forceinline__ "
# float64 cut to float32, the last bit set where that is inexact, so that a second rounding cannot err
_ODD = """float renorm_rounded_to_odd(double x) {
  const float nearest = (float)x;
  const double back = nearest;
  const unsigned int cut = __float_as_uint(nearest) - (fabs(back) > fabs(x));
  return __uint_as_float(cut | (back != x && x == x));
}"""
_FLOAT_OF = """float {name}({t} x) {{
  const unsigned int size = x & {low}u;
  unsigned int bits = size < {normal}u ? __float_as_uint(size * {smallest}f) : (size << {shift}) + {offset}u;
  {special}
  return __uint_as_float(bits | (x & {sign}u) << {up});
}}"""
_CODE_OF = """{t} {name}(float x) {{
  const unsigned int bits = __float_as_uint(x), size = bits & 0x7fffffffu;
  unsigned int code = size < {normal}u
      ? __float_as_uint(__uint_as_float(size) + {whole}f) - __float_as_uint({whole}f)
      : (size + (size >> {shift} & 1u) + {half}u) >> {shift};
  code = size > 0x7f800000u ? {nan}u : code > {most}u ? {beyond}u : code;
  return ({t})({zero}code | (bits >> {up} & {sign}u));
}}"""


def constant(value: float, dtype: str) -> str:
    """Return a constant of a dtype as the code that stands for it."""
    return str(stored_code(value, dtype))


def decoder(dtype: str) -> tuple[str, str]:
    """Return the name of the device function that makes `compute_dtype(dtype)` of a byte, and its text."""
    name = f"renorm_of_{dtype}"
    if dtype not in FORMATS:
        kind = dtypes.lookup(dtype)
        low, half = (1 << kind.bits) - 1, 1 << (kind.bits - 1)
        if kind.kind == "uint":
            return name, f"{_HEAD}unsigned char {name}({TYPE} x) {{ return x & {low}; }}"
        return name, f"{_HEAD}signed char {name}({TYPE} x) {{ return (signed char)((x & {low} ^ {half}) - {half}); }}"
    f = FORMATS[dtype]
    special = ""
    if f.has_one_zero:
        special = f"if (x == {f.nan}u) return __uint_as_float(0x7fc00000u);"
    elif f.beyond > f.most:
        special = f"if (size > {f.most}u) bits = 0x7fc00000u;"
        if f.beyond != f.nan:
            special = f"if (size > {f.most}u) bits = size == {f.beyond}u ? 0x7f800000u : 0x7fc00000u;"
    text = _FLOAT_OF.format(
        name=name, t=TYPE, low=f.sign - 1, normal=1 << f.digits, smallest=repr(f.smallest), shift=_DIGITS - f.digits,
        offset=(_BIAS - f.bias) << _DIGITS, special=special, sign=f.sign, up=32 - f.sign.bit_length(),
    )  # fmt: skip
    return name, _line(text)


def encoder(dtype: str) -> tuple[str, str]:
    """Return the name of the device function that makes the byte of float, or of an integer, and its text."""
    name = f"renorm_as_{dtype}"
    if dtype not in FORMATS:
        return name, f"{_HEAD}{TYPE} {name}(int x) {{ return x & {(1 << dtypes.lookup(dtype).bits) - 1}; }}"
    f = FORMATS[dtype]
    shift = _DIGITS - f.digits
    text = _CODE_OF.format(
        name=name, t=TYPE, normal=(1 - f.bias + _BIAS) << _DIGITS, whole=repr(f.smallest * 2.0**_DIGITS), shift=shift,
        half=((1 << (shift - 1)) - 1 - ((_BIAS - f.bias) << _DIGITS)) % 2**32, nan=f.nan, most=f.most, beyond=f.beyond,
        zero="code == 0u ? 0u : " if f.has_one_zero else "", up=32 - f.sign.bit_length(), sign=f.sign,
    )  # fmt: skip
    return name, _line(text)


def odd() -> tuple[str, str]:
    """Return the name of the device function that makes float of double for an encoder, and its text."""
    return "renorm_rounded_to_odd", _line(_ODD)


def _line(text: str) -> str:
    """Return a definition as one line, as other functions of the text are."""
    return _HEAD + " ".join(text.split())
