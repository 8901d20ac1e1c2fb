"""CPU: convolutions, phases of transposed convolutions and matrix products, with what stands before and after them:
which kernel computes the sum of products, and where padding is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm import te
from renorm.core.dtypes import compute_dtype, itemsize
from renorm.core.target import Target
from renorm.ops.schedules import cpu_depthwise, cpu_injective, cpu_tiles, layout, structure
from renorm.ops.schedules.cpu_products import product
from renorm.ops.schedules.products import MAIN_TAGS


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Convolutions of any rank and matrix products, with elementwise stages before and after them, and statistics of
    the result."""
    outs, statistics = cpu_tiles.split(outs)
    chain = structure.stages(outs)
    mains = [t for t in chain if t.op.tag in MAIN_TAGS]
    # the phases of one transposed convolution are products of their own; products of other kinds are not fused
    if not mains or len({t.op.tag for t in mains}) != 1 or len(outs) != 1 or 0 in outs[0].shape:
        cpu_injective.inline(s, outs, keep=mains)
        for t in chain:
            if structure.is_reduction(t) or t in outs:
                cpu_injective.nest(s, t, target)
        if statistics is not None:
            statistics.nest(s, target)
        return
    out = outs[0]
    pads = [t for t in chain if t.op.tag == "pad"]
    # after a shuffle (sub-pixel results of a transposed convolution) the product is a stage of its own
    own_shape = layout.source(out).shape if layout.is_result(out) else out.shape
    tail = out if len(mains) == 1 and own_shape == mains[0].shape else None
    cpu_injective.inline(s, outs, keep=[*pads, *mains])
    if statistics is not None and not (tail is out and layout.is_result(out)):
        statistics.nest(s, target)
        statistics = None
    if tail is out and (cpu_depthwise.is_depthwise(mains[0]) or _is_lanewise(mains[0], out, target)):
        cpu_depthwise.schedule(s, mains[0], out, pads, target, statistics)
        return
    for pad in pads:
        cpu_injective.nest(s, pad, target)
    for main in mains:
        product(s, main, tail or main, target, statistics)
    if tail is not out:
        cpu_injective.nest(s, out, target)


def leaves_out_padding(x: te.Tensor, weight: te.Tensor, groups: int) -> bool:
    """Return whether taps that fall on padding are left out, in place of a copy of x with zeros around it: where
    vectors are of channels, so that whole vectors fall on it, and, of channels that are convolved by themselves, where
    tiles at an edge, which are code of their own, are short. A copy costs up to a half of such a convolution. Of others
    it costs 0 to 10 %, with the products that it adds up to 25 % in three dimensions."""
    form = layout.form_of(x)
    if form is None or not form.cuts_only(1):
        return False
    outputs, depth, *kernel = weight.shape
    is_lanewise = cpu_depthwise.has_lanewise_groups(depth * groups, outputs, groups, form.cuts[0][1])
    return not is_lanewise or depth * kernel[-1] <= cpu_depthwise.EDGE


def _is_lanewise(main: te.Tensor, tail: te.Tensor, target: Target) -> bool:
    return layout.is_result(tail) and cpu_depthwise.is_lanewise(main, target.lanes(itemsize(compute_dtype(main.dtype))))
