"""CPU: convolutions, phases of transposed convolutions and matrix products, with what stands before and after them:
which kernel computes the sum of products, and where padding is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm import te
from renorm.core.target import Target
from renorm.expr.nodes import Call, Const, Expr, Load, Reduce, cast
from renorm.expr.rewrite import substitute, transform
from renorm.ops.schedules import (
    cpu_depthwise,
    cpu_dots,
    cpu_injective,
    cpu_matrix,
    cpu_reduction,
    cpu_tiles,
    nesting,
    structure,
)
from renorm.ops.schedules.cpu_products import product
from renorm.ops.schedules.products import MAIN_TAGS, is_of_rows
from renorm.te.tensor import source_of
from renorm.topi import layout


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Convolutions of any rank and matrix products, with elementwise stages before and after them, and statistics of
    the result."""
    outs, statistics = cpu_tiles.split(outs)
    chain = structure.stages(outs)
    mains = [t for t in chain if t.op.tag in MAIN_TAGS]
    if mains and all(is_of_rows(main, structure.lanes_of(main, target)) for main in mains):
        cpu_reduction.schedule(s, outs, target)
        return
    pads = list[te.Tensor]()
    for pad in (t for t in chain if t.op.tag == "pad"):
        if all(_leaves_out(main, pad, target) and not cpu_matrix.takes(main, target) for main in mains):
            for main in mains:
                s[main].redefine(_without_padding, pad)
        else:
            pads.append(pad)
    # the phases of one transposed convolution are products of their own; products of other kinds are not fused
    if not mains or len({t.op.tag for t in mains}) != 1 or len(outs) != 1 or 0 in outs[0].shape:
        nesting.inline(s, outs, keep=mains)
        for t in chain:
            if structure.is_reduction(t) or t in outs:
                cpu_injective.nest(s, t, target)
        if statistics is not None:
            statistics.nest(s, target)
        return
    out = outs[0]
    # after a shuffle (sub-pixel results of a transposed convolution) the product is a stage of its own
    own_shape = layout.source(out).shape if layout.is_result(out) else out.shape
    tail = out if len(mains) == 1 and own_shape == mains[0].shape else None
    nesting.inline(s, outs, keep=[*pads, *mains])
    if statistics is not None and not (tail is out and layout.is_result(out)):
        statistics.nest(s, target)
        statistics = None
    if tail is out and (cpu_depthwise.is_depthwise(mains[0]) or _is_lanewise(mains[0], out, target)):
        cpu_depthwise.schedule(s, mains[0], out, pads, target, statistics)
        return
    strip = None
    for main in mains:
        if statistics is None and cpu_matrix.takes(main, target):
            strip = cpu_matrix.schedule(s, main, tail or main, target)
        else:
            product(s, main, tail or main, target, statistics)
    for pad in pads:
        if strip is None or len(mains) > 1:
            cpu_injective.nest(s, pad, target)
        else:  # each core pads what it reads
            s[pad].compute_at(s[tail or mains[0]], strip)
            s[pad].vectorize(s[pad].op.axis[-1])
    if tail is not out:
        cpu_injective.nest(s, out, target)


def _leaves_out(main: te.Tensor, pad: te.Tensor, target: Target) -> bool:
    """Return whether taps that fall on padding are left out, in place of a copy with zeros around it: where vectors are
    of channels, so that whole vectors fall on it, and, of channels that are convolved by themselves, where tiles at an
    edge, which are code of their own, are short. A copy costs up to a half of such a convolution. Of others it costs 0
    to 10 %, with the products that it adds up to 25 % in three dimensions."""
    form = next((layout.form_of(source_of(x)) for x in structure.reads(main) if _held(x) is pad), None)
    if main.op.tag != "conv" or form is None or not form.cuts or not _is_of_zeros(pad):
        return False
    if cpu_depthwise.is_depthwise(main) and cpu_dots.taken(main, target) is not None:
        return False  # taps are in quads
    depth, *_, width = (a.extent for a in main.op.reduce_axis)
    return not cpu_depthwise.is_lanewise(main, form.cuts[0][1]) or depth * width <= cpu_depthwise.EDGE


def _without_padding(main: te.ComputeOp, pad: te.Tensor) -> Expr:
    """The sum over taps that meet elements, not padding:

    sum(if_then_else(inside, x, 0) * w)   ->   sum(x * w, where inside)
    """
    assert isinstance(pad.op, te.ComputeOp)
    whole, own, padding = main.body, [a.var for a in pad.op.axis], pad.op.body
    assert isinstance(whole, Reduce)
    assert isinstance(padding, Call)
    conditions = list[Expr]()

    def inside(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or _held(e) is not pad:
            return None
        form = layout.form_of(source_of(e))
        at = dict(zip(own, form.index(e.indices) if form else e.indices, strict=True))
        conditions.append(substitute(padding.args[0], at))
        return cast(e.dtype, substitute(padding.args[1], at))  # memory may hold fewer digits

    value = transform(whole.value, inside)
    return Reduce(whole.combiner, value, whole.axes, *conditions)


def _is_of_zeros(pad: te.Tensor) -> bool:
    match pad.op.body if isinstance(pad.op, te.ComputeOp) else None:
        case Call(args=(_, _, Const(value=0))):
            return True
        case _:
            return False


def _held(load: Load) -> te.Tensor:
    """Return the tensor in memory that a load reads, directly or through inlined stages."""
    return layout.source(source_of(load))


def _is_lanewise(main: te.Tensor, tail: te.Tensor, target: Target) -> bool:
    return layout.is_result(tail) and cpu_depthwise.is_lanewise(main, structure.lanes_of(main, target))
