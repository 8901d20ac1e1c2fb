"""Taking away axes of extent 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import dims
from renorm.core.errors import OperandError
from renorm.graph.attributes import Ints
from renorm.graph.index_map import Moved, Regrouped
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import f16, f32, i64
from renorm.ops.shared import axes_operand
from renorm.ops.shared.movement import Movement


class Squeeze(Movement):
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

    def index_map(self, x: Any) -> Moved:
        shape = tuple(x.shape)
        if self.axes is None and not dims.is_static(shape):
            raise OperandError(f"squeeze({x}): without axes, all extents must be known")
        ones = [a for a, d in enumerate(shape) if d == 1]
        gone = ones if self.axes is None else sorted({dims.normalize_axis(a, len(shape)) for a in self.axes})
        for a in gone:
            if isinstance(shape[a], int) and shape[a] != 1:
                raise OperandError(f"squeeze({x}): axis {a} has extent {shape[a]}, not 1")
        return Moved(x, Regrouped(tuple(d for a, d in enumerate(shape) if a not in gone)))

    def reference(self, x: Any) -> Any:
        return np.squeeze(x, self.axes)

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
