"""Matrices from tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import dims
from renorm.core.errors import OperandError
from renorm.graph.attributes import Int
from renorm.graph.index_map import Moved, Regrouped
from renorm.graph.op import Reject, Sample
from renorm.graph.types import f32, i64
from renorm.ops.shared.movement import Movement


class Flatten(Movement):
    """y[r, c]: r runs over the axes of x before `axis`, c over the others."""

    signature = "x: T[...] -> y: T[...]"
    axis = Int(1)
    onnx = {"Flatten": 1}

    def _from_front(self, rank: int) -> int:
        """The axis counted from the front; unlike other axes it may be the rank."""
        return self.axis + rank if self.axis < 0 else self.axis

    def index_map(self, x: Any) -> Moved:
        rank = len(x.shape)
        if not -rank <= self.axis <= rank:
            raise OperandError(f"flatten({x}): axis {self.axis} is outside [{-rank}, {rank}]")
        axis = self._from_front(rank)
        return Moved(x, Regrouped((dims.size(x.shape[:axis]), dims.size(x.shape[axis:]))))

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
