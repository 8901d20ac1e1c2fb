"""CPU: one register-blocked kernel for sums of products, out of which convolutions and matrix products are made.

    out[R pixels][N vectors of channels] += x[pixel, k] (one number, spread) * w[k, channels] (a vector), for k in
    the reduction

The R*N accumulators stay in registers over the whole reduction; weights come packed, one block of channels after the
other (topi.layout). Where channels do not fill vectors, the roles change: vectors run over pixels and
weights are spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, cpu_pairs, structure
from renorm.ops.schedules.cpu_tiles import Statistics
from renorm.ops.schedules.prefetches import prefetch_weights
from renorm.ops.schedules.products import (
    blocks_summed,
    depth,
    fills_vectors,
    groups_of,
    is_pointwise,
    register_tile,
    shares_pixels,
    vector_lanes,
)
from renorm.ops.schedules.tiles import choose_tile
from renorm.topi import layout

# Pieces of work that are shared out evenly enough, if more would slow down each
FEW_PIECES = 8


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
    groups = groups_of(main)
    if not fills_vectors(main.shape[channel], groups, lanes):
        if tail is not main:
            s[main].set_scope("register")
        accumulator = s.cache_write(main, "register") if tail is main else main
        _vectors_over_pixels(s, accumulator, tail, target, lanes, channel, main.shape[channel] // groups)
        return
    # A block of results leaves the registers with channels side by side and is turned round in a small buffer, so that
    # the tail reads and writes rows of pixels: storing pixel by pixel would touch a cache line per channel each time.
    summed = blocks_summed(main)
    block = s.cache_write(main, "local") if tail is main else main
    s[block].set_scope("local")
    accumulator = s.cache_write(block, "register")
    _vectors_over_channels(s, accumulator, block, tail, target, lanes, channel, summed)


def _blocks_of_channels(
    s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target, lanes: int, statistics: Statistics | None
) -> None:
    """The result goes out in blocks of channels, so the tile of registers is what memory holds. Where each pixel is
    made of one, a tile need not end where a row does. Threads share blocks of channels, or pixels."""
    n, block, *spatial, lane = list(s[tail].op.axis)
    if statistics is None and is_pointwise(main) and not any(s.open_axes(main)[2:]):
        own, main = main, s.cache_write(main, "register", joined=len(spatial))
        s[own].compute_inline()
        spatial = [cpu_injective.fuse(s, tail, spatial)]
    is_ragged = statistics is None and groups_of(main) == 1
    steps, machine = cpu_pairs.steps(main, target)
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
        pieces = -(-cpu_injective.PIECES // max(1, main.shape[0]))
        piece, whole = s[tail].split(whole, factor=max(2, -(-whole.extent // pieces)))
        order, rounds = [n, piece], [outer, whole, *within]
    cpu_injective.register_loops(s, tail, [*order, *rounds], [vector, pixel], lane)
    if statistics is not None:
        around = statistics.loops(s, tile.vectors * lanes, lanes)
        statistics.share(s, tail, [around.sample, around.group, *around.tiles])
        outer = around.group
    elif rounds:
        order = [*cpu_injective.share(s, tail, order, prod(tail.shape) * depth(tail)), *rounds]
    else:
        order = _share(s, tail, order, main.shape[-1] % tile.pixels > 0)
    s[main].set_scope("register")
    s[main].compute_at(s[tail], order[-1])
    summed = blocks_summed(main)
    n, channel, *spatial = list(s[main].op.axis)
    vector, lane = s[main].split(channel, factor=lanes)
    cpu_pairs.register_loops(s, main, [n, *spatial[:-1]], [spatial[-1], vector], lane, target, summed)
    prefetch_weights(s, main, outer, target, passes=main.shape[0])


def _share(s: te.Schedule, tail: te.Tensor, order: Sequence[te.IterVar], is_ragged: bool) -> list[te.IterVar]:
    """Hands outer loops to threads. The last loop is over tiles; where the last tile is not full and others give pieces
    enough, it stays as it is: it is then cut in two, and no condition stands in the sums of full tiles."""
    *others, tiles = order
    work = prod(tail.shape) * depth(tail)
    if is_ragged and prod(axis.extent or 1 for axis in others) >= FEW_PIECES:
        return [*cpu_injective.share(s, tail, others, work), tiles]
    return cpu_injective.share(s, tail, order, work)


def _vectors(main: te.Tensor, channel: int, lanes: int) -> int:
    """Vectors of channels of the result that are made of the same channels of x."""
    return -(-main.shape[channel] // groups_of(main) // lanes)


def _pixel_axis(tail: te.Tensor, channel: int) -> int | None:
    """The axis that R tiles: rows of a matrix product, the last spatial axis of a convolution; None where there is
    none.
    """
    if channel == len(tail.shape) - 1:
        return channel - 1 if channel else None
    return len(tail.shape) - 1


def _vectors_over_channels(
    s: te.Schedule,
    accumulator: te.Tensor,
    block: te.Tensor,
    tail: te.Tensor,
    target: Target,
    lanes: int,
    channel: int,
    summed: Sequence[int],
) -> None:
    axes = list(s[tail].op.axis)
    pixel = _pixel_axis(tail, channel)
    pixels = tail.shape[pixel] if pixel is not None else 1
    vectors = _vectors(accumulator, channel, lanes)
    is_ragged = channel == len(axes) - 1 and _shares_lines(tail, lanes, target)
    steps, machine = cpu_pairs.steps(accumulator, target)
    tile, _ = choose_tile(pixels, vectors, machine, depth=steps, is_ragged=is_ragged)
    outer, inside = s[tail].split(axes[channel], factor=tile.vectors * lanes)
    rest = [a for i, a in enumerate(axes) if i not in (channel, pixel)]
    order = [*rest[:1], outer, *rest[1:]]
    if pixel is None:
        within = [inside]
    else:
        row, column = s[tail].split(axes[pixel], factor=tile.pixels)
        order.append(row)
        within = [inside, column] if channel < pixel else [column, inside]
    s[tail].reorder(*order, *within)
    # memory runs along the last axis of the tail
    if within[-1] is inside:
        _, lane = s[tail].split(inside, factor=lanes)
        s[tail].vectorize(lane)
    elif tile.pixels > 1:
        s[tail].vectorize(within[-1])
    order = _share(s, tail, order, pixels % tile.pixels > 0)
    for stage in (block, accumulator):
        s[stage].compute_at(s[tail], order[-1])
        own = list(s[stage].op.axis)
        vector, lane = s[stage].split(own[channel], factor=lanes)
        inner = [*([own[pixel]] if pixel is not None else []), vector]
        others = [a for i, a in enumerate(own) if i not in (channel, pixel)]
        if stage is accumulator:
            cpu_pairs.register_loops(s, stage, others, inner, lane, target, summed)
        else:
            cpu_injective.register_loops(s, stage, others, inner, lane)
    prefetch_weights(s, accumulator, outer, target, passes=prod(a.extent for a in rest[:1]))


def _shares_lines(tail: te.Tensor, lanes: int, target: Target) -> bool:
    """Return whether strips of columns share cache lines that have left the core's cache before both are written: then
    wide strips are worth products beyond the last column. 16 to 40 % less time for 750 columns, for 752 it is 1 %
    more."""
    return tail.shape[-1] % lanes > 0 and prod(tail.shape) * itemsize(tail.dtype) > target.cache_bytes


def _vectors_over_pixels(
    s: te.Schedule,
    accumulator: te.Tensor,
    tail: te.Tensor,
    target: Target,
    lanes: int,
    channel: int,
    per_group: int,
) -> None:
    axes = list(s[tail].op.axis)
    pixel = _pixel_axis(tail, channel)
    # rows of channels share the vectors of pixels that they read, if they are of one group
    rows = max(r for r in (1, 2, 3, 4, 6) if per_group % r == 0)
    block, row = s[tail].split(axes[channel], factor=rows)
    rest = [a for i, a in enumerate(axes) if i not in (channel, pixel)]
    order = [*rest[:1], block, *rest[1:]]
    within = [row]
    if pixel is not None:
        extent = tail.shape[pixel]
        chunk, lane = s[tail].split(axes[pixel], factor=_width(extent, lanes))
        order.append(chunk)
        within.append(lane)
    s[tail].reorder(*order, *within)
    s[tail].unroll(row)
    order = cpu_injective.share(s, tail, order, prod(tail.shape) * depth(tail))
    s[accumulator].compute_at(s[tail], order[-1])
    own = list(s[accumulator].op.axis)
    inner = [own[channel], *([own[pixel]] if pixel is not None else [])]
    s[accumulator].reorder(*[a for a in own if a not in inner], *s[accumulator].op.reduce_axis, *inner)
    s[accumulator].unroll(inner[0])
    if pixel is not None:
        s[tail].vectorize(within[-1])
        s[accumulator].vectorize(inner[-1])


def _width(pixels: int, lanes: int) -> int:
    """Pixels of one vector: two registers full where that wastes no more than one. Ragged vectors fall apart."""
    wasteful = -(-pixels // (2 * lanes)) * 2 > -(-pixels // lanes)
    return lanes if pixels < 2 * lanes or wasteful else 2 * lanes
