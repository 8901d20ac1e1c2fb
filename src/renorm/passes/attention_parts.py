"""Attention on a GPU in parts, whose scores lie in the same memory one part after the other: scores of all queries and
keys together take more than everything else, as soon as sequences are long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from renorm import ops
from renorm.core.dims import is_static, static
from renorm.core.dtypes import compute_dtype, itemsize
from renorm.graph.ir import Graph, Value
from renorm.graph.rewrite import Match, Plan, Rewrite
from renorm.ops.attention import Attention
from renorm.passes.context import Context
from renorm.passes.rewriting import ApplyRules
from renorm.passes.split_variadic import JoinInParts

# Bytes of scores of a part: two or three times the second-level cache of a large GPU, and in tiles of 64 by 64 enough
# for its multiprocessors sixty times. Smaller parts might stay in that cache, which was not measured.
MOST = 128 << 20
TILE = 64  # queries that a block has at most
KEYS_AND_VALUES = (1, 2)  # operands that all queries read whole


@dataclass(frozen=True)
class AttendInParts:
    """attention(q, ..) -> concat(attention(q[p], ..) for parts p), on a GPU, where scores are many"""

    def run(self, graph: Graph, context: Context) -> None:
        if context.target.machine_target.is_gpu:
            ApplyRules([CutAttention(), JoinInParts()]).run(graph, context)


class CutAttention(Rewrite):
    """attention(q, k, v, mask) -> concat(attention(q[p], k[p], v[p], mask[p]) for parts p along one axis of q)"""

    def pattern(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return Attention.matching()(q, k, v, mask)

    def plan(self, m: Match) -> Plan | None:
        if not is_static((*m.q.shape, *m.k.shape)):
            return None
        axis, step = part(static(m.q.shape), static(m.k.shape), itemsize(compute_dtype(m.q.dtype)))
        if step >= m.q.shape[axis]:
            return None

        def make(m: Match) -> Value:
            parts = [[cut(i, x, begin) for i, x in enumerate(m.root.inputs)] for begin in range(0, extent, step)]
            return ops.concat([m.root.op(*operands) for operands in parts], axis=axis)

        extent, is_of_queries = m.q.shape[axis], axis == m.q.rank - 2

        def cut(index: int, x: Value | None, begin: int) -> Value | None:
            at = -1 if x is None or (is_of_queries and index in KEYS_AND_VALUES) else axis - (m.q.rank - x.rank)
            if x is None or at < 0 or x.shape[at] == 1:
                return x
            return ops.slice(x, [begin], [min(begin + step, extent)], [at])

        return Plan(make)


def part(queries: Sequence[int], keys: Sequence[int], size: int) -> tuple[int, int]:
    """Return the axis of queries that is cut into parts, and how long each part is: the whole extent where scores are
    not too many, a tile at least. It is the outermost axis that will do: memory holds parts of it as a whole. size:
    bytes of a score."""
    rows, scores = len(queries) - 2, size * prod(queries[:-1]) * keys[-2]
    heads = (a for a in range(rows) if scores <= MOST * queries[a] and keys[a] in (1, queries[a]))
    axis = next(heads, rows)
    extent = queries[axis]
    if scores <= MOST:
        return axis, extent
    most = MOST * extent // scores
    if axis == rows:
        return axis, min(extent, max(TILE, most // TILE * TILE))
    parts = -(-extent // most)
    return axis, -(-extent // parts)
