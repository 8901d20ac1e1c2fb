"""Boxes that no better one overlaps: which are kept, and these as rows of indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim, minimum, take
from renorm.core.errors import OperandError
from renorm.graph import registry
from renorm.graph.attributes import Bool
from renorm.graph.ir import Node
from renorm.graph.op import OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, f32, i64
from renorm.ops.kept_rows import KeptRows
from renorm.ops.nonzero import counted
from renorm.ops.shared.suppression import kept_boxes
from renorm.te.open_dims import OpenDims


class NonMaxSuppression(OpDef):
    """kept[b, c] = boxes of class c, the best first: each whose score exceeds score_threshold, but for those that
    overlap a better kept one by more than iou_threshold (area of the intersection over that of the union); at most
    `most`, then -1.

    Boxes are y1, x1, y2, x2 of opposite corners, or x, y of the middle, width and height. Of equal scores the first
    comes first; a score that is NaN is none.
    """

    signature = (
        "boxes: f32[B, N, 4], scores: f32[B, C, N], most!: i64[...], iou_threshold?: f32[...], "
        "score_threshold?: f32[...] -> kept: i64[...]"
    )
    center_point_box = Bool(False)
    onnx = {"NonMaxSuppression": 10}
    scheduled_as = "given_loops"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """ONNX gives kept boxes as rows, as many as there are; without `most` there are none."""
        boxes, scores, most, *thresholds = [*node.operands, None, None, None][:5]
        op = cls(center_point_box=node.attribute("center_point_box", 0))
        kept = op(boxes, scores, np.array([0]) if most is None else most, *thresholds)
        there = registry.find("greater_or_equal")()(kept, np.array(0))
        return KeptRows()(kept, counted(there, f"{node.name}_count"), name=node.name)

    def to_onnx(self, node: Node, opset: int) -> None:
        """ONNX has no op for this, but for these boxes as rows."""
        return

    def infer(self, boxes: Operand, scores: Operand, most: Operand, *thresholds: Operand | None) -> tuple[Any, ...]:
        for given in (most, *(t for t in thresholds if t is not None)):
            if given.rank > 1 or any(isinstance(d, int) and d != 1 for d in given.shape):
                raise OperandError(f"non_max_suppression: {given} is not one number")
            for extent in given.shape:
                take(extent, "==", 1)
        batch, classes, count = scores.shape
        known = None if most.known is None else most.known.reshape(-1)[0]
        return (batch, classes, None if known is None else _extent(known, count))

    def compute(
        self,
        boxes: te.Tensor,
        scores: te.Tensor,
        most: np.ndarray[Any, Any],
        iou_threshold: te.Tensor | None,
        score_threshold: te.Tensor | None,
    ) -> te.Tensor:
        return self.kept(kept_boxes, [boxes, scores], most, iou_threshold, score_threshold)

    def kept(
        self,
        loops: Callable[[bool, bool, bool], Any],
        inputs: Sequence[te.Tensor],
        most: np.ndarray[Any, Any],
        iou_threshold: te.Tensor | None,
        score_threshold: te.Tensor | None,
    ) -> te.Tensor:
        """Return the boxes that loops keep, which are given `inputs` (boxes, scores, and what they want), and
        thresholds."""
        open_dims, (batch, classes, count) = OpenDims(), inputs[1].shape
        (given,) = most.reshape(-1).tolist()
        extent = open_dims.extent(_extent(open_dims.dim(given), open_dims.dim(count)))
        thresholds = [t for t in (iou_threshold, score_threshold) if t is not None]
        body = loops(bool(self.center_point_box), iou_threshold is not None, score_threshold is not None)
        rounds: Any = batch * classes
        return te.extern(
            (batch, classes, extent), [*inputs, *thresholds], body, name="kept", dtype="int64", rounds=rounds
        )

    def reference(self, boxes: Any, scores: Any, most: Any, iou_threshold: Any, score_threshold: Any) -> Any:
        return self.chosen(boxes, scores, np.argsort(-scores, kind="stable"), most, iou_threshold, score_threshold)

    def chosen(self, boxes: Any, scores: Any, order: Any, most: Any, iou_threshold: Any, score_threshold: Any) -> Any:
        """Return the boxes that are kept where they come in an order [B, C, N], by NumPy."""
        batch, classes, count = np.shape(scores)
        extent = min(max(int(np.reshape(most, ())), 0), count)
        limit = 0.0 if iou_threshold is None else float(np.reshape(iou_threshold, ()))
        kept = np.full((batch, classes, extent), -1, np.int64)
        low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
        if self.center_point_box:
            low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
        for b, c in np.ndindex(batch, classes):
            chosen = list[int]()
            for i in order[b, c]:
                least = -np.inf if score_threshold is None else np.reshape(score_threshold, ())
                is_good = scores[b, c, i] >= least if score_threshold is None else scores[b, c, i] > least
                if (
                    len(chosen) < extent
                    and is_good
                    and not any(_overlap(low[b, i], high[b, i], low[b, k], high[b, k]) > limit for k in chosen)
                ):
                    chosen.append(int(i))
            kept[b, c, : len(chosen)] = chosen
        return kept

    samples = [
        Sample(f32[1, 9, 4], f32[1, 2, 9], i64[1].of([3]), f32[1].of([0.3]), f32[1].of([0.0])),
        Sample(f32[2, 40, 4], f32[2, 3, 40], i64[()].of(40), f32[()].of(0.5)),
        Sample(f32[1, 20, 4], f32[1, 1, 20], i64[1].of([2**40]), None, f32[1].of([-1.0])),
        Sample(f32[1, 25, 4].between(0.5, 2), f32[1, 2, 25], i64[1].of([20]), f32[1].of([0.4]), center_point_box=True),
        Sample(f32[1, 4, 4].of([[[0, 0, 1, 1]] * 4]), f32[1, 1, 4].of([[[1, 2, 2, 1]]]), i64[1].of([4])),
        Sample(f32[1, 3, 4], f32[1, 1, 3], i64[1].of([-1])),
        Sample(f32[1, 3, 4], f32[1, 2, 3], i64[1].of([2]), f32[1].of([1.0]), f32[1].of([9.0])),
        Sample(f32[1, 1, 4], f32[1, 1, 1], i64[1].of([1])),
        Sample(f32[1, 4, 4], f32[1, 1, 4].of([[[math.nan, 1, -math.inf, 0]]]), i64[1].of([4]), f32[1].of([1])),
        Sample(f32[2, 0, 4], f32[2, 3, 0], i64[1].of([5])),
    ]
    rejects = [
        Reject(f32[1, 3, 4], f32[1, 1, 4], i64[1].of([1]), because="3"),
        Reject(f32[1, 3, 4], f32[1, 1, 3], i64[2].of([1, 2]), because="is not one number"),
        Reject(f32[1, 3, 4], f32[1, 1, 3], i64[1].of([1]), f32[2], because="is not one number"),
    ]


def _extent(most: Any, count: Dim) -> Dim:
    """Return for how many boxes of a class there is room: no more than there are boxes."""
    if isinstance(most, int) and (most <= 0 or most >= 2**31):
        return 0 if most <= 0 else count
    take(0, "<=", most)
    return minimum(most, count)


def _overlap(low: Any, high: Any, other_low: Any, other_high: Any) -> float:
    """Area of the intersection of two boxes over that of their union; 0 where a box has no area."""
    inside = float(np.prod(np.maximum(np.minimum(high, other_high) - np.maximum(low, other_low), 0)))
    return inside / (np.prod(high - low) + np.prod(other_high - other_low) - inside) if inside > 0 else 0.0
