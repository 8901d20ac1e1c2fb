"""What nests of loops are made of on every target: stages inlined, outer loops shared, inner kernels in registers."""

from __future__ import annotations

from collections.abc import Sequence

from renorm import te
from renorm.ops.schedules import structure
from renorm.topi import layout

# Below this many elements a loop is not worth handing out to threads (a barrier costs about as much as 2000 elements).
PARALLEL_FROM = 4096

# Pieces of work that give every thread an even share, and about an even one.
PIECES, FEW = 64, 16


def inline(s: te.Schedule, outs: Sequence[te.Tensor], keep: Sequence[te.Tensor] = ()) -> None:
    """Inlines stages that neither reduce, nor are results, nor stand in `keep`."""
    kept = {id(t.op) for t in (*outs, *keep)}
    for t in structure.stages(outs):
        if id(t.op) not in kept and not structure.is_reduction(t) and t.op.tag != layout.PACKED:
            s[t].compute_inline()


def is_free(s: te.Schedule, t: te.Tensor, before: te.Tensor | None = None) -> bool:
    """Return whether `t` may be computed at any time, once all is there that it needs: a result that nobody reads, or
    that only what needs `before` too reads."""
    readers = [stage.tensor for stage in s.stages if any(t is u for u in stage.op.input_tensors)]
    return s[t].is_output and all(before is not None and before in structure.stages([u]) for u in readers)


def share(s: te.Schedule, t: te.Tensor, order: Sequence[te.IterVar], work: int = PARALLEL_FROM) -> list[te.IterVar]:
    """Hands outer loops to threads, as many as give enough pieces, fused into one, where there is `work` enough; the
    loops that are left, that one first.
    """
    if work < PARALLEL_FROM:
        return list(order)
    pieces, shared = 1, list[te.IterVar]()
    for axis in order:
        if pieces >= PIECES:
            break
        shared.append(axis)
        pieces *= max(1, axis.extent or 1)
    whole = s[t].fuse(*shared)
    s[t].parallel(whole)
    return [whole, *order[len(shared) :]]


def register_loops(
    s: te.Schedule, t: te.Tensor, around: Sequence[te.IterVar], unrolled: Sequence[te.IterVar], lane: te.IterVar
) -> None:
    """Order the loops of `t` as those of an inner kernel: `around`, then `unrolled`, which are written out, then
    `lane`, a vector."""
    s[t].reorder(*around, *unrolled, lane)
    for axis in unrolled:
        s[t].unroll(axis)
    s[t].vectorize(lane)
