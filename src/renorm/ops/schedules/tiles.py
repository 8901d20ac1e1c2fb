"""Register tiles: how many accumulators of which kind one inner kernel holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from renorm.core.machine import Machine

# Of a typical extent, at which tiles along an open one are compared: a tile that just fills the typical one may compute
# most of its elements in vain at others
SCALES = (1 / 8, 1 / 4, 1 / 2, 1, 2)
TYPICAL = SCALES.index(1)
SLACK = 1.1  # times as much a tile may cost at a typical extent as the best one there, for what it saves at others


@dataclass(frozen=True)
class Tile:
    """The tile of one kernel call. pixels: R; vectors: N; each vector holds the lanes of the target."""

    pixels: int
    vectors: int


HALF = 8  # elements of 32 bytes
WIDE = 4  # vectors beside each other: weights come from the second-level cache, numbers from the first
MANY = 7  # where few pixels are enough: numbers are expensive to spread with 16 registers, and halves begin two a cycle
RAGGED = 1.03  # times as much a tile may cost whose code needs no version for the last pixels, or vectors


def choose_tile(
    pixels: int,
    vectors: int,
    machine: Machine,
    *,
    depth: int = 1,
    most: int | None = None,
    is_ragged: bool = False,
    is_cut: bool = False,
) -> tuple[Tile, float]:
    """Return the tile that takes the fewest cycles for all pixels and vectors, then the fewest loads, whose
    accumulators and operands fit the registers; and what a product costs then, 1 where nothing is lost.

    pixels: extent that R cuts; vectors: extent in vectors, which N divides, unless the last tile may be ragged. R*N
    accumulators and N weights are live, and one register is left for the spread number. depth: steps of a sum. most:
    vectors, other than the machine asks for. is_cut: whether the last tile computes its own pixels alone.
    """
    best, cost, registers = Tile(1, 1), inf, machine.registers
    most = most or (MANY if registers <= 16 else WIDE)
    for n in range(1, min(vectors, most) + 1):
        if vectors % n and not is_ragged:
            continue
        for r in range(1, min(pixels, registers - 2) + 1):
            if r * n > machine.accumulators(n):
                continue
            cycles = sum(
                a * b * machine.step(rows, wide, wide * machine.vector_bytes * depth)
                for a, rows in parts(pixels, r, is_cut)
                for b, wide in parts(vectors, n, is_cut)
            )
            now = cycles * machine.products / (pixels * vectors) + machine.hidden(r, n)
            now *= RAGGED ** (is_cut and (vectors % n > 0) + (pixels % r > 0))
            if now < cost:
                best, cost = Tile(r, n), now
    return best, cost


def parts(extent: int, tile: int, is_cut: bool = True) -> list[tuple[int, int]]:
    """Return how many tiles of which length an extent has."""
    whole, rest = divmod(extent, tile)
    return [(whole, tile), *([(1, rest if is_cut else tile)] if rest else [])]


def extents(typical: int, factors: int = 1) -> list[int]:
    """Return the extents at which tiles along an open one, or along a product of so many, are compared."""
    return [max(1, round(typical * scale**factors)) for scale in SCALES]


def pieces(extent: int, tile: int) -> Iterator[tuple[int, int]]:
    """Yield how often how many elements of an open extent are computed at once: a tile at its end is shorter."""
    from renorm.te.open_tiles import lengths  # te is loaded when a schedule is made

    whole, rest = divmod(extent, tile)
    yield whole, tile
    if rest:
        yield 1, min(n for n in lengths(tile) if n >= rest)
