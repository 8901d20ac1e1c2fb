"""Element types in registers and in memory, and the conversions between them.

float16 and bfloat16 are float32 in registers and 16 bits in memory; bool is i1 and a byte; tf32 is float32 in both.
Rounding is to nearest even, once: from float64 to 16 bits it goes through float32 rounded to odd (of tf32 it is that of
core.conversion). Float to integer truncates; what is out of range saturates, and NaN gives 0, so that no cast is
undefined. What has at most 8 bits is a byte in both (stored_types.py).
"""

from __future__ import annotations

from renorm.codegen.llvm.ssa import Function, Type, Value, constant, vector
from renorm.codegen.llvm.stored_types import decoded, encoded
from renorm.core import dtypes
from renorm.core.conversion import TF32_HALF, TF32_KEPT, limits

_BYTES = dict.fromkeys(dtypes.STORED, "i8")
_FLOATS = dict.fromkeys(("float32", "float16", "bfloat16", "tf32"), "float")
_REGISTER = {"float64": "double", "bool": "i1"} | _FLOATS | _BYTES
ROUNDED = 16  # lanes that the instruction rounds
_MEMORY = _REGISTER | {"float16": "i16", "bfloat16": "i16", "bool": "i8"}


def register_type(dtype: str, lanes: int = 1) -> Type:
    """Return the type of a value of this dtype in registers."""
    return vector(_REGISTER.get(dtype) or f"i{dtypes.lookup(dtype).bits}", lanes)


def memory_type(dtype: str, lanes: int = 1) -> Type:
    """Return the type of a value of this dtype in memory."""
    return vector(_MEMORY.get(dtype) or f"i{dtypes.lookup(dtype).bits}", lanes)


def is_unsigned(dtype: str) -> bool:
    return dtypes.lookup(dtype).kind in ("uint", "bool")


def from_memory(f: Function, raw: Value, dtype: str) -> Value:
    match dtype:
        case "float16":
            return f.convert("fpext", f.convert("bitcast", raw, "half"), "float")
        case "bfloat16":
            wide = f.convert("zext", raw, "i32")
            return f.convert("bitcast", f.op("shl", wide, constant(wide.type, 16)), "float")
        case "bool":
            return f.compare("icmp ne", raw, constant(raw.type, 0))
        case _:
            return raw


def to_memory(f: Function, value: Value, dtype: str, loses_subnormals: bool = False) -> Value:
    """loses_subnormals: whether what is subnormal may become 0, for the sake of an instruction of AVX-512."""
    match dtype:
        case "float16":
            return f.convert("bitcast", f.convert("fptrunc", value, "half"), "i16")
        case "bfloat16" if loses_subnormals and value.type.lanes == ROUNDED:
            call = f"call <{ROUNDED} x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512({value.typed})"
            return f.convert("bitcast", f.pure(call, vector("bfloat", ROUNDED), value), "i16")
        case "bfloat16":
            bits = f.convert("bitcast", value, "i32")
            t = bits.type
            # half a unit of the last kept place, less one where that place is even: ties go to even
            odd = f.op("and", f.op("lshr", bits, constant(t, 16)), constant(t, 1))
            rounded = f.op("add", bits, f.op("add", odd, constant(t, 0x7FFF)))
            quiet = f.op("or", bits, constant(t, 0x400000))  # a NaN keeps its payload's upper half, and stays one
            chosen = f.select(f.compare("fcmp uno", value, value), quiet, rounded)
            return f.convert("trunc", f.op("lshr", chosen, constant(t, 16)), "i16")
        case "tf32":
            bits = f.convert("bitcast", value, "i32")
            kept = f.op("and", f.op("add", bits, constant(bits.type, TF32_HALF)), constant(bits.type, TF32_KEPT))
            nan = constant(value.type, float("nan"))
            return f.select(f.compare("fcmp uno", value, value), nan, f.convert("bitcast", kept, "float"))
        case "bool":
            return f.convert("zext", value, "i8")
        case _:
            return value


