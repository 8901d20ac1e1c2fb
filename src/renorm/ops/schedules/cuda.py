"""CUDA: a thread for each element of every stage that is kept; what is elementwise is inlined. No stage is unbound.

    each reduction whose results one stage finishes, element by element:   in the threads of that stage
    each other reduction, each statistic, each result:                     a launch of its own

Sums are kept in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core.target import Target
from renorm.expr.nodes import Binary, Call, Expr, Load
from renorm.expr.rewrite import walk
from renorm.ops.schedules import nesting, structure

THREADS = 256  # of a block
UNROLLED = 49  # terms of a window that are written out
AGAIN = 8  # reads of an element from which on it is kept
LONG = frozenset({"exp", "log", "log1p", "expm1", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "pow"})


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target, keep: Sequence[te.Tensor] = ()) -> None:
    """Launches for what is kept: results, reductions, statistics, and the stages in `keep`."""
    statistics = [t for t in structure.stages(outs) if structure.is_statistic(t)]
    nesting.inline(s, outs, [*keep, *statistics, *costly(outs)])
    inline_statistics(s, outs)
    launch(s, outs)


def costly(outs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Return what takes more to compute than to read, and is read again and again: by sums of products, or by all of
    another axis."""
    chain = structure.stages(outs)
    found: list[te.Tensor] = []
    for t in chain:
        if structure.is_reduction(t) or not _takes_long(structure.body(t)):
            continue
        if any(structure.work(u) >= AGAIN * prod(t.shape) for u in structure.readers(t, chain)):
            found.append(t)
    return found


def _takes_long(e: Expr) -> bool:
    return any((isinstance(x, Call) and x.name in LONG) or (isinstance(x, Binary) and x.op == "pow") for x in walk(e))


def inline_statistics(s: te.Schedule, outs: Sequence[te.Tensor]) -> None:
    """Inlines statistics that other statistics alone read: each is then a few operations for each of those."""
    kept = kept_stages(s, outs)
    for t in reversed(kept):
        found = [u for u, _ in kept_reads(s, t, kept)]
        if structure.is_statistic(t) and not s[t].is_output and all(structure.is_statistic(u) for u in found):
            s[t].compute_inline()


def launch(s: te.Schedule, outs: Sequence[te.Tensor]) -> None:
    """Launches for all stages that are neither inlined nor placed."""
    kept = kept_stages(s, outs)
    homes = [(t, home(s, t, kept)) for t in kept]
    for t, place in homes:
        if place is not None or s[t].threads:
            continue
        if structure.is_reduction(t):
            bind_sum(s, t)
            continue
        thread = bind(s, t)
        for u in (u for u, host in homes if host is t):
            accumulate(s, u, t, thread)


def kept_stages(s: te.Schedule, outs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Return the stages that have loops at the root, producers first."""
    return [t for t in structure.stages(outs) if not s[t].is_inline and s[t].attach is None]


def kept_reads(s: te.Schedule, t: te.Tensor, among: Sequence[te.Tensor]) -> list[tuple[te.Tensor, Load]]:
    """Return who reads the array of `t`, through inlined stages, with each read."""
    found: list[tuple[te.Tensor, Load]] = []
    for u in among:
        if u is not t:
            found += [(u, load) for load in structure.reached(u, lambda v: not s[v].is_inline) if load.source is t]
    return found


def home(s: te.Schedule, t: te.Tensor, kept: Sequence[te.Tensor]) -> te.Tensor | None:
    """Return the stage whose threads compute a reduction: the only one that reads it, one element for each of its own.
    None where there is none such."""
    if not structure.is_reduction(t) or s[t].is_output or s[t].threads:
        return None
    found = kept_reads(s, t, kept)
    if len(found) != 1 or structure.is_reduction(found[0][0]):
        return None
    reader = found[0][0]
    return reader if isinstance(reader.op, te.ComputeOp) and prod(reader.shape) <= prod(t.shape) else None


def accumulate(s: te.Schedule, t: te.Tensor, reader: te.Tensor, thread: te.IterVar) -> None:
    """A reduction in a thread of its reader: sums in registers, the loops of a window written out."""
    s[t].compute_at(s[reader], thread)
    s[t].set_scope("local")
    axes = list(s[t].op.reduce_axis)
    if prod(a.extent for a in axes) <= UNROLLED:
        for axis in axes:
            s[t].unroll(axis)


def bind(s: te.Schedule, t: te.Tensor, threads: int = THREADS) -> te.IterVar:
    """Spreads the elements of `t`, or the rounds of its given loops, over blocks of threads. Gives the loop of a
    thread."""
    axes = list(s[t].op.axis)
    if not axes:
        thread = s[t].fuse(*axes)
        s[t].bind(thread, te.thread_axis((0, 1), "threadIdx.x"))
        return thread
    whole = s[t].fuse(*axes)
    return bind_loop(s, t, whole, min(threads, max(1, prod(a.extent for a in axes))))


def bind_sum(s: te.Schedule, t: te.Tensor) -> None:
    """A reduction by a thread for each result, in a register."""
    result = s.cache_write(t, "local")
    accumulate(s, result, t, bind(s, t))


def bind_loop(s: te.Schedule, t: te.Tensor, whole: te.IterVar, threads: int) -> te.IterVar:
    """Spreads the rounds of one loop over blocks of so many threads. Gives the loop of a thread."""
    block, thread = s[t].split(whole, factor=threads)
    s[t].bind(block, te.thread_axis("blockIdx.x"))
    s[t].bind(thread, te.thread_axis("threadIdx.x"))
    return thread
