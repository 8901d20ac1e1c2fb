"""CPU: reductions. One that runs along memory keeps a vector of partial results (rfactor) and adds them up at the end;
one that runs across memory keeps one partial result per lane of its result (cpu_window).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from renorm import te
from renorm.core.target import Target
from renorm.expr.nodes import Binary, Const
from renorm.ops.schedules import cpu_blocked, cpu_columns, cpu_injective, cpu_window, structure
from renorm.te.tensor import source_of

if TYPE_CHECKING:  # te.IterVar loads lowering, which a network out of the cache does without
    Loop = tuple[te.Tensor, te.IterVar]
    """A loop of a stage, by its tensor."""

# Independent partial results that hide the latency of an addition: four vectors.
VECTORS = 4

# Fewer results than this, each of more than that many elements, are computed in pieces.
FEW, LONG = 16, 1 << 14


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Each reduction is a nest of its own, statistics and elementwise stages after it too; those before it are
    inlined.
    """
    if cpu_blocked.takes(outs):
        cpu_blocked.schedule(s, outs, target)
        return
    chain = structure.stages(outs)
    reductions = [t for t in chain if structure.is_reduction(t)]
    statistics = [t for t in chain if structure.is_statistic(t)]
    cpu_injective.inline(s, outs, keep=statistics)
    finished: set[int] = set()
    for t in reductions:
        tail, along = _tail(t, chain, outs), _runs_along_memory(t, target)
        beside = _beside(t, [out for out in outs if id(out) not in finished and cpu_injective.is_free(s, out)])
        loop: Loop | None = None
        if not along and is_of_columns(t):
            loop = cpu_columns.schedule(s, t, target)
        elif _is_few_and_long(t, 1 if along else structure.lanes_of(t, target)):
            pieces = _pieces(s, t)
            if along:
                nest(s, pieces, target)
            else:
                cpu_window.schedule(s, pieces, pieces, target)
        elif tail is not None and not along:
            cpu_window.schedule(s, t, tail, target)
            finished.add(id(tail))
        else:
            loop = nest(s, t, target)
        if loop is not None:
            for out, like in beside:
                cpu_injective.compute_with(s, out, *loop, like, target)
                finished.add(id(out))
    behind = [*statistics, *(out for out in outs if not structure.is_statistic(out))]
    cpu_injective.nests(s, [t for t in behind if not structure.is_reduction(t) and id(t) not in finished], target)


def _beside(t: te.Tensor, outs: Sequence[te.Tensor]) -> list[tuple[te.Tensor, te.Tensor]]:
    """Results that need nothing but what `t` reads, too, each with that: they are computed in its loops."""
    found = [(out, structure.read_alike(out, t)) for out in outs if not structure.is_reduction(out)]
    return [(out, like) for out, like in found if like is not None]


def is_of_columns(t: te.Tensor) -> bool:
    """Return whether `cpu_columns` is the schedule for a reduction that does not run along memory."""
    return cpu_columns.takes(t) and _contiguous_data(t)


def _is_few_and_long(t: te.Tensor, lanes: int) -> bool:
    """Return whether results, `lanes` of which are computed at once, are too few for threads to share."""
    return prod(t.shape) < FEW * lanes and structure.work(t) >= FEW * lanes * LONG


def _pieces(s: te.Schedule, t: te.Tensor) -> te.Tensor:
    """Partial results over pieces of the outermost reduce axis, for threads to share; how many there are depends on the
    shape alone, and so do all bits of the result."""
    axis = next(a for a in s[t].op.reduce_axis if a.extent > 1)
    outer, _ = s[t].split(axis, nparts=min(axis.extent, cpu_injective.PIECES))
    return s.rfactor(t, outer)


def _tail(t: te.Tensor, chain: Sequence[te.Tensor], outs: Sequence[te.Tensor]) -> te.Tensor | None:
    """The result in which `t` is finished element by element: `t` itself, or its only reader; None where there is
    none such.
    """
    readers = _final_readers(t, chain, outs)
    if any(t is out for out in outs):
        return t if not readers else None
    if len(readers) != 1 or readers[0].shape != t.shape or structure.is_reduction(readers[0]):
        return None
    own = readers[0].op.axis
    found = [load for load in structure.reached(readers[0], lambda u: u is t) if load.source is t]
    return readers[0] if all(i is a.var or a.extent == 1 for load in found for i, a in zip(load.indices, own)) else None


