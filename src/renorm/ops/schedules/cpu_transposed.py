"""CPU: transposed convolutions phase by phase: a tile of input pixels gives a tile of all phases, stored in its place.

    block[phase][q] = sum over taps of phase and channels of x[q + lead(phase) - tap] * w[phase, tap]
    out[q * stride + phase - before] = block[phase][q]

The block stays in the first-level cache: no result passes through memory before it is in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from renorm import te
from renorm.core.target import Target
from renorm.ops.schedules import (
    cpu_convolution,
    cpu_dots,
    cpu_injective,
    cpu_matrix,
    dot_weights,
    nesting,
    products,
    structure,
    tiles,
)
from renorm.topi import layout

PANEL = 8192  # vectors of weights that stay in the second-level cache beside what else passes through it


@dataclass(frozen=True)
class PhaseTile:
    """One register tile: `columns` elements of each of `phases` phases along the last axis, from `rows`
    rows, in `vectors` vectors of channels."""

    rows: int
    columns: int
    vectors: int
    phases: int

    @property
    def accumulators(self) -> int:
        return self.rows * self.columns * self.vectors * self.phases

    def cost(self, height: int, width: int, panel: float, is_open: bool) -> float:
        """Return what an element takes of a phase of this size, at least 1. panel: the weights of one tile, beside what
        the cache holds; is_open: whether sums are shorter at the end of a row."""
        # cycles: a vector of weights takes one, a spread number half of one, a row another cache line
        loads = 1 / (self.rows * self.columns) + 0.5 / self.vectors + 2 * self.rows / self.accumulators
        pieces = tiles.pieces(width, self.columns) if is_open else [(-(-width // self.columns), self.columns)]
        products = 0.0
        for count, columns in pieces:
            stall = max(1.0, 8 / (self.accumulators // self.columns * columns))
            products += count * columns / width * stall
        padded = -(-height // self.rows) * self.rows / height
        return products * padded * max(1.0, min(panel, 1.25)) + 0.05 * loads + 0.01 * panel


def choose_tile(
    lengths: tuple[int, int], vectors: int, phases: int, depth: int, registers: int, is_open: bool = False
) -> PhaseTile:
    """The tile with the least padded work, then the least loading per FMA, then the smallest panel of weights.

    lengths: rows and columns of one phase; vectors: channels in vectors; phases: along the last axis; depth: weights
    of one vector of channels, in vectors, all phases counted. Phases may share a tile, but not their weights. is_open:
    whether columns are but typical ones; then the tile suits several widths, and costs little more there.
    """
    height, width = lengths
    found = list[tuple[float, float, PhaseTile]]()  # with its cost at this width, and on average
    for together, n in product(sorted({1, phases}), (v for v in (1, 2, 3, 4) if vectors % v == 0)):
        panel = n * depth / PANEL
        for columns in range(1, width + 1):
            # several rows only where one row is too short to fill the registers
            for rows in range(1, (height if columns == width and not is_open else 1) + 1):
                tile = PhaseTile(rows, columns, n, together)
                live = tile.accumulators + n * together + 1
                if live > registers or (n * together > 1 and tile.accumulators > registers - 6):
                    break
                costs = [tile.cost(height, w, panel, is_open) for w in (tiles.extents(width) if is_open else [width])]
                found.append((costs[tiles.TYPICAL if is_open else 0], sum(costs) / len(costs), tile))
    least = min(here for here, _, _ in found)
    return min((pair for pair in found if not is_open or pair[0] <= tiles.SLACK * least), key=lambda pair: pair[1])[2]


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Transposed convolutions of any rank, with elementwise stages before and after them."""
    chain = structure.stages(outs)
    mains = [t for t in chain if t.op.tag == "conv_transpose"]
    if len(outs) != 1 or 0 in outs[0].shape or not all(_is_phased(t) for t in mains):
        cpu_convolution.schedule(s, outs, target)
        return
    (out,) = outs
    pads = [t for t in chain if t.op.tag == "pad"]
    nesting.inline(s, [out], keep=[*pads, *mains])
    for pad in pads:
        cpu_injective.nest(s, pad, target)
    lanes = structure.lanes_of(mains[0], target)
    strides, phased = _strides(mains[0])
    rank = len(strides)
    lengths = mains[0].shape[-rank:]
    widest = max(_phases(main, phased, rank) for main in mains)
    rows_columns = (lengths[-2] if rank > 1 else 1, lengths[-1])
    depth = sum(_depth(main, phased) for main in mains)
    channels, groups = mains[0].shape[1], products.groups_of(mains[0])
    over_channels = products.fills_vectors(channels, groups, lanes)
    found = dot_weights.factors(mains[0]) if all(cpu_matrix.takes(t, target) for t in mains) else None
    if found is not None:
        width = found[1].cuts[1][1]
        height, length = cpu_matrix.choose(rows_columns, width, target)
        tile, over_channels = PhaseTile(height, length, width // lanes, 1), True
    elif over_channels:
        vectors, is_open = -(-channels // groups // lanes), s.open_axes(mains[0])[-1]
        tile = choose_tile(rows_columns, vectors, widest, depth, target.vector_registers, is_open)
    else:
        tile = _tile_of_pixels(rows_columns, channels // groups, widest, lanes, target.vector_registers)
    accumulators = [s.cache_write(main, "register" if found is None else "tile") for main in mains]
    place = _tail(s, out, tile, strides, lanes if over_channels else 1)
    for main, accumulator in zip(mains, accumulators, strict=True):
        s[main].set_scope("local")
        s[main].compute_at(s[out], place)
        if found is not None:
            axes = list(range(2 + len(phased), len(main.shape)))[-2:]
            at = cpu_matrix.tensorize(s, main, accumulator, *found[1:], axes, 1, target)[-1]
            s[accumulator].compute_at(s[main], at)
            continue
        _block(s, main, accumulator, tile, phased, rank, lanes if over_channels else 1, target)


def _tile_of_pixels(lengths: tuple[int, int], channels: int, phases: int, lanes: int, registers: int) -> PhaseTile:
    """The tile where vectors run over pixels: as many channels as share the pixels that they read, and rows until the
    latency of an FMA is hidden."""
    height, width = lengths
    vectors, most = (2 if width % (2 * lanes) == 0 else 1), registers - 6
    together = phases if phases * vectors <= most else 1
    beside = vectors * together
    side_by_side = max(n for n in (1, 2, 3, 4, 6) if channels % n == 0 and (n == 1 or n * beside <= most))
    rows = min(height, max(1, 8 // (side_by_side * beside)))
    return PhaseTile(rows, min(width, vectors * lanes), side_by_side, together)


def _is_phased(main: te.Tensor) -> bool:
    """Return whether a product is some phases of several."""
    return any(stride > 1 for stride in main.op.attrs.get("strides", ()))


def _strides(main: te.Tensor) -> tuple[tuple[int, ...], list[int]]:
    """Strides along the spatial axes, and which of these axes have phases."""
    strides = tuple(main.op.attrs["strides"])
    return strides, [i for i, stride in enumerate(strides) if stride > 1]


def _depth(main: te.Tensor, phased: Sequence[int]) -> int:
    """Weights that one channel of the result has in a product."""
    return structure.terms(main) * prod(main.shape[2 : 2 + len(phased)])


def _phases(main: te.Tensor, phased: Sequence[int], rank: int) -> int:
    """Phases along the last axis."""
    return main.shape[2 + phased.index(rank - 1)] if rank - 1 in phased else 1


def _tail(s: te.Schedule, out: te.Tensor, tile: PhaseTile, strides: Sequence[int], lanes: int) -> te.IterVar:
    """The loops of the result; gives the loop in which a tile is computed."""
    n, channel, *rest = list(s[out].op.axis)
    spatial = rest[: len(strides)]
    is_blocked = layout.is_result(out)
    together = tile.vectors * lanes
    channels, inside = s[out].split(channel, factor=max(1, together // out.shape[-1]) if is_blocked else together)
    sizes = [*[1] * (len(strides) - 2), *([tile.rows] if len(strides) > 1 else []), tile.columns]
    cuts = [s[out].split(axis, factor=size * step) for axis, size, step in zip(spatial, sizes, strides, strict=True)]
    # a panel of weights is read once for all images
    order = [channels, n, *(outer for outer, _ in cuts)]
    within = [inner for _, inner in cuts]
    if is_blocked:
        # phases of a row are written out, so that each is a constant
        position, phase = s[out].split(within[-1], factor=strides[-1])
        s[out].reorder(*order, inside, *within[:-1], position, phase, rest[-1])
        s[out].unroll(phase)
        s[out].vectorize(rest[-1])
    else:
        s[out].reorder(*order, inside, *within)
        for axis in within[:-1]:
            s[out].unroll(axis)
        s[out].vectorize(within[-1])
    return nesting.share(s, out, order)[-1]


def _block(
    s: te.Schedule,
    main: te.Tensor,
    accumulator: te.Tensor,
    tile: PhaseTile,
    phased: Sequence[int],
    rank: int,
    lanes: int,
    target: Target,
) -> None:
    """One product: its accumulators stay in registers over the reduction; phases that are not in one tile of registers
    follow one another. lanes: channels of a vector; 1 where vectors run over pixels."""
    for stage in (main, accumulator):
        axes = list(s[stage].op.axis)
        last = axes[1 + len(phased)] if rank - 1 in phased and tile.phases > 1 else None
        phases = [a for a in axes[2 : 2 + len(phased)] if a is not last]
        positions = axes[2 + len(phased) :]
        around = [axes[0], *phases, *positions[:-2]]
        inner = [last] if last else []
        if lanes > 1:
            vector, lane = s[stage].split(axes[1], factor=lanes)
            inner += [*positions[-2:], vector]
        else:
            inner += [*positions[-2:-1], axes[1]]
            lane = positions[-1]
        if stage is accumulator:
            cpu_dots.register_loops(s, stage, around, inner, lane, target, products.blocks_summed(stage))
        else:
            nesting.register_loops(s, stage, around, inner, lane)
            s[accumulator].compute_at(s[main], around[-1])
