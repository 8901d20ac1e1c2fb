"""How a convolution by tiles is cut: what is in registers, in a block that stays in cache, and shared by threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

from renorm.core.target import Target

# Floating operations that a core could have done while it waits for one byte from beyond its second-level cache: what
# lies in the cache that cores share and is read from beginning to end; what comes from memory, as do weights that are
# NEAR times as large as its own cache; transformed data, plane by plane; and transformed weights that it has stored
# itself.
WAIT, WAIT_MEMORY, WAIT_DATA, WAIT_STORED = 0.7, 2.3, 2.0, 4.0
NEAR = 8
FAR = 1.25  # register tiles are compared that cost no more than that many times the cheapest one
WEIGHT = 3.0  # what a vector of weights costs beside a number that is spread: a block of tiles uses it a few times


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


@dataclass(frozen=True)
class Blocks:
    """images, rows, columns: tiles of one block, multiples of the register's. by_channels: whether threads share result
    channels instead of blocks."""

    register: Register
    images: int
    rows: int
    columns: int
    by_channels: bool

    @property
    def tiles(self) -> int:
        return self.images * self.rows * self.columns


@cache
def registers(counts: tuple[int, int, int], vectors: int, available: int) -> list[tuple[float, Register]]:
    """Register tiles with what they cost for a product, at least 1: the cheapest one, and others near it, by cost.
    counts: images, rows and columns of tiles."""
    found: list[tuple[float, tuple[int, int, int, int]]] = []
    batch, down, across = counts
    for n in (n for n in (1, 2, 3, 4) if vectors % n == 0):
        for images, rows, columns in _boxes(counts, available // n):
            r = images * rows * columns
            if r * n + n + 1 > available or (n > 1 and r * n > available - 6):
                continue
            padded = -(-batch // images) * -(-down // rows) * -(-across // columns) * r / (batch * down * across)
            loads = (r + n) / (r * n)
            stall = max(1.0, 8 / (r * n))
            late = 0.4 * max(0.0, 1 / r - 1 / 8)  # few tiles: weights do not come as fast from the second-level cache
            cost = padded * max(1.0, loads) * stall + 0.05 * (r + WEIGHT * n) / (r * n) + late
            found.append((cost, (images, rows, columns, n)))
    found.sort(key=lambda pair: pair[0])
    return [(cost, Register(*sizes)) for cost, sizes in found if cost <= FAR * found[0][0]]


def _boxes(counts: Sequence[int], most: int) -> Iterator[tuple[int, int, int]]:
    """Images, rows and columns of at most that many tiles; several of one only where the next is whole."""
    batch, down, across = counts
    for columns in range(1, min(across, most) + 1):
        yield 1, 1, columns
    for rows in range(2, min(down, most // max(across, 1)) + 1):
        yield 1, rows, across
    for images in range(2, min(batch, most // max(across * down, 1)) + 1):
        yield images, down, across


@dataclass(frozen=True)
class Work:
    """The problem that blocks are chosen for. planes: products of a tile. counts: images, rows and columns of tiles.
    channels are summed over; results: channels of the result. lanes: of one of so many vector registers. cache_bytes:
    of one core. transforms_weights: whether the kernel does; then threads share result channels."""

    planes: int
    counts: tuple[int, int, int]
    channels: int
    results: int
    lanes: int
    registers: int
    cache_bytes: int
    transforms_weights: bool

    @staticmethod
    def of(shape: Sequence[int], channels: int, lanes: int, target: Target, transforms_weights: bool) -> Work:
        """For products of `shape` (n, n, batch, rows of tiles, tiles of a row, result channels)."""
        i, j, batch, rows, columns, results = shape
        machine = target.vector_registers, target.cache_bytes
        return Work(i * j, (batch, rows, columns), channels, results, lanes, *machine, transforms_weights)

    def candidates(self, register: Register) -> Iterator[Blocks]:
        """Blocks of whole registers, the smallest, and those whose data and products stay in half of the cache."""
        per_product = 4 * self.planes * register.vectors * self.lanes
        for by_channels in (True,) if self.transforms_weights else (False, True):
            for rows in (register.rows << k for k in range((-(-self.counts[1] // register.rows) - 1).bit_length() + 1)):
                kept = register.images * rows * register.columns * per_product
                if not by_channels:
                    kept += register.images * rows * register.columns * 4 * self.planes * self.channels
                if rows > register.rows and kept > self.cache_bytes // 2:
                    break
                yield Blocks(register, register.images, rows, register.columns, by_channels)

    def waits(self, b: Blocks) -> float:
        """Return what a product costs beside itself."""
        batch, down, across = self.counts
        wide, every = b.register.vectors * self.lanes, batch * down * across
        blocks = -(-batch // b.images) * -(-down // b.rows) * -(-across // b.columns)
        groups = -(-self.results // wide)
        per_block = 4 * self.planes * b.tiles
        panel = 4 * self.planes * self.channels * wide  # of weights
        cost = -(-down // b.rows) * b.rows / down - 1
        if b.by_channels:
            data = 4 * self.planes * self.channels * every
            cost += 8 * WAIT_MEMORY / 2 / self.results  # stored by one core and loaded by another one
            cost += 4 * WAIT_DATA / 2 / wide * max(0.0, 1 - self.cache_bytes / data)
            reused = panel + per_block * wide
        else:
            reused = panel * groups + per_block * (wide + self.channels)
        again = 1 / b.tiles - 1 / every  # loads of weights for a product but for the first one
        wait = WAIT_MEMORY if panel * groups > NEAR * self.cache_bytes and not b.by_channels else WAIT
        cost += 4 * wait / 2 * again * (1.0 if reused > self.cache_bytes * 3 // 4 else 0.25)
        if self.transforms_weights:  # what the cache cannot hold is stored and loaded
            cost += 8 * WAIT_STORED / 2 / every * max(0.0, 1 - self.cache_bytes / panel)
        else:
            cost += 4 * WAIT_MEMORY / 2 / every
        if not self.transforms_weights:
            return cost + 1 / (blocks * groups if b.by_channels else blocks)
        # few pieces, of one length: what threads wait for each other at the end, of two threads or four
        return cost + 0.5 / groups + sum(-(-groups // n) * n / groups - 1 for n in (2, 4)) / 2


@cache
def choose(work: Work) -> tuple[Blocks, float]:
    """The blocks of least estimated cost, and what that is for a product: 1 where nothing is lost."""
    best, least = None, inf
    for cost, register in registers(work.counts, -(-work.results // work.lanes), work.registers):
        if cost >= least:
            break  # what a product pays beside itself is not negative
        for blocks in work.candidates(register):
            whole = cost + work.waits(blocks)
            if whole < least:
                best, least = blocks, whole
    assert best is not None
    return best, least
