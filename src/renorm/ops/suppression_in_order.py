"""Boxes that no better one overlaps, where it is known which are better."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.graph.attributes import Bool
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, f32, i64
from renorm.ops.non_max_suppression import NonMaxSuppression
from renorm.ops.shared.suppression import kept_in_order


class SuppressionInOrder(NonMaxSuppression):
    """NonMaxSuppression of boxes that come in a given order, the best first."""

    signature = (
        "boxes: f32[B, N, 4], scores: f32[B, C, N], order: i64[B, C, N], most!: i64[...], iou_threshold?: f32[...], "
        "score_threshold?: f32[...] -> kept: i64[...]"
    )
    center_point_box = Bool(False)
    onnx = {}
    scheduled_as = "given_loops"

    def infer(
        self, boxes: Operand, scores: Operand, order: Operand, most: Operand, *thresholds: Operand | None
    ) -> tuple[Any, ...]:
        return super().infer(boxes, scores, most, *thresholds)

    def compute(
        self,
        boxes: te.Tensor,
        scores: te.Tensor,
        order: te.Tensor,
        most: np.ndarray[Any, Any],
        iou_threshold: te.Tensor | None,
        score_threshold: te.Tensor | None,
    ) -> te.Tensor:
        return self.kept(kept_in_order, [boxes, scores, order], most, iou_threshold, score_threshold)

    def reference(
        self, boxes: Any, scores: Any, order: Any, most: Any, iou_threshold: Any, score_threshold: Any
    ) -> Any:
        return self.chosen(boxes, scores, order, most, iou_threshold, score_threshold)

    samples = [
        Sample(
            f32[1, 9, 4], f32[1, 2, 9], i64[1, 2, 9].of([[[*range(9)], [8, 1, 2, 6, 4, 5, 3, 7, 0]]]), i64[1].of([3]),
            f32[1].of([0.5]), f32[1].of([0.0]),
        ),
        Sample(
            f32[2, 5, 4].between(0.5, 2), f32[2, 1, 5], i64[2, 1, 5].of([[[4, 3, 2, 1, 0]], [[0, 2, 4, 1, 3]]]),
            i64[()].of(5), f32[()].of(0.4), center_point_box=True,
        ),
        Sample(f32[1, 3, 4], f32[1, 1, 3], i64[1, 1, 3].of([[[2, 0, 1]]]), i64[1].of([-1])),
        Sample(f32[2, 0, 4], f32[2, 3, 0], i64[2, 3, 0], i64[1].of([5])),
    ]  # fmt: skip
    rejects = [Reject(f32[1, 3, 4], f32[1, 1, 3], i64[1, 1, 4], i64[1].of([1]), because="4")]
