"""CPU: attention by blocks of queries. What a block is told of all keys stays in the cache of one core:

    parallel for each head, each block of queries
      queries = scale * q, turned round                  a vector holds neighbouring queries
      for each few keys: scores = queries * k + mask     in registers, then in the cache
      most = greatest score; powers = exp(scores - most); total = sum of powers
      for each tile: y = sum of powers * v / total       in registers; a vector holds neighbouring elements of values,
                                                         for all keys, or a part of them (attention_blocks)

Keys and values are read as they lie, unless rows lie so far apart that a cache holds few of them, or are no whole
vectors: then a phase before copies them. No sum runs across a vector. Queries that are too few to fill vectors
(ops.shared.attending.FEW) leave them to what runs along memory: what a key holds, keys, and what a value holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.machine import LINE, Machine
from renorm.core.target import Target
from renorm.ops.schedules import (
    attention_axes,
    attention_blocks,
    cpu_attention_tiles,
    cpu_injective,
    cpu_reduction,
    nesting,
    structure,
)
from renorm.ops.schedules.attention_blocks import FIRST_SETS, TOGETHER, WAYS
from renorm.ops.schedules.tiles import MANY, Tile, choose_tile
from renorm.ops.shared.tags import DOTS, KEYS, MIXED, POWERS, QUERIES, SCORES, VALUES
from renorm.te.tensor import source_of

CHAINS = 8  # of additions side by side, each of which waits for the one before


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """One attention, and what stands behind it element by element, be it with axes in another order."""
    chain = structure.stages(outs)
    found, per_query = attention_axes.stages(chain)
    nesting.inline(s, outs, keep=[*found.values(), *per_query])
    out = outs[0]
    mixed, is_paired = found[MIXED], found[MIXED].op.attrs.get("in_pairs", False)
    axes = attention_axes.of(s, out, mixed) if len(outs) == 1 and (target.has_tiles or not is_paired) else None
    if axes is None or any(0 in t.shape for t in chain):
        for t in (u for u in chain if not s[u].is_inline):
            cpu_reduction.nest(s, t, target)
        return
    if is_paired:
        cpu_attention_tiles.schedule(s, out, axes, found, per_query, target)
        return
    own = _Attention(s, out, axes, found, per_query, target)
    if found[MIXED].op.attrs["is_few"]:
        own.few()
    else:
        own.blocks()


@dataclass(frozen=True)
class _Attention:
    """stages: by their tags. axes: of the result, as those of `mixed`. per_query: the greatest score, the sum of powers
    and its inverse."""

    s: te.Schedule
    out: te.Tensor
    axes: list[te.IterVar]
    stages: dict[str, te.Tensor]
    per_query: list[te.Tensor]
    target: Target

    @property
    def lanes(self) -> int:
        return structure.lanes_of(self.stages[MIXED], self.target)

    def blocks(self) -> None:
        """Vectors of queries."""
        s, out, lanes = self.s, self.out, self.lanes
        mixed, powers, scores = (self.stages[tag] for tag in (MIXED, POWERS, SCORES))
        *lead, row, column = self.axes
        keys, rows = powers.shape[-2:]
        most = attention_blocks.rows_apart(self._held(self.stages[KEYS]), FIRST_SETS, TOGETHER)
        self._held(self.stages[VALUES])
        heads, width = prod(mixed.shape[:-2]), mixed.shape[-1]
        blocks = attention_blocks.choose(heads, rows, keys, width, lanes, self.target, most)
        block, row = s[out].split(row, factor=blocks.vectors * lanes)
        whole = self._tiles([*lead, block], row, column, blocks.values, blocks.parts)
        for t in self.per_query:
            self._rows(t, whole, self._chains(t, whole, blocks.vectors))
            s[t].set_scope("register")
        self._rows(powers, whole)
        self._turned(whole)
        s[scores].compute_at(s[out], whole)
        *lead, key, query = s[scores].op.axis
        few, key = s[scores].split(key, factor=blocks.scores.pixels)
        group, query = s[scores].split(query, factor=blocks.scores.vectors * lanes)
        vector, lane = s[scores].split(query, factor=lanes)
        nesting.register_loops(s, scores, [*lead, few, group], [key, vector], lane)
        self._sum(self.stages[DOTS], scores, group)

    def _chains(self, t: te.Tensor, whole: te.IterVar, vectors: int) -> Sequence[te.IterVar]:
        """Cuts a reduction over keys in parts where one of so many vectors would wait for the one before. Gives what
        is left of it to unroll."""
        s, parts = self.s, CHAINS // vectors
        if not structure.is_reduction(t) or parts < 2:
            return ()
        _, part = s[t].split(s[t].op.reduce_axis[0], factor=parts)
        partial = s.rfactor(t, part, len(t.shape) - 1)
        s[partial].set_scope("register")
        self._rows(partial, whole, [s[partial].op.axis[-2]])
        return s[t].op.reduce_axis

    def few(self) -> None:
        """Vectors along what runs along memory."""
        s, out = self.s, self.out
        for tag in (KEYS, VALUES):
            s[self.stages[tag]].compute_inline()
        *lead, row, column = self.axes
        once, row = s[out].split(row, nparts=1)
        *_, rows, width = self.stages[MIXED].shape
        tile, _ = choose_tile(rows, -(-width // self.lanes), Machine.of(self.target), most=MANY)
        whole = self._tiles([*lead, once], row, column, tile, 1)
        for tag in (QUERIES, SCORES, POWERS):
            self._rows(self.stages[tag], whole)
        for t in self.per_query:
            s[t].compute_at(s[out], whole)
        for t in (self.stages[DOTS], *self.per_query):
            if structure.is_reduction(t):
                cpu_reduction.nest(s, t, self.target, at=(out, whole))

    def _tiles(
        self, order: list[te.IterVar], row: te.IterVar, column: te.IterVar, tile: Tile, parts: int
    ) -> te.IterVar:
        """Loops over tiles of the result, in which sums of values stay in registers, or parts of these. Gives the loop
        around blocks."""
        s, out, mixed = self.s, self.out, self.stages[MIXED]
        sums = mixed
        if parts > 1:
            (keys,) = s[mixed].op.reduce_axis
            part, _ = s[mixed].split(keys, factor=-(-keys.extent // parts))
            sums = s.rfactor(mixed, part, 0)
        *order, group, beside = self._cut(out, order, row, column, tile)
        whole = nesting.share(s, out, order, structure.work(mixed))
        if len(whole) > 1:
            s[out].reorder(*whole, group, beside)
        if sums is not mixed:
            s[mixed].set_scope("local")
            s[mixed].compute_at(s[out], whole[-1])
            *lead, row, column = s[mixed].op.axis
            beside = self._cut(mixed, [*lead, *s[mixed].op.reduce_axis], row, column, tile)[-1]
        self._sum(sums, out if sums is mixed else mixed, beside)
        return whole[-1]

    def _cut(
        self, t: te.Tensor, around: Sequence[te.IterVar], row: te.IterVar, column: te.IterVar, tile: Tile
    ) -> list[te.IterVar]:
        """Cuts what lies as results do in tiles; gives the loops around one."""
        s = self.s
        beside, row = s[t].split(row, factor=tile.pixels)
        group, column = s[t].split(column, factor=tile.vectors * self.lanes)
        vector, lane = s[t].split(column, factor=self.lanes)
        nesting.register_loops(s, t, [*around, group, beside], [row, vector], lane)
        return [*around, group, beside]

    def _turned(self, whole: te.IterVar) -> None:
        """Queries: rows turned round in registers, or few of them at a time: they may share the ways of one set of the
        first cache."""
        s, queries = self.s, self.stages[QUERIES]
        s[queries].compute_at(s[self.out], whole)
        *lead, column, row = s[queries].op.axis
        columns = gcd(column.extent, self.lanes)
        is_known = not any(s.open_axes(queries))  # where rows end
        is_turned = is_known and columns > 1 and attention_axes.lie_in_rows(queries, row, column)
        few, lane = s[queries].split(row, factor=self.lanes if is_turned else min(self.lanes, TOGETHER))
        if is_turned:
            column, inner = s[queries].split(column, factor=columns)
            s[queries].reorder(*lead, few, column, lane, inner)
            s[queries].tensorize(lane)
        else:
            s[queries].reorder(*lead, few, column, lane)
            s[queries].vectorize(lane)

    def _held(self, t: te.Tensor) -> int:
        """Copies keys or values where the second cache would not hold them as they lie, or vectors are not whole. Gives
        how many bytes rows are apart that are read then."""
        (load,) = structure.stored_reads(t)
        shape, row, size = source_of(load).shape, t.op.axis[-2].var, itemsize(t.dtype)
        step = size * sum(
            (structure.coefficient(i, row) or 0) * prod(shape[k + 1 :]) for k, i in enumerate(load.indices)
        )
        sets = self.target.cache_bytes // LINE // WAYS
        if not t.op.attrs.get("is_filled") and 2 * t.shape[-2] <= attention_blocks.rows_apart(step, sets, WAYS):
            self.s[t].compute_inline()
            return step
        cpu_injective.nest(self.s, t, self.target)
        return t.shape[-1] * size

    def _sum(self, t: te.Tensor, reader: te.Tensor, loop: te.IterVar) -> None:
        """A sum of products in registers."""
        s = self.s
        s[t].set_scope("register")
        s[t].compute_at(s[reader], loop)
        *lead, row, column = s[t].op.axis
        vector, lane = s[t].split(column, factor=self.lanes)
        nesting.register_loops(s, t, [*lead, *s[t].op.reduce_axis], [row, vector], lane)

    def _rows(self, t: te.Tensor, whole: te.IterVar, unrolled: Sequence[te.IterVar] = ()) -> None:
        """Vectors along the last axis side by side, in the loop around blocks."""
        s = self.s
        s[t].compute_at(s[self.out], whole)
        *lead, last = s[t].op.axis
        vector, lane = s[t].split(last, factor=self.lanes)
        around = [a for a in (*lead, *s[t].op.reduce_axis) if a not in unrolled]
        nesting.register_loops(s, t, around, [*unrolled, vector], lane)
