"""Binary elementwise ops with NumPy broadcasting: powers, and arithmetic, comparison, logic, one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from renorm.core.dtypes import ALL, NUMBERS
from renorm.expr.nodes import Binary, Expr, binary
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import Spec, boolean, f16, f32, f64, i32, i64, u8
from renorm.ops.shared import exact, ranges
from renorm.ops.shared.family import DIFFERENCE, LINEAR, Aligned, divided, entry, method

NAN = math.nan


def arithmetic(
    title: str,
    formula: str,
    element: Callable[[Expr, Expr], Expr],
    numpy: Callable[[Any, Any], Any],
    known: Callable[[Any, Any], Any],
    *,
    onnx: str = "",
    since: int = 1,
    divisor: bool = False,
    commutative: bool = False,
    commutes: str = "",
    is_rising: bool = False,
) -> type[OpDef]:
    """T op T -> T over all numbers. divisor: b is one, not zero where it is an integer. is_rising: in both operands."""

    def b(spec: Spec, *values: int) -> Spec:
        return spec.of(np.resize(values, [int(str(d)) for d in spec.type.shape])) if divisor else spec

    return entry(
        Aligned,
        title,
        formula,
        __name__,
        signature="a: T[...], b: T[...] -> y: T[...]",
        types={"T": NUMBERS},
        onnx={onnx or title: since},
        commutative=commutative,
        commutes=commutes,
        element=method(element),
        numpy=method(numpy),
        known_element=staticmethod(known),
        known_range=ranges.rising(known) if is_rising else OpDef.known_range,
        demands=(lambda self, node: divided(node)) if divisor else OpDef.demands,
        samples=[
            Sample(f32[2, 3, 5], f32[2, 3, 5].between(0.5, 2)),
            Sample(f32[2, 3, 1, 5], f32[3, 4, 1].between(0.5, 2)),
            Sample(f32[4], f32[()].between(0.5, 2)),
            Sample(f32[0, 3], f32[3]),
            Sample(f64[3, 1], f64[1, 4].between(-2, -0.5)),
            Sample(f16[2, 3], f16[3].between(0.5, 2), tolerance=2e-3),
            Sample(i64[2, 3, 4], b(i64[4], 2, -3, 1, 7)),
            Sample(i32[6].of([7, -7, 7, -7, 0, 9]), b(i32[6].of([2, 2, -2, -2, 5, 3]), 2, 2, -2, -2, 5, 3)),
            Sample(u8[5], b(u8[5], 3, 1, 2)),
            Sample(f32[5].of([NAN, 1, math.inf, -math.inf, -0.0]), f32[5].of([1, NAN, 2, -2, 3])),
        ],
        rejects=[
            Reject(f32[2, 3], f32[2], because="do not broadcast"),
            Reject(f32[3], i32[3], because="b is int32 but a is float32"),
            Reject(boolean[3], boolean[3], because="a is bool"),
        ],
    )


def comparison(title: str, formula: str, op: str, known: Callable[[Any, Any], Any] | None, **onnx: int) -> type[OpDef]:
    """T op T -> bool."""
    logical_too = op == "=="
    return entry(
        Aligned,
        title,
        formula,
        __name__,
        signature="a: T[...], b: T[...] -> y: bool[...]",
        types={"T": ALL if logical_too else NUMBERS},
        onnx=onnx,
        element=method(lambda a, b: Binary(op, a, b)),
        numpy=method(_NUMPY[op]),
        known_element=None if known is None else staticmethod(known),
        samples=[
            Sample(f32[2, 3, 5], f32[3, 1]),
            Sample(f32[5].of([1, 2, NAN, 0, math.inf]), f32[5].of([1, 3, NAN, -0.0, math.inf])),
            Sample(i64[4, 4], i64[4]),
            Sample(u8[9], u8[()]),
            Sample(f64[0], f64[1]),
            *([Sample(boolean[2, 3], boolean[3])] if logical_too else []),
        ],
        rejects=[
            Reject(f32[4, 3], f32[4, 2], because="do not broadcast"),
            Reject(i64[3], f32[3], because="b is float32 but a is int64"),
        ],
    )


def logic(title: str, formula: str, op: str, known: Callable[[Any, Any], Any], **onnx: int) -> type[OpDef]:
    """bool op bool -> bool."""
    return entry(
        Aligned,
        title,
        formula,
        __name__,
        signature="a: bool[...], b: bool[...] -> y: bool[...]",
        onnx=onnx,
        element=method(lambda a, b: Binary(op, a, b)),
        numpy=method(_NUMPY[op]),
        known_element=staticmethod(known),
        samples=[Sample(boolean[2, 3, 4], boolean[3, 1]), Sample(boolean[2, 2], boolean[2, 2])],
        rejects=[
            Reject(boolean[2], boolean[3], because="do not broadcast"),
            Reject(f32[2], boolean[2], because="a is float32"),
        ],
    )


_NUMPY: dict[str, Callable[..., Any]] = {
    "==": np.equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "&&": np.logical_and,
    "||": np.logical_or,
    "!=": np.logical_xor,
}


def _divide(a: Any, b: Any) -> Any:
    """Integers truncate toward zero, as in C; by zero they give 0."""
    if not np.issubdtype(np.asarray(a).dtype, np.integer):
        return np.divide(a, b)
    floored = np.floor_divide(a, b)
    return floored + ((floored * b != a) & (b != 0) & ((np.asarray(a) < 0) != (np.asarray(b) < 0)))


TABLE: Sequence[type[OpDef]] = [
    arithmetic(
        "Add", "y = a + b", lambda a, b: a + b, np.add, exact.add, commutative=True, commutes=LINEAR, is_rising=True
    ),
    arithmetic("Sub", "y = a - b", lambda a, b: a - b, np.subtract, exact.subtract, commutes=DIFFERENCE),
    arithmetic("Mul", "y = a * b", lambda a, b: a * b, np.multiply, exact.multiply, commutative=True),
    arithmetic(
        "Div",
        "y = a / b; integers truncate toward zero",
        lambda a, b: binary("/", a, b),
        _divide,
        exact.divide,
        divisor=True,
    ),
    comparison("Equal", "y = whether a equals b", "==", exact.equal, Equal=1),
    comparison("Greater", "y = whether a > b", ">", exact.greater, Greater=1),
    comparison("Less", "y = whether a < b", "<", exact.less, Less=1),
    comparison("GreaterOrEqual", "y = whether a >= b", ">=", exact.greater_or_equal, GreaterOrEqual=12),
    comparison("LessOrEqual", "y = whether a <= b", "<=", exact.less_or_equal, LessOrEqual=12),
    logic("LogicalAnd", "y = a and b", "&&", lambda a, b: a and b, And=1),
    logic("LogicalOr", "y = a or b", "||", lambda a, b: a or b, Or=1),
    logic("LogicalXor", "y = whether exactly one of a and b is true", "!=", lambda a, b: a != b, Xor=1),
]
