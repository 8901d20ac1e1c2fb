"""CPU: reductions, and normalizations, which are reductions whose reader runs over the same slice.

A reduction that runs along memory keeps a vector of partial results (rfactor) and adds them up at the end; one that
runs across memory keeps one partial result per lane of its result. A normalization computes its statistics inside
the loop over slices, so that the slice is still in cache when it is normalized.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core.dtypes import compute_dtype, itemsize
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, structure

# Independent partial results that hide the latency of an addition: four vectors.
VECTORS = 4


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Each reduction is a nest of its own, statistics and elementwise stages behind it too; those before it are
    inlined.
    """
    chain = structure.stages(outs)
    reductions = [t for t in chain if structure.is_reduction(t)]
    statistics = [t for t in chain if is_statistic(t)]
    cpu_injective.inline(s, outs, keep=statistics)
    finished: set[int] = set()
    for t in reductions:
        tail = _tail(t, chain, outs)
        if tail is not None and not _runs_along_memory(t, target):
            windows(s, t, tail, target)
            finished.add(id(tail))
        else:
            nest(s, t, target, parallel=prod(t.shape) > 1 and work(t) >= cpu_injective.PARALLEL_FROM)
    for t in [*statistics, *(out for out in outs if not is_statistic(out))]:
        if not structure.is_reduction(t) and id(t) not in finished:
            cpu_injective.nest(s, t, target)


def is_statistic(t: te.Tensor) -> bool:
    """Whether `t` holds few elements, made from reductions, that many read: computed once, never inlined."""
    return t.op.tag == structure.STATISTIC


def windows(s: te.Schedule, t: te.Tensor, tail: te.Tensor, target: Target) -> None:
    """A reduction across memory (a pool, a sum over the first axis): one vector of results at a time, in registers,
    finished in `tail`, which is `t` itself or an elementwise stage behind it."""
    if tail is t:
        accumulator = s.cache_write(t, "register")
    else:
        accumulator = t
        s[t].set_scope("register")
    axes = list(s[tail].op.axis)
    if not axes:
        s[accumulator].compute_root()
        return
    lanes = target.lanes(itemsize(compute_dtype(t.dtype)))
    outer, inner = axes[:-1], axes[-1]
    if tail.shape[-1] > lanes:
        block, inner = s[tail].split(inner, factor=lanes)
        outer = [*outer, block]
    if tail.shape[-1] > 1:
        s[tail].vectorize(inner)
    if outer:
        loops = cpu_injective.share(s, tail, outer) if work(t) >= cpu_injective.PARALLEL_FROM else outer
        s[accumulator].compute_at(s[tail], loops[-1])
    own, reduced = list(s[accumulator].op.axis), list(s[accumulator].op.reduce_axis)
    s[accumulator].reorder(*own[:-1], *reduced, own[-1])
    if tail.shape[-1] > 1:
        if not outer and tail.shape[-1] > lanes:
            _, lane = s[accumulator].split(own[-1], factor=lanes)
            s[accumulator].vectorize(lane)
        else:
            s[accumulator].vectorize(own[-1])


def _tail(t: te.Tensor, chain: Sequence[te.Tensor], outs: Sequence[te.Tensor]) -> te.Tensor | None:
    """The result in which `t` is finished element by element: `t` itself, or its only reader; None where there is
    none such.
    """
    readers = _final_readers(t, chain, outs)
    if any(t is out for out in outs):
        return t if not readers else None
    if len(readers) != 1 or readers[0].shape != t.shape or structure.is_reduction(readers[0]):
        return None
    return readers[0] if structure.leading_axes(t, readers[0]) == len(t.shape) else None


