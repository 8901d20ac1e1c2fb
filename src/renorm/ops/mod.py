"""Remainder."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dims import Shape
from renorm.core.dtypes import NUMBERS, is_float
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, binary, call, select
from renorm.graph.attributes import Bool
from renorm.graph.ir import Node
from renorm.graph.op import Demand, Reject, Sample
from renorm.graph.types import Operand, f32, f64, i32, i64, u8
from renorm.ops.shared import exact
from renorm.ops.shared.family import Elementwise, divided


class Mod(Elementwise):
    """y = a - b * q with q = floor(a / b), so that y has the sign of b; with fmod, q = trunc(a / b): the sign of a."""

    signature = "a: T[...], b: T[...] -> y: T[...]"
    types = {"T": NUMBERS}
    fmod = Bool(False)
    onnx = {"Mod": 10}

    def infer(self, a: Operand, b: Operand) -> Shape:
        if is_float(a.dtype) and not self.fmod:
            raise OperandError(f"mod({a}, {b}): floating operands need fmod = 1", do="set fmod = 1, as ONNX demands")
        return super().infer(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
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
    ]
    rejects = [
        Reject(f32[3], f32[3], because="fmod = 1"),
        Reject(i64[3], i64[2], because="do not broadcast"),
    ]
