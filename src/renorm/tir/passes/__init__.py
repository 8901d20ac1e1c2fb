"""Passes over loops between a schedule and a code generator: the list below, in this order."""

from __future__ import annotations

from collections.abc import Callable

from renorm.tir.nodes import Kernel
from renorm.tir.passes.hoist import hoist
from renorm.tir.passes.partition import partition
from renorm.tir.passes.simplify import simplify
from renorm.tir.passes.unroll import unroll
from renorm.tir.passes.unswitch import unswitch
from renorm.tir.passes.vectorize import vectorize

PIPELINE: tuple[Callable[[Kernel], Kernel], ...] = (
    simplify,
    partition,
    unswitch,
    hoist,
    simplify,
    vectorize,
    hoist,
    unroll,
)


def prepare(kernel: Kernel) -> Kernel:
    """The kernel as code generators read it: no vectorized or unrolled loops, no loops of one round, simple indices."""
    for loop_pass in PIPELINE:
        kernel = loop_pass(kernel)
    return kernel
