"""Scalar expressions of loops over many threads at once: a value is one number for all, or an array with one for each.

Integers are Python's, or arrays of int64 (uint64 for that type); floats of 16 bits are carried in float32. What each
operator gives is what tir.arithmetic says of one value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.conversion import converted, wrapped
from renorm.expr.nodes import BITCAST, COMPARISONS, fold_integers
from renorm.tir import arithmetic

_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ERF = np.frompyfunc(math.erf, 1, 1)


def _is_many(*values: Any) -> bool:
    return any(isinstance(v, np.ndarray) for v in values)


def carrier(dtype: str) -> Any:
    """Return the NumPy type that arrays of a type are computed in."""
    if dtype == "bool":
        return np.bool_
    if dtypes.is_float(dtype):
        return dtypes.numpy_dtype(dtypes.compute_dtype(dtype))
    return np.uint64 if dtype == "uint64" else np.int64


def constant(value: Any, dtype: str) -> Any:
    if dtypes.is_float(dtype):
        return arithmetic.rounded(float(value), dtype)
    return np.uint64(value) if dtype == "uint64" else value


def wrap(value: Any, dtype: str) -> Any:
    """Return integers brought into their type."""
    if _is_many(value):
        return value.astype(dtypes.numpy_dtype(dtype)).astype(carrier(dtype))
    return constant(wrapped(int(value), dtype), dtype)


def cast(value: Any, source: str, target: str) -> Any:
    if target == "bool":
        return value != 0
    if dtypes.is_float(target):
        return converted(np.asarray(value), target).astype(carrier(target))[()]
    if dtypes.is_float(source):
        return converted(np.asarray(value), target).astype(carrier(target))[()]
    return wrap(value, target)


def binary(op: str, a: Any, b: Any, dtype: str, wraps: bool) -> Any:
    """Return a op b for operands of a type."""
    if op in ("&&", "||"):
        return (np.logical_and if op == "&&" else np.logical_or)(a, b)
    if op in COMPARISONS:
        return _COMPARED[op](a, b)
    if dtypes.is_float(dtype):
        if op == "pow":
            return np.power(np.float64(a), np.float64(b)).astype(carrier(dtype))
        return np.true_divide(a, b) if op == "/" else arithmetic.UFUNCS[op](a, b)
    if isinstance(a, int) and isinstance(b, int):
        found = fold_integers(op, a, b)
        found = int(op == "pow") if found is None else found
    elif op == "/":
        down = np.floor_divide(a, b)
        found = down + ((down * b != a) & ((np.asarray(a) < 0) != (np.asarray(b) < 0)) & (np.asarray(b) != 0))
    elif op == "pow":
        found = np.where(np.asarray(b) < 0, 1, np.power(a, np.maximum(b, 0)))
    else:
        found = arithmetic.UFUNCS[op](a, b)
    return wrap(found, dtype) if wraps else found


def call(name: str, dtype: str, args: list[Any]) -> Any:
    """Return an intrinsic of arguments, the first of which has a type."""
    is_float, (x, *_) = dtypes.is_float(dtype), args
    match name:
        case "likely":
            return x
        case "isnan" | "isinf":
            return getattr(np, name)(x)
        case "bitcast":
            return np.asarray(x, dtype).view(BITCAST[dtype])[()]
        case "popcount":
            mask = (1 << dtypes.lookup(dtype).bits) - 1
            return np.bitwise_count(np.uint64(x) if dtype == "uint64" else np.asarray(x) & mask).astype(np.int64)[()]
        case "bitwise_and" | "bitwise_or" | "bitwise_xor":
            return getattr(np, name)(*args)
        case "shift_left" | "shift_right":
            (a, b), bits = args, dtypes.lookup(dtype).bits
            inside = (np.asarray(b) >= 0) & (np.asarray(b) < bits)
            by = np.where(inside, b, 0).astype(np.asarray(a).dtype)
            if name == "shift_left":
                return wrap(np.where(inside, np.left_shift(a, by), np.zeros_like(a)), dtype)
            return np.where(inside, np.right_shift(a, by), np.minimum(np.sign(a), 0))
        case "erf":
            return np.asarray(_ERF(np.float64(x))).astype(carrier(dtype))[()]
        case "sigmoid":
            e = np.exp(-abs(np.float64(x)))
            return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(carrier(dtype))[()]
        case "fma" if is_float:  # of float32, rounded once and a bit: twice where float64 is a tie
            a, b, c = (np.float64(v) for v in args)
            return np.asarray(a * b + c).astype(carrier(dtype))[()]
        case "fma":
            return wrap(args[0] * args[1] + args[2], dtype)
        case "abs" | "sign" | "fmod" if not is_float:
            return wrap({"abs": np.abs, "sign": np.sign, "fmod": np.fmod}[name](*args), dtype)
        case "abs":
            return np.abs(x)
        case "fmod":
            return np.fmod(*args)
        case _:
            wide = f"_{name}_{'f64' if dtype == 'float64' else 'f32'}"
            return arithmetic.FUNCTIONS[wide if wide in arithmetic.FUNCTIONS else f"_{name}"](x)
