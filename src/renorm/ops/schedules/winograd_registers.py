"""Tiles of a convolution by tiles whose products are summed in registers at once, and what these cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod

from renorm.core.machine import LINE, Machine
from renorm.ops.schedules import tiles

FAR = 1.25  # register tiles are compared that cost no more than that many times the cheapest one
WEIGHT = 3.0  # what a vector of weights costs beside a number that is spread: a block of tiles uses it a few times
# What a load that is hidden costs of a product of 32 bytes, whatever the core: numbers lie side by side here. With that
# of pointwise convolutions (`Core.hidden`) on Emerald Rapids vgg16 took 1.05 and 1.09 of the time, unet 0.92 to 0.95
NARROW = 0.05

Counts = tuple[int, int, int]  # of images, rows and columns
Open = tuple[int, int, int]  # how many open extents each of these is a product of
CLOSED: Open = (0, 0, 0)


@dataclass(frozen=True)
class Register:
    """Tiles of one plane whose products are summed at once, in `vectors` vectors of channels."""

    images: int
    rows: int
    columns: int
    vectors: int

    @property
    def tiles(self) -> int:
        return self.images * self.rows * self.columns


@cache
def registers(
    counts: Counts, widths: tuple[int, ...], depth: int, machine: Machine, is_open: Open = CLOSED
) -> list[tuple[float, Register]]:
    """Register tiles with what they cost for a product, at least 1: the cheapest one, and others near it, by cost.
    counts: of tiles; widths: in vectors, that may be; depth: terms of a sum; is_open: which of the counts are typical
    ones only."""
    found: list[tuple[float, tuple[int, int, int, int]]] = []
    usual: list[float] = []  # costs at typical counts
    for n in widths:
        # transformed data lies side by side: beside vectors of 64 bytes LLVM leaves no more free than it must
        most = machine.registers - n - 1 if machine.vector_bytes == 64 else machine.accumulators(n)
        for box in _boxes(counts, most // n, is_open):
            r = prod(box)
            if any(is_open):
                at = [_open_cost(box, n, several, is_open, depth, machine) for several in _several(counts, is_open)]
                usual.append(at[tiles.TYPICAL])
                cost = sum(at) / len(at)
            else:
                padded = prod(-(-count // size) for count, size in zip(counts, box)) * r / prod(counts)
                cost = _cost(r, n, depth, machine, padded)
            found.append((cost, (*box, n)))
    if usual:
        found = [pair for pair, cost in zip(found, usual) if cost <= tiles.SLACK * min(usual)]
    found.sort(key=lambda pair: pair[0])
    return [(cost, Register(*sizes)) for cost, sizes in found if cost <= FAR * found[0][0]]


def _cost(r: int, n: int, depth: int, machine: Machine, padded: float = 1.0) -> float:
    """Return what a product costs of r tiles by n vectors in registers. padded: times as many as are needed."""
    panel = n * machine.vector_bytes * depth
    hidden = machine.loaded if machine.vector_bytes == LINE else NARROW
    return padded * machine.slowness(r, n, panel) + hidden * (r + WEIGHT * n) / (r * n)


def _several(typical: Counts, is_open: Open) -> Iterator[Counts]:
    """Yield the counts at which tiles along open ones are compared."""
    batch, down, across = (
        tiles.extents(c, o) if o else [c] * len(tiles.SCALES) for c, o in zip(typical, is_open, strict=True)
    )
    yield from zip(batch, down, across, strict=True)


def _open_cost(box: Counts, n: int, counts: Counts, is_open: Open, depth: int, machine: Machine) -> float:
    """Return what a product costs at these counts where some are open: sums are shorter where the longest open side of
    a box, the last one of the longest, ends (te.open_tiles)."""
    side = max((size, i) for i, size in enumerate(box) if is_open[i])[1]
    around = prod(-(-count // size) for i, (count, size) in enumerate(zip(counts, box)) if i != side)
    cost = 0.0
    for times, length in tiles.pieces(counts[side], box[side]):
        r = prod(box) // box[side] * length
        cost += around * times * r * _cost(r, n, depth, machine)
    return cost / prod(counts)


def _boxes(counts: Counts, most: int, is_open: Open) -> Iterator[Counts]:
    """Images, rows and columns of at most that many tiles; several of one only where the next is whole, which is
    unknown of an open one."""
    batch, down, across = (most if o else count for count, o in zip(counts, is_open))
    for columns in range(1, min(across, most) + 1):
        yield 1, 1, columns
    if is_open[2]:
        return
    for rows in range(2, min(down, most // max(across, 1)) + 1):
        yield 1, rows, across
    if is_open[1]:
        return
    for images in range(2, min(batch, most // max(across * down, 1)) + 1):
        yield images, down, across
