"""CPU: normalizations, which are reductions whose reader runs over the same slice.

Statistics are computed inside the loop over slices, so that a slice is still in cache when it is normalized. Where
slices lie along memory (rows), partial results fill vectors; where memory runs across them (columns), vectors hold
neighbouring slices and nothing is added up across lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.ops.schedules import cpu_columns, cpu_injective, cpu_reduction, nesting, structure
from renorm.ops.schedules.cpu_neighbours import Columns, cut
from renorm.ops.schedules.slices import LONG, Slices
from renorm.ops.shared.tags import REUSED
from renorm.te.tensor import source_of


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
    behind = [t for t in structure.stages(outs) if t not in chain]
    if slices.count > 1:  # what all slices share
        behind += [t for t in chain if structure.is_reduction(t) and prod(t.shape) == 1]
        chain = [t for t in chain if t not in behind]
    reused = [t for t in chain if t.op.tag == REUSED and t.shape == out.shape and t is not out]
    columns = Columns.of(out, slices, target) if slices.run_across_memory else None
    if columns is not None and not columns.keeps:
        reused = []
    reused += [t for t in chain if t in outs and t.shape == out.shape and t is not out]  # results that elements read
    nesting.inline(s, outs, keep=[*reused, *(t for t in structure.stages(outs) if structure.is_statistic(t))])
    if columns is not None:
        loop = columns.schedule(s, chain, reused)
    else:
        columns_of_rows = next((t for t in behind if cpu_columns.takes_rows_of(t, out)), None)
        loop = _rows(s, chain, out, reused, slices, target, is_shared=columns_of_rows is None)
        if columns_of_rows is not None:
            cpu_columns.after_rows(s, columns_of_rows, out, target)
            behind = [t for t in behind if t is not columns_of_rows]
    behind = [t for t in behind if not (nesting.is_free(s, t) and cpu_injective.beside(s, t, out, loop, target))]
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
        if not (structure.is_reduction(t) or structure.is_statistic(t) or t in outs):
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
    is_shared: bool = True,
) -> te.IterVar:
    """Gives the loop around a vector of the result. is_shared: threads share the slices."""
    outer, inner = cut(s, out, slices)
    across = s[out].fuse(*outer) if outer else s[out].split(inner[0], nparts=1)[0]
    if is_shared and prod(out.shape) >= nesting.PARALLEL_FROM:
        s[out].parallel(across)
    inside = inner if outer else inner[1:]
    cpu_injective.store(s, out, max(1, min(_joint(s, out), len(inside))), structure.lanes_of(out, target))
    loop = _vectors_inside(s, out, inside, target) or across
    for t in reused:
        inside = [a for a, k in zip(s[t].op.axis, slices.blocks) if not k]
        s[t].reorder(*[a for a in s[t].op.axis if a not in inside], *inside)
        _vectors_inside(s, t, inside, target)
        s[t].compute_at(s[out], across)
    for t in chain:
        if structure.is_statistic(t):
            s[t].compute_at(s[out], across)
    for t in chain:
        if structure.is_reduction(t):
            cpu_reduction.nest(s, t, target, at=(out, across))
    _next_slice(s, out, across, slices, target)
    return loop


def _vectors_inside(s: te.Schedule, t: te.Tensor, axes: Sequence[te.IterVar], target: Target) -> te.IterVar | None:
    """Vectors along the axes that run over memory as one, among those inside a slice. Gives the loop around a vector,
    None where that is outside of these axes."""
    joint = min(_joint(s, t), len(axes))
    if not joint:
        return axes[-1] if axes else None
    inner, block = s[t].fuse(*axes[len(axes) - joint :]), None
    lanes = structure.lanes_of(t, target)
    extent = prod(t.shape[len(t.shape) - joint :])
    if extent > lanes:
        block, inner = s[t].split(inner, factor=lanes)
    if extent > 1:
        s[t].vectorize(inner)
    return block or (axes[-1 - joint] if len(axes) > joint else None)


def _joint(s: te.Schedule, t: te.Tensor) -> int:
    return min(structure.joint_axes(t), s[t].joint_axes())


def _next_slice(s: te.Schedule, out: te.Tensor, across: te.IterVar, slices: Slices, target: Target) -> None:
    """Asks for the elements of the next slice during the sums of one; where a core reads beside stores past the caches,
    during those. Planes of 112*112, asked for during the sums, take 0.7 of the time on Zen 5, 0.85 on Zen 4 (one
    thread). Not where operands of two slices do not fit the cache."""
    if not s[out].nontemporal or slices.count == 1:
        return
    read = dict.fromkeys(source_of(load) for load in structure.stored_reads(out))
    whole = [t for t in read if t.shape == out.shape and isinstance(t.op, te.PlaceholderOp)]
    if 2 * len(whole) * slices.size * itemsize(out.dtype) > target.cache_bytes:
        return
    sums = (stage.tensor for stage in s.stages if structure.is_reduction(stage.tensor))
    first = next((u for u in sums if any(source_of(load) in whole for load in structure.stored_reads(u))), out)
    for t in whole:
        s[out if Machine.of(target).core.reads_beside_stores else first].prefetch(t, across, 1)
