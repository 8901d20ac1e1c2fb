"""Taking away axes of extent 1, and adding them."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import dims, shapes
from renorm.core.errors import OperandError, UntoldOperand
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
        axes = None if self.axes is None else sorted({shapes.normalize_axis(a, rank) for a in self.axes})
        return axes_operand.write("Squeeze", node, axes, opset)

    def index_map(self, x: Any) -> Moved:
        shape = tuple(x.shape)
        if self.axes is None and not dims.is_static(shape):
            open_extent = next(d for d in x.shape if not isinstance(d, int))
            raise UntoldOperand(f"squeeze({x}): without axes, all extents must be known", operand=open_extent)
        ones = [a for a, d in enumerate(shape) if d == 1]
        gone = ones if self.axes is None else sorted({shapes.normalize_axis(a, len(shape)) for a in self.axes})
        for a in gone:
            if isinstance(shape[a], int) and shape[a] != 1:
                raise OperandError(f"squeeze({x}): axis {a} has extent {shape[a]}, not 1")
            dims.take(shape[a], "==", 1)
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


class Unsqueeze(Movement):
    """y = x with axes of extent 1 at these places of y."""

    signature = "x: T[...] -> y: T[...]"
    axes = Ints()
    onnx = {"Unsqueeze": 1}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        return cls(axes=axes_operand.read(node) or ())(node.operands[0], name=node.name)

    def to_onnx(self, node: Any, opset: int) -> Any:
        return axes_operand.write("Unsqueeze", node, self.places(node.operands[0].rank), opset)

    def places(self, rank: int) -> list[int]:
        """The new axes of y, counted from the front."""
        new = sorted(shapes.normalize_axis(a, rank + len(self.axes)) for a in self.axes)
        if len(set(new)) < len(new):
            raise OperandError(f"unsqueeze: axes {list(self.axes)} name a place twice")
        return new

    def index_map(self, x: Any) -> Moved:
        shape = list(x.shape)
        for a in self.places(len(shape)):
            shape.insert(a, 1)
        return Moved(x, Regrouped(tuple(shape)))

    def reference(self, x: Any) -> Any:
        return np.expand_dims(x, self.axes)

    samples = [
        Sample(f32[3, 5], axes=[0]),
        Sample(f32[3, 5], axes=[1, -1]),
        Sample(f32[3, 5], axes=[3, 0]),
        Sample(f32[()], axes=[0]),
        Sample(f16[2], axes=[]),
        Sample(i64[0], axes=[1]),
    ]
    rejects = [
        Reject(f32[3], axes=[2], because="axis 2 is outside"),
        Reject(f32[3], axes=[0, -3], because="twice"),
        Reject(f32[3], because="needs axes"),
    ]
