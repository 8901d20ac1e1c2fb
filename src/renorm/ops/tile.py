"""Repetition."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.errors import OperandError, UntoldOperand
from renorm.graph.index_map import Moved, Repeated
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import Operand, boolean, f32, i64
from renorm.ops.shared.movement import Movement


class Tile(Movement):
    """y = x repeated repeats[k] times along each axis k."""

    signature = "x: T[...], repeats!: i64[R] -> y: T[...]"
    onnx = {"Tile": 1}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 6 the operands were a number of repeats and one axis."""
        if node.opset >= 6:
            return super().from_onnx(node)
        x, tiles, axis = node.operands
        if tiles.data is None or axis.data is None:
            raise UntoldOperand(
                "Tile: tiles and axis are computed when the network runs",
                do="export at opset 6 or later",
                operand=axis if axis.data is None else tiles,
            )
        repeats = np.ones(x.rank, np.int64)
        repeats[int(axis.data.reshape(()))] = int(tiles.data.reshape(()))
        return cls()(x, repeats, name=node.name)

    def infer(self, x: Operand, repeats: Operand) -> Any:
        if repeats.shape != (x.rank,):
            raise OperandError(f"tile: {repeats} needs one element for each of {x.rank} axes of x")
        return super().infer(x, repeats)

    def index_map(self, x: Any, repeats: Any) -> Moved:
        if any(isinstance(r, int) and r < 0 for r in repeats):
            raise OperandError(f"tile: a repeat of {list(repeats)} is negative")
        return Moved(x, Repeated(tuple(repeats.tolist())))

    def reference(self, x: Any, repeats: Any) -> Any:
        return np.tile(x, repeats)

    samples = [
        Sample(f32[2, 3], i64[2].of([2, 3])),
        Sample(f32[2, 1, 3], i64[3].of([1, 4, 1])),
        Sample(boolean[3], i64[1].of([0])),
        Sample(i64[()], i64[0].of([])),
    ]
    rejects = [
        Reject(f32[2, 3], i64[1].of([2]), because="each of 2 axes"),
        Reject(f32[2], i64[1].of([-1]), because="is negative"),
    ]
