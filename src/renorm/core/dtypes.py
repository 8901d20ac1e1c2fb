"""Element types. A dtype is a string; this table is the only place that knows bytes, kinds and short names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.errors import InvalidExpression, suggest


@dataclass(frozen=True)
class DType:
    name: str
    short: str  # as printed in graph text: f32[1, 3]
    bits: int
    kind: str  # "float", "int", "uint", "bool"


_TABLE = [
    DType("float64", "f64", 64, "float"),
    DType("float32", "f32", 32, "float"),
    DType("float16", "f16", 16, "float"),
    DType("bfloat16", "bf16", 16, "float"),
    DType("tf32", "tf32", 32, "float"),  # a float32 whose last 13 bits are 0: what tensor cores multiply
    DType("int64", "i64", 64, "int"),
    DType("int32", "i32", 32, "int"),
    DType("int16", "i16", 16, "int"),
    DType("int8", "i8", 8, "int"),
    DType("uint64", "u64", 64, "uint"),
    DType("uint32", "u32", 32, "uint"),
    DType("uint16", "u16", 16, "uint"),
    DType("uint8", "u8", 8, "uint"),
    DType("bool", "bool", 8, "bool"),  # one byte in memory, one bit in a register
    # what follows is storage, see STORED
    DType("float8e4m3fn", "f8e4m3fn", 8, "float"),
    DType("float8e4m3fnuz", "f8e4m3fnuz", 8, "float"),
    DType("float8e5m2", "f8e5m2", 8, "float"),
    DType("float8e5m2fnuz", "f8e5m2fnuz", 8, "float"),
    DType("float4e2m1", "f4e2m1", 4, "float"),
    DType("int4", "i4", 4, "int"),
    DType("int2", "i2", 2, "int"),
    DType("uint4", "u4", 4, "uint"),
    DType("uint2", "u2", 2, "uint"),
]
BY_NAME = {d.name: d for d in _TABLE}
BY_SHORT = {d.short: d for d in _TABLE}
ALIASES = {"float": "float32", "int": "int32", "uint": "uint32"}  # as TVM reads them
_BY_SPELLING = BY_SHORT | BY_NAME | {alias: BY_NAME[name] for alias, name in ALIASES.items()}


@dataclass(frozen=True)
class Format:
    """The form of a float of at most 8 bits: a sign, an exponent and `digits` of the number, from the highest bit
    on; codes are these bits as a number.

    bias: of the exponent. sign: its bit. most: code of the greatest number. beyond: of what is beyond it. nan: of NaN.
    has_one_zero: whether there is no negative zero, whose code is NaN's.
    """

    digits: int
    bias: int
    sign: int
    most: int
    beyond: int
    nan: int
    has_one_zero: bool = False

    @property
    def smallest(self) -> float:
        """The smallest positive number, and the distance of numbers below `normal`."""
        return 2.0 ** (1 - self.bias - self.digits)

    @property
    def normal(self) -> float:
        """The smallest number with all digits."""
        return 2.0 ** (1 - self.bias)

    @property
    def greatest(self) -> float:
        exponent, digits = self.most >> self.digits, self.most & ((1 << self.digits) - 1)
        return (1 + digits * 2.0**-self.digits) * 2.0 ** (exponent - self.bias)


# Sources: OCP 8-bit Floating Point Specification; OCP Microscaling Formats Specification (e2m1); ONNX, Cast (fnuz)
FORMATS = {
    "float8e4m3fn": Format(3, 7, 0x80, most=0x7E, beyond=0x7F, nan=0x7F),
    "float8e4m3fnuz": Format(3, 8, 0x80, most=0x7F, beyond=0x80, nan=0x80, has_one_zero=True),
    "float8e5m2": Format(2, 15, 0x80, most=0x7B, beyond=0x7C, nan=0x7E),
    "float8e5m2fnuz": Format(2, 16, 0x80, most=0x7F, beyond=0x80, nan=0x80, has_one_zero=True),
    "float4e2m1": Format(1, 1, 0x8, most=0x7, beyond=0x7, nan=0x8),  # saturates, and of NaN makes a zero
}

PRECISIONS = ("fast", "exact", "bfloat16", "tf32")
"""How a network of float32 may be computed, as `renorm.compile` takes it."""
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int32", "int64", "int8", "int16", "uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTS
ALL = (*NUMBERS, "bool")
_OF_ML_DTYPES = {
    "bfloat16": "bfloat16", "float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2fnuz", "float4e2m1": "float4_e2m1fn", "int4": "int4",
    "int2": "int2", "uint4": "uint4", "uint2": "uint2",
}  # fmt: skip
_OWN_NAMES = {theirs: name for name, theirs in _OF_ML_DTYPES.items()}
STORED = tuple(name for name in _OF_ML_DTYPES if name != "bfloat16")
"""Dtypes that are stored, moved and cast alone: of at most 8 bits, each element in a byte of its own, whose
lowest bits it is."""
_STORED = frozenset(STORED)
_WIDER = {"float16": "float32", "bfloat16": "float32", "tf32": "float32"} | {
    name: {"float": "float32", "int": "int8", "uint": "uint8"}[BY_NAME[name].kind] for name in STORED
}
MOVED = (*ALL, *STORED)
"""Dtypes of elements that an op moves."""


def lookup(name: object) -> DType:
    """Return the record of a dtype given by its long or short name, by an alias, or as NumPy's."""
    if isinstance(name, str):
        found = _BY_SPELLING.get(name)
    elif isinstance(name, np.dtype) or (isinstance(name, type) and issubclass(name, np.generic)):
        theirs = np.dtype(name).name
        found = BY_NAME.get(_OWN_NAMES.get(theirs, theirs))
    else:
        found = None
    if found is None:
        raise InvalidExpression(f"{name!r} is not a dtype", [f"known: {suggest(str(name), BY_NAME)}"])
    return found


