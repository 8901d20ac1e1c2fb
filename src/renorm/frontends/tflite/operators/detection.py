"""Boxes: those that no better one overlaps, and the whole of what stands behind a detector."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.tflite.call import OperatorCall
from renorm.frontends.tflite.operator import Operator
from renorm.graph.ir import Value

_ONE = np.asarray([0], np.int64)


def _below(number: float) -> Any:
    """Return the float before a number: what is more than that is at least the number."""
    return np.nextafter(np.float32(number), np.float32(-np.inf), dtype=np.float32).reshape(1)


def _suppressed(boxes: Value, scores: Value, most: int, iou: Any, score: Any) -> Value:
    """Return indices of kept boxes [classes, most], the best first, -1 where there are fewer. scores: [classes, N]."""
    kept = ops.non_max_suppression(
        ops.unsqueeze(boxes, axes=_ONE), ops.unsqueeze(scores, axes=_ONE), np.asarray([most], np.int64), iou, score
    )
    kept = ops.squeeze(kept, axes=_ONE)
    extent = kept.shape[1]
    if not isinstance(extent, int):
        raise UnsupportedOp("the number of boxes is not known", do="give shapes")
    if extent == most:
        return kept
    return ops.pad(kept, np.asarray([0, 0, 0, most - extent], np.int64), np.asarray(-1, np.int64))


def _there(kept: Value) -> Value:
    return ops.greater_or_equal(kept, np.asarray(0, np.int64))


def _held(kept: Value) -> Value:
    """Return indices, 0 in the place of -1."""
    return ops.max(kept, np.asarray(0, np.int64))


def _where(condition: Value, x: Value) -> Value:
    """Return x, 0 where a condition does not hold."""
    return ops.where(condition, x, np.zeros((), x.dtype))


def _count(there: Value, dtype: str) -> Value:
    return ops.reduce_sum(ops.cast(there, to=dtype), axes=(-1,), keepdims=False)


def _non_max_suppression(call: OperatorCall) -> list[Value]:
    """boxes [N, 4], scores [N], most, thresholds of overlap (kept below it) and of scores; V5 with a sigma, and scores
    beside the indices. Both have 0 behind the last one."""
    (most,) = call.integers(2, "the number of boxes")
    is_newer = call.kind.endswith("V5")
    if is_newer and call.has(5) and call.array(5, "its sigma").any():
        raise UnsupportedOp("scores that an overlap makes less (soft_nms_sigma) are not read")
    scores = call.stored(1)
    overlap = _below(float(call.array(3, "its threshold").reshape(())))
    least = call.array(4, "its threshold").reshape(1)
    kept = ops.squeeze(_suppressed(call.stored(0), ops.unsqueeze(scores, axes=_ONE), most, overlap, least), axes=_ONE)
    there = _there(kept)
    indices, count = ops.cast(_where(there, kept), to="int32"), _count(there, "int32")
    return [indices, _where(there, ops.gather(scores, _held(kept))), count] if is_newer else [indices, count]


def _decoded(call: OperatorCall) -> Value:
    """Return corners y1, x1, y2, x2 [N, 4] of boxes that are encoded by their anchors: y, x, height, width."""
    said, encoded, anchors = call.custom(), call.stored(0), call.stored(2)
    y, x, h, w = ops.split(ops.squeeze(encoded, axes=_ONE), axis=1, num_outputs=4)
    ay, ax, ah, aw = ops.split(anchors, axis=1, num_outputs=4)

    def ends(middle: Value, size: Value, at: Value, extent: Value, axis: str, size_axis: str) -> tuple[Value, Value]:
        center = ops.add(ops.mul(ops.div(middle, np.float32(said[f"{axis}_scale"])), extent), at)
        half = ops.mul(ops.mul(ops.exp(ops.div(size, np.float32(said[f"{size_axis}_scale"]))), extent), np.float32(0.5))
        return ops.sub(center, half), ops.add(center, half)

    top, bottom = ends(y, h, ay, ah, "y", "h")
    left, right = ends(x, w, ax, aw, "x", "w")
    return ops.concat([top, left, bottom, right], axis=1)


def _detection_post_process(call: OperatorCall) -> list[Value]:
    """Encoded boxes [1, N, 4], scores [1, N, classes, with or without a background before them], anchors [N, 4] ->
    boxes [1, D, 4], classes [1, D], scores [1, D], how many there are [1]; 0 behind them.

    Fast: a box counts with its best class, and stands for its best few. Otherwise each class by itself."""
    said = call.custom()
    classes, most = (int(said[name]) for name in ("num_classes", "max_detections"))
    per_box = min(int(said["max_classes_per_detection"]), classes)
    call.allow(most * max(per_box, int(said.get("detections_per_class", 100)), 1))
    boxes, scores = _decoded(call), ops.squeeze(call.stored(1), axes=_ONE)
    columns = scores.shape[1]
    if not isinstance(columns, int) or not 0 <= columns - classes <= 1 or min(per_box, most) < 1:
        raise InvalidModel(f"{classes} classes, and scores {scores.type}")
    if columns > classes:
        scores = ops.slice(
            scores, np.asarray([1], np.int64), np.asarray([columns], np.int64), np.asarray([1], np.int64)
        )
    overlap = np.asarray([said["nms_iou_threshold"]], np.float32)
    least = _below(said["nms_score_threshold"])
    if said.get("use_regular_nms"):
        each = int(said.get("detections_per_class", 100))
        by_class = ops.transpose(scores, perm=(1, 0))
        kept = _suppressed(boxes, by_class, each, overlap, least)
        there = _there(kept)
        held = ops.where(there, ops.gather_elements(by_class, _held(kept), axis=1), np.float32(-np.inf))
        flat = [ops.reshape(v, shape=np.asarray([-1], np.int64)) for v in (held, kept)]
        if (short := most - classes * each) > 0:  # more are asked for than there can be
            flat = [ops.concat([v, np.full(short, e, v.dtype)], axis=0) for v, e in zip(flat, (-np.inf, -1))]
        found, order = ops.top_k(flat[0], np.asarray([most], np.int64))
        there = ops.logical_not(ops.isinf(found))
        box, kind = ops.gather(flat[1], order), ops.div(order, np.asarray(each, np.int64))
        parts = [ops.gather(boxes, _held(box)), ops.cast(kind, to="float32"), found]
    else:
        found, kinds = ops.top_k(scores, np.asarray([per_box], np.int64))
        highest = ops.reduce_max(scores, axes=(1,), keepdims=False)
        kept = ops.squeeze(_suppressed(boxes, ops.unsqueeze(highest, axes=_ONE), most, overlap, least), axes=_ONE)
        there, rows = _there(kept), _held(kept)
        several = np.repeat(np.arange(most), per_box)
        box = ops.gather(ops.gather(boxes, rows), several)
        flat = [ops.reshape(ops.gather(v, rows), shape=np.asarray([-1], np.int64)) for v in (kinds, found)]
        parts = [box, ops.cast(flat[0], to="float32"), flat[1]]
        count = _count(there, "float32")
        there = ops.gather(there, several)
        return [*_masked(parts, there), ops.unsqueeze(count, axes=_ONE)]
    return [*_masked(parts, there), ops.unsqueeze(_count(there, "float32"), axes=_ONE)]


def _masked(parts: list[Value], there: Value) -> list[Value]:
    boxes, *others = parts
    made = [_where(ops.unsqueeze(there, axes=[1]), boxes), *(_where(there, p) for p in others)]
    return [ops.unsqueeze(v, axes=_ONE) for v in made]


OPERATORS = [
    Operator("CUSTOM 'TFLite_Detection_PostProcess'", read=_detection_post_process),
    Operator("NON_MAX_SUPPRESSION_V4", read=_non_max_suppression),
    Operator("NON_MAX_SUPPRESSION_V5", read=_non_max_suppression),
]
