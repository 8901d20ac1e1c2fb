"""Matrices from tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dims
from renorm.core.dims import Shape
from renorm.core.errors import OperandError
from renorm.graph.attributes import Int
from renorm.graph.ir import Node
from renorm.graph.op import Box, Reject, Sample
from renorm.graph.types import Operand, f32, i64
from renorm.ops.family import Injective


class Flatten(Injective):
    """y[r, c]: r runs over the axes of x before `axis`, c over the others."""

    signature = "x: T[...] -> y: T[...]"
    axis = Int(1)
    onnx = {"Flatten": 1}

    def _from_front(self, rank: int) -> int:
        """The axis counted from the front; unlike other axes it may be the rank."""
        return self.axis + rank if self.axis < 0 else self.axis

    def infer(self, x: Operand) -> Shape:
        if not -x.rank <= self.axis <= x.rank:
            raise OperandError(f"flatten({x}): axis {self.axis} is outside [{-x.rank}, {x.rank}]")
        axis = self._from_front(x.rank)
        return (dims.size(x.shape[:axis]), dims.size(x.shape[axis:]))

    def boxes(self, node: Node) -> list[Box]:
        x = node.inputs[0]
        assert x is not None
        return [Box(node.output, x)]

    def compute(self, x: te.Tensor) -> te.Tensor:
        axis = self._from_front(x.ndim)
        return topi.reshape(x, dims.static((dims.size(x.shape[:axis]), dims.size(x.shape[axis:]))))

    def reference(self, x: Any) -> Any:
        rows = int(np.prod(np.shape(x)[: self.axis])) if self.axis else 1
        return np.reshape(x, (rows, int(np.size(x) // rows) if rows else int(np.prod(np.shape(x)[self.axis :]))))

    def to_onnx(self, node: Any, opset: int) -> Any:
        """Before opset 11 the axis was counted from the front."""
        x = node.operands[0]
        axis = self._from_front(x.rank) if opset < 11 else self.axis
        return "Flatten", {"axis": axis} if axis != 1 else {}, [x]

    samples = [
        Sample(f32[2, 3, 4, 5]),
        Sample(f32[2, 3, 4], axis=0),
        Sample(f32[2, 3, 4], axis=2),
        Sample(f32[2, 3, 4], axis=3),
        Sample(f32[2, 3, 4], axis=-1),
        Sample(f32[()], axis=0),
        Sample(f32[0, 3, 2]),
        Sample(i64[5]),
    ]
    rejects = [Reject(f32[2, 3], axis=3, because="axis 3 is outside"), Reject(f32[()], because="axis 1 is outside")]
