"""Adding axes of extent 1."""

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


class Unsqueeze(Injective):
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
        new = sorted(dims.normalize_axis(a, rank + len(self.axes)) for a in self.axes)
        if len(set(new)) < len(new):
            raise OperandError(f"unsqueeze: axes {list(self.axes)} name a place twice")
        return new

    def infer(self, x: Operand) -> Shape:
        shape = list(x.shape)
        for a in self.places(x.rank):
            shape.insert(a, 1)
        return tuple(shape)

    def boxes(self, node: Node) -> list[Box]:
        x = node.inputs[0]
        assert x is not None
        return [Box(node.output, x)]

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.unsqueeze(x, self.axes)

    def reference(self, x: Any) -> Any:
        return np.expand_dims(x, self.axes)

    def known_result(self, x: exact.Known) -> np.ndarray[Any, Any] | None:
        return exact.moved(lambda a: np.expand_dims(a, self.axes), x)

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