def _final_readers(t: te.Tensor, chain: Sequence[te.Tensor], outs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Stages that are not inlined and read `t`, through inlined ones too; an inlined stage of another shape counts
    as a reader.
    """
    found: list[te.Tensor] = []
    for reader in structure.readers(t, chain):
        stays = structure.is_reduction(reader) or is_statistic(reader) or any(reader is out for out in outs)
        stays = stays or reader.shape != t.shape
        for r in [reader] if stays else _final_readers(reader, chain, outs):
            if not any(r is f for f in found):
                found.append(r)
    return found


def _runs_along_memory(t: te.Tensor, target: Target) -> bool:
    assert isinstance(t.op, te.ComputeOp)
    run = _contiguous_reduction(t)
    reduced = t.op.reduce_axis
    extent = prod(axis.extent or 0 for axis in reduced[len(reduced) - run :]) if run else 0
    return extent >= 2 * target.lanes(itemsize(compute_dtype(t.dtype)))


def schedule_normalization(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Threads over slices; statistics of a slice, then its elements. Where slices lie across memory, vectors hold
    neighbouring slices; where they are neither, falls back to `schedule`.
    """
    chain = structure.stages(outs)
    reductions = [t for t in chain if structure.is_reduction(t)]
    out = outs[-1]
    across_memory = _axes_across_memory(chain, reductions, out) if len(outs) == 1 else []
    if across_memory:
        _columns(s, chain, reductions, out, across_memory, target)
        return
    slices = _slice_axes(chain, reductions, out) if len(outs) == 1 and not structure.is_reduction(out) else None
    if not slices:
        schedule(s, outs, target)
        return
    statistics = [t for t in chain if is_statistic(t)]
    reused = [t for t in chain if t.op.tag == structure.REUSED and t.shape == out.shape and t is not out]
    cpu_injective.inline(s, outs, keep=[*statistics, *reused])
    axes = list(s[out].op.axis)
    across = cpu_injective.fuse(s, out, axes[:slices])
    if prod(out.shape) >= cpu_injective.PARALLEL_FROM:
        s[out].parallel(across)
    _vectors_inside(s, out, axes[slices:], target)
    for t in reused:
        _vectors_inside(s, t, list(s[t].op.axis)[slices:], target)
        s[t].compute_at(s[out], across)
    for t in statistics:
        s[t].compute_at(s[out], across)
    for t in reductions:
        nest(s, t, target, parallel=False, at=(out, across))


def _axes_across_memory(chain: Sequence[te.Tensor], reductions: Sequence[te.Tensor], out: te.Tensor) -> list[int]:
    """The axes of `out` that every statistic is taken over, where they are the same, without the last; statistics have
    extent 1 there, and are read at the position of their reader elsewhere. Otherwise none."""
    if structure.is_reduction(out) or not reductions or out.shape[-1] == 1 or 0 in out.shape:
        return []
    over = [a for a, e in enumerate(out.shape) if reductions[0].shape[a : a + 1] == (1,) and e != 1]
    kept = tuple(1 if a in over else e for a, e in enumerate(out.shape))
    if len(out.shape) - 1 in over:
        return []
    for t in chain:
        if t.shape not in (kept, out.shape) or (structure.is_reduction(t) and t.shape != kept):
            return []
        assert isinstance(t.op, te.ComputeOp)
        own = [axis.var for axis in t.op.axis]
        for load in structure.reads(t):
            if isinstance(load.source, te.Tensor) and isinstance(load.source.op, te.ComputeOp):
                fixed = [i is v for a, (i, v) in enumerate(zip(load.indices, own)) if a not in over]
                if not all(fixed) or load.source.shape not in (kept, out.shape):
                    return []
    return over


# Elements of a slice that are kept between two passes over it: a quarter of a first-level cache.
KEPT = 2048


def _columns(
    s: te.Schedule,
    chain: Sequence[te.Tensor],
    reductions: Sequence[te.Tensor],
    out: te.Tensor,
    over: Sequence[int],
    target: Target,
) -> None:
    """One vector of neighbouring slices at a time: their statistics in registers, then their elements."""
    lanes = target.lanes(itemsize(compute_dtype(out.dtype)))
    statistics = [t for t in chain if is_statistic(t)]
    small = prod(out.shape[a] for a in over) * lanes <= KEPT
    reused = [t for t in chain if t.op.tag == structure.REUSED and t.shape == out.shape and t is not out and small]
    cpu_injective.inline(s, [out], keep=[*statistics, *reused])
    axes = list(s[out].op.axis)
    outer = [a for i, a in enumerate(axes[:-1]) if i not in over]
    inner = axes[-1]
    if out.shape[-1] > lanes:
        block, inner = s[out].split(inner, factor=lanes)
        outer.append(block)
    rows = [axes[i] for i in over]
    s[out].reorder(*outer, *rows, inner)
    s[out].vectorize(inner)
    if not outer:
        outer = [s[out].split(rows[0], nparts=1)[0]]
    place = (cpu_injective.share(s, out, outer) if prod(out.shape) >= cpu_injective.PARALLEL_FROM else outer)[-1]
    for t in [*reused, *statistics, *reductions]:
        s[t].compute_at(s[out], place)
        s[t].set_scope("local" if t in reused else "register")
        own = list(s[t].op.axis)
        s[t].reorder(*own[:-1], *s[t].op.reduce_axis, own[-1])
        s[t].vectorize(own[-1])


def _vectors_inside(s: te.Schedule, t: te.Tensor, axes: Sequence[te.IterVar], target: Target) -> None:
    """Vectors along the axes that run over memory as one, among those inside a slice."""
    joint = min(structure.joint_axes(t), len(axes))
    if not joint:
        return
    inner = cpu_injective.fuse(s, t, axes[len(axes) - joint :])
    lanes = target.lanes(itemsize(compute_dtype(t.dtype)))
    extent = prod(t.shape[len(t.shape) - joint :])
    if extent > lanes:
        _, inner = s[t].split(inner, factor=lanes)
    if extent > 1:
        s[t].vectorize(inner)


def work(t: te.Tensor) -> int:
    """Elements that a reduction reads."""
    assert isinstance(t.op, te.ComputeOp)
    return prod(t.shape) * prod(axis.extent for axis in t.op.reduce_axis)


def nest(
    s: te.Schedule,
    t: te.Tensor,
    target: Target,
    *,
    parallel: bool,
    at: tuple[te.Tensor, te.IterVar] | None = None,
) -> None:
    """Schedules one reduction; `at`: the loop of a reader in which it is computed."""
    lanes = target.lanes(itemsize(compute_dtype(t.dtype)))
    data, reduced = list(s[t].op.axis), list(s[t].op.reduce_axis)
    if at:
        s[t].compute_at(s[at[0]], at[1])
    run = _contiguous_reduction(t)
    extent = prod(axis.extent for axis in reduced[len(reduced) - run :]) if run else 0
    if run and extent >= 2 * lanes:
        whole = cpu_injective.fuse(s, t, reduced[len(reduced) - run :])
        width = lanes * (VECTORS if extent >= 2 * VECTORS * lanes else 1)
        partials: list[te.Tensor] = []
        while True:  # so many partial results, then fewer, until the last few are added one by one
            _, lane = s[t].split(whole, factor=width)
            partials.append(s.rfactor(t, lane))
            if width <= VECTORS:
                break
            (whole,) = s[t].op.reduce_axis
            width = lanes if width > lanes else VECTORS
        across = None
        if not at and parallel and s[t].op.axis:
            across = cpu_injective.fuse(s, t, list(s[t].op.axis))
            s[t].parallel(across)
        for i, partial in enumerate(partials):
            lane, *others = s[partial].op.axis
            rounds = s[partial].op.reduce_axis
            s[partial].reorder(*others, *rounds, lane)
            s[partial].vectorize(lane)
            if i:
                s[partial].unroll(rounds[0])
            if at:
                s[partial].compute_at(s[at[0]], at[1])
            elif across is not None:
                s[partial].compute_at(s[t], across)
        return
    if not data:
        return
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
    if parallel and not at and outer:
        s[t].parallel(cpu_injective.fuse(s, t, outer))


def _slice_axes(chain: Sequence[te.Tensor], reductions: Sequence[te.Tensor], out: te.Tensor) -> int | None:
    """How many first axes of `out` name a slice: every statistic (a reduction, or what is computed of reductions
    alone) is read at exactly those."""
    statistics = list(reductions)
    for t in chain:
        own = t.op.input_tensors
        if not structure.is_reduction(t) and prod(t.shape) < prod(out.shape) and any(u in statistics for u in own):
            statistics.append(t)
    found: int | None = None
    for t in statistics:
        for reader in structure.readers(t, chain):
            if any(reader is u for u in statistics) and not structure.is_reduction(reader):
                continue
            k = structure.leading_axes(t, reader)
            if k is None:
                return None
            if reader.shape == out.shape:
                found = k if found is None else min(found, k)
    return found


def _contiguous_reduction(t: te.Tensor) -> int:
    """How many of the last reduce axes run over memory as one in the largest operand; 0 where none does."""
    assert isinstance(t.op, te.ComputeOp)
    axes = [axis.var for axis in t.op.reduce_axis]
    loads = [x for x in structure.reads(t) if any(structure.coefficient(x.indices[-1], v) for v in axes if x.indices)]
    if not loads:
        return 0
    run = len(axes)
    for load in loads:
        shape: tuple[int, ...] = load.source.shape  # type: ignore[attr-defined]
        k = 0
        while k < min(len(axes), len(load.indices)):
            index, axis = load.indices[-1 - k], t.op.reduce_axis[-1 - k]
            if index is not axis.var:
                break
            k += 1
            if axis.extent != shape[-k]:
                break
        run = min(run, k)
    return run


def _contiguous_data(t: te.Tensor) -> bool:
    """Whether the last data axis runs along memory in some operand."""
    assert isinstance(t.op, te.ComputeOp)
    last = t.op.axis[-1].var
    return any(x.indices and structure.coefficient(x.indices[-1], last) for x in structure.reads(t))
