"""Blocks of channels as the CPU schedules of products take them: which operands and results may lie in them, in which
tiles a result is finished, and whether the data is copied first. Passes ask here; of other ops `OpDef.in_blocks` says
what it takes.
"""

from __future__ import annotations

from math import prod

from renorm.core.dims import is_static, static
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts, Layout
from renorm.graph.op import OpDef
from renorm.ops.byte_conv import ByteConv
from renorm.ops.conv import Conv
from renorm.ops.conv_transpose import ConvTranspose
from renorm.ops.schedules import cpu_depthwise, cpu_tiles, products
from renorm.ops.schedules.winograd_blocks import Work, choose
from renorm.ops.shared.tiled import Tiled


def accepts(node: Node, index: int | None, lanes: int, vector: int) -> Accepts:
    """Return whether operand `index` of a node (None: its results) may lie in blocks of `lanes` channels. vector:
    channels of a vector."""
    op = node.op
    if lanes != vector and op.values.get("group", 1) != 1 and (lanes % vector or isinstance(op, ByteConv)):
        return Accepts.ROW_MAJOR  # channels that are summed by themselves are vectors
    if type(op).in_blocks is not OpDef.in_blocks or not isinstance(op, (Conv, ConvTranspose)):
        return op.in_blocks(node, index, lanes)
    if index not in (None, 0):
        return Accepts.ROW_MAJOR
    if isinstance(op, Tiled):
        return Accepts.EITHER
    return _convolution(node, op.group, lanes) if isinstance(op, Conv) else _transposed(node, op.group, lanes)


def _convolution(node: Node, group: int, lanes: int) -> Accepts:
    x, outputs = node.inputs[0], node.output.shape[1]
    inputs = x.shape[1] if x is not None else None
    if not isinstance(outputs, int) or not isinstance(inputs, int):
        return Accepts.ROW_MAJOR
    if cpu_depthwise.has_lanewise_groups(inputs, outputs, group, lanes):
        return Accepts.ALIKE
    width = products.vector_lanes(outputs, group, lanes)
    whole_blocks = group == 1 or (inputs // group) % width == 0
    # vectors that run over pixels are read and written as such
    if not (whole_blocks and products.fills_vectors(outputs, group, width)):
        return Accepts.ROW_MAJOR
    return Accepts.EITHER if width == lanes else Accepts.ALIKE


def _transposed(node: Node, group: int, lanes: int) -> Accepts:
    channels = node.output.shape[1]
    over_pixels = isinstance(channels, int) and not products.fills_vectors(channels, group, lanes)
    return Accepts.ROW_MAJOR if group > 1 or over_pixels else Accepts.EITHER


def finished_tile(node: Node, target: Target) -> tuple[int, ...] | None:
    """Return the spatial extents of the tiles in which a kernel of this node on `target` finishes its result
    [N, C, *S], in blocks of channels: all elements of a tile, of a few channels, are in a cache of one core when its
    last one is there, and the schedule takes statistics of such tiles as a further result. None where it does not."""
    op, lanes = node.op, target.lanes(4)
    if not isinstance(op, (Conv, Tiled)) or accepts(node, None, lanes, lanes) is Accepts.ROW_MAJOR:
        return None
    (x, w), y = node.operand_types()[:2], node.output
    if x is None or w is None or not is_static((*x.shape, *y.shape)) or Layout(1, lanes).refuses(y.shape):
        return None
    shape, group = static(y.shape), op.values["group"]
    if isinstance(op, Tiled):
        if op.joined:  # a block of one row is no part of a plane
            return None
        (batch, channels, *spatial), (results, *extents) = static(x.shape), shape[1:]
        filters = op.filters(spatial, static(op.kernel(w.shape)))
        counts = [-(-e // f.results) for e, f in zip(extents, filters, strict=True)]
        products_of = (*(f.products for f in filters), batch, *counts, results)
        chosen, _ = choose(Work.of(products_of, channels, lanes, target, w.rank == 4))
        whole = filters[0].results * chosen.rows, filters[1].results * chosen.columns
        return None if chosen.images > 1 else whole
    if cpu_depthwise.has_lanewise_groups(static(x.shape[1:2])[0], shape[1], group, lanes):
        strides = op.along("strides", y.rank - 2)
        return cpu_tiles.rows(shape, lanes, cpu_depthwise.rows_of(shape[2:], strides, lanes))
    if products.vector_lanes(shape[1], group, lanes) < lanes:
        return None  # groups begin within blocks of channels, so that tiles of groups hold halves of blocks
    depth = prod(static(w.shape[1:]))
    return cpu_tiles.rows(shape, lanes * products.register_tile(shape, group, depth, lanes, Machine.of(target)).vectors)


def copies(node: Node) -> bool:
    """Return whether a kernel of this node copies the first operand before it reads it often, so that elementwise nodes
    may be computed as it does."""
    op, (x, w) = node.op, [*node.operand_types(), None, None][:2]
    if isinstance(op, Tiled):
        return any(op.pads or ())
    if not isinstance(op, Conv) or op.group > 1 or x is None or w is None or not is_static((*x.shape, *w.shape)):
        return False
    return any(s.before or s.after for s in op.spans(static(x.shape[2:]), static(w.shape[2:])))