def cast(f: Function, value: Value, source: str, target: str) -> Value:
    """`value` of dtype source as dtype target."""
    if source == target:
        return value
    if dtypes.is_stored(source):
        return cast(f, decoded(f, value, source), dtypes.compute_dtype(source), target)
    if dtypes.is_stored(target):
        return encoded(f, _encodable(f, value, source, target), target)
    from_float, to_float = dtypes.is_float(source), dtypes.is_float(target)
    element = register_type(target).element
    if target == "bool":
        return f.compare("fcmp une" if from_float else "icmp ne", value, constant(value.type, 0))
    if from_float and to_float:
        if target in ("float16", "bfloat16"):
            single = _round_to_odd(f, value) if source == "float64" else value
            return from_memory(f, to_memory(f, single, target), target)
        whole = f.convert("fptrunc" if source == "float64" else "fpext", value, element)
        return to_memory(f, whole, target) if target == "tf32" else whole
    if from_float:
        if source != "float64" and value.type.lanes > 1 and is_short(target):
            return f.convert("trunc", f.convert("fptosi", _cut(f, value, limits(target)), "i32"), element)
        name = "fptoui.sat" if is_unsigned(target) else "fptosi.sat"
        return f.intrinsic(name, value, type=value.type.of(element))
    if to_float:
        # no select of 1 and 0 for bool: LLVM 22 takes 0 / select(c, 1, 0) for 0 where c is false and lanes are known
        wide = f.convert("uitofp" if source == "bool" or is_unsigned(source) else "sitofp", value, element)
        return cast(f, wide, "float32", target) if target in ("float16", "bfloat16", "tf32") else wide
    bits_from, bits_to = value.type.bits, register_type(target).bits
    if bits_from == bits_to:
        return value
    return f.convert("trunc" if bits_from > bits_to else "zext" if is_unsigned(source) else "sext", value, element)


def is_short(dtype: str) -> bool:
    """Return whether integers have fewer bits than a float32."""
    return not dtypes.is_float(dtype) and not dtypes.is_stored(dtype) and 1 < register_type(dtype).bits < 32


def rounded(f: Function, value: Value, added: int, ends: tuple[int, int], target: str) -> Value:
    """round(value) + added as integers of dtype target, value a vector of float32 that is cut to the ends, which are
    integers less what is added: one instruction rounds and converts. A NaN becomes 0.

    cast(max(low, min(round(x), high)) + c)  =  round(max(low, min(x, high))) + c"""
    whole = f.intrinsic("lrint", _cut(f, value, ends, -added), type=value.type.of("i32"))
    moved = f.op("add", whole, constant(whole.type, added)) if added else whole
    return f.convert("trunc", moved, register_type(target).element)


def _cut(f: Function, value: Value, ends: tuple[float, float], nothing: float = 0) -> Value:
    """Return vectors of float32 cut to whole numbers of at most 16 bits, and `nothing` for a NaN; by comparisons, since
    LLVM's own conversion takes numbers one by one."""
    low, high = (constant(value.type, end) for end in ends)
    if nothing != ends[0]:
        value = f.select(f.compare("fcmp ord", value, value), value, constant(value.type, nothing))
    value = f.select(f.compare("fcmp ogt", value, low), value, low)
    return f.select(f.compare("fcmp olt", value, high), value, high)


def _encodable(f: Function, value: Value, source: str, target: str) -> Value:
    """`value` as what bytes of dtype target are made of: float32 that a second rounding cannot err of, or integers."""
    if dtypes.is_float(target):
        return _round_to_odd(f, value) if source == "float64" else cast(f, value, source, "float32")
    return cast(f, value, source, "int32" if dtypes.is_float(source) else "int8")


def _round_to_odd(f: Function, value: Value) -> Value:
    """float64 to float32: truncated, the last bit set where that is inexact, so that a second rounding cannot err."""
    nearest = f.convert("fptrunc", value, "float")
    back = f.convert("fpext", nearest, "double")
    bits = f.convert("bitcast", nearest, "i32")
    beyond = f.compare("fcmp ogt", f.intrinsic("fabs", back), f.intrinsic("fabs", value))
    truncated = f.op("sub", bits, f.convert("zext", beyond, "i32"))
    sticky = f.convert("zext", f.compare("fcmp one", back, value), "i32")
    return f.convert("bitcast", f.op("or", truncated, sticky), "float")
