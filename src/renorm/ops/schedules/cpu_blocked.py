"""CPU: reductions over values in blocks of channels: windows, pools, means of planes. Vectors hold a block.

Nothing runs along memory but the channels of a block, and those are never reduced over: every result is a vector of
channels that sums up in registers, in whatever order the loops around it are.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm import te
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, nesting, structure
from renorm.te.tensor import source_of
from renorm.topi import layout


def takes(outs: Sequence[te.Tensor]) -> bool:
    """Return whether this is the schedule for these results: some reduction reads a block of channels at once."""
    return len(outs) == 1 and any(_channels(t) for t in structure.stages(outs) if structure.is_reduction(t))


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Elementwise stages are inlined but for statistics; each reduction is a nest, or a part of the nest of the result
    where that has the same elements."""
    (out,) = outs
    chain = structure.stages(outs)
    statistics = [t for t in chain if structure.is_statistic(t)]
    reductions = [t for t in chain if structure.is_reduction(t)]
    nesting.inline(s, outs, keep=statistics)
    shape = layout.source(out).shape if layout.is_result(out) else out.shape
    within = [t for t in reductions if layout.is_result(out) and t.shape == shape and _channels(t) and not statistics]
    for t in chain:
        if (t in reductions and t not in within and t is not out) or (t in statistics and t is not out):
            _nest(s, t, target)
    if out in reductions:
        _nest(s, out, target)
        return
    last = cpu_injective.nest(s, out, target)
    for t in within:
        s[t].set_scope("register")
        assert last is not None  # the result has a lane and axes around it
        s[t].compute_at(s[out], last)
        _vectors(s, t, *_channels(t)[0])


def _nest(s: te.Schedule, t: te.Tensor, target: Target) -> None:
    """A stage of its own: blocks of channels shared out to threads."""
    if not structure.is_reduction(t) or not _channels(t):
        cpu_injective.nest(s, t, target)
        return
    (axis, lanes), *_ = _channels(t)
    work = structure.work(t)
    is_long = work >= nesting.PARALLEL_FROM
    # each row has a sum of its own: a thousand numbers added one by one lose digits
    rows = s.rfactor(t, s[t].op.reduce_axis[0]) if is_long and len(s[t].op.reduce_axis) > 1 else None
    sums = s.cache_write(t, "register")
    outer = _vectors(s, t, axis, lanes)
    s[sums].compute_at(s[t], nesting.share(s, t, outer, work)[-1])
    _vectors(s, sums, axis, lanes)
    if rows is not None:
        s[rows].set_scope("register")
        s[rows].compute_at(s[sums], s[sums].op.reduce_axis[0])
        _vectors(s, rows, axis + 1, lanes)


def _vectors(s: te.Schedule, t: te.Tensor, axis: int, lanes: int) -> list[te.IterVar]:
    """Cuts the channels of a reduction, its axis number `axis`, into vectors; gives the loops outside of the sums."""
    own = list(s[t].op.axis)
    block, lane = s[t].split(own[axis], factor=lanes)
    outer = [*own[:axis], block, *own[axis + 1 :]]
    s[t].reorder(*outer, *s[t].op.reduce_axis, lane)
    s[t].vectorize(lane)
    return outer


def _channels(t: te.Tensor) -> list[tuple[int, int]]:
    """(axis, lanes): axes of a reduction along which it reads whole blocks; through inlined stages of any shape."""
    own = [a.var for a in t.op.axis]
    found: list[tuple[int, int]] = []
    for load in structure.reads(t):
        source = source_of(load)
        form = layout.form_of(source) if source.op.tag == layout.VIEW else None
        if form is not None:
            blocked = list(form.cuts)
        elif isinstance(source.op, te.ComputeOp) and not structure.is_reduction(source):
            blocked = _channels(source)  # an elementwise stage before the reduction
        else:
            blocked = []
        found += [(i, n) for axis, n in blocked for i, v in enumerate(own) if load.indices[axis] is v]
    return found
