"""Stages whose loops are given (te.extern): their rounds run in parallel. What they read has an array; else all but the
results is inlined."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, cuda, nesting, structure
from renorm.te.tensor import producers_first


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """A nest for each stage that is kept."""
    given = [op for op in producers_first(t.op for t in outs) if isinstance(op, te.ExternOp)]
    read = [t for op in given for t in op.input_tensors]
    nesting.inline(s, outs, read)
    kept = [t for t in structure.stages(outs) if not s[t].is_inline]
    if target.is_gpu:
        for t in (*kept, *(op.tensor for op in given)):
            cuda.bind_sum(s, t) if structure.is_reduction(t) else cuda.bind(s, t)
        return
    for t in kept:
        cpu_injective.nest(s, t, target)
    for op in given:
        (rounds,) = op.axis
        if sum(prod(t.shape) for t in op.input_tensors) >= nesting.PARALLEL_FROM:
            s[op].parallel(rounds)
