"""CPU: sums of products of bfloat16 by instructions that multiply pairs, in the tiles of registers of cpu_products.

    accumulators[pixel][vector of channels] += x[pixel, 2k + p] (a pair, spread) * w[k, channels, p] (a vector), p of 2

Weights lie in pairs: for two neighbours of what is summed over, all channels of a vector, two and two. Everything else
is as for float32: tiles, padding that is left out, tails, and transposed convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm import te
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.expr.nodes import Cast, Load
from renorm.ops.schedules import cpu_injective, paired_weights
from renorm.ops.schedules.prefetches import prefetch_data
from renorm.ops.schedules.products import sum_loops, terms


def takes(main: te.Tensor, target: Target) -> bool:
    """Return whether a sum is of pairs: of weights that lie in pairs, and data that memory holds in bfloat16: what a
    view reads, or a stage that reads as views do."""
    match paired_weights.factors(main) if target.has_pairs else None:
        case (Load() as x, _):
            form = paired_weights.read(x)
            return form is not None and form.dtype == paired_weights.DTYPE
        case (Cast(a=Load(source=te.Tensor() as t)), _):
            return t.dtype == paired_weights.DTYPE
        case _:
            return False


def steps(main: te.Tensor, target: Target) -> tuple[int, Machine]:
    """Return how many products of vectors each sum takes, and the machine as it is for them."""
    machine, count = Machine.of(target), terms(main)
    return (count // 2, machine.of_pairs()) if takes(main, target) else (count, machine)


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
    of numbers or of pairs. blocks: in which memory holds what is summed over."""
    rounds = sum_loops(s, sums, blocks)
    if blocks[0] > 1:
        prefetch_data(s, sums, rounds[0], target)
    if not takes(sums, target):
        cpu_injective.register_loops(s, sums, [*around, *rounds], unrolled, lane)
        return
    steps, pair = s[sums].split(rounds[-1], factor=2)
    s[sums].reorder(*around, *rounds[:-1], steps, *unrolled, lane, pair)
    for axis in unrolled:
        s[sums].unroll(axis)
    s[sums].tensorize(lane)
