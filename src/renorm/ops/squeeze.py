"""Taking away axes of extent 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dims
from renorm.core.dims import Shape
from renorm.core.errors import OperandError
from renorm.graph.attributes import Ints
from renorm.graph.ir import Node
from renorm.graph.op import Box, OnnxNode, Reject, Sample
from renorm.graph.types import Operand, f16, f32, i64
from renorm.ops import axes_operand, exact
from renorm.ops.family import Injective


class Squeeze(Injective):
    """y = x without these axes, whose extents are 1; without `axes`, without all of extent 1."""

    signature = "x: T[...] -> y: T[...]"
    axes = Ints(None)
    onnx = {"Squeeze": 1}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        return cls(axes=axes_operand.read(node))(node.operands[0], name=node.name)

    def to_onnx(self, node: Any, opset: int) -> Any:
        rank = node.operands[0].rank
        axes = None if self.axes is None else sorted({dims.normalize_axis(a, rank) for a in self.axes})
        return axes_operand.write("Squeeze", node, axes, opset)

    def infer(self, x: Operand) -> Shape:
        if self.axes is None:
            if not dims.is_static(x.shape):
                raise OperandError(f"squeeze({x}): without axes, all extents must be known")
            return tuple(d for d in x.shape if d != 1)
        gone = {dims.normalize_axis(a, x.rank) for a in self.axes}
        for a in sorted(gone):
            if isinstance(x.shape[a], int) and x.shape[a] != 1:
                raise OperandError(f"squeeze({x}): axis {a} has extent {x.shape[a]}, not 1")
        return tuple(d for a, d in enumerate(x.shape) if a not in gone)

    def boxes(self, node: Node) -> list[Box]:
        x = node.inputs[0]
        assert x is not None
        return [Box(node.output, x)]

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.squeeze(x, self.axes)

    def reference(self, x: Any) -> Any:
        return np.squeeze(x, self.axes)

    def known_result(self, x: exact.Known) -> np.ndarray[Any, Any] | None:
        return exact.moved(lambda a: np.squeeze(a, self.axes), x)

    samples = [
        Sample(f32[1, 3, 1, 5], axes=[0]),
        Sample(f32[1, 3, 1, 5], axes=[0, -2]),
        Sample(f32[1, 3, 1, 5]),
        Sample(f32[2, 3]),
        Sample(f16[1, 1]),
        Sample(i64[1], axes=[0]),
    ]
    rejects = [
        Reject(f32[1, 3], axes=[1], because="axis 1 has extent 3"),
        Reject(f32[1, 3], axes=[2], because="axis 2 is outside"),
    ]
