"""CPU: normalizations whose slices memory runs across: vectors hold neighbouring slices, and nothing is added up across
lanes.

    parallel for each tile of neighbouring slices
      statistics = 0; for each element of a slice: statistics += f(a vector of neighbours)       in registers
      for each element of a slice: result = g(a vector of neighbours, statistics)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from renorm import te
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, nesting, structure
from renorm.ops.schedules.slices import Slices

# Elements of a slice that are kept between two passes over it: a quarter of a first-level cache.
KEPT = 2048


def cut(s: te.Schedule, out: te.Tensor, slices: Slices) -> tuple[list[te.IterVar], list[te.IterVar]]:
    """Loops over slices, and after them the loops inside one."""
    outer, inner = list[te.IterVar](), list[te.IterVar]()
    for i, (axis, block) in enumerate(zip(list(s[out].op.axis), slices.blocks)):
        if block > 1:
            # by what is as many in all sizes: slices are, not what is inside of them
            axis, rest = s[out].split(axis, nparts=out.shape[i] // block)
            inner.append(rest)
        (outer if block else inner).append(axis)
    s[out].reorder(*outer, *inner)
    return outer, inner


@dataclass(frozen=True)
class Columns:
    """Slices that memory runs across: one tile of neighbouring slices at a time, their statistics in registers, then
    their elements. lanes, vectors: of a tile. keeps: whether elements of a tile are kept between passes over it."""

    out: te.Tensor
    slices: Slices
    lanes: int
    vectors: int

    @staticmethod
    def of(out: te.Tensor, slices: Slices, target: Target) -> Columns:
        return Columns(out, slices, *_tile(out.shape[-1], structure.lanes_of(out, target)))

    @property
    def keeps(self) -> bool:
        return self.slices.size * self.lanes * self.vectors <= KEPT

    def schedule(self, s: te.Schedule, chain: Sequence[te.Tensor], reused: Sequence[te.Tensor]) -> te.IterVar:
        """Gives the loop around a vector of the result."""
        out, width = self.out, self.lanes * self.vectors
        outer, inner = cut(s, out, self.slices)
        *outer, last = outer
        if out.shape[-1] > width or not outer:
            tile, last = s[out].split(last, factor=width)
            outer.append(tile)
        vector, lane = s[out].split(last, factor=self.lanes)
        s[out].reorder(*outer, *inner, vector, lane)
        s[out].vectorize(lane)
        cpu_injective.store(s, out, 1, self.lanes)
        place = nesting.share(s, out, outer, prod(out.shape))[-1]
        for t in chain:
            if structure.is_statistic(t) or structure.is_reduction(t) or t in reused:
                s[t].compute_at(s[out], place)
                in_registers = not (s[t].is_output or t in reused)
                _neighbours(s, t, _lane_axis(out, t), self.lanes, in_registers=in_registers)
        return vector


def _tile(extent: int, lanes: int) -> tuple[int, int]:
    """(lanes of a vector, vectors side by side) of a tile: whole registers or halves, so that tiles fill the extent; up
    to four registers wide, the statistics of which fit the registers."""
    best = min(extent, lanes), 1
    for width in (lanes, lanes // 2):
        for count in range(1, 4 * lanes // width + 1):
            if width > 1 and extent % (width * count) == 0 and width * count > best[0] * best[1]:
                best = width, count
    return best


def _lane_axis(out: te.Tensor, t: te.Tensor) -> int:
    """Return which axis of `t` follows the last axis of `out`."""
    last = out.op.axis[-1].var
    for load in structure.reached(out, lambda u: u is t):
        for k, index in enumerate(load.indices):
            if load.source is t and structure.depends_on(index, last):
                return k
    return len(t.shape) - 1


def _neighbours(s: te.Schedule, t: te.Tensor, along: int, lanes: int, in_registers: bool) -> None:
    """Vectors over neighbouring slices."""
    if not s[t].is_output:
        s[t].set_scope("register" if in_registers else "local")
    terms = structure.beside(t) if structure.is_reduction(t) else []
    own = list(s[t].op.axis)
    vector, lane = s[t].split(own[along], factor=lanes)
    beside = [own[k] for k in terms]
    others = [a for k, a in enumerate(own) if k != along and k not in terms]
    s[t].reorder(*others, *s[t].op.reduce_axis, vector, *beside, lane)
    s[t].vectorize(lane)
    for axis in (vector, *beside) if in_registers else ():
        s[t].unroll(axis)
