"""Tiles of a matrix product on a GPU: what a block and a thread compute of it, chosen from the extents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from renorm.core.gpu import GpuFacts
from renorm.ops.schedules.gpu_stages import VECTOR


@dataclass(frozen=True)
class Tile:
    """rows, columns: what a thread computes; thread_rows, thread_columns: threads of a block; depth: terms of a sum
    that shared memory holds at a time; parts: blocks that share the terms of a sum; is_ahead: whether those of the next
    round are copied meanwhile, which was not measured, and so is not chosen."""

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    depth: int = 16
    parts: int = 1
    is_ahead: bool = False

    @property
    def block_rows(self) -> int:
        return self.rows * self.thread_rows

    @property
    def block_columns(self) -> int:
        return self.columns * self.thread_columns

    @property
    def threads(self) -> int:
        return self.thread_rows * self.thread_columns

    def resident(self, gpu: GpuFacts) -> int:
        """Blocks that a multiprocessor has room for: what bounds them are threads, or registers."""
        registers = self.threads * (32 + 1.5 * self.rows * self.columns)
        return max(1, min(gpu.resident // self.threads, int(REGISTERS / registers)))

    def blocks(self, batch: int, rows: int, columns: int) -> int:
        return batch * -(-rows // self.block_rows) * -(-columns // self.block_columns) * self.parts

    def multiplying(self, gpu: GpuFacts) -> float:
        """Return the cycles for which a round's products keep a multiprocessor busy."""
        return self.threads * self.rows * self.columns * self.depth / gpu.lanes * MULTIPLY

    def alone(self, gpu: GpuFacts) -> float:
        """Return the cycles that they take where no other block runs beside."""
        return self.rows * self.columns * self.depth * -(-self.threads // gpu.lanes)

    def reading(self) -> float:
        """Return the cycles that a round's reads of shared memory take."""
        return self.threads / LANES * self.depth * (self.rows + self.columns) / VECTOR * READ


@dataclass(frozen=True)
class WarpTile(Tile):
    """A tile whose products tensor cores make: of 16 rows, 8 columns and 32 bytes of terms for a warp. thread_columns:
    4 lanes of each warp, thread_rows: 8; itemsize: bytes of a term."""

    itemsize: int = 2

    def multiplying(self, gpu: GpuFacts) -> float:
        return self.threads * self.rows * self.columns * self.depth / self._matrices(gpu) * MULTIPLY

    def _matrices(self, gpu: GpuFacts) -> float:
        return gpu.matrices * 2 / self.itemsize

    def alone(self, gpu: GpuFacts) -> float:
        of_warp, cores = LANES * self.rows * self.columns * self.depth, 4  # of a multiprocessor, each with its warps
        return of_warp * -(-self.threads // (LANES * cores)) / (self._matrices(gpu) / cores)

    def reading(self) -> float:
        # lanes read 16 bytes of terms at once: of two rows of 16, but of one column
        return self.threads / LANES * self.depth * self.itemsize / WARP_DEPTH * (self.rows + self.columns / 2) * READ


# Of a thread: (rows, columns). Threads of a block: (along rows, along columns).
SHAPES = (
    ((8, 8), (16, 16)), ((8, 8), (8, 16)), ((8, 8), (16, 8)), ((8, 4), (16, 16)), ((4, 8), (16, 16)),
    ((8, 8), (8, 8)), ((8, 4), (8, 16)), ((4, 8), (16, 8)), ((4, 4), (16, 16)), ((4, 4), (8, 16)), ((4, 4), (16, 8)),
    ((4, 4), (8, 8)), ((2, 4), (16, 8)), ((4, 2), (8, 16)), ((2, 4), (8, 16)), ((1, 4), (16, 16)), ((1, 4), (8, 32)),
    ((4, 1), (8, 16)), ((4, 1), (32, 8)), ((2, 2), (8, 16)), ((2, 2), (8, 8)), ((2, 2), (4, 32)), ((1, 1), (4, 32)),
)  # fmt: skip

LANES = 32  # of a warp
# Of a warp: (times 16 rows, times 8 columns). Warps of a block: (along rows, along columns).
WARPS = (
    ((4, 4), (2, 4)), ((4, 8), (2, 2)), ((4, 4), (2, 2)), ((2, 8), (2, 2)), ((2, 4), (2, 4)), ((2, 4), (2, 2)),
    ((4, 2), (2, 2)), ((1, 4), (2, 2)), ((2, 2), (2, 2)), ((1, 2), (2, 2)), ((1, 4), (1, 4)), ((2, 4), (1, 4)),
    ((4, 2), (4, 1)), ((2, 2), (4, 1)), ((1, 1), (2, 2)), ((1, 1), (1, 4)), ((1, 2), (1, 4)),
)  # fmt: skip
WARP_DEPTH = 64  # bytes of a round's terms: rows that 8 lanes read without meeting in a bank

REGISTERS = 65536  # of a multiprocessor

# Blocks that share a sum, and rounds of terms that each of them has at least.
MOST_PARTS, LEAST_ROUNDS = 32, 4
DEPTHS = (16, 32)  # terms of a round

# What follows is fitted to 248 tiles of 24 products and convolutions (those of ResNet-50 with 1 and 16 images, and of
# transformers), measured on an H100 on 2026-11-27: of these tiles the one with the least cost took 4 % more time than
# the fastest one, on average; in the worst case, 17 %. Cycles, unless it says otherwise.
LAUNCH = 5000  # a launch of its own
ROUND = 200  # of a round of terms: memory, and all threads of a block, twice
MULTIPLY, READ, BESIDE = 1.2, 3.2, 0.2  # of what it takes; of 16 bytes of shared memory for a warp; of the lesser one
COPY_VECTOR, COPY, COPY_WINDOW = 0.04, 0.08, 0.3  # an element to shared memory: in vectors; alone; of unequal places
ALONE = 576  # times as long as that an element takes in a thread that has a multiprocessor to itself
TRAFFIC = 2900  # bytes of parts of sums that are written and read in a cycle
HIDDEN = 1.6  # blocks side by side hide what each waits for: not at all at 1, wholly beyond 8


def choose(
    batch: int,
    rows: int,
    columns: int,
    terms: int,
    gpu: GpuFacts,
    itemsize: int = 4,
    run: int = 0,
    copies: tuple[float, float] = (COPY, COPY_VECTOR),
) -> Tile:
    """Return the tile with which a product is estimated to be computed first. itemsize: bytes of what is summed. run:
    terms that are read alike, as those of a tap, which rounds had better divide; all where it is 0. copies: what it
    takes to copy an element of a row, and of a column."""
    depths = [d for d in DEPTHS if (run or terms) % d == 0] or DEPTHS[:1]
    found = (t for d in depths for t in _tiles(batch, rows, columns, terms, d, gpu, itemsize))
    return min(found, key=lambda t: cost(t, batch, rows, columns, terms, gpu, copies))


def choose_of_warps(
    batch: int, rows: int, columns: int, terms: int, gpu: GpuFacts, itemsize: int, copies: tuple[float, float]
) -> WarpTile:
    """Return the tile with which tensor cores are estimated to compute a product first. itemsize: bytes of a term;
    copies: as of `choose`. Not fitted to times: what it takes to copy, to begin a round and a launch is taken from
    products in float32."""
    found, depth = list[WarpTile](), WARP_DEPTH // itemsize
    for (r, c), (y, x) in WARPS:
        for parts in (1, *_parts(-(-terms // depth))):
            tile = WarpTile(2 * r, 2 * c, 8 * y, 4 * x, depth, parts, itemsize=itemsize)
            if parts == 1 or tile.blocks(batch, rows, columns) <= 4 * gpu.units:
                found.append(tile)
    return min(found, key=lambda t: cost(t, batch, rows, columns, terms, gpu, copies))


def _tiles(batch: int, rows: int, columns: int, terms: int, depth: int, gpu: GpuFacts, itemsize: int) -> Iterator[Tile]:
    for (r, c), (y, x) in SHAPES:
        tile = Tile(r, c, y, x, depth)
        if depth * (tile.block_rows + tile.block_columns) * itemsize > gpu.static or (depth > 16 and r * c > 16):
            continue
        yield tile
        for parts in _parts(-(-terms // depth)):
            if tile.blocks(batch, rows, columns) * parts <= 4 * gpu.units:
                yield Tile(r, c, y, x, depth, parts)


def _parts(rounds: int) -> list[int]:
    """Return the numbers of blocks that may share so many rounds of terms."""
    return [n for n in (2, 4, 8, 16, 32) if n <= MOST_PARTS and rounds // n >= LEAST_ROUNDS]


def cost(
    tile: Tile,
    batch: int,
    rows: int,
    columns: int,
    terms: int,
    gpu: GpuFacts,
    copies: tuple[float, float] = (COPY, COPY_VECTOR),
) -> float:
    """Return about how many cycles a product takes; copies: as of `choose`."""
    rounds = -(-terms // (tile.depth * tile.parts))
    work, alone = _round(tile, gpu, copies)

    def together(blocks: int) -> float:
        """A round of blocks that one multiprocessor has at a time."""
        return ((blocks * work) ** HIDDEN + alone**HIDDEN) ** (1 / HIDDEN)

    resident = tile.resident(gpu)
    full, rest = divmod(-(-tile.blocks(batch, rows, columns) // gpu.units), resident)
    cycles = rounds * (full * together(resident) + (together(rest) if rest else 0))
    parts = LAUNCH + batch * rows * columns * (tile.parts + 1) * 4 / TRAFFIC
    return cycles + (parts if tile.parts > 1 else 0)


def _round(tile: Tile, gpu: GpuFacts, copies: tuple[float, float]) -> tuple[float, float]:
    """What a block adds to a round of others on its multiprocessor, and how long its round takes when it is alone."""
    products, reads = tile.multiplying(gpu), tile.reading()
    copied = tile.depth * (tile.block_rows * copies[0] + tile.block_columns * copies[1])
    work = max(products, reads) + BESIDE * min(products, reads) + copied
    return work, ROUND + tile.alone(gpu) + copied * ALONE / tile.threads
