"""Remainder."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from renorm.core.dtypes import NUMBERS, is_float
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, all_of, any_of, binary, call, select
from renorm.graph.attributes import Bool
from renorm.graph.ir import Node
from renorm.graph.op import Demand, OnnxNode, Reject, Sample
from renorm.graph.types import f16, f32, f64, i32, i64, u8
from renorm.ops.shared import exact
from renorm.ops.shared.family import Elementwise, divided


class Mod(Elementwise):
    """y = a - b * q with q = floor(a / b), so that y has the sign of b; with fmod, q = trunc(a / b): the sign of a."""

    signature = "a: T[...], b: T[...] -> y: T[...]"
    types = {"T": NUMBERS}
    fmod = Bool(False)
    onnx = {"Mod": 10}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 28 floats had fmod only."""
        if node.opset < 28 and not node.attribute("fmod", 0) and any(is_float(v.dtype) for v in node.operands):
            shown = ", ".join(str(v.type) for v in node.operands)
            raise OperandError(f"Mod({shown}): floating operands need fmod = 1", do="set fmod = 1, as ONNX demands")
        return super().from_onnx(node)

    def to_onnx(self, node: Node, opset: int) -> Any:
        is_new = is_float(node.output.dtype) and not self.fmod
        return None if is_new and opset < 28 else super().to_onnx(node, opset)

    def element(self, a: Expr, b: Expr) -> Expr:
        if not self.fmod and is_float(a.dtype):
            rest = call("fmod", a, b)
            is_other = any_of(all_of(rest < 0, b > 0), all_of(rest > 0, b < 0))
            return select(is_other, rest + b, rest)
        if not self.fmod:
            return a % b
        return call("fmod", a, b) if is_float(a.dtype) else select(b.equal(0), 0, a - binary("/", a, b) * b)

    def demands(self, node: Node) -> list[Demand]:
        return divided(node)

    def numpy(self, a: Any, b: Any) -> Any:
        return np.fmod(a, b) if self.fmod else np.mod(a, b)

    def known_result(self, *operands: exact.Known) -> np.ndarray[Any, Any] | None:
        return exact.elementwise(exact.remainder if self.fmod else exact.modulo, *operands)

    samples = [
        Sample(i64[6].of([7, -7, 7, -7, 6, 0]), i64[6].of([3, 3, -3, -3, 2, 5])),
        Sample(i64[6].of([7, -7, 7, -7, 6, 0]), i64[6].of([3, 3, -3, -3, 2, 5]), fmod=1),
        Sample(i32[2, 3], i32[3].of([2, -3, 5])),
        Sample(u8[5], u8[()].of(3)),
        Sample(i32[4].of([7, -7, 0, -(2**31)]), i32[4].of([0, 0, 0, -1])),
        Sample(i32[4].of([7, -7, 0, -(2**31)]), i32[4].of([0, 0, 0, -1]), fmod=1),
        Sample(f32[2, 4], f32[4].between(0.5, 2), fmod=1),
        Sample(f64[4].of([-4.3, 7.2, 5.0, -1.5]), f64[4].of([2.1, -3.4, 8.0, 0.5]), fmod=1),
        Sample(f64[4].of([-4.3, 7.2, 5.0, -1.5]), f64[4].of([2.1, -3.4, 8.0, 0.5])),
        Sample(f32[6].of([-4.25, 7.5, 5, math.nan, 3, -3]), f32[6].of([2, -3.5, 8, 1, math.nan, 0.75])),
        Sample(f16[4].of([-4.25, 7.5, 5, -1.5]), f16[4].of([2, -3.5, 8, 0.5])),
    ]
    rejects = [
        Reject(f32[3], f64[3], because="b is float64 but a is float32"),
        Reject(i64[3], i64[2], because="do not broadcast"),
    ]
