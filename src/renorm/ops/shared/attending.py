"""Attention as tensor expressions: the stages by which its schedule goes.

    queries = scale * q            scores = queries . keys, softly capped, + weight * mask
    powers = exp(scores - most)    y = sum of powers * values / total

Where what is multiplied is rounded, powers are, before they are added up, and scale is a factor of scores instead.
Tables of queries and something else hold queries side by side, so that what is reduced over keys runs down a column;
where queries are few, rows lie side by side instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from renorm import te
from renorm.expr.extents import same_extent
from renorm.ops.shared.moments import statistic
from renorm.ops.shared.precision import multiplied, spread
from renorm.ops.shared.tags import DOTS, KEYS, MIXED, POWERS, QUERIES, SCORES, VALUES
from renorm.te import tag

FEW = 4  # queries that have no vectors of their own: these run along keys and along what a query holds
LINE = 16  # elements that the rows of values are filled up to, for vectors to be whole
# Weights beside the greatest one that are 0. Multiplied, a subnormal number takes a CPU some hundred cycles: masks of
# -100, as Swin has them, made its products take 27 times as long.
NOTHING = {"float32": 2.0**-100, "float64": 2.0**-900}


def served_by(whole: Any, part: Any) -> Callable[[Any], Any]:
    """Return which index of `part` serves one of `whole`."""
    if same_extent(whole, part):
        return lambda i: i
    return (lambda i: 0) if same_extent(part, 1) else lambda i: i // (whole // part)


@dataclass(frozen=True)
class Weighing:
    """How scores become weights; attributes are those of ops.attention."""

    mask: te.Tensor | None
    scale: float
    weight: float
    masked: float
    softcap: float
    nan_is_zero: bool
    empty_is_zero: bool
    multiplied_as: str | None
    in_panels: bool

    def power(self, distance: Any) -> Any:
        """A weight, given how far a score is from the greatest one."""
        is_nothing = distance < math.log(NOTHING[distance.dtype])
        return te.exp(te.select(is_nothing, te.const(-math.inf, distance.dtype), distance))

    def score(self, e: Any, index: Sequence[Any]) -> Any:
        """A score, given the product of a query and a key; index: as in a table of rows of scores."""
        mask = self.mask
        if self.softcap:
            most = te.const(self.softcap, e.dtype)
            e = most * te.tanh(e / most)
        if mask is None:
            return e
        if mask.dtype != "bool":
            added = spread(mask, index).astype(e.dtype)
            return e + (added if self.weight == 1 else added * self.weight)
        return te.if_then_else(spread(mask, index), e, te.const(self.masked, e.dtype))

    def greatest(self, most: te.Tensor) -> te.Tensor:
        """What is subtracted from scores, given the greatest one of each query."""
        if not self.empty_is_zero:
            return most
        lowest, nothing = te.const(-math.inf, most.dtype), te.const(0.0, most.dtype)
        return statistic(most.shape, lambda *i: te.select(most[i].equal(lowest), nothing, most[i]), "greatest")

    def inverse(self, total: te.Tensor) -> te.Tensor:
        """What sums of values are multiplied by, given the sums of powers. Of keys that there are the greatest has the
        weight 1, so that 0 is the sum of none."""
        one, nothing = te.const(1.0, total.dtype), te.const(0.0, total.dtype)

        def share(*i: Any) -> Any:
            found = te.select(total[i].equal(0), one, one / total[i])
            return te.select(total[i].equal(total[i]), found, nothing) if self.nan_is_zero else found

        return statistic(total.shape, share, "inverse")

    def mixture(self, sums: Any, part: Any, dtype: str) -> Any:
        """An element of the result, given the sum of values and the inverse of its query."""
        y = sums * part
        y = te.select(part.equal(0), te.const(0.0, y.dtype), y) if self.nan_is_zero else y
        return y.astype(dtype)


def attended(q: te.Tensor, k: te.Tensor, v: te.Tensor, weighing: Weighing) -> te.Tensor:
    """Return the mixture of values for each query; the formula is that of ops.attention."""
    *lead, rows, held = q.shape
    keys, width, first, dtype = k.shape[-2], v.shape[-1], len(lead), weighing.multiplied_as
    served = [served_by(whole, part) for whole, part in zip(lead, k.shape)]
    is_few = isinstance(rows, int) and rows <= FEW

    def table(extent: Any, formula: Any, name: str, tag: str) -> te.Tensor:
        """What is told of each query and of something else: side by side lie queries, unless they are few."""
        shape = (rows, extent) if is_few else (extent, rows)

        def element(*index: Any) -> Any:
            b, (i, j) = index[:first], index[first:] if is_few else reversed(index[first:])
            return formula(b, i, j)

        return te.compute((*lead, *shape), element, name=name, tag=tag)

    def at(t: te.Tensor, b: Any, i: Any, j: Any) -> Any:
        return t[(*b, i, j)] if is_few else t[(*b, j, i)]

    def scaled(e: Any, here: bool) -> Any:
        return e * weighing.scale if here else e

    def key(b: Any) -> list[Any]:
        return [index(i) for index, i in zip(served, b)]

    def along_keys() -> te.IterVar:
        return te.reduce_axis((0, keys), name="j")

    held_keys = te.compute(k.shape, lambda *i: multiplied(k[i], dtype), name="keys", tag=KEYS)
    ragged = width % LINE if isinstance(width, int) and not is_few else 0
    filled = (*v.shape[:-1], width + LINE - ragged if ragged else width)

    def value(*i: Any) -> Any:
        e = multiplied(v[i], dtype)
        return te.if_then_else(i[-1] < width, e, te.const(0.0, e.dtype)) if ragged else e

    values = te.compute(filled, value, name="values", tag=VALUES, attrs={"is_filled": bool(ragged)})
    queries = table(held, lambda b, i, d: scaled(multiplied(q[(*b, i, d)], dtype), dtype is None), "queries", QUERIES)
    d, j, k1, k2 = te.reduce_axis((0, held), name="d"), *(along_keys() for _ in range(3))
    dots = table(
        keys,
        lambda b, i, j: te.sum(at(queries, b, i, d) * held_keys[(*key(b), j, d)], axis=d),
        "dots",
        DOTS,
    )
    scores = table(
        keys,
        lambda b, i, j: weighing.score(scaled(at(dots, b, i, j), dtype is not None), (*b, i, j)),
        "scores",
        SCORES,
    )
    per_query = (*lead, rows)
    most = te.compute(
        per_query, lambda *i: te.max(at(scores, i[:-1], i[-1], j), axis=j), name="most", tag=tag.COMM_REDUCE
    )
    most = weighing.greatest(most)
    powers = table(
        keys, lambda b, i, j: multiplied(weighing.power(at(scores, b, i, j) - most[(*b, i)]), dtype), "powers", POWERS
    )
    total = te.compute(
        per_query, lambda *i: te.sum(at(powers, i[:-1], i[-1], k1), axis=k1), name="total", tag=tag.COMM_REDUCE
    )
    inverse = weighing.inverse(total)
    mixed = te.compute(
        (*per_query, width),
        lambda *i: te.sum(at(powers, i[:first], i[first], k2) * values[(*key(i[:first]), k2, i[-1])], axis=k2),
        name="mixed",
        tag=MIXED,
        attrs={"is_few": is_few},
    )
    return te.compute(
        mixed.shape,
        lambda *i: weighing.mixture(mixed[i], inverse[i[:-1]], q.dtype),
        name="attention",
        tag=tag.BROADCAST,
    )
