"""CPU: convolutions of small groups, above all depthwise ones: there is little to share but what windows overlap.

    out[R pixels] += x[pixel + tap] * w[tap]      a vector of channels, or, where channels are not side by side in
                                                  memory, rows of pixels times one number

Where groups have several channels, whole groups fill a vector, and each lane needs channels of its group only: a vector
of x is shuffled once for each of these. Taps of a row are written out: neighbouring windows then share what is loaded
and shuffled.

A group that fills 32 of 64 bytes is computed in vectors of that size, without shuffles: CPUs begin two of them per
cycle, and shuffles of 64 bytes would take turns with products.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core.dots import Dot
from renorm.core.dtypes import itemsize
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.ops.schedules import cpu_dots, nesting, products, structure, tiles
from renorm.ops.schedules.cpu_tiles import Statistics
from renorm.topi import layout

STRIP = 32 * 1024  # bytes of padded rows; one more strip passes through the cache meanwhile
EDGE = 12  # taps of a row, times channels of a group, up to which tiles at an edge are worth code of their own
UNROLLED = 160  # multiply-adds of one tile beyond which rows of taps are a loop


def is_depthwise(main: te.Tensor) -> bool:
    """Return whether every channel of the result is made of the channel of its own number alone."""
    return (
        main.op.tag == "conv" and products.groups_of(main) == main.shape[1] > 1 and main.op.reduce_axis[0].extent == 1
    )


def is_lanewise(main: te.Tensor, lanes: int) -> bool:
    """Return whether every vector of channels of the result is made of the vector of x at its own place alone."""
    groups = products.groups_of(main)
    return main.op.tag == "conv" and has_lanewise_groups(
        main.op.reduce_axis[0].extent * groups, main.shape[1], groups, lanes
    )


def has_lanewise_groups(inputs: int, outputs: int, groups: int, lanes: int) -> bool:
    """`is_lanewise` of a convolution with so many channels; groups that fill vectors are better off without."""
    per_group = outputs // groups
    return groups > 1 and inputs == outputs and 0 < per_group < lanes and lanes % per_group == 0


def schedule(
    s: te.Schedule,
    main: te.Tensor,
    tail: te.Tensor,
    pads: Sequence[te.Tensor],
    target: Target,
    statistics: Statistics | None = None,
) -> None:
    """Schedules `main`, whose elements are finished in `tail`; pads: what is padded for it, strip by strip;
    statistics: of `tail`, which then lies in blocks of channels."""
    lanes = structure.lanes_of(main, target)
    if layout.is_result(tail):
        strip = _over_channels(s, main, tail, target, lanes, statistics)
    else:
        strip = _over_pixels(s, main, tail, target, lanes)
    for pad in pads:
        s[pad].compute_at(s[tail], strip)
        own, width = list(s[pad].op.axis), max(lanes, target.vector_bytes // itemsize(pad.dtype))
        inner, extent = own[-1], pad.shape[-1]
        if extent < width and len(own) > len(main.shape):  # a block of channels is a part of a vector
            inner, extent = s[pad].fuse(own[-2], inner), extent * pad.shape[-2]
        if extent > width:
            _, inner = s[pad].split(inner, factor=width)
        s[pad].vectorize(inner)


def rows_per_strip(main: te.Tensor, lanes: int, nbytes: int = 4) -> int:
    """Rows of the result that are computed from one strip of padded rows, which stays in the cache. nbytes: of an
    element of these."""
    return rows_of(main.shape[2:], main.op.attrs["strides"], lanes, nbytes)


def rows_of(extents: Sequence[int], strides: Sequence[int], lanes: int, nbytes: int = 4) -> int:
    """`rows_per_strip` of a result of these spatial extents."""
    if len(extents) < 2:
        return 1
    height, width = extents[-2:]
    row = width * strides[-1] * lanes * nbytes
    most = max(4, STRIP // (row * strides[-2]))
    return -(-height // -(-height // most))


def choose_tile(main: te.Tensor, axis: int, registers: int) -> int:
    """Return how many accumulators along a spatial axis (counted from the end) of `main`. Beside each live the vectors
    of x that a later tap reads again, and a few registers are left for weights. Of the tiles that fit, the one with the
    least work: what it computes, beyond the extent too, and about one element more for what surrounds it."""
    extent, step, taps = main.shape[axis], main.op.attrs["strides"][axis], main.op.reduce_axis[axis].extent
    depth, shared = main.op.reduce_axis[0].extent, step if step < taps else 0
    # beyond 16 bytes a shuffle needs its pattern, and shuffled vectors live beside those that they are made of
    patterns = 0 if depth <= 4 else depth
    live = 1 + shared * (2 if patterns else 1)
    most = max(1, min(extent, (registers - 6 - patterns) // live))
    return min(range(most, 0, -1), key=lambda n: -(-extent // n) * (n + 1))


def _over_channels(
    s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target, lanes: int, statistics: Statistics | None
) -> te.IterVar:
    """Vectors of channels; gives the loop over strips."""
    if (dot := cpu_dots.taken(main, target)) is not None:
        return _over_taps(s, main, tail, target, lanes, statistics, dot)
    n, block, *spatial, lane = list(s[tail].op.axis)
    is_half = main.op.reduce_axis[0].extent == tiles.HALF == lanes // 2
    registers = target.vector_registers
    width = (
        tiles.choose_tile(main.shape[-1], 1, Machine.of(target))[0].pixels
        if is_half
        else choose_tile(main, -1, registers)
    )
    row, pixel = s[tail].split(spatial[-1], factor=width)
    strips, rows = _strips(s, tail, spatial, rows_per_strip(main, lanes))
    order = [n, *strips, block]  # threads share rows: a core reads what it wrote itself
    part, lane = s[tail].split(lane, factor=tiles.HALF if is_half else lanes)
    nesting.register_loops(s, tail, [*order, part, *rows, row], [pixel], lane)
    order = _shared(s, main, tail, order, row, lanes, statistics)
    n, channel, *spatial = list(s[main].op.axis)
    depth, *taps = list(s[main].op.reduce_axis)
    if is_half:
        nesting.register_loops(s, main, [n, *spatial[:-1], *taps, depth], [spatial[-1]], channel)
        return order[-1]
    # which channel of a group is a constant, so that a shuffle is
    taps.insert(-1 if taps[-1].extent * depth.extent * width <= 2 * UNROLLED else len(taps), depth)
    nesting.register_loops(s, main, [n, *spatial[:-1], *taps], [spatial[-1]], channel)
    s[main].unroll(depth)
    _unroll(s, main, taps, width)
    return order[-1]


def _over_taps(
    s: te.Schedule,
    main: te.Tensor,
    tail: te.Tensor,
    target: Target,
    lanes: int,
    statistics: Statistics | None,
    dot: Dot,
) -> te.IterVar:
    """Vectors of channels, each lane the sum of neighbours in a row; gives the loop over strips.

    out[R rows] += turned x[row + tap, pixel .. pixel + n] * w[tap]      x [n pixels, channels] is turned once for all
                                                                         rows whose windows it is in
    """
    n, block, *spatial, lane = list(s[tail].op.axis)
    axis = -min(2, len(spatial))
    tile = choose_tile(main, axis, target.vector_registers)
    height = max(1, rows_per_strip(main, lanes, itemsize(dot.data)) // tile) * tile
    strips, rows = _strips(s, tail, spatial, height)
    around, within = s[tail].split([*rows, spatial[-1]][axis], factor=tile)
    loops = [around, spatial[-1]] if rows else [around]
    order = [n, *strips, block]
    nesting.register_loops(s, tail, [*order, *loops], [within], lane)
    order = _shared(s, main, tail, order, loops[-1], lanes, statistics)
    n, channel, *spatial = list(s[main].op.axis)
    depth, *taps = list(s[main].op.reduce_axis)
    tiled = spatial.pop(axis)
    around = [n, *spatial, depth, *taps[:-1]]
    s[main].unroll(cpu_dots.neighbour_loops(s, main, around, taps[-1], [tiled], channel, dot))
    _unroll(s, main, taps[:-1], tile * taps[-1].extent // dot.count)
    return order[-1]


def _shared(
    s: te.Schedule,
    main: te.Tensor,
    tail: te.Tensor,
    order: list[te.IterVar],
    tile: te.IterVar,
    lanes: int,
    statistics: Statistics | None,
) -> list[te.IterVar]:
    """Hands the loops around to threads, and computes sums in registers, tile by tile; gives the loops around."""
    if statistics is not None:
        around = statistics.loops(s, lanes, lanes)
        statistics.share(s, tail, [around.sample, around.group, *around.tiles])
    else:
        order = nesting.share(s, tail, order, prod(tail.shape))
    s[main].set_scope("register")
    s[main].compute_at(s[tail], tile)
    return order


def _strips(
    s: te.Schedule, tail: te.Tensor, spatial: Sequence[te.IterVar], height: int
) -> tuple[list[te.IterVar], list[te.IterVar]]:
    """The loops over strips, and over the rows of one."""
    if len(spatial) == 1:
        return [], []
    strip, row = s[tail].split(spatial[-2], factor=height)
    return [*spatial[:-2], strip], [row]


def _over_pixels(s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target, lanes: int) -> te.IterVar:
    """Vectors of pixels, as many rows as registers hold; gives the loop over strips."""
    accumulator = s.cache_write(main, "register") if tail is main else main
    s[accumulator].set_scope("register")
    n, channel, *spatial = list(s[tail].op.axis)
    chunk, lane = s[tail].split(spatial[-1], factor=min(lanes, tail.shape[-1]))
    height, within = 1, [lane]
    strips, rows = list[te.IterVar](), list[te.IterVar]()
    if len(spatial) > 1:
        # vectors of pixels that lie apart are picked from others, which live meanwhile, as do the patterns
        shuffles = 0 if main.op.attrs["strides"][-1] == 1 else target.vector_registers // 2
        height = choose_tile(main, -2, target.vector_registers - shuffles)
        block, row = s[tail].split(spatial[-2], factor=height)
        strip, block = s[tail].split(block, factor=max(1, rows_per_strip(main, 1) // height))
        strips, rows, within = [*spatial[:-2], strip], [block], [row, lane]
        s[tail].unroll(row)
    order = [n, channel, *strips]
    s[tail].reorder(*order, *rows, chunk, *within)
    s[tail].vectorize(lane)
    order = nesting.share(s, tail, order, prod(tail.shape))
    s[accumulator].compute_at(s[tail], chunk)
    own = list(s[accumulator].op.axis)
    inner = own[-2:] if len(spatial) > 1 else own[-1:]
    outer = [a for a in own if a not in inner]
    # taps of a column stand together: they share the rows that they read
    depth, *taps = list(s[accumulator].op.reduce_axis)
    taps = [depth, *taps[:-2], *reversed(taps[-2:])]
    nesting.register_loops(s, accumulator, [*outer, *taps], inner[:-1], inner[-1])
    s[accumulator].unroll(taps[-1])
    return order[-1]


def _unroll(s: te.Schedule, stage: te.Tensor, taps: Sequence[te.IterVar], pixels: int) -> None:
    """Writes out the taps from the last axis on, as long as a tile stays short."""
    written = pixels
    for axis in reversed(taps):
        written *= axis.extent
        if written > UNROLLED:
            break
        s[stage].unroll(axis)
