"""GPU: reductions and normalizations. A block, or a part of one, has a slice to itself (`gpu_blocks`).

Few long reductions are cut into pieces: a launch adds up pieces, another one adds up what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.gpu import RESERVED, GpuFacts, facts
from renorm.core.target import Target
from renorm.expr.nodes import Expr
from renorm.expr.rewrite import depends_on
from renorm.ops.schedules import cuda, gpu_blocks, gpu_elements, nesting, structure
from renorm.ops.schedules.gpu_blocks import Blocks
from renorm.ops.schedules.gpu_shapes import Shape, shape_of
from renorm.ops.schedules.slices import Slices
from renorm.te.tensor import source_of

SPREAD = 4  # blocks of a multiprocessor that a long sum is shared out among
LONG = 1 << 16  # terms of a sum that several blocks share where sums are few
LONG_SLICE = 1 << 18  # elements of a slice that several blocks share where slices are few: that takes more launches
PIECE = 1 << 11  # elements that a block adds up at least


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Statistics of slices and elements of these slices in one launch; reductions with what is made of each in one."""
    chain = structure.stages(outs)
    reductions = [t for t in chain if structure.is_reduction(t)]
    if not reductions or any(_is_window(t) for t in reductions):
        gpu_elements.schedule(s, outs, target)
    elif any(0 in t.shape or (structure.is_reduction(t) and not structure.work(t)) for t in chain):
        cuda.schedule(s, outs, target)
    elif not _slices(s, outs, facts(target.arch)):
        if any(_is_tile(t) for t in reductions):
            gpu_elements.schedule(s, outs, target)
        else:
            _launches(s, outs, facts(target.arch))


def _is_window(t: te.Tensor) -> bool:
    """Return whether neighbouring results read the same elements along an axis."""
    return any(not structure.is_apart(i, t) for i in _shared_indices(t))


def _is_tile(t: te.Tensor) -> bool:
    """Return whether results read few elements each, neighbours along an axis that they have in common."""
    is_short = structure.work(t) <= cuda.UNROLLED * prod(t.shape)
    return is_short and any(True for _ in _shared_indices(t))


def _shared_indices(t: te.Tensor) -> Iterator[Expr]:
    """Yield what of the reads of a reduction moves with results and with terms."""
    data, reduced = ([a.var for a in axes if a.extent > 1] for axes in (t.op.axis, t.op.reduce_axis))
    for load in structure.stored_reads(t):
        for i in load.indices:
            if any(depends_on(i, v) for v in data) and any(depends_on(i, v) for v in reduced):
                yield i


def _slices(s: te.Schedule, outs: Sequence[te.Tensor], gpu: GpuFacts) -> bool:
    """One launch for the largest result that reductions go into, slice by slice, and one for each result beside it.
    Gives whether there are slices, and enough of them."""
    out = max(outs, key=lambda t: (any(map(structure.is_reduction, structure.stages([t]))), prod(t.shape)))
    chain = structure.stages([out])
    slices = Slices.of(out, [t for t in chain if structure.is_reduction(t)])
    if slices is None or slices.size == 1 or (slices.are_interleaved and slices.size > slices.blocks[-1]):
        return False
    inside = [t for t in chain if t is not out and (structure.is_reduction(t) or structure.is_statistic(t))]
    apart = [t for t in inside if structure.is_reduction(t) and prod(t.shape) == 1 and slices.count > 1]
    if apart:  # what all slices share
        return False
    shape = shape_of(out, inside, slices, not slices.run_across_memory, gpu)
    if slices.count // shape.rows < gpu.units // 2 and slices.size >= LONG_SLICE:
        return False
    statistics = [t for t in structure.stages(outs) if structure.is_statistic(t)]
    nesting.inline(s, outs, statistics)
    _inline_pivots(s, outs)
    inside = [t for t in inside if not s[t].is_inline]
    behind = [t for t in cuda.kept_stages(s, outs) if t is not out and t not in inside]
    wanted = [t for t in inside if s[t].is_output or cuda.kept_reads(s, t, behind)]
    if any(structure.is_reduction(t) for t in behind):
        return False
    Blocks(s, out, inside, slices, shape, wanted, _copied(s, out, outs, inside, slices, shape, gpu)).schedule()
    gpu_elements.launch(s, outs, gpu)
    return True


def _inline_pivots(s: te.Schedule, outs: Sequence[te.Tensor]) -> None:
    """Inlines what reductions read that is one element of their slice: a thread reads that once by itself, and none
    waits for another."""
    for t in structure.stages(outs):
        if structure.is_statistic(t) and not structure.is_reduction(t) and not s[t].is_output:
            before = {source_of(load) for load in structure.reached(t, structure.is_reduction)}
            if len(before) == 1 and not any(isinstance(u.op, te.ComputeOp) for u in before):
                s[t].compute_inline()


