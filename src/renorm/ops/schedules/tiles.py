"""Register tiles: how many accumulators of which kind one inner kernel holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """What one kernel call computes. pixels: R; vectors: N; each vector holds the lanes of the target."""

    pixels: int
    vectors: int


def choose_tile(pixels: int, vectors: int, registers: int, weight: float = 1.0) -> Tile:
    """The tile with the least padded work, then the fewest loads per FMA, whose accumulators and operands fit the
    registers.

    pixels: extent that R cuts; vectors: extent in vectors, which N divides. R*N accumulators and N weights are
    live, and one register is left for the spread number. weight: what a load of weights costs beside that of a spread
    number; more than 1 where they are read for few pixels, hence from beyond the first-level cache.
    """
    best, cost = Tile(1, 1), float("inf")
    for n in (1, 2, 3, 4):
        if vectors % n:
            continue
        for r in range(1, min(pixels, registers - 2) + 1):
            if r * n + n + 1 > registers or (n > 1 and r * n > registers - 6):
                continue
            padded = -(-pixels // r) * r / pixels
            # two loads and two FMAs start per cycle; below 8 accumulators the latency of an FMA shows
            loads = (r + n) / (r * n)
            stall = max(1.0, 8 / (r * n))
            now = padded * max(1.0, loads) * stall + 0.05 * (r + weight * n) / (r * n)
            if now < cost:
                best, cost = Tile(r, n), now
    return best
