"""How a convolution by tiles is cut: what is in a block that stays in cache, and what is shared by threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

from renorm.core.machine import FILL, Machine
from renorm.core.target import Target
from renorm.ops.schedules.winograd_registers import CLOSED, Counts, Open, Register, registers
from renorm.ops.shared.winograd import BLOCK

STORED = 2.0  # times as long as for other bytes of the cache that cores share, for weights that a core has stored there
NEAR = 8  # times its own cache: weights that are larger come from memory


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
        vectors, block = -(-self.results // self.lanes), BLOCK // self.lanes
        widths = tuple(n for n in (1, 2, 3, 4) if vectors % n == 0)
        if self.transforms_weights:  # these lie in whole blocks of channels, or in one
            widths = tuple(n for n in widths if n % block == 0 or block % n == 0)
        return registers(self.counts, widths, self.channels, self.machine, self.is_open)

    def candidates(self, register: Register) -> Iterator[Blocks]:
        """Blocks of whole registers, the smallest, and those whose data and products stay in half of the cache."""
        per_product = 4 * self.planes * register.vectors * self.lanes
        high = -(-self.counts[1] // register.rows)  # registers that cover a plane
        long = -(-self.counts[2] // register.columns) if self.counts[1] == 1 else 1  # that cover its one row
        for by_channels in (True,) if self.transforms_weights else (False, True):
            for times in (min(1 << k, high * long) for k in range((high * long - 1).bit_length() + 1)):
                tiles = register.tiles * times
                kept = tiles * per_product
                if not by_channels:
                    kept += tiles * 4 * self.planes * self.channels
                if times > 1 and kept > self.own / 2:
                    break
                rows, columns = (1, times) if high == 1 else (times, 1)
                yield Blocks(register, register.images, register.rows * rows, register.columns * columns, by_channels)

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
        cost += -(-across // b.columns) * b.columns / (-(-across // b.register.columns) * b.register.columns) - 1
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
        if not self.transforms_weights:
            cost += memory.wait(weights, whole / blocks) / whole
            return cost + 1 / (blocks * groups if b.by_channels else blocks)
        # what the cache cannot hold is stored and loaded
        cost += STORED * shared.wait(8) * lanes / every * max(0.0, 1 - self.own / panel)
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
