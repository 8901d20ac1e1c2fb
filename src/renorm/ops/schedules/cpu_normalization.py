"""CPU: normalizations, which are reductions whose reader runs over the same slice.

Statistics are computed inside the loop over slices, so that a slice is still in cache when it is normalized. Where
slices lie along memory (rows), partial results fill vectors; where memory runs across them (columns), vectors hold
neighbouring slices and nothing is added up across lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from renorm import te
from renorm.core.target import Target
from renorm.ops.schedules import cpu_columns, cpu_injective, cpu_reduction, structure
from renorm.ops.schedules.slices import LONG, Slices
from renorm.ops.shared.tags import REUSED

# Elements of a slice that are kept between two passes over it: a quarter of a first-level cache.
KEPT = 2048


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Threads over slices; statistics of a slice, then its elements. Results beside the elements are made from those
    statistics after the loops over slices. Falls back to nests of their own where there are no slices.
    """
    out = max(outs, key=lambda t: prod(t.shape))
    chain = structure.stages([out])
    slices = Slices.of(out, [t for t in chain if structure.is_reduction(t)])
    if slices is None or slices.are_too_few or slices.are_interleaved or _is_tall(slices, chain, target):
        cpu_reduction.schedule(s, outs, target)
        return
    behind = [t for t in structure.stages(outs) if not any(t is u for u in chain)]
    if slices.count > 1:  # what all slices share
        behind += [t for t in chain if structure.is_reduction(t) and prod(t.shape) == 1]
        chain = [t for t in chain if not any(t is u for u in behind)]
    reused = [t for t in chain if t.op.tag == REUSED and t.shape == out.shape and t is not out]
    columns = _Columns.of(out, slices, target) if slices.run_across_memory else None
    if columns is not None and not columns.keeps:
        reused = []
    cpu_injective.inline(s, outs, keep=[*reused, *(t for t in structure.stages(outs) if structure.is_statistic(t))])
    if columns is not None:
        loop = columns.schedule(s, chain, reused)
    else:
        loop = _rows(s, chain, out, reused, slices, target)
    behind = [t for t in behind if not (cpu_injective.is_free(s, t) and cpu_injective.beside(s, t, out, loop, target))]
    _behind(s, behind, outs, chain, target)


def _is_tall(slices: Slices, chain: Sequence[te.Tensor], target: Target) -> bool:
    """Return whether slices that memory runs across are so long that no cache keeps a tile of neighbours, and are
    summed up by `cpu_columns`, which reads rows as a whole."""
    tile = slices.size * min(slices.shape[-1], 4 * target.lanes(4))
    sums = [t for t in chain if structure.is_reduction(t) and prod(t.shape) > 1]
    return slices.run_across_memory and tile > LONG and all(cpu_columns.takes(t) for t in sums)


def _behind(
    s: te.Schedule, stages: Sequence[te.Tensor], outs: Sequence[te.Tensor], chain: Sequence[te.Tensor], target: Target
) -> None:
    """Nests of their own for what is not computed slice by slice; it reads statistics of all slices."""
    for t in stages:
        if not (structure.is_reduction(t) or structure.is_statistic(t) or any(t is out for out in outs)):
            continue
        read = structure.stored_reads(t)
        for u in chain:
            if any(load.source is u for load in read):
                s[u].store_root()
        if structure.is_reduction(t) and cpu_reduction.is_of_columns(t):
            cpu_columns.schedule(s, t, target)
        else:
            cpu_reduction.nest(s, t, target)


def _rows(
    s: te.Schedule,
    chain: Sequence[te.Tensor],
    out: te.Tensor,
    reused: Sequence[te.Tensor],
    slices: Slices,
    target: Target,
) -> te.IterVar:
    """Gives the loop around a vector of the result."""
    outer, inner = _cut(s, out, slices)
    across = cpu_injective.fuse(s, out, outer) if outer else s[out].split(inner[0], nparts=1)[0]
    if prod(out.shape) >= cpu_injective.PARALLEL_FROM:
        s[out].parallel(across)
    cpu_injective.store(s, out)
    loop = _vectors_inside(s, out, inner if outer else inner[1:], target) or across
    for t in reused:
        _vectors_inside(s, t, [a for a, k in zip(s[t].op.axis, slices.blocks) if not k], target)
        s[t].compute_at(s[out], across)
    for t in chain:
        if structure.is_statistic(t):
            s[t].compute_at(s[out], across)
    for t in chain:
        if structure.is_reduction(t):
            cpu_reduction.nest(s, t, target, at=(out, across))
    return loop


def _cut(s: te.Schedule, out: te.Tensor, slices: Slices) -> tuple[list[te.IterVar], list[te.IterVar]]:
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
class _Columns:
    """Slices that memory runs across: one tile of neighbouring slices at a time, their statistics in registers, then
    their elements. lanes, vectors: of a tile. keeps: whether elements of a tile are kept between passes over it."""

    out: te.Tensor
    slices: Slices
    lanes: int
    vectors: int

    @staticmethod
    def of(out: te.Tensor, slices: Slices, target: Target) -> _Columns:
        return _Columns(out, slices, *_tile(out.shape[-1], structure.lanes_of(out, target)))

    @property
    def keeps(self) -> bool:
        return self.slices.size * self.lanes * self.vectors <= KEPT

    def schedule(self, s: te.Schedule, chain: Sequence[te.Tensor], reused: Sequence[te.Tensor]) -> te.IterVar:
        """Gives the loop around a vector of the result."""
        out, width = self.out, self.lanes * self.vectors
        outer, inner = _cut(s, out, self.slices)
        *outer, last = outer
        if out.shape[-1] > width or not outer:
            tile, last = s[out].split(last, factor=width)
            outer.append(tile)
        vector, lane = s[out].split(last, factor=self.lanes)
        s[out].reorder(*outer, *inner, vector, lane)
        s[out].vectorize(lane)
        cpu_injective.store(s, out)
        place = cpu_injective.share(s, out, outer, prod(out.shape))[-1]
        for t in chain:
            if structure.is_statistic(t) or structure.is_reduction(t) or any(t is u for u in reused):
                s[t].compute_at(s[out], place)
                in_registers = not (s[t].is_output or any(t is u for u in reused))
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
    terms = structure.terms(t) if structure.is_reduction(t) else []
    own = list(s[t].op.axis)
    vector, lane = s[t].split(own[along], factor=lanes)
    beside = [own[k] for k in terms]
    others = [a for k, a in enumerate(own) if k != along and k not in terms]
    s[t].reorder(*others, *s[t].op.reduce_axis, vector, *beside, lane)
    s[t].vectorize(lane)
    for axis in (vector, *beside) if in_registers else ():
        s[t].unroll(axis)


def _vectors_inside(s: te.Schedule, t: te.Tensor, axes: Sequence[te.IterVar], target: Target) -> te.IterVar | None:
    """Vectors along the axes that run over memory as one, among those inside a slice. Gives the loop around a vector,
    None where that is outside of these axes."""
    joint = min(structure.joint_axes(t), s[t].joint_axes(), len(axes))
    if not joint:
        return axes[-1] if axes else None
    inner, block = cpu_injective.fuse(s, t, axes[len(axes) - joint :]), None
    lanes = structure.lanes_of(t, target)
    extent = prod(t.shape[len(t.shape) - joint :])
    if extent > lanes:
        block, inner = s[t].split(inner, factor=lanes)
    if extent > 1:
        s[t].vectorize(inner)
    return block or (axes[-1 - joint] if len(axes) > joint else None)