def _final_readers(t: te.Tensor, chain: Sequence[te.Tensor], outs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Stages that are not inlined and read `t`, through inlined ones too; an inlined stage of another shape counts
    as a reader.
    """
    found: list[te.Tensor] = []
    for reader in structure.readers(t, chain):
        stays = structure.is_reduction(reader) or structure.is_statistic(reader) or any(reader is out for out in outs)
        stays = stays or reader.shape != t.shape
        for r in [reader] if stays else _final_readers(reader, chain, outs):
            if not any(r is f for f in found):
                found.append(r)
    return found


def _runs_along_memory(t: te.Tensor, target: Target) -> bool:
    run = _contiguous_reduction(t)
    reduced = t.op.reduce_axis
    extent = prod(axis.extent or 0 for axis in reduced[len(reduced) - run :]) if run else 0
    return extent >= 2 * structure.lanes_of(t, target)


def nest(s: te.Schedule, t: te.Tensor, target: Target, at: Loop | None = None) -> Loop | None:
    """Schedules one stage, above all a reduction; `at`: the loop of a reader in which that is computed. Gives the loop
    in which one vector of neighbours along an axis is read, if there is one."""
    if not structure.is_reduction(t):
        cpu_injective.nest(s, t, target)
        return None
    is_shared = at is None and prod(t.shape) > 1 and structure.work(t) >= cpu_injective.PARALLEL_FROM
    lanes = structure.lanes_of(t, target)
    data, reduced = list(s[t].op.axis), list(s[t].op.reduce_axis)
    if at:
        s[t].compute_at(s[at[0]], at[1])
    terms, run, loop = structure.terms(t), _contiguous_reduction(t), None
    is_fused = sum(axis.extent > 1 for axis in reduced[len(reduced) - run :]) > 1
    lane = _lanes(s, t, lanes)
    if lane is not None:
        partials = _partials(s, t, lane, lanes)
        others = [a for k, a in enumerate(s[t].op.axis) if k not in terms]
        across = others[-1] if others else None
        s[t].reorder(*others, *(s[t].op.axis[k] for k in terms))  # all of them in one pass over the data
        if is_shared and across:
            across = cpu_injective.fuse(s, t, others)
            s[t].parallel(across)
        for i, partial in enumerate(partials):
            *own, lane = s[partial].op.axis
            rounds = s[partial].op.reduce_axis
            beside = [own[k] for k in terms]
            cpu_injective.register_loops(
                s, partial, [*(a for k, a in enumerate(own) if k not in terms), *rounds], beside, lane
            )
            if not i and not is_fused:
                loop = partial, rounds[-1]
            if i:
                s[partial].unroll(rounds[0])
            if across is not None and (at or is_shared):
                s[partial].compute_at(s[t], across)
            elif at:
                s[partial].compute_at(s[at[0]], at[1])
        for axis in (*s[t].op.reduce_axis, *(s[t].op.axis[k] for k in terms)):
            s[t].unroll(axis)
        return loop
    if not data:
        return None
    vector = _contiguous_data(t)
    outer = data
    if vector and data[-1].extent > 1:
        inner = data[-1]
        outer = data[:-1]
        if inner.extent > lanes:
            block, inner = s[t].split(inner, factor=lanes)
            outer = [*outer, block]
        s[t].reorder(*outer, *reduced, inner)
        s[t].vectorize(inner)
    if is_shared and outer:
        s[t].parallel(cpu_injective.fuse(s, t, outer))
    return None


def _lanes(s: te.Schedule, t: te.Tensor, lanes: int) -> te.IterVar | None:
    """The part of the reduction that is to be a vector: of the last reduce axes where they run over memory as one,
    or of the axis that memory holds in blocks. None where there is too little of either."""
    reduced = list(s[t].op.reduce_axis)
    run = _contiguous_reduction(t)
    extent = prod(axis.extent for axis in reduced[len(reduced) - run :]) if run else 0
    if run and extent >= 2 * lanes:
        whole = cpu_injective.fuse(s, t, reduced[len(reduced) - run :])
        return s[t].split(whole, factor=lanes * (VECTORS if extent >= 2 * VECTORS * lanes else 1))[1]
    blocked = _blocked_reduction(t)
    if blocked is None or blocked[1] % lanes:
        return None
    axis, width = blocked
    _, lane = s[t].split(axis, factor=width)
    return lane


def _partials(s: te.Schedule, t: te.Tensor, lane: te.IterVar, lanes: int) -> list[te.Tensor]:
    """So many partial results as the vector has lanes, then fewer, until the last few are added one by one."""
    width = lane.extent
    partials = [s.rfactor(t, lane, len(s[t].op.axis))]
    while width > VECTORS:
        (whole,) = s[t].op.reduce_axis
        width = lanes if width > lanes else VECTORS
        _, lane = s[t].split(whole, factor=width)
        partials.append(s.rfactor(t, lane, len(s[t].op.axis)))
    return partials


def _blocked_reduction(t: te.Tensor) -> tuple[te.IterVar, int] | None:
    """The reduce axis that memory holds in blocks, side by side in a block, and their length."""
    for load in structure.stored_reads(t):
        match load.indices[-1:]:
            case (Binary(op="%", a=a, b=Const(value=width)),):
                for axis in t.op.reduce_axis:
                    if a is axis.var and axis.extent % int(width) == 0:
                        return axis, int(width)
            case _:
                pass
    return None


def _contiguous_reduction(t: te.Tensor) -> int:
    """Return how many of the last reduce axes run over memory as one in the largest operand; 0 where none does."""
    axes = [axis.var for axis in t.op.reduce_axis]
    loads = [
        x for x in structure.stored_reads(t) if any(structure.coefficient(x.indices[-1], v) for v in axes if x.indices)
    ]
    if not loads:
        return 0
    run = len(axes)
    for load in loads:
        shape = source_of(load).shape
        k = 0
        while k < min(len(axes), len(load.indices)):
            index, axis = load.indices[-1 - k], t.op.reduce_axis[-1 - k]
            if structure.coefficient(index, axis.var) != 1:
                break
            k += 1
            if axis.extent != shape[-k]:
                break
        run = min(run, k)
    return run


def _contiguous_data(t: te.Tensor) -> bool:
    """Return whether the last data axis runs along memory in some operand."""
    last = t.op.axis[-1].var
    return any(x.indices and structure.coefficient(x.indices[-1], last) for x in structure.stored_reads(t))
