"""CPU: sums of products whose results lie in rows of pixels, out of tiles of registers.

    vectors over channels   for each tile of R pixels, N vectors of channels
                              out[pixel][channel] in registers, over the whole sum
                              turned round in a small buffer, and written: a row of R pixels for each channel
    vectors over pixels     where channels do not fill vectors: weights are spread, and rows are written as they are

Storing pixel by pixel would touch a line of the cache per channel each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.target import Target
from renorm.ops.schedules import cpu_dots, cpu_packing, nesting
from renorm.ops.schedules.prefetches import STREAMS, prefetch_pixels, prefetch_weights
from renorm.ops.schedules.products import blocks_summed, chooses_weights, depth, groups_of
from renorm.ops.schedules.tiles import choose_tile

# Pieces of work that are shared out evenly enough, if more would slow down each
FEW_PIECES = 8


def vectors_over_channels(
    s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target, lanes: int, channel: int, joined: int
) -> None:
    """Schedule `main`, which `tail` finishes, or is. joined: how many spatial axes, or axes of rows ahead of channels,
    are one to a tile."""
    summed, block, ahead = blocks_summed(main), main, int(main.op.tag == "matmul")
    if joined > 1 or tail is main:
        block = s.cache_write(main, "local", joined=joined, ahead=ahead)
        if tail is not main:
            s[main].compute_inline()
    s[block].set_scope("local")
    accumulator = s.cache_write(block, "register")
    axes = list(s[tail].op.axis)
    if len(axes) > len(accumulator.shape):
        end = len(axes) - ahead
        axes[end - joined : end] = [s[tail].fuse(*axes[end - joined : end])]
        channel = len(axes) - 1 if ahead else channel
    pixel = _pixel_axis(accumulator, channel)
    pixels = accumulator.shape[pixel] if pixel is not None else 1
    vectors = _vectors(accumulator, channel, lanes)
    is_turned = channel < len(axes) - 1
    is_ragged = not is_turned and _shares_lines(tail, lanes, target)
    steps, machine = cpu_dots.steps(accumulator, target)
    most = _vectors_followed(tail, lanes, target) if is_turned else None
    tile, _ = choose_tile(pixels, vectors, machine, depth=steps, most=most, is_ragged=is_ragged)
    outer, inside = s[tail].split(axes[channel], factor=tile.vectors * lanes)
    rest = [a for i, a in enumerate(axes) if i not in (channel, pixel)]
    # matrices that data choose are likely those of the one before: a panel of them is in the cache, a whole one is not
    order, row = [outer, *rest] if chooses_weights(main) else [*rest[:1], outer, *rest[1:]], None
    if pixel is None:
        within = [inside]
    else:
        row, column = s[tail].split(axes[pixel], factor=tile.pixels)
        order.append(row)
        within = [inside, column] if is_turned else [column, inside]
    s[tail].reorder(*order, *within)
    # memory runs along the last axis of the tail
    if within[-1] is inside:
        _, lane = s[tail].split(inside, factor=lanes)
        s[tail].vectorize(lane)
    elif tile.pixels > 1:
        s[tail].vectorize(within[-1])
    order = share(s, tail, order, pixels % tile.pixels > 0)
    is_alone = main.op.tag == "matmul" and order[0] is outer
    is_packed = is_alone and cpu_packing.place(s, main, tail, outer, tile.vectors * lanes)
    for stage in (block, accumulator):
        s[stage].compute_at(s[tail], order[-1])
        own = list(s[stage].op.axis)
        vector, lane = s[stage].split(own[channel], factor=lanes)
        inner = [*([own[pixel]] if pixel is not None else []), vector]
        others = [a for i, a in enumerate(own) if i not in (channel, pixel)]
        if stage is accumulator:
            cpu_dots.register_loops(s, stage, others, inner, lane, target, summed)
        else:
            nesting.register_loops(s, stage, others, inner, lane)
    if not is_packed:
        prefetch_weights(s, accumulator, outer, target, passes=prod(a.extent for a in rest[:1]))
    if row is not None and is_turned and summed[0] == 1:
        prefetch_pixels(s, accumulator, row, tile.pixels, target)


def vectors_over_pixels(
    s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target, lanes: int, channel: int
) -> None:
    """Schedule `main`, which `tail` finishes, or is."""
    if tail is not main:
        s[main].set_scope("register")
    accumulator = s.cache_write(main, "register") if tail is main else main
    per_group = main.shape[channel] // groups_of(main)
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
    order = nesting.share(s, tail, order, prod(tail.shape) * depth(tail))
    s[accumulator].compute_at(s[tail], order[-1])
    own = list(s[accumulator].op.axis)
    inner = [own[channel], *([own[pixel]] if pixel is not None else [])]
    s[accumulator].reorder(*[a for a in own if a not in inner], *s[accumulator].op.reduce_axis, *inner)
    s[accumulator].unroll(inner[0])
    if pixel is not None:
        s[tail].vectorize(within[-1])
        s[accumulator].vectorize(inner[-1])


def share(s: te.Schedule, tail: te.Tensor, order: Sequence[te.IterVar], is_ragged: bool) -> list[te.IterVar]:
    """Hand outer loops to threads, and return those that are left. The last one is over tiles; where the last tile is
    not full and others give pieces enough, it stays as it is: it is then cut in two, and no condition stands in the
    sums of full tiles."""
    *others, tiles = order
    work = prod(tail.shape) * depth(tail)
    if is_ragged and prod(axis.extent or 1 for axis in others) >= FEW_PIECES:
        return [*nesting.share(s, tail, others, work), tiles]
    return nesting.share(s, tail, order, work)


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


def _vectors_followed(tail: te.Tensor, lanes: int, target: Target) -> int | None:
    """Return how many vectors of channels a tile may have: each channel is written to a row of its own, and one that a
    core does not follow comes late where it has left its cache. None where it has not. 256 channels of 40 x 40, 128
    summed, one thread of Sapphire Rapids: four vectors took 1.3 to 2.0 of the time of two."""
    stays = prod(tail.shape) * itemsize(tail.dtype) <= target.cache_bytes // 2
    return None if stays else max(1, STREAMS // lanes)


def _shares_lines(tail: te.Tensor, lanes: int, target: Target) -> bool:
    """Return whether strips of columns share cache lines that have left the core's cache before both are written: then
    wide strips are worth products beyond the last column. 16 to 40 % less time for 750 columns, for 752 it is 1 %
    more."""
    return tail.shape[-1] % lanes > 0 and prod(tail.shape) * itemsize(tail.dtype) > target.cache_bytes


def _width(pixels: int, lanes: int) -> int:
    """Pixels of one vector: two registers full where that wastes no more than one. Ragged vectors fall apart."""
    wasteful = -(-pixels // (2 * lanes)) * 2 > -(-pixels // lanes)
    return lanes if pixels < 2 * lanes or wasteful else 2 * lanes
