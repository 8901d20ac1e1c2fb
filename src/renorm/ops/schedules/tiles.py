"""Register tiles: how many accumulators of which kind one inner kernel holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
MANY = 7  # vectors beside each other, where few pixels are enough


def choose_tile(
    pixels: int,
    vectors: int,
    registers: int,
    weight: float = 2.0,
    most: int | None = None,
    is_ragged: bool = False,
) -> Tile:
    """The tile with the least padded work, then the fewest loads per FMA, whose accumulators and operands fit the
    registers.

    pixels: extent that R cuts; vectors: extent in vectors, which N divides, unless the last tile may be ragged. R*N
    accumulators and N weights are live, and one register is left for the spread number. weight: what a load of weights,
    from beyond the first-level cache, costs beside that of a spread number. most: vectors, other than the target asks
    for.
    """
    best, cost = Tile(1, 1), float("inf")
    # many vectors leave few pixels, which pays only where numbers are expensive to spread
    most = most or (MANY if _spreads_apart(registers) else 4)
    for n in range(1, min(vectors, most) + 1):
        if vectors % n and not is_ragged:
            continue
        for r in range(1, min(pixels, registers - 2) + 1):
            if r * n + n + 1 > registers or (n > 1 and r * n > registers * 13 // 16):
                continue
            padded = -(-pixels // r) * r / pixels * -(-vectors // n) * n / vectors
            now = padded * _cycles(r, n, registers) + 0.05 * (r + weight * n) / (r * n)
            if now < cost:
                best, cost = Tile(r, n), now
    return best


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


def _spreads_apart(registers: int) -> bool:
    """Return whether a number is spread by an instruction of its own, as with AVX2, which has 16 registers; otherwise
    FMAs do it themselves."""
    return registers <= 16


def _cycles(r: int, n: int, registers: int) -> float:
    """Of one step of the sum, beside what its FMAs alone take. Two loads and two FMAs start per cycle, and not much
    more than three instructions of all. Below 9 accumulators the latency of an FMA shows, below 3 pixels that weights
    come from the second-level cache."""
    loads = (r + n) / (r * n)
    begun = 0.6 * (1 + loads) if _spreads_apart(registers) else 0.0
    return max(1.0, loads, begun) * max(1.0, 9 / (r * n)) * (1.1 if r < 3 else 1.0)
