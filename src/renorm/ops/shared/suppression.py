"""Greedy suppression of boxes in given loops (te.extern)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from renorm import te
from renorm.expr.nodes import Expr, Not, all_of, call, cast, const
from renorm.ops.shared.sorting import Entries, order, sort

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Body, Loops

_LANES = 16  # kept boxes that one is held against side by side


def kept_boxes(is_center: bool, has_limit: bool, has_score: bool) -> Body:
    """The loops of one class: candidates are collected and sorted, and each is held against all that are kept."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        boxes, scores, *thresholds = inputs
        given = [t[(0,) * len(t.shape)] for t in thresholds]
        limit: Expr = given[0] if has_limit else const(0, "float32")
        (count, most), classes = (scores.shape[2], output.shape[2]), scores.shape[1]
        batch, number = loops.round // classes, loops.round % classes
        entries, spare = (Entries.of(loops, count, "float32", name) for name in ("best", "spare"))
        found, chosen = loops.allocate((1,), "int32", "found"), loops.allocate((1,), "int32", "chosen")
        found[0] = 0
        chosen[0] = 0
        with loops.for_range(0, count) as i:
            score = loops.let(scores[batch, number, i], "score")
            with loops.if_scope(score > given[-1] if has_score else Not(call("isnan", score))):
                at = loops.let(found[0], "at")
                with loops.if_scope(at >= 0, at < count):
                    entries.put(at, i, score)
                found[0] = at + 1
        end = loops.let(found[0], "end")
        sort(loops, entries, spare, loops.let(const(0), "begin"), end, order("float32", largest=True))
        held = [loops.allocate((most + _LANES,), "float32", name) for name in ("y1", "x1", "y2", "x2", "area")]
        hits = loops.allocate((_LANES,), "int32", "hits")
        with loops.if_scope(end <= count), loops.for_range(0, end, "candidate") as candidate:
            kept = loops.let(chosen[0], "kept")
            with loops.if_scope(kept >= 0, kept < most):
                place = te.max(te.min(entries.places[candidate], count - 1), 0)
                box = _corners(loops, [boxes[batch, place, axis] for axis in range(4)], is_center)
                _hold_against(loops, box, held, kept, limit, hits)
                total = hits[0]
                for lane in range(1, _LANES):
                    total = total + hits[lane]
                with loops.if_scope(total < 1):
                    with loops.if_scope((kept % _LANES).equal(0)):  # the next lanes: boxes without area
                        for a in held:
                            with loops.for_range(0, _LANES, "lane", "vectorized") as lane:
                                a[kept + lane] = const(0, "float32")
                    for a, value in zip(held, box, strict=True):
                        a[kept] = value
                    output[batch, number, kept] = place
                    chosen[0] = kept + 1
        kept = loops.let(chosen[0], "kept")
        with loops.if_scope(kept >= 0), loops.for_range(kept, most) as k:
            output[batch, number, k] = -1

    return body


def _corners(loops: Loops, given: Sequence[Expr], is_center: bool) -> list[Expr]:
    """Return the least and the greatest coordinates of a box along both axes, and its area."""
    a, b, c, d = (loops.let(e) for e in given)
    if is_center:
        half = const(2, "float32")
        ends = (a - c / half, b - d / half, a + c / half, b + d / half)
    else:
        ends = (te.min(a, c), te.min(b, d), te.max(a, c), te.max(b, d))
    y1, x1, y2, x2 = (loops.let(e) for e in ends)
    return [y1, x1, y2, x2, loops.let((y2 - y1) * (x2 - x1), "area")]


def _hold_against(
    loops: Loops, box: Sequence[Expr], held: Sequence[Array], count: Expr, limit: Expr, hits: Array
) -> None:
    """Count in `hits`, by lanes, the boxes held so far that a box overlaps by more than the limit."""
    y1, x1, y2, x2, area = box
    with loops.for_range(0, _LANES, "lane", "vectorized") as lane:
        hits[lane] = 0
    with loops.for_range(0, (count + (_LANES - 1)) // _LANES, "part") as part:
        first = loops.let(part * _LANES, "first")
        is_inside = loops.if_scope(first >= 0, first < held[0].shape[0] - (_LANES - 1))
        with is_inside, loops.for_range(0, _LANES, "lane", "vectorized") as lane:
            other = [a[first + lane] for a in held]
            height = te.min(y2, other[2]) - te.max(y1, other[0])
            width = te.min(x2, other[3]) - te.max(x1, other[1])
            inside = height * width
            union = area + other[4] - inside
            has_area = all_of(height > 0, width > 0, inside > 0, area > 0, other[4] > 0, union > 0)
            hits[lane] = hits[lane] + cast("int32", all_of(has_area, inside / union > limit))
