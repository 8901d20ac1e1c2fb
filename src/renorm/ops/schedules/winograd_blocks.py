"""How a convolution by tiles is cut: what is in registers, in a block that stays in cache, and shared by threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, prod

from renorm.core.machine import FILL, Machine
from renorm.core.target import Target
from renorm.ops.schedules import tiles
from renorm.ops.shared.winograd import BLOCK

STORED = 2.0  # times as long as for other bytes of the cache that cores share, for weights that a core has stored there
NEAR = 8  # times its own cache: weights that are larger come from memory
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


Counts = tuple[int, int, int]  # of images, rows and columns
Open = tuple[int, int, int]  # how many open extents each of these is a product of
CLOSED: Open = (0, 0, 0)


@cache
def registers(
    counts: Counts, widths: tuple[int, ...], depth: int, machine: Machine, is_open: Open = CLOSED
) -> list[tuple[float, Register]]:
    """Register tiles with what they cost for a product, at least 1: the cheapest one, and others near it, by cost.
    counts: of tiles; widths: in vectors, that may be; depth: terms of a sum; is_open: which of the counts are typical
    ones only."""
    available = machine.registers
    found: list[tuple[float, tuple[int, int, int, int]]] = []
    usual: list[float] = []  # costs at typical counts
    for n in widths:
        for box in _boxes(counts, available // n, is_open):
            r = prod(box)
            # products of 64 bytes spread their number themselves; else LLVM loads some ahead
            most = available if machine.vector_bytes == 64 or n == 1 else available * 13 // 16
            if r * n > min(most, available - n - 1):
                continue
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
    return padded * machine.slowness(r, n, panel) + machine.hidden(r, n, WEIGHT)


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


@dataclass(frozen=True)
class Work:
    """The problem that blocks are chosen for. planes: products of a tile. counts: images, rows and columns of tiles.
    channels are summed over; results: channels of the result. lanes: of one vector register. transforms_weights:
    whether the kernel does; then threads share result channels. is_open: which of the counts are typical ones, and of
    how many extents."""

    planes: int
    counts: Counts
    channels: int
    results: int
    lanes: int
    machine: Machine
    transforms_weights: bool
    is_open: Open = CLOSED

    @staticmethod
    def of(
        shape: Sequence[int],
        channels: int,
        lanes: int,
        target: Target,
        transforms_weights: bool,
        is_open: Sequence[bool] = (False,) * 6,
        factors: int = 1,
    ) -> Work:
        """For products of `shape` (n, n, batch, rows of tiles, tiles of a row, result channels). is_open: along which
        axes; factors: how many open extents the last count is a product of."""
        i, j, batch, rows, columns, results = shape
        of_tiles, machine = (is_open[2], is_open[3], is_open[4] * factors), Machine.of(target)
        return Work(i * j, (batch, rows, columns), channels, results, lanes, machine, transforms_weights, of_tiles)

    @property
    def own(self) -> float:
        """Bytes of the cache that a core has alone."""
        return self.machine.caches[1].nbytes

    def registers(self) -> list[tuple[float, Register]]:
        vectors, block = -(-self.results // self.lanes), max(1, BLOCK // self.lanes)
        # what a kernel transforms lies in whole blocks of channels, or in one
        fits = (lambda n: n % block == 0 or block % n == 0) if self.transforms_weights else (lambda n: True)
        widths = tuple(n for n in (1, 2, 3, 4) if vectors % n == 0 and fits(n))
        return registers(self.counts, widths, self.channels, self.machine, self.is_open)

    def candidates(self, register: Register) -> Iterator[Blocks]:
        """Blocks of whole registers, the smallest, and those whose data and products stay in half of the cache."""
        per_product = 4 * self.planes * register.vectors * self.lanes
        for by_channels in (True,) if self.transforms_weights else (False, True):
            high = -(-self.counts[1] // register.rows)  # registers that cover a plane
            for rows in (register.rows * min(1 << k, high) for k in range((high - 1).bit_length() + 1)):
                kept = register.images * rows * register.columns * per_product
                if not by_channels:
                    kept += register.images * rows * register.columns * 4 * self.planes * self.channels
                if rows > register.rows and kept > self.own / 2:
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
        # rows that fill up registers are in what a product costs itself
        cost = -(-down // b.rows) * b.rows / (-(-down // b.register.rows) * b.register.rows) - 1
        shared, memory = self.machine.caches[2], self.machine.memory
        lanes = self.machine.products * self.lanes  # products per cycle
        whole = self.planes * self.channels * self.results * every / lanes  # cycles of all products
        weights = 4 * self.planes * self.channels * self.results  # bytes
        if b.by_channels:
            data = 4 * self.planes * self.channels * every
            cost += memory.wait(8) / 2 * lanes / self.results  # stored by one core, loaded by another one
            reused = panel + per_block * wide
            if data + reused > FILL * self.own:  # gone over again for each few channels, after all weights of those
                cost += shared.wait(4) * lanes / wide
        else:
            reused = panel * groups + per_block * (wide + self.channels)
        home = memory if weights > NEAR * self.own and not b.by_channels else shared
        if reused <= FILL * self.own:
            home = self.machine.caches[1]
        # the first block reads the weights from memory, where the kernel does not make them, and others once more
        cost += home.wait((blocks - 1) * weights, whole * (blocks - 1) / blocks) / whole
        if self.transforms_weights:  # what the cache cannot hold is stored and loaded
            cost += STORED * shared.wait(8) * lanes / every * max(0.0, 1 - self.own / panel)
        else:
            cost += memory.wait(weights, whole / blocks) / whole
        if not self.transforms_weights:
            return cost + 1 / (blocks * groups if b.by_channels else blocks)
        # few pieces, of one length: what threads wait for each other at the end, of two threads or four
        return cost + 0.5 / groups + sum(-(-groups // n) * n / groups - 1 for n in (2, 4)) / 2


@cache
def choose(work: Work) -> tuple[Blocks, float]:
    """The blocks of least estimated cost, and what that is for a product: 1 where nothing is lost."""
    best, least = None, inf
    for cost, register in work.registers():
        if cost >= least:
            break  # what a product pays beside itself is not negative
        for blocks in work.candidates(register):
            whole = cost + work.waits(blocks)
            if whole < least:
                best, least = blocks, whole
    assert best is not None
    return best, least
