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
from renorm.ops.schedules import cpu_blocked, cpu_columns, cpu_injective, cpu_window, nesting, structure
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
    nesting.inline(s, outs, keep=statistics)
    finished = set[te.Tensor]()
    for t in reductions:
        tail, along = _tail(t, chain, outs), _runs_along_memory(t, target)
        beside = _beside(t, [out for out in outs if out not in finished and nesting.is_free(s, out, t)])
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
            finished.add(tail)
        else:
            loop = nest(s, t, target)
        if loop is not None:
            for out, like in beside:
                cpu_injective.compute_with(s, out, *loop, like, target)
                finished.add(out)
    behind = [*statistics, *(out for out in outs if not structure.is_statistic(out))]
    cpu_injective.nests(s, [t for t in behind if not structure.is_reduction(t) and t not in finished], target)


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
    outer, _ = s[t].split(axis, nparts=min(axis.extent, nesting.PIECES))
    return s.rfactor(t, outer)


def _tail(t: te.Tensor, chain: Sequence[te.Tensor], outs: Sequence[te.Tensor]) -> te.Tensor | None:
    """The result in which `t` is finished element by element: `t` itself, or its only reader; None where there is
    none such.
    """
    readers = _final_readers(t, chain, outs)
    if t in outs:
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
        stays = structure.is_reduction(reader) or structure.is_statistic(reader) or reader in outs
        stays = stays or reader.shape != t.shape
        for r in [reader] if stays else _final_readers(reader, chain, outs):
            if r not in found:
                found.append(r)
    return found


def _runs_along_memory(t: te.Tensor, target: Target) -> bool:
    return _extent(_joint(t, t.op.reduce_axis)) >= 2 * structure.lanes_of(t, target)


def _joint(t: te.Tensor, axes: Sequence[te.IterVar]) -> Sequence[te.IterVar]:
    """Return the last of the reduce axes, those that run over memory as one."""
    return axes[len(axes) - _contiguous_reduction(t) :]


def _extent(axes: Sequence[te.IterVar]) -> int:
    return prod(a.extent for a in axes) if axes else 0


def nest(s: te.Schedule, t: te.Tensor, target: Target, at: Loop | None = None) -> Loop | None:
    """Schedules one stage, above all a reduction; `at`: the loop of a reader in which that is computed. Gives the loop
    in which one vector of neighbours along an axis is read, if there is one."""
    if not structure.is_reduction(t):
        cpu_injective.nest(s, t, target)
        return None
    is_shared = at is None and prod(t.shape) > 1 and structure.work(t) >= nesting.PARALLEL_FROM
    lanes, joint = structure.lanes_of(t, target), _joint(t, s[t].op.reduce_axis)
    if at:
        s[t].compute_at(s[at[0]], at[1])
    lane = _lanes(s, t, joint, lanes)
    if lane is None:
        _across(s, t, lanes, is_shared)
        return None
    partial, rounds = _along(s, t, lane, lanes, at, is_shared)
    return None if sum(axis.extent > 1 for axis in joint) > 1 else (partial, rounds)


def _along(s: te.Schedule, t: te.Tensor, lane: te.IterVar, lanes: int, at: Loop | None, is_shared: bool) -> Loop:
    """Sums in vectors along what is reduced. Returns the loop of the first partial results in which one is read."""
    terms, partials = structure.beside(t), _partials(s, t, lane, lanes)
    others = [a for k, a in enumerate(s[t].op.axis) if k not in terms]
    across = others[-1] if others else None
    s[t].reorder(*others, *(s[t].op.axis[k] for k in terms))  # all of them in one pass over the data
    if is_shared and across:
        across = s[t].fuse(*others)
        s[t].parallel(across)
    for i, partial in enumerate(partials):
        *own, lane = s[partial].op.axis
        rounds, beside = s[partial].op.reduce_axis, [own[k] for k in terms]
        around = [*(a for k, a in enumerate(own) if k not in terms), *rounds]
        nesting.register_loops(s, partial, around, beside, lane)
        if i:
            s[partial].unroll(rounds[0])
        if across is not None and (at or is_shared):
            s[partial].compute_at(s[t], across)
        elif at:
            s[partial].compute_at(s[at[0]], at[1])
    for axis in (*s[t].op.reduce_axis, *(s[t].op.axis[k] for k in terms)):
        s[t].unroll(axis)
    return partials[0], s[partials[0]].op.reduce_axis[-1]


def _across(s: te.Schedule, t: te.Tensor, lanes: int, is_shared: bool) -> None:
    """Sums in vectors of neighbouring results, where these read neighbours."""
    outer = list(s[t].op.axis)
    if outer and _contiguous_data(t) and outer[-1].extent > 1:
        inner = outer.pop()
        if inner.extent > lanes:
            block, inner = s[t].split(inner, factor=lanes)
            outer.append(block)
        s[t].reorder(*outer, *s[t].op.reduce_axis, inner)
        s[t].vectorize(inner)
    if is_shared and outer:
        s[t].parallel(s[t].fuse(*outer))


def _lanes(s: te.Schedule, t: te.Tensor, joint: Sequence[te.IterVar], lanes: int) -> te.IterVar | None:
    """The part of the reduction that is to be a vector: of the last reduce axes where they run over memory as one,
    `joint`, or of the axis that memory holds in blocks. None where there is too little of either."""
    if (extent := _extent(joint)) >= 2 * lanes:
        return s[t].split(s[t].fuse(*joint), factor=lanes * (VECTORS if extent >= 2 * VECTORS * lanes else 1))[1]
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
