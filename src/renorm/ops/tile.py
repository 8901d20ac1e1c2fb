"""Repetition."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import Operand, boolean, f32, i64
from renorm.ops import exact
from renorm.ops.family import Injective


class Tile(Injective):
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
            raise OperandError(
                "Tile: tiles and axis are computed when the network runs", do="export at opset 6 or later"
            )
        repeats = np.ones(x.rank, np.int64)
        repeats[int(axis.data.reshape(()))] = int(tiles.data.reshape(()))
        return cls()(x, repeats, name=node.name)

    def infer(self, x: Operand, repeats: Operand) -> tuple[Dim | None, ...]:
        if repeats.shape != (x.rank,):
            raise OperandError(f"tile: {repeats} needs one element for each of {x.rank} axes of x")
        if repeats.known is None:
            return (None,) * x.rank
        if any(isinstance(r, int) and r < 0 for r in repeats.known):
            raise OperandError(f"tile: a repeat of {list(repeats.known)} is negative")
        return tuple(d * r for d, r in zip(x.shape, repeats.known))

    def compute(self, x: te.Tensor, repeats: np.ndarray[Any, Any]) -> te.Tensor:
        return topi.tile(x, repeats.tolist())

    def reference(self, x: Any, repeats: Any) -> Any:
        return np.tile(x, repeats)

    def known_result(self, x: exact.Known, repeats: exact.Known) -> np.ndarray[Any, Any] | None:
        if x[1] is None or repeats[1] is None or not all(isinstance(r, int) for r in repeats[1]):
            return None
        return np.tile(x[1], repeats[1].tolist()) if prod(repeats[1].tolist()) * x[1].size <= exact.MOST else None

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