def is_float(name: str) -> bool:
    return lookup(name).kind == "float"


def is_int(name: str) -> bool:
    return lookup(name).kind in ("int", "uint")


def short(name: str) -> str:
    return lookup(name).short


def unit_roundoff(name: str) -> float:
    """Return the largest relative error of rounding to a floating dtype; half the distance from 1 to the next
    number."""
    digits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "tf32": 11}
    full = lookup(name).name
    return 2.0 ** -(digits.get(full) or FORMATS[full].digits + 1)


def smallest_number(name: str) -> float:
    """Return the smallest positive number of a floating dtype; below 2 / unit_roundoff of them, numbers have fewer
    digits."""
    exponents = {"float64": -1074, "float32": -149, "float16": -24, "bfloat16": -133, "tf32": -136}
    full = lookup(name).name
    return 2.0 ** exponents[full] if full in exponents else FORMATS[full].smallest


def itemsize(name: str) -> int:
    """Bytes of one element in memory."""
    return (lookup(name).bits + 7) // 8


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype; of those that NumPy does not have, the one of ml_dtypes; of tf32 float32, which has its
    numbers: core.conversion rounds to them."""
    full = lookup(name).name
    if full == "tf32":
        return np.dtype(np.float32)
    if full in _OF_ML_DTYPES:
        import ml_dtypes  # only who meets such a dtype pays for it

        return np.dtype(getattr(ml_dtypes, _OF_ML_DTYPES[full]))
    return np.dtype(full)


def from_numpy(dtype: Any) -> str:
    """Return the name of a NumPy dtype; raises InvalidExpression for one that has no counterpart."""
    theirs = np.dtype(dtype).name
    return lookup(_OWN_NAMES.get(theirs, theirs)).name


def compute_dtype(name: str) -> str:
    """Return the dtype that arithmetic runs in: what is storage only widens to float32, int8 or uint8."""
    return _WIDER.get(name, name)


def is_stored(name: str) -> bool:
    """Return whether a dtype is one of STORED."""
    return name in _STORED
