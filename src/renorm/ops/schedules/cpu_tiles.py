"""CPU: statistics of tiles beside the result that they are of: a kernel with two outputs.

    parallel for each tile of rows, each few vectors of channels
      result = ... of this tile                           as its own schedule has it, without threads
      for each vector of channels
        sums = 0; for each pixel: sums += f(result)       read from the cache in which the result has just been put
        statistics = g(sums)

The statistics are what threads share out; the result is computed in their loops. That needs a result in blocks of
channels, whose schedule knows how to begin inside of other loops; other results are read again when they are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from renorm import te
from renorm.core.target import Target
from renorm.ops.schedules import cpu_reduction, nesting, structure
from renorm.ops.shared.tags import TILE_ROWS

# Bytes of a tile of results, of as many channels as are computed together: half of a small second-level cache, from
# which a vector comes in the time that its part in a sum takes.
KEPT = 64 * 1024

# Sums that run side by side, so that none waits for the addition before; each has a register twice as wide beside it.
CHAINS = 4

# Pieces that give threads even shares, if something is late.
FEW = 16


@dataclass(frozen=True)
class Loops:
    """The loops around a piece of a result: over samples, tiles along each spatial axis, and groups of channels."""

    sample: te.IterVar
    tiles: list[te.IterVar]
    group: te.IterVar


@dataclass(frozen=True)
class Statistics:
    """The stages of the statistics of a result. out: the output; rows: sums of rows of tiles; inner: all stages that
    are computed before the output, producers first."""

    out: te.Tensor
    rows: te.Tensor
    inner: list[te.Tensor]

    def loops(self, s: te.Schedule, channels: int, lanes: int) -> Loops:
        """The loops around pieces of `channels` channels, in this order."""
        self._inline(s)
        tiles, k = self._axes(s)
        terms = self.rows.shape[self.rows.op.attrs["channel"] - 1]
        vectors = max(n for n in range(1, CHAINS // terms + 1) if channels % (n * lanes) == 0)
        group, inside = s[self.out].split(s[self.out].op.axis[-1], factor=channels)
        block, inside = s[self.out].split(inside, factor=vectors * lanes)
        vector, lane = s[self.out].split(inside, factor=lanes)
        nesting.register_loops(s, self.out, [s[self.out].op.axis[0], *tiles, group, block], [vector, *k], lane)
        for stage in self.inner:
            self._vectors(s, stage, lanes)
            s[stage].compute_at(s[self.out], block)
        for stage in self.inner:
            if stage is not self.rows and any(t is self.rows for t in stage.op.input_tensors):
                s[self.rows].compute_at(s[stage], s[stage].op.reduce_axis[-1])
        return Loops(s[self.out].op.axis[0], tiles, group)

    def _vectors(self, s: te.Schedule, stage: te.Tensor, lanes: int) -> None:
        """Channels side by side in registers, each term of a sum in its own."""
        channel = stage.op.attrs["channel"]
        own, tiles = list(s[stage].op.axis), self._tiles
        terms = own[1 + tiles : channel]
        others = [a for i, a in enumerate(own) if i != channel and a not in terms]
        vector, lane = s[stage].split(own[channel], factor=lanes)
        nesting.register_loops(s, stage, [*others, *s[stage].op.reduce_axis], [vector, *terms], lane)
        s[stage].set_scope("register")

    def order(self, s: te.Schedule, loops: Sequence[te.IterVar]) -> None:
        """Puts the loops around pieces into an order."""
        block, *inner = [a for a in s[self.out].leaf_iter_vars if a not in loops]
        s[self.out].reorder(*loops, block, *inner)

    def share(self, s: te.Schedule, result: te.Tensor, loops: Sequence[te.IterVar]) -> None:
        """Puts the loops around pieces into an order, hands them to threads, and computes `result` inside of them."""
        self.order(s, loops)
        s[result].compute_at(s[self.out], nesting.share(s, self.out, loops)[-1])

    def nest(self, s: te.Schedule, target: Target) -> None:
        """Nests of their own, after that of the result."""
        self._inline(s)
        for t in (*self.inner, self.out):
            cpu_reduction.nest(s, t, target)

    @property
    def _tiles(self) -> int:
        """Return how many axes run over tiles."""
        return self.rows.op.attrs["channel"] - 2

    def _axes(self, s: te.Schedule) -> tuple[list[te.IterVar], list[te.IterVar]]:
        """The axes over tiles, and that over moments, if there is one."""
        inner = list(s[self.out].op.axis)[1:-1]
        return inner[: self._tiles], inner[self._tiles :]

    def _inline(self, s: te.Schedule) -> None:
        results = [t for t in structure.stages([self.out]) if s[t].is_output and t is not self.out]
        for t in _behind(self.out, results):
            if t not in (self.out, *self.inner):
                s[t].compute_inline()


def split(outs: Sequence[te.Tensor]) -> tuple[list[te.Tensor], Statistics | None]:
    """The results of a kernel, and the statistics of one of them that are among its outputs."""
    for out in outs:
        others = [t for t in outs if t is not out]
        mine = _behind(out, others)
        rows = next((t for t in mine if t.op.tag == TILE_ROWS), None)
        if rows is not None and others:
            return others, Statistics(
                out, rows, [t for t in mine if structure.is_reduction(t) or structure.is_statistic(t)]
            )
    return list(outs), None


def _behind(t: te.Tensor, others: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Stages that `t` depends on and `others` do not."""
    shared = structure.stages(others)
    return [u for u in structure.stages([t]) if u not in shared]


def rows(shape: Sequence[int], channels: int, together: int | None = None) -> tuple[int, ...]:
    """The tile of a result that is computed in whole rows: as many as the cache keeps, alike in number where they can
    be; fewer where threads need more pieces.

    shape: [N, C, *S]; channels: how many are computed together; together: rows of a strip, of which tiles are made.
    """
    batch, whole, *outer, width = shape
    if not outer:
        return (width,)
    strip = together or 1
    strips = -(-outer[-1] // strip)
    most = max(1, KEPT // (4 * channels * width * strip))
    tiles = max(-(-strips // most), min(strips, -(-FEW * channels // max(1, batch * whole))))
    return (*[1] * (len(outer) - 1), strip * -(-strips // tiles), width)
