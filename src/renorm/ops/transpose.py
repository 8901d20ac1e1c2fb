"""Order of axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.errors import OperandError
from renorm.graph.attributes import Ints
from renorm.graph.index_map import Moved, Permuted
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import Reject, Sample
from renorm.graph.types import f16, f32, i64
from renorm.ops.shared.movement import Movement


class Transpose(Movement):
    """Axis k of y is axis perm[k] of x; without perm the order is reversed."""

    signature = "x: T[...] -> y: T[...]"
    moves_axes = True
    perm = Ints(None)
    onnx = {"Transpose": 1}

    def order(self, rank: int) -> tuple[int, ...]:
        """Return which axis of x each axis of y is."""
        return tuple(range(rank))[::-1] if self.perm is None else tuple(self.perm)

    def index_map(self, x: Any) -> Moved:
        order, rank = self.order(len(x.shape)), len(x.shape)
        if sorted(order) != list(range(rank)):
            raise OperandError(f"transpose({x}): perm {list(order)} does not name each of {rank} axes once")
        return Moved(x, Permuted(tuple(order)))

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        """Channels that are a last axis on the other side lie side by side on both."""
        rank = node.output.rank
        order = self.order(rank)
        other = order[1] if index is None else order.index(1)
        return Accepts.EITHER if other == rank - 1 > 1 else Accepts.ALIKE if other == 1 else Accepts.ROW_MAJOR

    def reference(self, x: Any) -> Any:
        return np.transpose(x, self.perm)

    samples = [
        Sample(f32[2, 3]),
        Sample(f32[2, 3, 4, 5], perm=[0, 2, 3, 1]),
        Sample(f32[2, 3, 4], perm=[2, 0, 1]),
        Sample(f16[3, 2]),
        Sample(i64[2, 0, 3], perm=[1, 0, 2]),
        Sample(f32[()]),
    ]
    rejects = [
        Reject(f32[2, 3], perm=[0], because="each of 2 axes once"),
        Reject(f32[2, 3], perm=[0, 0], because="each of 2 axes once"),
    ]
