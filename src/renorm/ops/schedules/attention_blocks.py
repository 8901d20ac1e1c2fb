"""Blocks of attention on a CPU: how many queries are computed together, in which tiles, and in how many parts values
are summed.

    scores   keys * queries, over what a key holds       tiles of some keys, some vectors of queries
    values   queries * columns, over keys                tiles of some queries, some vectors of columns

Per key, a tile of values reads a row of powers and one of values, which several tiles share: from the second cache,
unless so few keys are summed at a time that the first one holds them. Then partial sums are added in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from renorm.core.machine import FILL, LINE, Machine
from renorm.core.target import Target
from renorm.ops.schedules.tiles import MANY, Tile, choose_tile

MOST = 8  # vectors of queries
FEWEST = 12  # pieces that threads share evenly enough
PART, FEWEST_PARTS = 128, 3  # keys of a part at most, and parts
WAYS = 16  # lines that one set of a second cache holds
FIRST_SETS, TOGETHER = 64, 8  # of a first cache, and lines that one holds besides others
ADDED = 3  # cycles in which a partial sum is loaded, added and stored


def rows_apart(step: int, sets: int, ways: int) -> int:
    """Return how many rows, so many bytes apart, a cache holds the same line of."""
    return ways * sets // gcd(sets, step // LINE) if step and step % LINE == 0 else ways * sets


@dataclass(frozen=True)
class Blocks:
    """vectors: of queries. scores, values: tiles of registers, of keys by queries and of queries by columns. parts: of
    sums of values; 1: they stay whole."""

    vectors: int
    scores: Tile
    values: Tile
    parts: int


def choose(heads: int, rows: int, keys: int, columns: int, lanes: int, target: Target, most: int) -> Blocks:
    """Return the blocks for which the products of both sums cost least, of as many queries as a cache holds scores of,
    fewer where threads need more pieces. rows: queries; columns: of values; lanes: of a vector. most: keys that a tile
    of scores may read."""
    machine = Machine.of(target)
    vectors, across = -(-rows // lanes), -(-columns // lanes)
    kept = int(FILL * target.cache_bytes) // (keys * target.vector_bytes)
    found = list[tuple[float, Blocks]]()
    for n in range(max(1, min(kept, MOST, vectors)), 0, -1):
        pieces = -(-vectors // n)
        if n == 1 or pieces * heads >= FEWEST:
            scores, a = choose_tile(keys, n, machine)
            if scores.pixels > most:
                scores, a = choose_tile(most, n, machine)
            values, b = choose_tile(min(rows, n * lanes), across, machine, most=MANY)
            found.append((pieces * n * (a + b), Blocks(n, scores, values, _parts(keys, values, machine))))
    return min(found, key=lambda f: f[0])[1]


def _parts(keys: int, tile: Tile, machine: Machine) -> int:
    """Return in how many parts values are summed: several, if what comes from the second cache is late for longer than
    parts take to be added. 1536 keys of 64: AVX2 0.88 of the time, AVX-512, which has none, would take 1.05."""
    read = 4 * tile.pixels + LINE + tile.vectors * machine.vector_bytes  # per key; a short run may touch two lines
    late = machine.caches[1].wait(read, machine.step(tile.pixels, tile.vectors))
    parts, added = -(-keys // PART), ADDED * tile.pixels * tile.vectors / PART
    return parts if parts >= FEWEST_PARTS and late > added else 1
