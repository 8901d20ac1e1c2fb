"""GPU: how many threads a slice of a normalization or a sum gets, and how many slices a block.

Threads are as many as divide a slice evenly, if there is such a number: reads of several rounds are then under way at a
time, without a condition between them. Where slices are long, blocks are few on a multiprocessor: what they read twice
stays in caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from renorm import te
from renorm.core.gpu import GpuFacts
from renorm.ops.schedules import structure
from renorm.ops.schedules.slices import Slices

SHORT = 8  # terms that one thread adds up
BLOCK = 256  # threads of a block with several slices
MOST = 1024  # threads of a block
OWN = 24  # elements of a long slice that a thread has at least
FILLED = 512  # threads of a multiprocessor from which on each may have more elements
WIDE = 512  # threads of a slice at most where slices are many: what they read twice stays in caches


@dataclass(frozen=True)
class Shape:
    """threads: of a slice. rows: slices of a block, which are neighbours along axis `tile` of the result; 1 without
    one. along: whether memory runs along slices."""

    threads: int
    rows: int
    tile: int | None
    along: bool


def shape_of(out: te.Tensor, inside: Sequence[te.Tensor], slices: Slices, along: bool, gpu: GpuFacts) -> Shape:
    """Return how many threads a slice gets, and how many slices a block. inside: what is computed of each slice."""
    lengths = [structure.terms(t) for t in inside if structure.is_reduction(t)]
    length = max([*lengths, 1])
    axes = [k for k, (extent, block) in enumerate(zip(out.shape, slices.blocks)) if block == 1 and extent > 1]
    if along:
        tile = max(axes, key=lambda k: out.shape[k], default=None)
        own = 4 if length < 128 else 8 if length < 512 else OWN
        threads = 1 if length <= SHORT else _power(length // own, WIDE)
        while 1 < threads < WIDE and slices.count * threads < FILLED * gpu.units and 16 * threads <= length:
            threads *= 2
        if length > BLOCK and slices.count < 2 * gpu.units:
            threads = _power(length // 4, MOST)
        threads = _fitting(threads, slices, length)
        rows = 1 if tile is None else min(_power(BLOCK // threads, BLOCK), _power(out.shape[tile], BLOCK))
        while rows > 1 and slices.count // rows < 2 * gpu.units:
            rows //= 2
        return Shape(threads, rows, tile, along)
    tile = axes[-1] if axes else None
    rows = 1 if tile is None else min(out.shape[tile], 32)
    threads = 1 if length <= SHORT else min(_power(length // 4, MOST), _power(MOST // 2 // rows, MOST))
    if slices.count >= gpu.units * MOST:
        threads = 1
    if threads == 1 and tile is not None:
        rows = min(out.shape[tile], BLOCK)
    return Shape(threads, rows, tile, along)


def _fitting(threads: int, slices: Slices, length: int) -> int:
    """Return about so many threads that all have as many elements of a slice, where that can be."""
    whole = length
    if slices.size >= length:
        whole = gcd(length, slices.size // max((1, *slices.blocks)))
    width = next((n for n in (4, 2) if whole % n == 0), 1)
    step = 32 if threads > 256 else 8 if threads > 32 else 4
    close = [n for n in range(step, MOST + 1, step) if 4 * threads <= 5 * n and 4 * n <= 5 * threads]
    good = [n for n in close if whole % (width * n) == 0]
    return min(good, key=lambda n: (abs(n - threads), n), default=threads)


def _power(n: int, most: int) -> int:
    """Return the largest power of two up to `n` and `most`, but 1 at least."""
    return 1 << max(0, min(n, most).bit_length() - 1)
