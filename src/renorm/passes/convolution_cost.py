"""What a 3 x 3 convolution costs, computed directly or by Winograd's tiles: what algorithms are chosen by.

The unit is one multiply-add of a whole vector register. An estimate counts what surely takes time on any CPU with
vector registers: multiply-adds, with what does not fill tiles; transforms, per tile and vector of channels; weights
that come from memory, because those of a network do not fit the caches; and what transforms read and write there, while
nothing is multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

from renorm.core.target import Target
from renorm.ops.schedules.tiles import choose_tile
from renorm.ops.winograd import TAPS

TRANSFORM = 6.0  # units per element of a tile, of input and result alike: loads, sums and stores, measured on AVX-512
TURN = 1.5  # units per element that has to change its place because channels do not fill vectors
WAIT = 4.0  # operations that all cores could do, half hidden, while one byte comes from memory
BUSY = 0.95  # of the time in which products of tiles really multiply


@dataclass(frozen=True)
class Convolution:
    """3 x 3, strides 1, in one group. height, width: of the result."""

    batch: int
    channels: int
    results: int
    height: int
    width: int

    def weight_bytes(self, tile: int) -> int:
        """Of weights as they are (tile 1), or transformed for a Winograd tile."""
        return 4 * (tile + TAPS - 1) ** 2 * self.channels * self.results

    def cost(self, tile: int, target: Target) -> float:
        """Estimated units on one core. tile: 1 for the direct convolution, or m of Winograd's F(m, 3)."""
        lanes = target.lanes(4)
        vectors = -(-self.results // lanes)
        down, across = -(-self.height // tile), -(-self.width // tile)
        register = choose_tile(across, vectors, target.vector_registers)
        padded = -(-across // register.pixels) * register.pixels * down * self.batch
        planes = (tile + TAPS - 1) ** 2
        stall = max(1.0, 8 / (register.pixels * register.vectors))
        products = planes * padded * self.channels * vectors * stall
        wait = WAIT / (2 * lanes)
        if tile == 1:
            return products + wait * self.weight_bytes(tile)
        memory = self.weight_bytes(tile) + 4 * self.batch * self.height * self.width * (self.channels + self.results)
        count = self.batch * down * across
        channels = -(-self.channels // lanes)
        turned = sum(n for n, full in ((channels, self.channels), (vectors, self.results)) if full % lanes)
        transforms = count * ((channels + vectors) * TRANSFORM * planes + turned * TURN * lanes * tile * tile)
        return products / BUSY + transforms + wait * memory
