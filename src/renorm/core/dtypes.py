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
    DType("int64", "i64", 64, "int"),
    DType("int32", "i32", 32, "int"),
    DType("int16", "i16", 16, "int"),
    DType("int8", "i8", 8, "int"),
    DType("uint64", "u64", 64, "uint"),
    DType("uint32", "u32", 32, "uint"),
    DType("uint16", "u16", 16, "uint"),
    DType("uint8", "u8", 8, "uint"),
    DType("bool", "bool", 8, "bool"),  # one byte in memory, one bit in a register
]
BY_NAME = {d.name: d for d in _TABLE}
BY_SHORT = {d.short: d for d in _TABLE}
ALIASES = {"float": "float32", "int": "int32", "uint": "uint32"}  # as TVM reads them
_BY_SPELLING = BY_SHORT | BY_NAME | {alias: BY_NAME[name] for alias, name in ALIASES.items()}

PRECISIONS = ("fast", "exact", "bfloat16")
"""How a network of float32 may be computed, as `renorm.compile` takes it."""
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int32", "int64", "int8", "int16", "uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTS
ALL = (*NUMBERS, "bool")


def lookup(name: object) -> DType:
    """Return the record of a dtype given by its long or short name, by an alias, or as NumPy's."""
    if isinstance(name, str):
        found = _BY_SPELLING.get(name)
    elif isinstance(name, np.dtype) or (isinstance(name, type) and issubclass(name, np.generic)):
        found = BY_NAME.get(np.dtype(name).name)
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
    return {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[lookup(name).name]


def smallest_number(name: str) -> float:
    """Return the smallest positive number of a floating dtype; below 2 / unit_roundoff of them, numbers have fewer
    digits."""
    return {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}[lookup(name).name]


def itemsize(name: str) -> int:
    """Bytes of one element in memory."""
    return lookup(name).bits // 8


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype; bfloat16 is the one of ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes  # only who meets bfloat16 pays for it

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(lookup(name).name)


def from_numpy(dtype: Any) -> str:
    """Return the name of a NumPy dtype; raises InvalidExpression for one that has no counterpart."""
    return lookup(np.dtype(dtype).name).name


def compute_dtype(name: str) -> str:
    """Return the dtype that arithmetic runs in: 16-bit floats are storage only, and widen to float32."""
    return "float32" if name in ("float16", "bfloat16") else name
