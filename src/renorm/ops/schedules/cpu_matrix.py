"""CPU: sums of products of bfloat16, or of bytes, by a matrix unit, whose registers hold tiles of accumulators.

    for each panel of channels, each tile of pixels
      tile[pixels][channels] = 0
      for each block of what is summed: tile += x[pixels][block] * w[block][channels]    one instruction for 16 x 16
      rows = tile                                                                        in the first-level cache
      result = ... of rows                                                               vectors of channels

Weights lie in panels: for n neighbours of what is summed over, pairs or quads, all channels of the panel, n and n.
Padding is a copy, since all rows of a register are multiplied alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from renorm import te
from renorm.core.dots import Dot
from renorm.core.dtypes import itemsize
from renorm.core.machine import Machine, MatrixUnit
from renorm.core.target import Target
from renorm.ops.schedules import dot_weights, nesting, products, structure
from renorm.ops.schedules.dot_weights import terms_at_once
from renorm.ops.schedules.prefetches import prefetch_panels
from renorm.ops.schedules.tiles import parts
from renorm.te.tensor import source_of
from renorm.topi import layout
from renorm.topi.layout import Blocking

STRIPS, ROWS = 8, 8  # of a plane for threads to share, and of one strip, beside which a border of padding is little


def takes(main: te.Tensor, target: Target) -> bool:
    """Return whether a sum of products runs on the matrix unit: of weights in panels and of data that memory holds as
    the unit reads it, over which no condition stands."""
    unit = Machine.of(target).matrix
    found = dot_weights.factors(main) if unit is not None else None
    if unit is None or found is None or found[2] not in unit.dots or not dot_weights.lies_in_panels(found[1]):
        return False
    return dot_weights.held_dtype(found[0]) == found[2].data and structure.condition(main) is None


def schedule(s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target) -> te.IterVar | None:
    """Schedules a sum that the unit `takes`, whose elements are finished in `tail`: main itself, or an elementwise
    stage after it. Gives the loop over strips of pixels, where all channels of one are computed together."""
    found = dot_weights.factors(main)
    assert found is not None
    _, weights, dot = found
    width = weights.cuts[1][1]
    is_matmul = main.op.tag == "matmul"
    channel = len(main.shape) - 1 if is_matmul else 1
    pixels = list(range(channel))[-1:] if is_matmul else list(range(2, len(main.shape)))
    axes, is_blocked = list(s[tail].op.axis), layout.is_result(tail)
    if is_blocked and products.is_pointwise(main) and _is_plane(main):  # a tile need not end where a row does
        whole, main = main, s.cache_write(main, "local", joined=len(pixels))
        s[whole].compute_inline()
        axes[2:-1] = [s[tail].fuse(*axes[2:-1])]
        pixels = [2]
    elif tail is main:
        main = s.cache_write(main, "local")
    s[main].set_scope("local")
    accumulators = s.cache_write(main, "tile")
    height, length = choose([main.shape[i] for i in pixels], width, target)

    # the result: panels, tiles of pixels
    vector, within = axes[-1], list[te.IterVar]()
    if not is_blocked:
        panel, vector = s[tail].split(axes[channel], factor=width)
    elif tail.shape[-1] > width:  # a block is all channels
        panel, vector = s[tail].split(vector, factor=width)
        s[tail].reorder(*axes[:2], panel, *axes[2:-1], vector)
        panel = s[tail].fuse(axes[1], panel)
    elif (panel := axes[1]) and tail.shape[-1] < width:
        panel, block = s[tail].split(panel, factor=width // tail.shape[-1])
        within.append(block)
    around = {i: a for i, a in enumerate(axes[: len(main.shape)]) if i != channel}
    inside = list[te.IterVar]()
    for i, n in zip(pixels[-2:], (height, length)[-len(pixels[-2:]) :]):
        around[i], inner = s[tail].split(around[i], factor=n)
        inside.append(inner)
    images = [] if is_matmul else [around.pop(0)]
    order, rounds = [*images, panel, *around.values()], list[te.IterVar]()
    if images and products.shares_pixels(accumulators, target, itemsize(dot.weight)):
        whole, *others = around.values()
        pieces = -(-(STRIPS if others else nesting.PIECES) // max(1, main.shape[0]))
        piece, whole = s[tail].split(whole, factor=max(2, min(ROWS // height, -(-whole.extent // pieces))))
        order, rounds = [*images, piece], [panel, whole, *others]
    lies_in_rows = is_blocked or is_matmul
    s[tail].reorder(*order, *rounds, *within, *([*inside, vector] if lies_in_rows else [vector, *inside]))
    s[tail].vectorize(vector if lies_in_rows or not inside else inside[-1])
    work = structure.work(accumulators)
    around_tiles = [*nesting.share(s, tail, order, work), *rounds]

    s[main].compute_at(s[tail], around_tiles[-1])
    s[accumulators].compute_at(s[tail], around_tiles[-1])
    tensorize(s, main, accumulators, weights, dot, pixels[-2:], channel, target)
    prefetch_panels(s, accumulators, panel, target)
    return around_tiles[-len(rounds) - 1] if rounds else None


def _is_plane(main: te.Tensor) -> bool:
    """Return whether rows of the data follow one another in memory."""
    held = [layout.source(source_of(x)) for x in structure.reads(main)]
    return all(t.op.tag != "pad" and structure.in_memory(t) >= len(main.shape) - 1 for t in held)


def tensorize(
    s: te.Schedule,
    copy: te.Tensor,
    sums: te.Tensor,
    weights: Blocking,
    dot: Dot,
    pixels: Sequence[int],
    channel: int,
    target: Target,
) -> list[te.IterVar]:
    """Makes instructions of the loops over a tile: of the sums, and of the copy out of the unit. pixels, channel: axes
    that tiles have. Gives the loops of the copy around tiles."""
    outside, unit = list[te.IterVar](), Machine.of(target).matrix
    assert unit is not None
    for t in (copy, sums):
        own = list(s[t].op.axis)
        tile = [own[i] for i in pixels] + [own[channel]]
        loops = [a for a in own if a not in tile]
        if t is copy:
            outside = loops
        else:
            sums_of, inner = _sums(s, t, dot.count * weights.cuts[0][1], unit, dot)
            loops, tile = [*loops, *sums_of], [*tile, *s[t].split(inner, factor=dot.count)]
        s[t].reorder(*loops, *tile)
        s[t].tensorize(tile[0])
    return outside


def _sums(s: te.Schedule, t: te.Tensor, block: int, unit: MatrixUnit, dot: Dot) -> tuple[list[te.IterVar], te.IterVar]:
    """The loops of a sum, outermost first, and that over the terms of one instruction. Taps of a row and channels are
    one loop where they lie side by side and fill an instruction better. block: channels side by side in weights."""
    channels, *taps = list(s[t].op.reduce_axis)  # channels come first in each sum
    row, depth = taps[-1].extent if taps else 1, terms_at_once(block, unit, dot)
    lie_together = t.op.tag == "conv" and channels.extent == block and t.op.attrs["dilations"][-1] == 1
    if lie_together and row > 1 and terms_at_once(block * row, unit, dot) > depth:
        s[t].reorder(*taps, channels)
        *taps, channels = *taps[:-1], s[t].fuse(taps[-1], channels)
        rounds, inner = s[t].split(channels, factor=terms_at_once(block * row, unit, dot))
        return [*taps, rounds], inner
    outer, inner = s[t].split(channels, factor=block)
    if depth < block:
        rounds, inner = s[t].split(inner, factor=depth)
        return [outer, *taps, rounds], inner
    return [outer, *taps], inner


def choose(extents: Sequence[int], width: int, target: Target) -> tuple[int, int]:
    """Return of how many rows of a plane, and how many pixels of each, a tile is: what takes the fewest cycles for all.
    extents: of the plane; width: channels of a panel."""
    unit, plane = Machine.of(target).matrix, (1, *extents)[-2:]
    assert unit is not None
    best, least = (1, 1), inf
    for height in range(1, min(plane[0], unit.side) + 1):
        for length in range(1, min(plane[1], unit.rows * (unit.side if height == 1 else 1)) + 1):
            cycles = sum(
                a * b * unit.step(unit.registers(rows, pixels), -(-width // unit.columns))
                for a, rows in parts(plane[0], height)
                for b, pixels in parts(plane[1], length)
            )
            if cycles < least:
                best, least = (height, length), cycles
    return best
