"""CPU: sums of products by instructions that take neighbours, in the tiles of registers of cpu_products.

    accumulators[pixel][vector of channels] += x[pixel, n*k + p] (n neighbours, spread) * w[k, channels, p] (a vector)

where p runs over n: pairs of bfloat16 or of 16 bits, quads of bytes (`core.dots`). Weights lie so, too: for n
neighbours of what is summed over, all channels of a vector, n and n. Everything else is as for float32: tiles, padding
that is left out, tails, and transposed convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm import te
from renorm.core.dots import Dot
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.ops.schedules import dot_weights, nesting, structure
from renorm.ops.schedules.prefetches import prefetch_data
from renorm.ops.schedules.products import sum_loops


def taken(main: te.Tensor, target: Target) -> Dot | None:
    """Return the instruction that a sum is of: of weights that lie as it reads them, and data that memory holds in its
    dtype: what a view reads, or a stage that reads as views do. None for other sums."""
    found = dot_weights.factors(main)
    if found is None or main.dtype != found[2].sums or not target.has_dot(found[2]):
        return None
    return found[2] if dot_weights.held_dtype(found[0]) == found[2].data else None


def steps(main: te.Tensor, target: Target) -> tuple[int, Machine]:
    """Return how many products of vectors each sum takes, and the machine as it is for them."""
    machine, count, dot = Machine.of(target), structure.terms(main), taken(main, target)
    return (count // dot.count, machine.summing(dot)) if dot else (count, machine)


def register_loops(
    s: te.Schedule,
    sums: te.Tensor,
    around: Sequence[te.IterVar],
    unrolled: Sequence[te.IterVar],
    lane: te.IterVar,
    target: Target,
    blocks: Sequence[int],
) -> None:
    """The loops of an inner kernel: `around`, those of the sum, `unrolled`, which are written out, and `lane`, a vector
    of numbers or of neighbours. blocks: in which memory holds what is summed over."""
    rounds = sum_loops(s, sums, blocks)
    if blocks[0] > 1:
        prefetch_data(s, sums, rounds[0], target)
    dot = taken(sums, target)
    if dot is None:
        nesting.register_loops(s, sums, [*around, *rounds], unrolled, lane)
        return
    neighbour_loops(s, sums, [*around, *rounds[:-1]], rounds[-1], unrolled, lane, dot)


def neighbour_loops(
    s: te.Schedule,
    sums: te.Tensor,
    around: Sequence[te.IterVar],
    summed: te.IterVar,
    unrolled: Sequence[te.IterVar],
    lane: te.IterVar,
    dot: Dot,
) -> te.IterVar:
    """The loops of an inner kernel whose neighbours lie along `summed`: channels, or taps of a row of a window; gives
    the loop over groups of them."""
    steps, neighbour = s[sums].split(summed, factor=dot.count)
    s[sums].reorder(*around, steps, *unrolled, lane, neighbour)
    for axis in unrolled:
        s[sums].unroll(axis)
    s[sums].tensorize(lane)
    return steps
