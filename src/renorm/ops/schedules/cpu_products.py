"""CPU: one register-blocked kernel for sums of products, out of which convolutions and matrix products are made.

    out[R pixels][N vectors of channels] += x[pixel, k] (one number, spread) * w[k, channels] (a vector), for k in
    the reduction

The R*N accumulators stay in registers over the whole reduction; weights come packed, one block of channels after the
other (topi.layout). Where channels do not fill vectors, the roles change: vectors run over pixels and
weights are spread.
"""

from __future__ import annotations

from math import prod

from renorm import te
from renorm.core.target import Target
from renorm.ops.schedules import cpu_dots, cpu_rows, nesting, structure
from renorm.ops.schedules.cpu_tiles import Statistics
from renorm.ops.schedules.prefetches import prefetch_pixels, prefetch_weights
from renorm.ops.schedules.products import (
    blocks_summed,
    depth,
    fills_vectors,
    groups_of,
    is_pointwise,
    register_tile,
    shares_columns,
    shares_pixels,
    vector_lanes,
)
from renorm.topi import layout

# Pixels that a thread takes at a time, at least: for each piece all weights come anew from their cache. 152 channels of
# 14 x 14, AVX2, Emerald Rapids: with 10 pixels 0.91 of the time with 4
LEAST = 12


def product(
    s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target, statistics: Statistics | None = None
) -> None:
    """Schedules the sum of products `main`, whose elements are finished in `tail` (main itself, or an elementwise
    stage after it). statistics: of `tail`, which then lies in blocks of channels.
    """
    lanes = structure.lanes_of(main, target)
    channel = 1 if main.op.tag != "matmul" else len(main.shape) - 1
    if layout.is_result(tail):
        _blocks_of_channels(s, main, tail, target, lanes, statistics)
        return
    if not fills_vectors(main.shape[channel], groups_of(main), lanes):
        cpu_rows.vectors_over_pixels(s, main, tail, target, lanes, channel)
    else:
        cpu_rows.vectors_over_channels(s, main, tail, target, lanes, channel, _joined(s, main))


def _joined(s: te.Schedule, main: te.Tensor) -> int:
    """Return how many spatial axes, or axes of rows, are one to a tile of registers, which then need not end where a
    row does: all, where each pixel is made of one, and where few rows of each matrix are multiplied by the same one."""
    if main.op.tag == "matmul":
        return len(main.shape) - 1 if shares_columns(main) and not any(s.open_axes(main)[1:]) else 1
    return len(main.shape) - 2 if is_pointwise(main) and not any(s.open_axes(main)[2:]) else 1


def _blocks_of_channels(
    s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target, lanes: int, statistics: Statistics | None
) -> None:
    """The result goes out in blocks of channels, so the tile of registers is what memory holds. Threads share blocks of
    channels, or pixels."""
    n, block, *spatial, lane = list(s[tail].op.axis)
    if statistics is None and _joined(s, main) > 1:
        own, main = main, s.cache_write(main, "register", joined=len(spatial))
        s[own].compute_inline()
        spatial = [s[tail].fuse(*spatial)]
    is_ragged = statistics is None and groups_of(main) == 1
    steps, machine = cpu_dots.steps(main, target)
    tile = register_tile(main.shape, groups_of(main), steps, lanes, machine, is_ragged)
    width = vector_lanes(main.shape[1], groups_of(main), lanes)
    if width < tail.shape[-1]:
        half, lane = s[tail].split(lane, factor=width)
        s[tail].reorder(n, block, half, *spatial, lane)
        block, lanes = s[tail].fuse(block, half), width
    outer, vector = s[tail].split(block, factor=tile.vectors)
    row, pixel = s[tail].split(spatial[-1], factor=tile.pixels)
    order, rounds = [n, outer, *spatial[:-1], row], []
    if statistics is None and shares_pixels(main, target):
        whole, *within = order[2:]
        pieces = -(-nesting.PIECES // max(1, main.shape[0]))
        piece, whole = s[tail].split(whole, factor=max(2, -(-LEAST // tile.pixels), -(-whole.extent // pieces)))
        order, rounds = [n, piece], [outer, whole, *within]
    nesting.register_loops(s, tail, [*order, *rounds], [vector, pixel], lane)
    if statistics is not None:
        around = statistics.loops(s, tile.vectors * lanes, lanes)
        statistics.share(s, tail, [around.sample, around.group, *around.tiles])
        outer = around.group
    elif rounds:
        order = [*nesting.share(s, tail, order, prod(tail.shape) * depth(tail)), *rounds]
    else:
        order = cpu_rows.share(s, tail, order, main.shape[-1] % tile.pixels > 0)
    s[main].set_scope("register")
    s[main].compute_at(s[tail], order[-1])
    summed = blocks_summed(main)
    n, channel, *spatial = list(s[main].op.axis)
    vector, lane = s[main].split(channel, factor=lanes)
    cpu_dots.register_loops(s, main, [n, *spatial[:-1]], [spatial[-1], vector], lane, target, summed)
    prefetch_weights(s, main, outer, target, passes=main.shape[0])
    if summed[0] == 1:
        prefetch_pixels(s, main, rounds[-1] if rounds else row, tile.pixels, target)
