"""Boxes that suppression keeps, as rows of indices: as many as an operand says, which is told before the op runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.graph.ir import Node
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import Operand, i64
from renorm.ops.nonzero import is_count

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Loops


class KeptRows(OpDef):
    """y[k] = (batch, class, box) of the k-th box in kept[batch, class, ...] that is not -1; 0 where there are fewer
    than count. What comes after the first `count` is left out."""

    signature = "kept: i64[B, C, M], count!: i64[1] -> y: i64[...]"
    scheduled_as = "given_loops"

    def to_onnx(self, node: Node, opset: int) -> Any:
        """ONNX says both ops as one."""
        kept, count = node.operands
        producer = kept.producer
        if producer is None or producer.op.name != "non_max_suppression" or opset < 10:
            return None
        if not is_count(count, kept, "greater_or_equal"):
            return None
        op = producer.op
        return "NonMaxSuppression", {"center_point_box": int(op.center_point_box)}, list(producer.inputs)

    def infer(self, kept: Operand, count: Operand) -> tuple[Dim | None, ...]:
        extent = None if count.known is None else count.known[0]
        if isinstance(extent, int) and extent < 0:
            raise OperandError(f"kept_rows: a count of {extent} is negative")
        return (extent, 3)

    def compute(self, kept: te.Tensor, count: np.ndarray[Any, Any]) -> te.Tensor:
        (extent,) = count.tolist()
        return te.extern((extent, 3), [kept], _rows, name="rows", dtype="int64")

    def reference(self, kept: Any, count: Any) -> Any:
        found = np.argwhere(kept >= 0)
        rows = np.concatenate([found[:, :2], kept[tuple(found.T)][:, None]], 1)[: count[0]]
        return np.pad(rows, ((0, max(0, count[0] - len(rows))), (0, 0)))

    samples = [
        Sample(i64[1, 2, 3].of([[[2, 0, -1], [1, -1, -1]]]), i64[1].of([3])),
        Sample(i64[2, 1, 2].of([[[5, 3]], [[0, -1]]]), i64[1].of([4])),
        Sample(i64[2, 1, 2].of([[[5, 3]], [[0, -1]]]), i64[1].of([2])),
        Sample(i64[1, 1, 1].of([[[-1]]]), i64[1].of([0])),
        Sample(i64[0, 2, 3], i64[1].of([1])),
    ]
    rejects = [Reject(i64[1, 1, 1], i64[1].of([-1]), because="is negative")]


def _rows(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
    (kept,) = inputs
    found = loops.allocate((1,), "int32", "found")
    found[0] = 0
    with ExitStack() as within:
        index = tuple(within.enter_context(loops.for_range(0, extent)) for extent in kept.shape)
        box = loops.let(kept[index], "box")
        within.enter_context(loops.if_scope(box >= 0))
        at = loops.let(found[0], "at")
        with loops.if_scope(at >= 0, at < output.shape[0]):
            for column, value in enumerate((*index[:2], box)):
                output[at, column] = value
        found[0] = at + 1
    end = loops.let(found[0], "end")
    with loops.if_scope(end >= 0), loops.for_range(end, output.shape[0]) as k:
        for column in range(3):
            output[k, column] = 0
