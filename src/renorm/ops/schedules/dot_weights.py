"""CPU: how memory holds constant weights for instructions that take neighbours, and which sums read such weights.

    panels    [channels / w, ..., summed / nk, k, w, n]     rows of a matrix unit's registers, w of up to 32 channels
    vectors   [channels / v, ..., summed / nk, k, v, n]     v of a vector register; without k where data has no blocks
    taps      [channels / v, summed, ..., row / n, v, n]    where data has no blocks, or each channel is by itself

n neighbours of what is summed over lie side by side: pairs of bfloat16 or of 16 bits, quads of bytes (`core.dots`).
Everything else about a kernel says its schedule: `cpu_matrix` where weights lie in panels, `cpu_dots` where they lie in
vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from renorm import te
from renorm.core import dots
from renorm.core.dims import is_static, static
from renorm.core.dots import PAIRS, QUADS, Dot
from renorm.core.machine import FEWEST, Machine, MatrixUnit
from renorm.core.target import Target
from renorm.expr.nodes import Binary, Cast, Expr, Load, Reduce
from renorm.graph.ir import Node
from renorm.graph.layout import Layout
from renorm.ops.schedules import structure
from renorm.ops.schedules.products import SCHEDULES
from renorm.topi import layout
from renorm.topi.layout import Blocking

# A sum that is worth an instruction for matrices has a part of the terms of one at least, by how many neighbours it
# takes: of bytes, vectors make half as many products in a cycle
PARTS = {PAIRS.count: 4, QUADS.count: 2}


def held(node: Node, index: int, data: Layout | None, target: Target) -> Blocking | None:
    """Return how memory holds the constant weight of a node, operand `index`, for products of neighbours; None where
    there are none. data: how memory holds what it is multiplied with."""
    machine, dot = Machine.of(target), dots.of_data(data.dtype) if data is not None else None
    if node.op.scheduled_as not in SCHEDULES or data is None or dot is None:
        return None
    unit = machine.matrix if machine.matrix is not None and dot in machine.matrix.dots else None
    if unit is None and dot not in machine.dots:
        return None
    types, weight, is_blocked = node.operand_types(), node.inputs[index], data.axis == 1
    axis = node.op.channel_axis(index, types)
    summed = node.op.summed_axis(index, types) if is_blocked else node.op.rows_axis(index, types)
    groups = node.op.values.get("group", 1)
    if groups > 1 and is_blocked and unit is not None and node.op.scheduled_as == "convolution":
        summed = 1  # whole blocks of channels, or the unit does not take them
    if axis is None or weight is None or not is_static(weight.shape):
        return None
    if dot.is_exact and node.op.scheduled_as == "convolution" and is_blocked == (groups > 1):
        return taps(static(weight.shape), groups, data.lanes, target, dot)
    if summed is None:
        return None
    channels, depth, *window = static([weight.shape[axis], weight.shape[summed], *weight.shape[2:]])
    form, block = None, data.lanes if is_blocked else None
    if unit is not None and _takes(node, unit, channels, depth, data, FEWEST if dot in machine.dots else 1):
        is_dense = groups == 1 and node.op.scheduled_as == "convolution" and not _is_dilated(node)
        row = window[-1] if is_blocked and is_dense and data.lanes == depth else 1
        form = panels(axis, summed, channels, block or depth, target, row, dot)
    if form is None and dot in machine.dots:
        form = vectors(axis, summed, channels, depth, block, target, dot)
    return replace(form, dtype=None) if form is not None and weight.dtype == form.dtype else form


def _takes(node: Node, unit: MatrixUnit, channels: int, depth: int, data: Layout, fewest: int) -> bool:
    """Return whether the matrix unit multiplies the data of a node. channels: of the result; depth: of a weight;
    fewest: rows that it is faster with than vectors."""
    groups, rows = node.op.values.get("group", 1), node.output.shape[2:] if data.axis == 1 else node.output.shape[-2:-1]
    if groups > 1 and (depth % data.lanes or channels // groups % (unit.side * unit.columns)):
        return False
    if node.op.scheduled_as == "transposed_convolution" and (_is_dilated(node) or channels % unit.columns):
        return False
    return is_static(rows) and prod(static(rows)) >= fewest  # rows of a register have no conditions


def _is_dilated(node: Node) -> bool:
    return any(d > 1 for d in node.op.values.get("dilations") or ())


def panels(
    axis: int, summed: int, channels: int, block: int, target: Target, taps: int = 1, dot: Dot = PAIRS
) -> Blocking | None:
    """Return how memory holds constant weights that the matrix unit multiplies, None where it does not take them.

    axis: of the channels of the result; summed: that which is summed over; block: how many of its elements lie side by
    side in the data; taps: of a row of a window, which do so too where a block is all of these elements."""
    unit = Machine.of(target).matrix
    if unit is None or channels < 2 or block % dot.count:
        return None
    if max(terms_at_once(block, unit, dot), terms_at_once(block * taps, unit, dot)) < least(unit, dot):
        return None
    side_by_side = block if block * taps < unit.depth(dot) or taps > 1 else terms_at_once(block, unit, dot)
    width = min(channels, unit.side * unit.columns)
    return Blocking(((summed, side_by_side // dot.count), (axis, width), (summed, dot.count)), axis, dot.weight)


def least(unit: MatrixUnit, dot: Dot) -> int:
    """Return how many terms side by side are worth an instruction of the matrix unit."""
    return unit.depth(dot) // PARTS[dot.count]


def terms_at_once(terms: int, unit: MatrixUnit, dot: Dot = PAIRS) -> int:
    """Return how many of so many terms, side by side, one instruction sums: groups of neighbours that divide them; 0
    where there are none."""
    return next((d for d in range(unit.depth(dot), 0, -dot.count) if terms % d == 0), 0)


def vectors(
    axis: int, summed: int, channels: int, depth: int, lanes: int | None, target: Target, dot: Dot = PAIRS
) -> Blocking | None:
    """Return how memory holds weights for vectors of neighbours; None where channels fill none, or what is summed no
    neighbours. axis: of the channels of the result; summed: that which is summed over; lanes: of the blocks in which
    the data has it."""
    width = target.lanes(4)
    if channels < width or (lanes or depth) % dot.count:
        return None
    inner = ((axis, width), (summed, dot.count))
    return Blocking(((summed, lanes // dot.count), *inner) if lanes else inner, axis, dot.weight)


def taps(shape: Sequence[int], groups: int, lanes: int, target: Target, dot: Dot) -> Blocking | None:
    """Return how memory holds weights for taps side by side, of channels that are convolved by themselves, in blocks,
    or of few that lie in no blocks; None where channels fill no vectors, or rows of a window no neighbours. lanes: of
    the blocks of channels of the data."""
    (channels, depth, *_, row), width = shape, target.lanes(4)
    if channels < width or row % dot.count:
        return None
    if groups > 1 and (depth > 1 or groups != channels or channels % width or lanes != width):
        return None
    return Blocking(((0, width), (len(shape) - 1, dot.count)), 0)


def factors(main: te.Tensor) -> tuple[Expr, Blocking, Dot] | None:
    """Return the data of a sum of products, how memory holds its weights, and the instruction that these lie for; None
    where they lie for none."""
    body = main.op.body if isinstance(main.op, te.ComputeOp) else None
    match body.value if isinstance(body, Reduce) else None:
        case Binary(op="*", a=x, b=w) if (form := read(w)) is not None:
            dot = dots.of_weight(held_dtype(w))
            return None if dot is None or not _lies_in_groups(form, dot) else (x, form, dot)
        case _:
            return None


def source(e: Expr) -> te.Tensor | None:
    """Return the tensor that a sum reads, in whatever dtype it multiplies it; None where it computes what it reads."""
    while isinstance(e, Cast):
        e = e.a
    return e.source if isinstance(e, Load) and isinstance(e.source, te.Tensor) else None


def read(e: Expr) -> Blocking | None:
    """Return how memory holds what a sum reads, itself or by way of the weights of phases."""
    t = source(e)
    if t is None:
        return None
    if t.op.tag == "weight":
        return next((form for x in structure.reads(t) if (form := read(x)) is not None), None)
    return layout.form_of(t)


def held_dtype(e: Expr) -> str | None:
    """Return in which dtype memory holds what a sum reads, as `read` finds it; None where the sum computes that."""
    t = source(e)
    if t is not None and t.op.tag == "weight":
        return next((dtype for x in structure.reads(t) if (dtype := held_dtype(x)) is not None), None)
    return None if t is None else layout.source(t).dtype


def lies_in_panels(form: Blocking) -> bool:
    """Return whether weights lie in panels, by how many neighbours of what is summed these have."""
    return len(form.cuts) == 3


def _lies_in_groups(form: Blocking, dot: Dot) -> bool:
    return len(form.cuts) > 1 and form.cuts[-2][0] == form.first and form.cuts[-1][1] == dot.count
