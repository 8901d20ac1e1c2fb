"""CPU: Winograd convolutions by blocks of tiles: what passes between transforms and products stays in the cache.

    for each block of tiles (threads share them)     transformed = B^T d B (threads share blocks of channels)
      transformed = B^T d B of the block             for each few vectors of result channels (threads share them)
      for each few vectors of result channels          weights = G w G^T of these, where they do not come transformed
        products = transformed x weights               for each block of tiles
        results = A^T products A                         products, results

Tiles of open planes are one row where kernels transform weights (ops.shared.winograd): a block has some of them.

On the left threads share blocks, and each block reads all weights: right for many tiles. On the right threads share
result channels, so that weights are read once, however large they are, and what is transformed lies in memory: right
for few tiles. Weights that are transformed here are those of one thread, in its cache: what one core writes and another
one reads costs more than the transform. The products run in an inner kernel of R tiles by N vectors of channels in
registers (winograd_blocks). Transforms run over vectors of channels, one row or column of a tile at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, cpu_tiles, nesting, structure
from renorm.ops.schedules.cpu_tiles import Statistics
from renorm.ops.schedules.prefetches import prefetch_shared, prefetch_weights
from renorm.ops.schedules.winograd_blocks import Blocks, Work, choose
from renorm.ops.schedules.winograd_registers import Register
from renorm.ops.shared.winograd import BLOCK
from renorm.topi import layout

STAGES = ("pad", *(f"winograd_{t}" for t in ("rows", "input", "weight_rows", "weights", "products", "sums")))

if TYPE_CHECKING:  # the names of te are loaded when a schedule is made
    Place = tuple[te.Tensor, te.IterVar]


def transforms(outs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """The stages of a Winograd convolution that are computed before others read them."""
    return [t for t in structure.stages(outs) if t.op.tag in STAGES]


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """A Winograd convolution with elementwise stages after it, and statistics of the result."""
    outs, statistics = cpu_tiles.split(outs)
    kept = transforms(outs)
    if statistics is not None and (len(outs) != 1 or not layout.is_result(outs[0])):
        statistics.nest(s, target)
        statistics = None
    if len(outs) != 1 or 0 in outs[0].shape:
        nesting.inline(s, outs, keep=kept)
        for t in (*kept, *outs):
            cpu_injective.nest(s, t, target)
        return
    tagged = {t.op.tag.removeprefix("winograd_"): t for t in structure.stages(outs)}
    (out,), y, products = outs, tagged["winograd"], tagged["products"]
    lanes = target.lanes(itemsize(products.dtype))
    channels = products.op.reduce_axis[0].extent
    joined = y.op.attrs["joined"]
    work = Work.of(products.shape, channels, lanes, target, "weights" in tagged, s.open_axes(products), joined or 1)
    blocks, _ = choose(work)
    nesting.inline(s, outs, keep=[*kept, y])
    place = _results(s, out, y, tagged["sums"], blocks, lanes, "weights" in tagged, statistics)
    host = out if statistics is None else statistics.out
    sums, matrix = _products(s, products, (host, place[-1]), blocks.register, lanes)
    if "weights" in tagged:
        prefetch_weights(s, sums, place[0], target, reader=tagged["weight_rows"])
        _weights(s, tagged["weight_rows"], tagged["weights"], (host, place[0]), lanes)
    else:
        tiles = prod(products.shape[2:5])
        passes = 1 if blocks.by_channels else -(-tiles // (blocks.images * blocks.rows * blocks.columns))
        prefetch_weights(s, sums, matrix, target, passes)
    if blocks.by_channels:
        prefetch_shared(s, sums, tagged["input"], matrix, target)
    block = _transform(s, tagged["input"], None if blocks.by_channels else (host, place[0]), lanes)
    _rows(s, tagged["rows"], tagged.get("pad"), tagged["input"], *block, lanes)


def _results(
    s: te.Schedule,
    out: te.Tensor,
    y: te.Tensor,
    sums: te.Tensor,
    blocks: Blocks,
    lanes: int,
    transforms_weights: bool,
    statistics: Statistics | None,
) -> list[te.IterVar]:
    """The loops over results; gives those around a block of products, of which the first is shared by threads."""
    tile = y.op.attrs["tile"]
    is_blocked = len(out.shape) > len(y.shape)
    finish = out
    if is_blocked:
        if y is not out:
            s[y].compute_inline()
    else:
        finish = s.cache_write(y, "local") if y is out else y
    n, channel, h, w = list(s[out].op.axis)[:4]
    group = s[out].split(channel, factor=blocks.register.vectors * (1 if is_blocked else lanes))
    images = s[out].split(n, factor=blocks.images)
    if y.op.attrs["joined"]:
        (p, i), (q, j) = (s[out].split(axis, factor=size) for axis, size in zip((h, w), tile, strict=True))
        s[out].reorder(p, q, i, j)
        numbers = s[out].split(s[out].fuse(p, q), factor=blocks.columns)
        outer, around, within = [images[0], numbers[0]], [numbers[1]], [i, j]
    else:
        rows = s[out].split(h, factor=tile[0] * blocks.rows)
        columns = s[out].split(w, factor=tile[1] * blocks.columns)
        p, i = s[out].split(rows[1], factor=tile[0])
        outer, around, within = [images[0], rows[0], columns[0]], [p], [i, columns[1]]
        if is_blocked:
            q, j = s[out].split(columns[1], factor=tile[1])
            around, within = [p, q], [i, j]
    outer = [group[0], *outer] if blocks.by_channels else [*outer, group[0]]
    if is_blocked:
        place, (i, j) = group[1], within
        nesting.register_loops(s, out, [*outer, images[1], *around, place, i], [j], out.op.axis[4])
    else:
        s[out].reorder(*outer, images[1], *around, group[1], *within)
        s[out].vectorize(within[-1])
        s[finish].compute_at(s[out], around[0])
        s[finish].set_scope("local")
        place = _finish(s, finish, tile, lanes)
    host = out
    if statistics is not None:  # a block of results is a tile of them
        host, loops = statistics.out, statistics.loops(s, blocks.register.vectors * lanes, lanes)
        outer = [loops.sample, *loops.tiles]
        outer = [loops.group, *outer] if blocks.by_channels else [*outer, loops.group]
        statistics.order(s, outer)
    if not blocks.by_channels:
        outer = [s[host].fuse(*outer[:-1]), outer[-1]]
    elif not transforms_weights:
        outer = [s[host].fuse(*outer)]
    s[host].parallel(outer[0])
    if host is not out:
        s[out].compute_at(s[host], outer[-1])
    s[sums].compute_at(s[finish], place)
    s[sums].set_scope("local")
    i, j, n, p, q, k = s[sums].op.axis
    nesting.register_loops(s, sums, [n, p, q, j], [i], k)
    return outer


def _finish(s: te.Schedule, t: te.Tensor, tile: Sequence[int], lanes: int) -> te.IterVar:
    """Results of one tile and one vector of channels at a time, before they are turned; the loop around that."""
    n, channel, h, w = s[t].op.axis
    vector, lane = s[t].split(channel, factor=lanes)
    p, i = s[t].split(h, factor=tile[0])
    q, j = s[t].split(w, factor=tile[1])
    nesting.register_loops(s, t, [n, p, q, vector, i], [j], lane)
    return vector


def _products(s: te.Schedule, products: te.Tensor, place: Place, register: Register, lanes: int) -> Place:
    """Sums of products, in registers over all channels; gives their stage, and the loop over matrices around it."""
    accumulator = s.cache_write(products, "register")
    s[products].compute_at(s[place[0]], place[1])
    s[products].set_scope("local")
    i, j, n, p, q, k = s[products].op.axis
    cuts = [
        s[products].split(axis, factor=size)
        for axis, size in zip((n, p, q), (register.images, register.rows, register.columns), strict=True)
    ]
    around, tiles = [outer for outer, _ in cuts], [inner for _, inner in cuts]
    vector, lane = s[products].split(k, factor=lanes)
    nesting.register_loops(s, products, [i, j, *around], [*tiles, vector], lane)
    s[accumulator].compute_at(s[products], around[-1])
    *_, n, p, q, k = s[accumulator].op.axis
    vector, lane = s[accumulator].split(k, factor=lanes)
    outer, inner = s[accumulator].split(s[accumulator].op.reduce_axis[0], factor=BLOCK)
    nesting.register_loops(s, accumulator, [outer, inner], [n, p, q, vector], lane)
    return accumulator, j


def _weights(s: te.Schedule, rows: te.Tensor, weights: te.Tensor, place: Place, lanes: int) -> None:
    """Weights of one channel and one vector of result channels at a time, one column or row of taps."""
    block, i, j, channel, lane = s[weights].op.axis
    vector, lane = s[weights].split(lane, factor=lanes)
    nesting.register_loops(s, weights, [block, vector, channel, i], [j], lane)
    s[weights].compute_at(s[place[0]], place[1])
    s[weights].set_scope("local")
    s[rows].compute_at(s[weights], channel)
    s[rows].set_scope("local")
    i, j, block, channel, lane = s[rows].op.axis
    vector, lane = s[rows].split(lane, factor=lanes)
    nesting.register_loops(s, rows, [block, vector, channel, j], [i], lane)


def _transform(s: te.Schedule, t: te.Tensor, place: Place | None, lanes: int) -> tuple[te.IterVar, te.IterVar]:
    """Gives the loop over vectors of channels of a block, and the innermost one over tiles."""
    i, j, block, n, p, q, lane = s[t].op.axis
    vector, lane = s[t].split(lane, factor=lanes)
    nesting.register_loops(s, t, [n, block, vector, p, q, i], [j], lane)
    # vectors of a block stay a loop of their own: what fills up the last block is told by n, block and vector
    if place is None:
        s[t].parallel(s[t].fuse(n, block))
    else:
        # not "local", as it is made, where a product's tiles are 36 lines apart: few sets of a cache. Matrix by matrix
        # 24 convolutions took 0.92 of the time, at best 0.67 (Zen 3, AVX2)
        s[t].compute_at(s[place[0]], place[1])
    return vector, q


def _rows(
    s: te.Schedule,
    rows: te.Tensor,
    data: te.Tensor | None,
    transformed: te.Tensor,
    vector: te.IterVar,
    tile: te.IterVar,
    lanes: int,
) -> None:
    """The first half of the transform, tile by tile, and the padded elements that a block reads, copied before: tiles
    overlap, so that each is read twice and more."""
    s[rows].compute_at(s[transformed], tile)
    s[rows].set_scope("local")
    i, n, p, q, j, block, lane = s[rows].op.axis
    part, lane = s[rows].split(lane, factor=lanes)
    nesting.register_loops(s, rows, [n, p, q, block, part, j], [i], lane)
    if data is not None:
        s[data].compute_at(s[transformed], vector)
        s[data].set_scope("local")
        axes = list(s[data].op.axis)
        n, c, h, w = axes[:4]
        s[data].reorder(n, *([c] if len(axes) > 4 else []), h, w, axes[4] if len(axes) > 4 else c)
        s[data].vectorize(axes[4] if len(axes) > 4 else c)
