"""Expressions as text: what a reader of loops sees, and what tir.parse reads back.

x                     variable
3, true               constants of int32 and bool
1e-05f, 0.5h, 0.25    constants of float32, float16, float64; the shortest digits that give the value back
(int64)3, (float32)inf  constants whose digits do not tell their type, and values that are not finite
(a + b) (a - b) (a*b) (a/b) (a//b) (a % b) (a < b) (a && b) !a   min(a, b) max(a, b) pow(a, b)
float32(a)            cast
select(c, a, b) if_then_else(c, a, b) exp(a)
A[i, j], A[i if c]    elements of a tensor or buffer; with the predicate c
ramp(a, 1, 8) x8(a)   vectors
sum(a, axis=[k])      reductions; `where=c` and `init=e` follow when they are there
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from renorm.core import dtypes
from renorm.expr.nodes import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Ramp,
    Reduce,
    Select,
    Source,
    Var,
    set_printer,
)

INFIX = {"+": " + ", "-": " - ", "*": "*", "/": "/", "//": "//", "%": " % "} | {
    op: f" {op} " for op in ("==", "!=", "<", "<=", ">", ">=", "&&", "||")
}
PREFIX = ("min", "max", "pow")

Naming = Callable[["Var | Source"], str]


def _own_name(x: Var | Source) -> str:
    return x.name


def text(e: Expr, name: Naming = _own_name) -> str:
    """`e` as text; `name` says what a variable or a source is called, for printers that make names unique."""
    match e:
        case Var():
            return name(e)
        case Const():
            return constant_text(e)
        case Binary(op=op, a=a, b=b):
            if op in PREFIX:
                return f"{op}({text(a, name)}, {text(b, name)})"
            return f"({text(a, name)}{INFIX[op]}{text(b, name)})"
        case Not(a=a):
            return f"!{text(a, name)}"
        case Select():
            return f"select({text(e.condition, name)}, {text(e.then, name)}, {text(e.otherwise, name)})"
        case Cast(a=a):
            return f"{e.dtype}({text(a, name)})"
        case Call(args=args):
            return f"{e.name}({', '.join(text(a, name) for a in args)})"
        case Load(indices=indices):
            return f"{name(e.source)}[{access_text(', '.join(text(i, name) for i in indices), e.predicate, name)}]"
        case Reduce():
            axes = ", ".join(axis.var.name for axis in e.axes)
            where = f", where={text(e.condition, name)}" if e.condition is not None else ""
            init = f", init={text(e.init, name)}" if e.init is not None else ""
            return f"{e.combiner}({text(e.value, name)}, axis=[{axes}]{where}{init})"
        case Ramp():
            return f"ramp({text(e.base, name)}, {text(e.stride, name)}, {e.lanes})"
        case Broadcast():
            return f"x{e.lanes}({text(e.value, name)})"
        case _:
            raise TypeError(f"not an expression node: {type(e).__name__}")


def access_text(index: str, predicate: Expr | None, name: Naming) -> str:
    """Return the text between the brackets of an access."""
    return index if predicate is None else f"{index} if {text(predicate, name)}"


_FLOAT_SUFFIX = {"float32": "f", "float16": "h", "float64": ""}


def constant_text(e: Const) -> str:
    if e.dtype == "bool":
        return "true" if e.value else "false"
    if not dtypes.is_float(e.dtype):
        return str(e.value) if e.dtype == "int32" else f"({e.dtype}){e.value}"
    value = float(e.value)
    if np.isfinite(value) and e.dtype in _FLOAT_SUFFIX:
        return _digits(value, e.dtype) + _FLOAT_SUFFIX[e.dtype]
    return f"({e.dtype}){_digits(value, e.dtype)}"


def _digits(value: float, dtype: str) -> str:
    """Shortest digits that round to `value` in dtype; float64 keeps a point or an exponent, unlike an int."""
    if not np.isfinite(value):
        return "nan" if np.isnan(value) else "inf" if value > 0 else "-inf"
    if dtype == "float64":
        return repr(value)
    narrow = dtypes.numpy_dtype(dtype).type
    with np.errstate(over="ignore"):
        rounded = narrow(value)
    if not np.isfinite(float(rounded)):
        return repr(value)  # out of the type's range: show what was written
    digits = str(rounded)
    return digits[:-2] if digits.endswith(".0") else digits


set_printer(text)
