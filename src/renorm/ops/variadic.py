"""Elementwise ops over any number of operands, broadcast: sum, mean, max, min."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import shapes
from renorm.core.dims import Shape
from renorm.core.dtypes import FLOATS, NUMBERS
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, const, maximum, minimum
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import Operand, f16, f32, i64
from renorm.ops.shared import exact
from renorm.ops.shared.family import LINEAR, Elementwise, entry, method


class Variadic(Elementwise):
    """`element` and `numpy` take a list of operands."""

    onnx_ignored = ("consumed_inputs",)

    def infer(self, xs: Sequence[Operand]) -> Shape:
        if not xs:
            raise OperandError(f"{self.name} needs at least one operand")
        return shapes.broadcast(*(x.shape for x in xs))

    def compute(self, xs: Sequence[te.Tensor]) -> te.Tensor:
        return topi.elementwise(lambda *e: self.element(*e), *xs, name=self.name, dtype=xs[0].dtype)

    def reference(self, xs: Sequence[Any]) -> Any:
        return self.numpy(*xs)

    def to_onnx(self, node: Any, opset: int) -> Any:
        """Before opset 8 there was no broadcasting."""
        return super().to_onnx(node, opset) if opset >= 8 or len({x.shape for x in node.inputs}) == 1 else None

    def known_result(self, xs: Sequence[exact.Known]) -> np.ndarray[Any, Any] | None:
        step = type(self).known_element
        if step is None or not xs:
            return None
        total = xs[0]
        for x in xs[1:]:
            total = (shapes.broadcast(total[0], x[0]), exact.elementwise(step, total, x))
        return total[1]


def variadic(
    title: str,
    formula: str,
    element: Callable[..., Expr],
    numpy: Callable[..., Any],
    known: Callable[[Any, Any], Any] | None,
    types: Sequence[str],
    commutes: str = "",
) -> type[OpDef]:
    integers = [Sample([i64[2, 3], i64[3], i64[()]])] if types == NUMBERS else []
    return entry(
        Variadic,
        title,
        formula,
        __name__,
        signature="*xs: T[...] -> y: T[...]",
        types={"T": types},
        onnx={title: 1},
        commutes=commutes,
        element=method(element),
        numpy=method(numpy),
        known_element=None if known is None else staticmethod(known),
        samples=[
            Sample([f32[2, 3, 5]]),
            Sample([f32[2, 3, 5], f32[2, 3, 5], f32[2, 3, 5]]),
            Sample([f32[3, 1], f32[2, 1, 5], f32[()]]),
            Sample([f32[4].of([1, np.nan, -np.inf, 0]), f32[4].of([np.nan, 1, 0, -0.0])]),
            Sample([f16[7], f16[7]], tolerance=2e-3),
            *integers,
        ],
        rejects=[
            Reject([f32[2], f32[3]], because="do not broadcast"),
            Reject([f32[2], i64[2]], because="xs[1] is int64 but xs[0] is float32"),
        ],
    )


def _total(*xs: Any) -> Any:
    return reduce(lambda a, b: a + b, xs)


TABLE: Sequence[type[OpDef]] = [
    variadic("Sum", "y = x0 + x1 + ...", _total, _total, exact.add, NUMBERS, LINEAR),
    variadic(
        "Mean",
        "y = (x0 + x1 + ...) / n",
        lambda *xs: _total(*xs) * const(1 / len(xs), xs[0].dtype),
        lambda *xs: _total(*xs) / len(xs),
        None,
        FLOATS,
    ),
    variadic(
        "Max",
        "y = the greatest of x0, x1, ...; NaN where one of them is",
        lambda *xs: reduce(maximum, xs),
        lambda *xs: reduce(np.maximum, xs),
        exact.maximum,
        NUMBERS,
    ),
    variadic(
        "Min",
        "y = the smallest of x0, x1, ...; NaN where one of them is",
        lambda *xs: reduce(minimum, xs),
        lambda *xs: reduce(np.minimum, xs),
        exact.minimum,
        NUMBERS,
    ),
]
