"""CPU: sums of products of bfloat16 by instructions that multiply pairs, in the tiles of registers of cpu_products.

    accumulators[pixel][vector of channels] += x[pixel, 2k + p] (a pair, spread) * w[k, channels, p] (a vector), p of 2

Weights lie in pairs: for two neighbours of what is summed over, all channels of a vector, two and two. Everything else
is as for float32: tiles, padding that is left out, tails, and transposed convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm import te
from renorm.core.dims import is_static, static
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.expr.nodes import Binary, Cast, Expr, Load, Reduce
from renorm.graph.ir import Node
from renorm.graph.layout import Layout
from renorm.ops.schedules import cpu_injective, structure
from renorm.ops.schedules.products import SCHEDULES, sum_loops, terms
from renorm.topi import layout
from renorm.topi.layout import Blocking


def pairs_of(node: Node, index: int, data: Layout | None, target: Target) -> Blocking | None:
    """Return how memory holds the constant weight of a node, operand `index`, for products of pairs; None where there
    are none. data: how memory holds what it is multiplied with, in bfloat16."""
    if not Machine.of(target).pairs or node.op.scheduled_as not in SCHEDULES or data is None:
        return None
    types, weight, is_blocked = node.operand_types(), node.inputs[index], data.axis == 1
    axis = node.op.channel_axis(index, types)
    summed = node.op.summed_axis(index, types) if is_blocked else node.op.rows_axis(index, types)
    if axis is None or summed is None or weight is None or not is_static(weight.shape):
        return None
    channels, depth = static([weight.shape[axis], weight.shape[summed]])
    return form(axis, summed, channels, depth, data.lanes if is_blocked else None, target)


def form(axis: int, summed: int, channels: int, depth: int, lanes: int | None, target: Target) -> Blocking | None:
    """Return how memory holds weights in pairs; None where channels fill no vectors, or what is summed no pairs. axis:
    of the channels of the result; summed: that which is summed over; lanes: of the blocks in which the data has it."""
    width = target.lanes(4)
    if channels < width or (lanes or depth) % 2:
        return None
    inner = ((axis, width), (summed, 2))
    return Blocking(((summed, lanes // 2), *inner) if lanes else inner, axis, "bfloat16")


def takes(main: te.Tensor, target: Target) -> bool:
    """Return whether a sum is of pairs: of weights that lie in pairs, and data, in bfloat16 both."""
    body = main.op.body if isinstance(main.op, te.ComputeOp) else None
    match body.value if isinstance(body, Reduce) and target.has_pairs else None:
        case Binary(op="*", a=x, b=Load(source=te.Tensor() as w)):
            form = _form(w)
            return form is not None and form.dtype == "bfloat16" and _is_of_pairs(form) and _is_held(x)
        case _:
            return False


def _is_held(x: Expr) -> bool:
    """Return whether memory holds a factor in bfloat16: what a view reads, or a stage that reads as views do."""
    match x:
        case Load(source=te.Tensor() as t):
            form = _form(t)
            return form is not None and form.dtype == "bfloat16"
        case Cast(a=Load(source=te.Tensor() as t)):
            return t.dtype == "bfloat16"
        case _:
            return False


def _form(t: te.Tensor) -> Blocking | None:
    """Return how memory holds a tensor, or what weights of phases are made of."""
    if t.op.tag == "weight":
        return next((_form(x.source) for x in structure.reads(t) if isinstance(x.source, te.Tensor)), None)
    return layout.form_of(t)


def _is_of_pairs(form: Blocking) -> bool:
    return len(form.cuts) > 1 and form.cuts[-2][0] == form.first and form.cuts[-1][1] == 2


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
    if not takes(sums, target):
        cpu_injective.register_loops(s, sums, [*around, *rounds], unrolled, lane)
        return
    steps, pair = s[sums].split(rounds[-1], factor=2)
    s[sums].reorder(*around, *rounds[:-1], steps, *unrolled, lane, pair)
    for axis in unrolled:
        s[sums].unroll(axis)
    s[sums].tensorize(lane)
