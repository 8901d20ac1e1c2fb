"""One at the first of the greatest elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core.dtypes import FLOATS
from renorm.core.shapes import normalize_axis
from renorm.expr.nodes import Expr, const, select
from renorm.graph.attributes import Int
from renorm.graph.ir import Node
from renorm.graph.op import REDUCTION, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.shared.reshaping import flattened, reshaped_like


class Hardmax(OpDef):
    """y = 1 where x is the greatest along axis, the first of equal ones, NaN before any number; 0 elsewhere."""

    signature = "x: T[*S] -> y: T[*S]"
    types = {"T": FLOATS}
    axis = Int(-1)
    onnx = {"Hardmax": 1}
    fusion = REDUCTION
    scheduled_as = "reduction"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 13 x counts as a matrix whose columns are all axes from `axis` (1 unless given) on."""
        if node.opset >= 13:
            return super().from_onnx(node)
        (x,) = cls.arrange(node.operands)
        axis = normalize_axis(node.attribute("axis", 1), x.rank + 1)
        if axis == x.rank - 1:
            return cls()(x, name=node.name)
        return reshaped_like(cls()(flattened(x, axis), name=node.name), x)

    def to_onnx(self, node: Node, opset: int) -> Any:
        axis = normalize_axis(self.axis, node.output.rank)
        fits = opset >= 13 or axis == node.output.rank - 1
        return ("Hardmax", {"axis": axis}, list(node.inputs)) if fits else None

    def infer(self, x: Operand) -> None:
        normalize_axis(self.axis, x.rank)

    def compute(self, x: te.Tensor) -> te.Tensor:
        axis = normalize_axis(self.axis, x.ndim)
        first = topi.argmax(x, axis, True)

        def element(*i: Expr) -> Expr:
            at = first[tuple(0 if a == axis else k for a, k in enumerate(i))]
            return select(i[axis].equal(at), const(1, x.dtype), const(0, x.dtype))

        return te.compute(x.shape, element, name="hardmax", tag=te.tag.INJECTIVE)

    def reference(self, x: Any) -> Any:
        x = np.asarray(x)
        if not x.size:
            return x
        first = np.expand_dims(np.argmax(x, self.axis), self.axis)
        y = np.zeros_like(x)
        np.put_along_axis(y, first, 1, self.axis)
        return y

    samples = [
        Sample(f32[3, 5]),
        Sample(f32[2, 3, 4], axis=1),
        Sample(f32[3, 4].of([[1, 3, 3, 1], [-math.inf] * 4, [2, math.nan, 5, math.nan]])),
        Sample(f64[2, 3, 1], axis=0),
        Sample(f16[70]),
        Sample(bf16[2, 3], axis=-2),
        Sample(f32[0, 3]),
    ]
    rejects = [
        Reject(f32[2, 3], axis=2, because="axis 2 is outside"),
    ]
