"""CUDA: every stage that is kept gets blocks and threads; what is elementwise is inlined. No stage is left unbound."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, structure

THREADS = 256


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target, keep: Sequence[te.Tensor] = ()) -> None:
    """One launch per reduction, per stage in `keep` and per result: a thread computes one element."""
    cpu_injective.inline(s, outs, keep)
    kept = {id(t.op) for t in (*keep, *outs)}
    for t in structure.stages(outs):
        if structure.is_reduction(t) or id(t.op) in kept:
            bind(s, t)


def bind(s: te.Schedule, t: te.Tensor) -> None:
    """Spreads the elements of `t`, or the rounds of its given loops, over blocks of threads."""
    axes = list(s[t].op.axis)
    if not axes:
        s[t].bind(s[t].fuse(*axes), te.thread_axis((0, 1), "threadIdx.x"))
        return
    whole = cpu_injective.fuse(s, t, axes)
    block, thread = s[t].split(whole, factor=min(THREADS, max(1, prod(a.extent for a in axes))))
    s[t].bind(block, te.thread_axis("blockIdx.x"))
    s[t].bind(thread, te.thread_axis("threadIdx.x"))