def _copied(
    s: te.Schedule,
    out: te.Tensor,
    outs: Sequence[te.Tensor],
    inside: Sequence[te.Tensor],
    slices: Slices,
    shape: Shape,
    gpu: GpuFacts,
) -> te.Tensor | None:
    """Return the one array that elements and reductions of all slices read, at their own place: copied, it is read
    once."""
    if not shape.along or shape.threads == 1:
        return None
    chain = structure.stages([out])
    found: list[te.Tensor] = []
    for t in (*inside, out):
        for load in structure.reached(t, lambda u: not s[u].is_inline):
            if prod(source_of(load).shape) >= prod(out.shape):
                found.append(source_of(load))
    one = found[0] if found else None
    if one is None or any(t is not one for t in found) or len(found) < 2 or one.shape != out.shape:
        return None
    reductions = [t for t in inside if structure.is_reduction(t)]
    if not all(_keeps_inside(t, shape.threads) for t in reductions):
        return None
    sums = sum(itemsize(t.dtype) * prod(t.shape[k] for k in structure.beside(t)) for t in reductions)
    nbytes = shape.rows * (slices.size * itemsize(one.dtype) + 2 * shape.threads * sums)
    if nbytes > gpu.shared // gpu_blocks.COPIES - RESERVED or one.dtype != out.dtype:
        return None
    readers = [t for t in structure.stages(outs) if any(load.source is one for load in structure.reads(t))]
    return one if all(t in chain for t in readers) else None


def _keeps_inside(t: te.Tensor, threads: int) -> bool:
    """Return whether the rounds of threads over terms end with them, or are cut off along one axis: over several, the
    copy would have what lies behind the slice, too."""
    extents = [a.extent for a in t.op.reduce_axis]
    return prod(extents) % threads == 0 or len(extents) == 1


def _launches(s: te.Schedule, outs: Sequence[te.Tensor], gpu: GpuFacts) -> None:
    """A launch for each reduction with what one stage makes of it, element by element; launches for what is left."""
    statistics = [t for t in structure.stages(outs) if structure.is_statistic(t)]
    nesting.inline(s, outs, statistics)
    _inline_pivots(s, outs)
    cuda.inline_statistics(s, outs)
    kept = cuda.kept_stages(s, outs)
    homes = [(t, cuda.home(s, t, kept)) for t in kept if structure.is_reduction(t)]
    for t, reader in homes:
        whole = t if reader is None or reader.shape != t.shape else reader
        if reader is not None and sum(u is reader for _, u in homes) > 1:
            whole = t
        _reduce(s, t, whole, gpu)
    gpu_elements.launch(s, outs, gpu)


def _reduce(s: te.Schedule, t: te.Tensor, out: te.Tensor, gpu: GpuFacts) -> None:
    """A reduction, computed in the launch of `out`: itself, or its only reader, of the same shape."""
    along, length = _runs_along_memory(t), structure.terms(t)
    slices = _results(t)
    shape, spread = shape_of(out, [t], slices, along, gpu), SPREAD * gpu.units
    if slices.count // shape.rows < spread and length >= LONG:
        pieces = min(spread * shape.rows // slices.count + 1, length // PIECE)
        partial = s.rfactor(t, _pieces(s, t, pieces))
        _reduce_whole(s, partial, along, gpu)
        along = False
    if out is t:
        _reduce_whole(s, t, along, gpu)
    else:
        Blocks(s, out, [t], slices, shape_of(out, [t], slices, along, gpu)).schedule()


def _pieces(s: te.Schedule, t: te.Tensor, count: int) -> te.IterVar:
    """Cuts a reduction into about so many pieces: at its first axis, where that can be, so that each is one run."""
    axes = list(s[t].op.reduce_axis)
    first = axes[0]
    fitting = next((n for n in range(count, 4 * count) if first.extent % n == 0), None)
    if fitting is None:
        first, fitting = s[t].fuse(*axes), count
    outer, _ = s[t].split(first, nparts=fitting)
    return outer


def _reduce_whole(s: te.Schedule, t: te.Tensor, along: bool, gpu: GpuFacts) -> None:
    slices = _results(t)
    register = s.cache_write(t, "local")
    Blocks(s, t, [register], slices, shape_of(t, [register], slices, along, gpu)).schedule()


def _results(t: te.Tensor) -> Slices:
    """The results of a reduction as slices: those that are made from the same data are one."""
    terms = structure.beside(t)
    return Slices(t.shape, tuple(0 if k in terms else 1 for k in range(len(t.shape))))


def _runs_along_memory(t: te.Tensor) -> bool:
    """Return whether neighbours among the terms of a reduction lie side by side, rather than neighbouring results."""
    last, results = t.op.reduce_axis[-1], [a for a in t.op.axis if a.extent > 1]
    found = structure.stored_reads(t)
    if any(load.indices and structure.coefficient(load.indices[-1], last.var) for load in found):
        return True
    return not results or not any(
        load.indices and structure.coefficient(load.indices[-1], results[-1].var) for load in found
    )
