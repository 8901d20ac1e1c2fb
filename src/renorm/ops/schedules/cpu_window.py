"""CPU: windows and other reductions across memory: pools, a sum over the first axis."""

from __future__ import annotations

from renorm import te
from renorm.core.dtypes import compute_dtype, itemsize
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, structure


def schedule(s: te.Schedule, t: te.Tensor, tail: te.Tensor, target: Target) -> None:
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
        loops = cpu_injective.share(s, tail, outer) if structure.work(t) >= cpu_injective.PARALLEL_FROM else outer
        s[accumulator].compute_at(s[tail], loops[-1])
    own, reduced = list(s[accumulator].op.axis), list(s[accumulator].op.reduce_axis)
    s[accumulator].reorder(*own[:-1], *reduced, own[-1])
    if tail.shape[-1] > 1:
        if not outer and tail.shape[-1] > lanes:
            _, lane = s[accumulator].split(own[-1], factor=lanes)
            s[accumulator].vectorize(lane)
        else:
            s[accumulator].vectorize(own[-1])
