"""CPU: windows and other reductions across memory: pools, a sum over the first axis."""

from __future__ import annotations

from math import prod

from renorm import te
from renorm.core.target import Target
from renorm.expr.nodes import Expr, Var
from renorm.ops.schedules import nesting, structure


def schedule(s: te.Schedule, t: te.Tensor, tail: te.Tensor, target: Target) -> None:
    """A reduction across memory (a pool, a sum over the first axis): one vector of results at a time, in registers,
    finished in `tail`, which is `t` itself or an elementwise stage after it."""
    if tail is t:
        accumulator = s.cache_write(t, "register")
    else:
        accumulator = t
        s[t].set_scope("register")
    axes = list(s[tail].op.axis)
    if not axes:
        s[accumulator].compute_root()
        return
    terms = structure.beside(t)  # results beside each other that are made from the same data
    if len(axes) - 1 in terms:
        terms = []
    lanes = structure.lanes_of(t, target)
    beside, inner = [axes[k] for k in terms], axes[-1]
    outer = [a for k, a in enumerate(axes[:-1]) if k not in terms]
    count = prod(t.shape[k] for k in terms)
    side = lanes * _side_by_side(t, tail.shape[-1] // lanes, SIDE_BY_SIDE // count)
    if tail.shape[-1] > side:
        block, inner = s[tail].split(inner, factor=side)
        outer = [*outer, block]
    s[tail].reorder(*outer, *beside, inner)
    if outer:
        s[accumulator].compute_at(s[tail], nesting.share(s, tail, outer, structure.work(t))[-1])
    own, reduced = list(s[accumulator].op.axis), list(s[accumulator].op.reduce_axis)
    others = [a for k, a in enumerate(own[:-1]) if k not in terms]
    for stage, first, last in ((tail, [], inner), (accumulator, [*others, *reduced], own[-1])):
        along = beside if stage is tail else [own[k] for k in terms]
        vectors = list[te.IterVar]()
        if tail.shape[-1] > lanes:
            vector, last = s[stage].split(last, factor=lanes)
            vectors = [vector]
        s[stage].reorder(*first, *vectors, *along, last)
        if outer:
            for axis in (*vectors, *along):
                s[stage].unroll(axis)
        if tail.shape[-1] > 1:
            s[stage].vectorize(last)


# Vectors that are summed up side by side: memory is read in runs of this many cache lines, or about.
SIDE_BY_SIDE = 8


def _side_by_side(t: te.Tensor, vectors: int, most: int) -> int:
    """Return how many vectors of results, `most` at most, one tile holds: several where each is a long sum over rows of
    memory, and where enough tiles are left for threads to share. Windows overlap, so that their rows are still in
    cache."""
    alone = all(isinstance(i, Var) or structure.is_apart(i, t) for i in _indices(t))
    if not alone or prod(axis.extent for axis in t.op.reduce_axis) < LONG:
        return 1
    rest = prod(t.shape[:-1]) * max(1, vectors)
    return max(k for k in range(1, max(1, most) + 1) if k == 1 or (vectors % k == 0 and rest // k >= TILES))


# Terms of a long sum; tiles that give threads even shares.
LONG, TILES = 64, 16


def _indices(t: te.Tensor) -> list[Expr]:
    return [i for load in structure.reads(t) for i in load.indices]
