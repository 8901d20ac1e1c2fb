"""Leaky ReLU with learned slopes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from renorm.core import shapes
from renorm.core.dims import Shape
from renorm.core.dtypes import NUMBERS
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, select
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import Operand, f16, f32, i32
from renorm.ops.shared import builders
from renorm.ops.shared.family import Elementwise


class Prelu(Elementwise):
    """y = x where x >= 0, slope * x elsewhere; slope is broadcast to x, for example [C, 1, 1]."""

    signature = "x: T[...], slope: T[...] -> y: T[...]"
    types = {"T": NUMBERS}
    onnx = {"PRelu": 1}
    onnx_ignored = ("consumed_inputs",)

    def infer(self, x: Operand, slope: Operand) -> Shape:
        joint = shapes.broadcast(x.shape, slope.shape)
        if len(joint) != x.rank or any(a == 1 and b not in (1, a) for a, b in zip(x.shape, joint)):
            raise OperandError(f"prelu({x}, {slope}): slope is larger than x, which it is broadcast to")
        return joint

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 7 a slope of rank 1 belonged to axis 1 of x."""
        x, slope = node.operands
        if node.opset < 7 and slope.rank == 1 and slope.shape[0] != 1 and x.rank > 2:
            slope = builders.find("unsqueeze")(slope, axes=range(1, x.rank - 1))
        return super().from_onnx(replace(node, operands=(x, slope)))

    def element(self, x: Expr, slope: Expr) -> Expr:
        return select(x < 0, x * slope, x)

    def numpy(self, x: Any, slope: Any) -> Any:
        return np.where(x < 0, slope * x, x)

    samples = [
        Sample(f32[2, 3, 4, 5], f32[3, 1, 1]),
        Sample(f32[2, 3], f32[()]),
        Sample(f32[2, 3], f32[2, 3]),
        Sample(f16[2, 3], f16[3], tolerance=2e-3),
        Sample(i32[4], i32[1]),
    ]
    rejects = [
        Reject(f32[2, 3], f32[4], because="do not broadcast"),
        Reject(f32[3], f32[2, 3], because="larger than x"),
    ]
