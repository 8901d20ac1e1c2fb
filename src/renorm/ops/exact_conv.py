"""Convolutions of integers that floats hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from renorm.graph.ir import Node
from renorm.ops.conv import Conv


class ExactConv(Conv):
    """Conv of integers, whose sums are exact up to 2^24 in whatever order they are made, so that no algorithm that
    rounds takes its place."""

    signature = "x: T[N, C, *S], w: T[M, P, *K], b?: T[M] -> y: T[...]"
    onnx = {}

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        return f"{self.name} has a weight of integers"

    def fold_before(self, node: Node, operands: Sequence[Any], index: int, m: Any) -> Any:
        return f"{self.name} has a weight of integers"
