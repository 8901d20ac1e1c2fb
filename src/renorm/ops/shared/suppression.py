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
        c = _Class(loops, boxes, scores, thresholds, output, (is_center, has_limit, has_score), _LANES)
        entries, spare = (Entries.of(loops, c.count, "float32", name) for name in ("best", "spare"))
        found = loops.allocate((1,), "int32", "found")
        found[0] = 0
        with loops.for_range(0, c.count) as i:
            score = loops.let(scores[(*c.row, i)], "score")
            with loops.if_scope(c.is_candidate(score)):
                at = loops.let(found[0], "at")
                with loops.if_scope(at >= 0, at < c.count):
                    entries.put(at, i, score)
                found[0] = at + 1
        end = loops.let(found[0], "end")
        sort(loops, entries, spare, loops.let(const(0), "begin"), end, order("float32", largest=True))
        with loops.if_scope(end <= c.count), loops.for_range(0, end, "candidate") as candidate:
            c.take(entries.places[candidate])
        c.end()

    return body


def kept_in_order(is_center: bool, has_limit: bool, has_score: bool) -> Body:
    """The loops of one class whose boxes come in a given order, for many classes side by side: without vectors."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        boxes, scores, places, *thresholds = inputs
        c = _Class(loops, boxes, scores, thresholds, output, (is_center, has_limit, has_score), 1)
        with loops.for_range(0, c.count, "candidate") as candidate:
            place = loops.let(te.max(te.min(places[(*c.row, candidate)], c.count - 1), 0), "place")
            with loops.if_scope(c.is_candidate(loops.let(scores[(*c.row, place)], "score"))):
                c.take(place)
        c.end()

    return body


class _Class:
    """Boxes of a class that are kept so far. lanes: how many of them one is held against side by side."""

    def __init__(
        self,
        loops: Loops,
        boxes: Array,
        scores: Array,
        thresholds: Sequence[Array],
        output: Array,
        form: tuple[bool, bool, bool],
        lanes: int,
    ):
        self._is_center, has_limit, self._has_score = form
        self._given = [t[(0,) * len(t.shape)] for t in thresholds]
        self._limit: Expr = self._given[0] if has_limit else const(0, "float32")
        self._loops, self._boxes, self._output, self._lanes = loops, boxes, output, lanes
        classes, self.count, self._most = scores.shape[1], scores.shape[2], output.shape[2]
        self.row = loops.round // classes, loops.round % classes
        self._chosen = loops.allocate((1,), "int32", "chosen")
        self._chosen[0] = 0
        names = ("y1", "x1", "y2", "x2", "area")
        self._held = [loops.allocate((self._most + lanes,), "float32", name) for name in names]
        self._hits = loops.allocate((lanes,), "int32", "hits")

    def is_candidate(self, score: Expr) -> Expr:
        """Return whether a box may be kept."""
        return score > self._given[-1] if self._has_score else Not(call("isnan", score))

    def take(self, given: Expr) -> None:
        """Keep a box that none of those before overlaps too much."""
        loops, held, hits, lanes = self._loops, self._held, self._hits, self._lanes
        kept = loops.let(self._chosen[0], "kept")
        with loops.if_scope(kept >= 0, kept < self._most):
            place = te.max(te.min(given, self.count - 1), 0)
            box = _corners(loops, [self._boxes[self.row[0], place, axis] for axis in range(4)], self._is_center)
            _hold_against(loops, box, held, kept, self._limit, hits)
            total = hits[0]
            for lane in range(1, lanes):
                total = total + hits[lane]
            with loops.if_scope(total < 1):
                with loops.if_scope((kept % lanes).equal(0)):  # the next lanes: boxes without area
                    for a in held:
                        with loops.for_range(0, lanes, "lane", "vectorized") as lane:
                            a[kept + lane] = const(0, "float32")
                for a, value in zip(held, box, strict=True):
                    a[kept] = value
                self._output[(*self.row, kept)] = place
                self._chosen[0] = kept + 1

    def end(self) -> None:
        """Say of the places behind the last box that there is none."""
        kept = self._loops.let(self._chosen[0], "kept")
        with self._loops.if_scope(kept >= 0), self._loops.for_range(kept, self._most) as k:
            self._output[(*self.row, k)] = -1


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
    (lanes,) = hits.shape
    with loops.for_range(0, lanes, "lane", "vectorized") as lane:
        hits[lane] = 0
    with loops.for_range(0, (count + (lanes - 1)) // lanes, "part") as part:
        first = loops.let(part * lanes, "first")
        is_inside = loops.if_scope(first >= 0, first < held[0].shape[0] - (lanes - 1))
        with is_inside, loops.for_range(0, lanes, "lane", "vectorized") as lane:
            other = [a[first + lane] for a in held]
            height = te.min(y2, other[2]) - te.max(y1, other[0])
            width = te.min(x2, other[3]) - te.max(x1, other[1])
            inside = height * width
            union = area + other[4] - inside
            has_area = all_of(height > 0, width > 0, inside > 0, area > 0, other[4] > 0, union > 0)
            hits[lane] = hits[lane] + cast("int32", all_of(has_area, inside / union > limit))
