"""CPU: Winograd convolutions by blocks of tiles: what passes between transforms and products stays in the cache.

    for each block of tiles                      for each block of tiles, of each image (threads share them)
      transformed = B^T d B of the block           transformed = B^T d B
      for each few vectors of result channels    for each few vectors of result channels (threads share them)
        products = transformed x weights           for each block of tiles
        results = A^T products A                     products, results

On the left threads share blocks, and each block reads all weights: right for many tiles. On the right threads share
result channels, so that weights are read once, however large they are, and what is transformed lies in memory: right
for few tiles. The products run in the inner kernel of cpu_products: R tiles of one row by N vectors of channels in
registers. Transforms run over vectors of channels, one row or column of a tile at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, cpu_tiles, layout, structure
from renorm.ops.schedules.cpu_tiles import Statistics
from renorm.ops.schedules.tiles import Tile, choose_tile

STAGES = ("pad", "winograd_rows", "winograd_input", "winograd_products", "winograd_sums")

# Floating operations that a core could have done while it waits for one byte from beyond its second-level cache:
# weights, which it reads from their beginning to their end, from the cache that cores share or, where they are NEAR
# times as large as its own, from memory; and transformed data, of which it picks pieces.
WAIT, WAIT_MEMORY, WAIT_PIECES = 0.7, 2.3, 7.0
NEAR = 8
WEIGHT = 3.0  # what a vector of weights costs beside a number that is spread: a block of tiles uses it a few times


@dataclass(frozen=True)
class Blocks:
    """register: the tile of the products. down, across: Winograd tiles of one block. by_channels: whether threads share
    result channels instead of blocks."""

    register: Tile
    down: int
    across: int
    by_channels: bool


def choose_blocks(shape: Sequence[int], channels: int, lanes: int, target: Target) -> Blocks:
    """The blocks of least estimated cost for products of `shape` (n, n, batch, rows of tiles, tiles of a row, result
    channels), summed over `channels`."""
    planes, (batch, down, across, k) = shape[0] * shape[1], shape[2:]
    register = choose_tile(across, -(-k // lanes), target.vector_registers, WEIGHT)
    groups = -(-k // (register.vectors * lanes))
    per_tile, per_product = 4 * planes * channels, 4 * planes * register.vectors * lanes  # bytes
    weights = 4 * planes * channels * k
    cache = target.cache_bytes
    best, least = Blocks(register, 1, register.pixels, False), float("inf")
    for by_channels, rows in product((False, True), range(1, down + 1)):
        tiles = rows * register.pixels
        kept = tiles * (per_product + (0 if by_channels else per_tile))
        if rows > 1 and kept > cache // 2:
            continue
        pieces = batch * -(-down // rows) * -(-across // register.pixels)
        cost = 1.0
        if by_channels:
            beyond = max(0.0, 1 - cache / (batch * down * across * per_tile))  # of what is transformed
            cost += 8 * WAIT_MEMORY / (2 * k)  # stored once and loaded once by another core
            cost += 4 * WAIT_PIECES * beyond / (2 * register.vectors * lanes)
            streamed = weights / groups > cache // 2
            pieces *= groups
        else:
            streamed = weights + kept > cache * 3 // 4
        wait = WAIT_MEMORY if weights > NEAR * cache else WAIT
        cost += 4 * (wait if streamed else 0.25 * WAIT) / (2 * tiles)
        cost = cost * (-(-down // rows) * rows / down) + 1 / pieces
        if cost < least:
            best, least = Blocks(register, rows, register.pixels, by_channels), cost
    return best


def transforms(outs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """The stages of a Winograd convolution that are computed before others read them."""
    return [t for t in structure.stages(outs) if t.op.tag in STAGES]


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """A Winograd convolution with elementwise stages behind it, and statistics of the result."""
    outs, statistics = cpu_tiles.split(outs)
    kept = transforms(outs)
    if statistics is not None and (len(outs) != 1 or not layout.is_result(outs[0])):
        statistics.nest(s, target)
        statistics = None
    if len(outs) != 1 or 0 in outs[0].shape:
        cpu_injective.inline(s, outs, keep=kept)
        for t in (*kept, *outs):
            cpu_injective.nest(s, t, target)
        return
    tagged = {t.op.tag: t for t in structure.stages(outs)}
    out, data, y = outs[0], tagged.get("pad"), tagged["winograd"]
    rows, transformed, products, sums = (tagged[tag] for tag in STAGES[1:])
    lanes = target.lanes(itemsize(products.dtype))
    blocks = choose_blocks(products.shape, transformed.shape[-1], lanes, target)
    cpu_injective.inline(s, outs, keep=[*kept, y])
    accumulator = s.cache_write(products, "register")
    place = _results(s, out, y, sums, blocks, lanes, statistics)
    host = out if statistics is None else statistics.out
    _products(s, products, accumulator, (host, place[-1]), blocks, lanes)
    block = _transform(s, transformed, None if blocks.by_channels else (host, place[0]), blocks, lanes)
    _rows(s, rows, data, transformed, *block)


def _results(
    s: te.Schedule,
    out: te.Tensor,
    y: te.Tensor,
    sums: te.Tensor,
    blocks: Blocks,
    lanes: int,
    statistics: Statistics | None,
) -> list[te.IterVar]:
    """The loops over results; gives those around a block of products, of which the first is shared by threads."""
    tile = int(y.op.attrs["tile"])
    is_blocked = len(out.shape) > len(y.shape)
    finish = out
    if is_blocked:
        if y is not out:
            s[y].compute_inline()
    else:
        finish = s.cache_write(y, "local") if y is out else y
    n, channel, h, w = list(s[out].op.axis)[:4]
    group = s[out].split(channel, factor=blocks.register.vectors * (1 if is_blocked else lanes))
    rows = s[out].split(h, factor=tile * blocks.down)
    columns = s[out].split(w, factor=tile * blocks.across)
    outer = [n, rows[0], columns[0]]
    outer = [group[0], *outer] if blocks.by_channels else [*outer, group[0]]
    if is_blocked:
        place = _finish(s, out, outer, (rows[1], columns[1], group[1], out.op.axis[4]), tile)
    else:
        row, inside = s[out].split(rows[1], factor=tile)
        s[out].reorder(*outer, row, group[1], inside, columns[1])
        s[out].vectorize(columns[1])
        s[finish].compute_at(s[out], row)
        s[finish].set_scope("local")
        n, channel, h, w = s[finish].op.axis
        place = _finish(s, finish, [n], (h, w, *s[finish].split(channel, factor=lanes)), tile)
    host = out
    if statistics is not None:  # a block of results is a tile of them
        host, loops = statistics.out, statistics.loops(s, blocks.register.vectors * lanes, lanes)
        outer = [loops.sample, *loops.tiles]
        outer = [loops.group, *outer] if blocks.by_channels else [*outer, loops.group]
        statistics.order(s, outer)
    if blocks.by_channels:
        outer = cpu_injective.share(s, host, outer)
    else:
        shared = cpu_injective.fuse(s, host, outer[:-1])
        s[host].parallel(shared)
        outer = [shared, outer[-1]]
    if host is not out:
        s[out].compute_at(s[host], outer[-1])
    s[sums].compute_at(s[finish], place)
    s[sums].set_scope("local")
    i, j, n, p, q, k = s[sums].op.axis
    s[sums].reorder(n, p, q, j, i, k)
    s[sums].unroll(i)
    s[sums].vectorize(k)
    return outer


def _finish(
    s: te.Schedule, t: te.Tensor, outer: Sequence[te.IterVar], inside: Sequence[te.IterVar], tile: int
) -> te.IterVar:
    """Results of one tile and one vector of channels at a time; the loop around that."""
    h, w, vector, lane = inside
    p, i = s[t].split(h, factor=tile)
    q, j = s[t].split(w, factor=tile)
    s[t].reorder(*outer, p, q, vector, i, j, lane)
    s[t].unroll(j)
    s[t].vectorize(lane)
    return vector


def _products(
    s: te.Schedule,
    products: te.Tensor,
    accumulator: te.Tensor,
    place: tuple[te.Tensor, te.IterVar],
    blocks: Blocks,
    lanes: int,
) -> None:
    s[products].compute_at(s[place[0]], place[1])
    s[products].set_scope("local")
    i, j, n, p, q, k = s[products].op.axis
    chunk, q = s[products].split(q, factor=blocks.register.pixels)
    s[products].reorder(i, j, n, p, chunk, q, k)
    s[accumulator].compute_at(s[products], chunk)
    for t, pixel in ((products, q), (accumulator, s[accumulator].op.axis[4])):
        *_, k = s[t].op.axis
        vector, lane = s[t].split(k, factor=lanes)
        if t is accumulator:
            s[t].reorder(*s[t].op.reduce_axis, pixel, vector, lane)
        s[t].unroll(pixel)
        s[t].unroll(vector)
        s[t].vectorize(lane)


def _transform(
    s: te.Schedule, t: te.Tensor, place: tuple[te.Tensor, te.IterVar] | None, blocks: Blocks, lanes: int
) -> tuple[te.IterVar, te.IterVar]:
    """Gives the loop over vectors of channels of a block, and the innermost one over tiles."""
    n, p, i, j, q, channel = s[t].op.axis
    vector, lane = s[t].split(channel, factor=lanes)
    if place is None:
        row, p = s[t].split(p, factor=blocks.down)
        s[t].reorder(n, row, vector, p, q, i, j, lane)
        vector = cpu_injective.fuse(s, t, [n, row, vector])
        s[t].parallel(vector)
    else:
        s[t].reorder(n, vector, p, q, i, j, lane)
        s[t].compute_at(s[place[0]], place[1])
        s[t].set_scope("local")
    s[t].unroll(j)
    s[t].vectorize(lane)
    return vector, q


def _rows(
    s: te.Schedule,
    rows: te.Tensor,
    data: te.Tensor | None,
    transformed: te.Tensor,
    vector: te.IterVar,
    tile: te.IterVar,
) -> None:
    """The first half of the transform, tile by tile, and the padded elements that a block reads, copied before: tiles
    overlap, so that each is read twice and more."""
    s[rows].compute_at(s[transformed], tile)
    s[rows].set_scope("local")
    i, n, p, q, j, c = s[rows].op.axis
    s[rows].reorder(n, p, q, j, i, c)
    s[rows].unroll(i)
    s[rows].vectorize(c)
    if data is not None:
        s[data].compute_at(s[transformed], vector)
        s[data].set_scope("local")
        axes = list(s[data].op.axis)
        n, c, h, w = axes[:4]
        s[data].reorder(n, *([c] if len(axes) > 4 else []), h, w, axes[4] if len(axes) > 4 else c)
        s[data].vectorize(axes[4] if len(axes) > 4 else c)
