"""The cost of a convolution over two axes, computed directly or by tiles, by which algorithms are chosen.

The unit is one multiply-add of a whole vector register. An estimate counts what surely takes time on any CPU with
vector registers: multiply-adds, with what does not fill tiles; transforms, per tile and vector of channels; weights
that come from memory, because those of a network do not fit the caches; and what transforms read and write there, while
nothing is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.ops.schedules.tiles import choose_tile
from renorm.ops.schedules.winograd_blocks import Work, choose
from renorm.ops.shared.filtering import Filter

TRANSFORM = 8.0  # cycles per element of a tile, of input and result alike: loads, sums and stores
WEIGHT = 2.5  # units per vector of weights that the kernel transforms and stores
TURN = 1.5  # units per element that has to change its place because channels do not fill vectors
PHASES = 1.2  # what a product costs of a transposed convolution: taps of a phase do not lie in the order of their use
PIXELS = 1.3  # what a product costs where vectors run over pixels
COPY = 2.0  # units per vector of x that a block of tiles copies before it transforms them
# Tiles of a row, at most, where a plane is one: blocks of it copy whole rows of x. Zen 3, AVX2, parts of the time if
# all planes are one: up to 14 tiles 0.67 to 1.18, most below 1; 17 to 56 of them 1.00 to 1.14, most above
SHORT = 16
BUSY = 0.95  # of the time in which products of tiles really multiply


@dataclass(frozen=True)
class Convolution:
    """One group, of the extents of x and y. taps: of the window. strides, and whether it is transposed."""

    x: tuple[int, int, int, int]
    y: tuple[int, int, int, int]
    taps: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    transposed: bool = False

    @property
    def pairs(self) -> int:
        """Of channels of x and of y, that have a weight each for every tap."""
        return self.x[1] * self.y[1]

    def direct(self, target: Target) -> float:
        """Estimated units on one core of the sums as they are defined."""
        own = self.strides if self.transposed else (1, 1)  # results side by side that have taps of their own
        counts = (self.y[0], *(-(-e // s) for e, s in zip(self.y[2:], own, strict=True)))
        lanes = target.lanes(4)
        if self.y[1] < lanes // 2:  # vectors run over pixels
            return prod(self.taps) * prod(counts) * self.pairs / lanes * PIXELS
        vectors = -(-self.y[1] // lanes)
        depth, machine = prod(self.taps) * self.x[1], Machine.of(target)
        _, least = choose_tile(counts[2], vectors, machine, depth=depth, is_ragged=True, is_cut=True)
        products = depth * least * prod(counts) * vectors * (PHASES if self.transposed else 1.0)
        weights = 4 * prod(self.taps) * self.pairs
        return products + machine.memory.wait(weights, products / machine.products) * machine.products

    def tiled(self, filters: Sequence[Filter], transforms_weights: bool, target: Target, worth: float = inf) -> float:
        """Estimated units on one core of tiles, whose weights are transformed in the kernel or before. worth: what
        takes at least that long is given as the least that it takes, without a choice of blocks."""
        lanes = target.lanes(4)
        counts = (self.y[0], *(-(-e // f.results) for e, f in zip(self.y[2:], filters, strict=True)))
        planes, tiles = prod(f.products for f in filters), prod(counts)
        channels, results = -(-self.x[1] // lanes), -(-self.y[1] // lanes)
        sizes = [planes + prod(f.elements for f in filters), planes + prod(f.results for f in filters)]
        each = TRANSFORM / Machine.of(target).products
        transforms = tiles * each / 2 * sum(n * size for n, size in zip((channels, results), sizes, strict=True))
        turned = sum(
            n * e
            for n, e, size in (
                # a block is a row of tiles: rows of x between two of them change their place for both
                (channels, filters[0].elements * filters[1].step, self.x[1]),
                (results, prod(f.results for f in filters), self.y[1]),
            )
            if size % lanes
        )
        transforms += tiles * turned * TURN * lanes
        if transforms_weights:
            transforms += WEIGHT * planes * self.x[1] * results + _memory(4 * prod(self.taps) * self.pairs, target)
        moved = _memory(4 * (prod(self.x) + prod(self.y)), target)
        products = planes * tiles * self.x[1] * results / BUSY
        if products + transforms + moved >= worth:
            return products + transforms + moved
        _, cost = choose(self._work(filters, transforms_weights, target))
        return products * cost + transforms + moved

    def _work(
        self, filters: Sequence[Filter], transforms_weights: bool, target: Target, is_joined: bool = False
    ) -> Work:
        rows, columns = (-(-e // f.results) for e, f in zip(self.y[2:], filters, strict=True))
        plane = (1, rows * columns) if is_joined else (rows, columns)
        shape = (*(f.products for f in filters), self.y[0], *plane, self.y[1])
        return Work.of(shape, self.x[1], target.lanes(4), target, transforms_weights)

    def saves_as_one_row(self, filters: Sequence[Filter], target: Target) -> float:
        """Return the units that tiles of transformed weights save where those of a plane are one row, with what their
        blocks copy; negative where they cost more, and where rows are too long."""
        rows, columns = (-(-e // f.results) for e, f in zip(self.y[2:], filters, strict=True))
        if columns > SHORT or rows == 1:
            return -inf
        lanes = target.lanes(4)
        products = prod(f.products for f in filters) * self.y[0] * rows * columns * self.x[1] * -(-self.y[1] // lanes)
        costs = list[float]()
        for is_joined in (False, True):
            blocks, cost = choose(self._work(filters, False, target, is_joined))
            if blocks.by_channels:
                count, sides = 1, (rows, columns)
            elif is_joined:  # begins within a row
                count, sides = -(-rows * columns // blocks.columns), ((blocks.columns - 2) // columns + 2, columns)
            else:
                count, sides = -(-rows // blocks.rows) * -(-columns // blocks.columns), (blocks.rows, blocks.columns)
            read = prod((min(n, most) - 1) * f.step + f.elements for n, most, f in zip(sides, (rows, columns), filters))
            copied = self.y[0] * count * read * -(-self.x[1] // lanes)
            costs.append(products / BUSY * cost + COPY * copied)
        return costs[0] - costs[1]


def _memory(nbytes: float, target: Target) -> float:
    """Return the units in which so many bytes come from memory, while nothing is multiplied."""
    machine = Machine.of(target)
    return nbytes / machine.memory.rate * machine.products
