"""Scalar arithmetic of the loop interpreter: what each operator and intrinsic gives, type by type.

Values are Python integers and bools, np.float64, and np.float32, which also carries narrower floats. Templates are
Python expressions with a {} for each operand, over the names of FUNCTIONS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.conversion import converted, truncated, wrapping
from renorm.expr.nodes import BITCAST, INTRINSICS, OF_BITS, fold_integers

_CONVERTED = frozenset((*dtypes.FORMATS, "tf32"))  # floats that NumPy does not round to


def cells(array: np.ndarray[Any, Any], dtype: str) -> list[Any]:
    """The elements of an array as the interpreter computes with them."""
    if not dtypes.is_float(dtype):
        return array.tolist()
    return list(array.astype(dtypes.numpy_dtype(dtypes.compute_dtype(dtype))))


def rounded(value: float, dtype: str) -> Any:
    """`value` rounded to a float type, in the type that computes with it."""
    with np.errstate(all="ignore"):
        if dtype in _CONVERTED:
            return np.float32(converted(np.asarray(value, np.float64), dtype))
        narrow = dtypes.numpy_dtype(dtype).type(value)
        return dtypes.numpy_dtype(dtypes.compute_dtype(dtype)).type(narrow)


def _wrap(dtype: str) -> Callable[[int], int]:
    wrap = wrapping(dtype)
    return lambda v: wrap(int(v))


def _float_to_int(dtype: str) -> Callable[[Any], int]:
    return lambda x: truncated(float(x), dtype)


def _to_float(dtype: str) -> Callable[[Any], Any]:
    narrow = dtypes.numpy_dtype(dtype).type
    if dtype in ("float32", "float64"):
        return narrow
    if dtype in _CONVERTED:
        return lambda x: rounded(float(x), dtype)
    return lambda x: np.float32(narrow(np.float64(x)))


def _integer(op: str) -> Callable[[int, int], Any]:
    def apply(a: int, b: int) -> Any:
        value = fold_integers(op, a, b)
        # by zero NumPy gives 0; a negative exponent counts as 0
        return value if value is not None else int(op == "pow")

    return apply


def fused_multiply_add(a: Any, b: Any, c: Any) -> Any:
    """a*b + c rounded once."""
    kind = type(a)
    plain = kind(np.float64(a) * np.float64(b) + np.float64(c))
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return plain
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return plain  # the sign of zero follows the plain sum
    return _round_fraction(exact, kind)


def _round_fraction(exact: Fraction, kind: Any) -> Any:
    """The value of a float type nearest to a fraction, ties to even."""
    if kind is np.float64:
        try:
            return np.float64(exact.numerator / exact.denominator)  # integer division rounds once, to nearest even
        except OverflowError:
            return np.float64(math.copysign(math.inf, exact))
    try:
        double = exact.numerator / exact.denominator
    except OverflowError:
        return kind(math.copysign(math.inf, exact))
    error = exact - Fraction(double)
    if error and not np.float64(double).view(np.uint64) & 1:
        # round to odd: the second rounding then decides as the exact value would
        double = math.nextafter(double, math.copysign(math.inf, error))
    return kind(double)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x)) if x >= 0 else np.exp(x) / (1 + np.exp(x))


_WIDE: dict[str, Callable[[Any], Any]] = {  # computed in float64, rounded once
    "exp": np.exp,
    "log": np.log,
    "rsqrt": lambda x: np.float64(1) / np.sqrt(x),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": lambda x: np.float64(math.erf(x)),
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh")},
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}
_EXACT: dict[str, Callable[..., Any]] = {  # exact, or rounded once, in the type itself
    "sqrt": np.sqrt,
    "abs": abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "isnan": lambda x: bool(np.isnan(x)),
    "isinf": lambda x: bool(np.isinf(x)),
    "likely": lambda x: x,
    "fma": fused_multiply_add,
    "if_then_else": lambda c, a, b: a if c else b,
}
_INTEGER: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "fmod": _integer("fmod"),
    "fma": lambda a, b, c: a * b + c,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "shift_left": lambda a, b: a << b if 0 <= b < 64 else 0,  # which wraps
    "shift_right": lambda a, b: a >> (b if 0 <= b < 64 else 64),
}


def _rounding(f: Callable[[Any], Any], kind: Any) -> Callable[[Any], Any]:
    return lambda x: kind(f(np.float64(x)))


def _popcount(dtype: str) -> Callable[[int], int]:
    mask = (1 << dtypes.lookup(dtype).bits) - 1
    return lambda x: (x & mask).bit_count()


def _bitcast(dtype: str, other: str) -> Callable[[Any], Any]:
    held = dtypes.numpy_dtype(dtype).type
    return lambda x: (int if dtypes.is_int(other) else dtypes.numpy_dtype(other).type)(held(x).view(other))


def _power(a: Any, b: Any) -> Any:
    return type(a)(np.power(np.float64(a), np.float64(b)))


_INTEGERS = [name for name in dtypes.MOVED if dtypes.is_int(name)]

FUNCTIONS: dict[str, Any] = {
    "_select": lambda c, a, b: a if c else b,
    "_ramp": lambda b, k, n: [b + k * i for i in range(n)],
    "_floor_divide": np.floor_divide,
    "_remainder": np.remainder,
    "_minimum": np.minimum,
    "_maximum": np.maximum,
    "_power": _power,
    "_truncated": _integer("/"),
    "_floored": _integer("//"),
    "_modulo": _integer("%"),
    "_int_power": _integer("pow"),
    "_int_abs": abs,  # of the least number, which is that number, as in NumPy
    "_int_sign": _INTEGER["sign"],
    "_int_fmod": _INTEGER["fmod"],
    **{f"_int_{name}": _INTEGER[name] for name in ("fma", *OF_BITS - {"popcount"})},
    "_sign": np.sign,
    "_fmod": np.fmod,
    **{f"_{name}": f for name, f in _EXACT.items()},
    **{f"_{name}_f64": _rounding(f, np.float64) for name, f in _WIDE.items()},
    **{f"_{name}_f32": _rounding(f, np.float32) for name, f in _WIDE.items()},
    **{f"_wrap_{name}": _wrap(name) for name in _INTEGERS},
    **{f"_toint_{name}": _float_to_int(name) for name in _INTEGERS},
    **{f"_popcount_{name}": _popcount(name) for name in (*dtypes.INTS, "bool")},
    **{f"_bitcast_{name}": _bitcast(name, other) for name, other in BITCAST.items()},
}
for _name in ("float32", "float64", "float16", "tf32"):
    FUNCTIONS[f"_to_{_name}"] = _to_float(_name)
for _name in ("bfloat16", *dtypes.FORMATS):  # resolved when met: these need ml_dtypes
    FUNCTIONS[f"_to_{_name}"] = lambda x, name=_name: _to_float(name)(x)


def binary(op: str, dtype: str, wraps: bool) -> str:
    """Template of `a op b` for operands of dtype; wraps: the result is brought back into an integer type."""
    if op in ("&&", "||"):
        return "(bool({}) & bool({}))" if op == "&&" else "(bool({}) | bool({}))"
    if op in ("==", "!=", "<", "<=", ">", ">="):
        return f"bool({{}} {op} {{}})"
    if dtypes.is_float(dtype):
        named = {"//": "_floor_divide", "%": "_remainder", "min": "_minimum", "max": "_maximum", "pow": "_power"}
    else:
        named = {"/": "_truncated", "//": "_floored", "%": "_modulo", "min": "min", "max": "max", "pow": "_int_power"}
    template = f"{named[op]}({{}}, {{}})" if op in named else f"({{}} {op} {{}})"
    return f"_wrap_{dtype}({template})" if wraps else template


def cast(source: str, target: str) -> str:
    """Template of a cast."""
    if target == "bool":
        return "({} != 0)"
    if dtypes.is_float(target):
        return f"_to_{target}({{}})"
    return f"_toint_{target}({{}})" if dtypes.is_float(source) else f"_wrap_{target}({{}})"


def call(name: str, dtype: str) -> str:
    """Template of an intrinsic whose first argument has dtype."""
    arguments = "(" + ", ".join(["{}"] * INTRINSICS[name]) + ")"
    if name in ("popcount", "bitcast"):
        return f"_{name}_{dtype}{arguments}"
    if not dtypes.is_float(dtype) and name in _INTEGER:
        return f"{store_function(dtype)}(_int_{name}{arguments})"
    if name in _WIDE:
        return f"_{name}_{'f64' if dtype == 'float64' else 'f32'}{arguments}"
    return f"_{name}{arguments}"


def store_function(dtype: str) -> str:
    """The function that brings a value into a buffer's type."""
    if dtype == "bool":
        return "bool"
    return f"_to_{dtype}" if dtypes.is_float(dtype) else f"_wrap_{dtype}"


# of arrays, element by element; `/` is none of them, which rounds integers toward zero
UFUNCS: dict[str, np.ufunc] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.mod, "pow": np.power,
    "min": np.minimum, "max": np.maximum, "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal,
    ">": np.greater, ">=": np.greater_equal, "&&": np.logical_and, "||": np.logical_or,
}  # fmt: skip
