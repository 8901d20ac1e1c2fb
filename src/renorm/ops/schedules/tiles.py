"""Register tiles: how many accumulators of which kind one inner kernel holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """What one kernel call computes. pixels: R; vectors: N; each vector holds the lanes of the target."""

    pixels: int
    vectors: int


# Vectors of channels that a tile may have beside each other
MOST_VECTORS = 7


def choose_tile(pixels: int, vectors: int, registers: int, weight: float = 6.0) -> Tile:
    """The tile with the least padded work, then the fewest loads per FMA, whose accumulators and operands fit the
    registers.

    pixels: extent that R cuts; vectors: extent in vectors, which N divides. R*N accumulators and N weights are
    live, and one register is left for the spread number. weight: what a load of weights, from beyond the first-level
    cache, costs beside that of a spread number.
    """
    best, cost = Tile(1, 1), float("inf")
    for n in range(1, min(vectors, MOST_VECTORS) + 1):
        if vectors % n:
            continue
        for r in range(1, min(pixels, registers - 2) + 1):
            if r * n + n + 1 > registers or (n > 1 and r * n > registers * 13 // 16):
                continue
            now = -(-pixels // r) * r / pixels * _cycles(r, n, registers) + 0.05 * (r + weight * n) / (r * n)
            if now < cost:
                best, cost = Tile(r, n), now
    return best


def _cycles(r: int, n: int, registers: int) -> float:
    """Of one step of the sum, beside what its FMAs alone take. Two loads and two FMAs start per cycle; where a number
    is spread by an instruction of its own, as with AVX2, which has 16 registers, not much more than three of all begin.
    Below 8 accumulators the latency of an FMA shows."""
    loads = (r + n) / (r * n)
    begun = 0.6 * (1 + loads) if registers <= 16 else 0.0
    return max(1.0, loads, begun) * max(1.0, 8 / (r * n))
