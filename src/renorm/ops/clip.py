"""Clipping to a range."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dtypes
from renorm.core.dims import Shape
from renorm.core.dtypes import NUMBERS
from renorm.core.errors import OperandError
from renorm.core.shapes import is_scalar
from renorm.expr.nodes import Expr, maximum, minimum
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import Operand, f16, f32, f64, i8, i64
from renorm.ops.shared.family import Elementwise


class Clip(Elementwise):
    """y = min(max(x, low), high); a bound that is left out does not bind, and where low > high, y is high."""

    signature = "x: T[*S], low?: T[...], high?: T[...] -> y: T[*S]"
    types = {"T": NUMBERS}
    onnx = {"Clip": 1}
    onnx_ignored = ("consumed_inputs",)

    def infer(self, x: Operand, low: Operand | None, high: Operand | None) -> Shape:
        for bound in (low, high):
            if bound is not None and not is_scalar(bound.shape):
                raise OperandError(f"clip: the bound {bound} is not a scalar")
        return x.shape

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 11 the bounds were attributes."""
        if node.opset >= 11:
            return super().from_onnx(node)
        x = node.operands[0]
        dtype = dtypes.numpy_dtype(x.dtype)
        low, high = (None if b is None else np.asarray(b, dtype) for b in map(node.attribute, ("min", "max")))
        return cls()(x, low, high, name=node.name)

    def compute(self, x: te.Tensor, low: te.Tensor | None, high: te.Tensor | None) -> te.Tensor:
        given = [b for b in (low, high) if b is not None]

        def element(e: Expr, *bounds: Expr) -> Expr:
            rest = list(bounds)
            e = maximum(e, rest.pop(0)) if low is not None else e
            return minimum(e, rest.pop(0)) if high is not None else e

        scalars = [b if not b.shape else topi.squeeze(b) for b in given]
        return topi.elementwise(element, x, *scalars, name="clip", dtype=x.dtype)

    def reference(self, x: Any, low: Any, high: Any) -> Any:
        x = x if low is None else np.maximum(x, np.reshape(low, ()))
        return x if high is None else np.minimum(x, np.reshape(high, ()))

    def to_onnx(self, node: Any, opset: int) -> Any:
        """Before opset 11 bounds must be constants."""
        x, low, high = node.operands
        if opset >= 11:
            return super().to_onnx(node, opset)
        if any(b is not None and b.data is None for b in (low, high)):
            return None
        written = {n: float(b.data.reshape(())) for n, b in (("min", low), ("max", high)) if b is not None}
        return "Clip", written, [x]

    samples = [
        Sample(f32[2, 3, 5], f32[()].of(-0.5), f32[()].of(1.0)),
        Sample(f32[2, 3, 5], f32[()].of(-0.5), None),
        Sample(f32[2, 3, 5], None, f32[1].of([0.5])),
        Sample(f32[4], None, None),
        Sample(f32[4], f32[()].of(1.0), f32[()].of(-1.0)),
        Sample(f32[4].of([np.nan, np.inf, -np.inf, 0]), f32[()].of(-1), f32[()].of(6)),
        Sample(f16[7], f16[()].of(-0.5), f16[()].of(0.5)),
        Sample(f64[3], f64[()], f64[()]),
        Sample(i64[9], i64[()].of(-1), i64[()].of(2)),
        Sample(i8[9], i8[()].of(0), None),
        Sample(f32[()], f32[()].of(0), f32[()].of(6)),
    ]
    rejects = [
        Reject(f32[3], f32[3], because="is not a scalar"),
        Reject(f32[3], i64[()], because="low is int64 but x is float32"),
    ]
