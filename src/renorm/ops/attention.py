"""Attention: mixtures of values, weighted by how alike queries and keys are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim, take
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.core.shapes import spreads
from renorm.expr.extents import same_extent
from renorm.graph.attributes import Float
from renorm.graph.ir import Node, Value
from renorm.graph.op import REDUCTION, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, boolean, f16, f32, f64
from renorm.ops.shared.moments import statistic
from renorm.ops.shared.precision import spread, wide
from renorm.ops.shared.tags import DOTS, KEYS, MIXED, POWERS, QUERIES, SCORES, VALUES
from renorm.te import tag

FEW = 4  # queries that have no vectors of their own: these run along keys and along what a query holds
LINE = 16  # elements that the rows of values are filled up to, for vectors to be whole


def _served(whole: Any, part: Any) -> Callable[[Any], Any]:
    """Return which index of `part` serves one of `whole`."""
    if same_extent(whole, part):
        return lambda i: i
    return (lambda i: 0) if same_extent(part, 1) else lambda i: i // (whole // part)


class Attention(OpDef):
    """y[.., i, e] = sum over j of w[.., i, j] * v[.., j, e], w = softmax over j of s[.., i, j],
    s[.., i, j] = scale * sum over d of q[.., i, d] * k[.., j, d] + weight * mask[.., i, j]. Of a mask of truth
    values, keys that it does not take score `masked` instead.

    Axes before the last two are those of q. Of the last one of them, the heads, k and v may have a part, of which each
    serves as many heads side by side; of others 1. The mask broadcasts. Without keys y is 0.
    """

    signature = "q: T[...], k: T[...], v: T[...], mask?: M[...] -> y: T[...]"
    types = {"T": FLOATS, "M": (*FLOATS, "bool")}
    fusion = REDUCTION
    reads_views = True
    scheduled_as = "attention"
    scale = Float(1.0)
    weight = Float(1.0)
    masked = Float(-math.inf)

    def infer(self, q: Operand, k: Operand, v: Operand, mask: Operand | None) -> tuple[Dim, ...]:
        what = f"attention({q}, {k}, {v})"
        if q.rank < 2 or not q.rank == k.rank == v.rank:
            raise OperandError(f"{what}: operands are matrices, with as many axes before them in each")
        pairs = [("elements of a query and of a key", q.shape[-1], k.shape[-1])]
        pairs += [("axes of keys and values", a, b) for a, b in zip(k.shape[:-1], v.shape[:-1])]
        for name, a, b in pairs:
            if a != b and isinstance(a, int) and isinstance(b, int):
                raise OperandError(f"{what}: {name} differ: {a} and {b}")
            take(a, "==", b)
        for axis, (whole, part) in enumerate(zip(q.shape[:-2], k.shape[:-2])):
            if part == 1 or part == whole:
                continue
            if not isinstance(part, int) or not isinstance(whole, int):
                take(part, "==", whole)
            elif axis < q.rank - 3 or not part or whole % part:
                raise OperandError(f"{what}: {part} heads of keys for {whole} of queries")
        scores = (*q.shape[:-1], k.shape[-2])
        if mask is not None and not spreads(mask.shape, scores):
            raise OperandError(f"{what}: mask {mask} does not broadcast to scores {list(scores)}")
        return (*q.shape[:-1], v.shape[-1])

    def read_once(self, node: Node) -> Value | None:
        """Return a mask of all scores."""
        q, k, _, mask = node.operand_types()
        if q is None or k is None or mask is None:
            return None
        return node.inputs[3] if mask.shape == (*q.shape[:-1], k.shape[-2]) else None

    def compute(self, q: te.Tensor, k: te.Tensor, v: te.Tensor, mask: te.Tensor | None) -> te.Tensor:
        *lead, rows, held = q.shape
        keys, width, first = k.shape[-2], v.shape[-1], len(lead)
        served = [_served(whole, part) for whole, part in zip(lead, k.shape)]
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

        def key(b: Any) -> list[Any]:
            return [index(i) for index, i in zip(served, b)]

        def score(b: Any, i: Any, j: Any) -> Any:
            e = at(dots, b, i, j)
            if mask is None:
                return e
            if mask.dtype != "bool":
                added = spread(mask, (*b, i, j)).astype(e.dtype)
                return e + (added if self.weight == 1 else added * self.weight)
            return te.if_then_else(spread(mask, (*b, i, j)), e, te.const(self.masked, e.dtype))

        def along_keys() -> te.IterVar:
            return te.reduce_axis((0, keys), name="j")

        held_keys = te.compute(k.shape, lambda *i: wide(k[i]), name="keys", tag=KEYS)
        ragged = width % LINE if isinstance(width, int) and not is_few else 0
        filled = (*v.shape[:-1], width + LINE - ragged if ragged else width)

        def value(*i: Any) -> Any:
            e = wide(v[i])
            return te.if_then_else(i[-1] < width, e, te.const(0.0, e.dtype)) if ragged else e

        values = te.compute(filled, value, name="values", tag=VALUES, attrs={"is_filled": bool(ragged)})
        queries = table(held, lambda b, i, d: wide(q[(*b, i, d)]) * self.scale, "queries", QUERIES)
        d, j, k1, k2 = te.reduce_axis((0, held), name="d"), *(along_keys() for _ in range(3))
        dots = table(
            keys,
            lambda b, i, j: te.sum(at(queries, b, i, d) * held_keys[(*key(b), j, d)], axis=d),
            "dots",
            DOTS,
        )
        scores = table(keys, score, "scores", SCORES)
        per_query = (*lead, rows)
        most = te.compute(
            per_query, lambda *i: te.max(at(scores, i[:-1], i[-1], j), axis=j), name="most", tag=tag.COMM_REDUCE
        )
        powers = table(keys, lambda b, i, j: te.exp(at(scores, b, i, j) - most[(*b, i)]), "powers", POWERS)
        total = te.compute(
            per_query, lambda *i: te.sum(at(powers, i[:-1], i[-1], k1), axis=k1), name="total", tag=tag.COMM_REDUCE
        )
        one = te.const(1.0, total.dtype)
        # of keys that there are the greatest has the weight 1, so that 0 is the sum of none
        inverse = statistic(per_query, lambda *i: te.select(total[i].equal(0), one, one / total[i]), "inverse")
        mixed = te.compute(
            (*per_query, width),
            lambda *i: te.sum(at(powers, i[:first], i[first], k2) * values[(*key(i[:first]), k2, i[-1])], axis=k2),
            name="mixed",
            tag=MIXED,
            attrs={"is_few": is_few},
        )
        return te.compute(
            mixed.shape, lambda *i: (mixed[i] * inverse[i[:-1]]).astype(q.dtype), name="attention", tag=tag.BROADCAST
        )

    def reference(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        each = q.shape[-3] // k.shape[-3] if q.ndim > 2 and k.shape[-3] else 1
        k, v = (np.repeat(t, each, -3) if q.ndim > 2 else t for t in (k, v))
        scores = (self.scale * (q @ k.swapaxes(-1, -2))).astype(np.longdouble)
        if mask is not None:
            scores = np.where(mask, scores, self.masked) if mask.dtype == bool else scores + self.weight * mask
        powers = np.exp(scores - np.max(scores, -1, keepdims=True, initial=-np.inf))
        total = powers.sum(-1, keepdims=True)
        return (powers @ v / np.where(total == 0, 1, total)).astype(np.float64)

    samples = [
        Sample(f32[2, 3, 37, 20], f32[2, 3, 29, 20], f32[2, 3, 29, 33], scale=0.25),
        Sample(f32[2, 3, 2, 20], f32[2, 3, 29, 20], f32[2, 3, 29, 33], f32[3, 1, 29], scale=-0.5),
        Sample(f32[2, 6, 5, 8], f32[2, 3, 7, 8], f32[2, 3, 7, 8], f32[2, 1, 5, 7], weight=0.5),
        Sample(f32[2, 5, 3, 8], f32[1, 1, 7, 8], f32[1, 1, 7, 8], boolean[5, 3, 7]),
        Sample(f32[2, 5, 8], f32[2, 7, 8], f32[2, 7, 8], boolean[2, 1, 7], masked=-1e9),
        Sample(
            f32[5, 4],
            f32[3, 4],
            f32[3, 6],
            boolean[5, 3].of([[True] * 3, [False] * 3, [True] * 3, [False] * 3, [False, True, True]]),
        ),
        Sample(f32[2, 4], f32[3, 4], f32[3, 6], f32[3].of([-math.inf, 0, -math.inf])),
        Sample(f32[6, 4], f32[2, 4], f32[2, 6], f32[6, 2].of([[math.nan, 0], [-math.inf] * 2, [math.inf, 0]] * 2)),
        Sample(f32[2, 5, 3], f32[2, 0, 3], f32[2, 0, 3]),
        Sample(f32[2, 0, 3], f32[2, 5, 3], f32[2, 5, 3]),
        Sample(f64[2, 9, 3], f64[2, 5, 3], f64[2, 5, 3]),
        Sample(f16[2, 9, 30], f16[2, 40, 30], f16[2, 40, 30], f16[9, 40], scale=0.2),
        Sample(bf16[2, 3, 30], bf16[2, 40, 30], bf16[2, 40, 30]),
    ]
    rejects = [
        Reject(f32[5, 4], f32[7, 3], f32[7, 2], because="differ: 4 and 3"),
        Reject(f32[5, 4], f32[7, 4], f32[6, 2], because="differ: 7 and 6"),
        Reject(f32[5, 4], f32[1, 7, 4], f32[7, 2], because="as many axes"),
        Reject(f32[6, 5, 4], f32[4, 7, 4], f32[4, 7, 2], because="4 heads of keys for 6"),
        Reject(f32[5, 4], f32[7, 4], f32[7, 2], f32[5, 6], because="does not broadcast to scores [5, 7]"),
        Reject(f32[5, 4], f64[7, 4], f32[7, 2], because="k is float64 but q is float32"),
    ]
