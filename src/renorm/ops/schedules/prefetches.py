"""CPU: weights, and data, are asked for while others are multiplied.

A panel of constant weights, those of a few vectors of channels, is multiplied with one tile of pixels after the other.
The first tile would wait for memory, which rests during the others: so the next panel is asked for in all their rounds.

    arrival   cycles in which memory gives a vector of weights
    use       cycles of its products, two per cycle: half of the pixels that it is used for

Memory rests where use exceeds arrival; where it does not, the CPU's own reading ahead is faster. Where use is many
times as long, nothing is to be gained. On Zen 5, one thread, weights from memory, parts of the time without it:

    rows, pixels   1            4            8            49           196, 197     784 on
    AVX-512        1.09 - 1.30  0.77 - 1.33  0.47 - 1.00  0.72 - 0.88  0.92 - 0.97  0.99 - 1.01
    AVX2           0.74 - 1.04  0.37 - 1.07  0.41 - 0.78  0.82 - 0.91  0.92 - 0.96  0.97 - 1.02
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.machine import LINE
from renorm.core.target import Target
from renorm.ops.schedules import structure
from renorm.te.tensor import source_of
from renorm.topi import layout

RATES = 16, 32  # bytes per cycle: of memory, and of caches, where weights are gone over again
MOST = 64  # as many times arrival as use may be
STREAMS = 32  # rows of memory that a core follows, which it reads ahead by itself
BLOCKS_AHEAD = 2  # with one, mobilenet_v2 and resnet50 gained half as much, or nothing


def prefetch_weights(
    s: te.Schedule,
    products: te.Tensor,
    panels: te.IterVar,
    target: Target,
    passes: int = 1,
    reader: te.Tensor | None = None,
) -> None:
    """Ask in the loops of `products` for the constant weights of the next round of `panels`, where memory rests.
    passes: how often all weights are gone over; reader: the stage that reads them, where that is another one."""

    def is_worth(t: te.Tensor) -> bool:
        use, arrival = structure.work(products) / max(1, prod(t.shape) * passes) / 2, target.vector_bytes / rate
        return arrival <= use <= MOST * arrival

    rate = RATES[passes > 1]
    _ask(s, products, filter(is_worth, _read(reader or products, is_packed=True)), panels, 1, target)


def prefetch_panels(s: te.Schedule, products: te.Tensor, panels: te.IterVar, target: Target) -> None:
    """Ask in the loops of `products` for the constant weights of the next round of `panels`, which a matrix unit takes
    in fewer cycles than memory gives them in."""
    _ask(s, products, _read(products, is_packed=True), panels, 1, target)


def prefetch_data(s: te.Schedule, products: te.Tensor, blocks: te.IterVar, target: Target) -> None:
    """Ask in the loops of `products` for data of the next rounds but one of `blocks`, over which is summed: what
    another core has written comes late, and a core reads ahead little of runs as short as a tile is wide. Sapphire
    Rapids, AVX-512 and AVX2: on two threads networks of convolutions took 0.94 to 0.98 of the time, on one 0.99 to
    1.00."""
    _ask(s, products, _read(products, is_packed=False), blocks, BLOCKS_AHEAD, target)


def prefetch_pixels(s: te.Schedule, products: te.Tensor, tiles: te.IterVar, pixels: int, target: Target) -> None:
    """Ask in the loops of `products` for row-major data of later rounds of `tiles`, of so many pixels each: a line
    further on in each channel, where these are more than a core follows. If one is late, so are all sums. Sapphire
    Rapids, 116 channels of 14 x 14 that another core wrote, two threads: 37 us -> 27, AVX2 64 -> 38; one thread
    unchanged."""
    if products.op.reduce_axis[0].extent > STREAMS:
        for t in _read(products, is_packed=False):
            _ask(s, products, [t], tiles, -(-LINE // itemsize(t.dtype) // pixels), target)


def prefetch_shared(s: te.Schedule, products: te.Tensor, t: te.Tensor, rounds: te.IterVar, target: Target) -> None:
    """Ask in the loops of `products` for what the next one of `rounds` reads of `t`, which all threads have computed
    together. Sapphire Rapids, two threads: networks with Winograd's convolutions 0.92 to 0.98 of the time, AVX2 0.97 to
    1.00."""
    _ask(s, products, [t], rounds, 1, target)


def _ask(
    s: te.Schedule, products: te.Tensor, read: Iterable[te.Tensor], loop: te.IterVar, ahead: int, target: Target
) -> None:
    """Ask in the loops of `products` for what it reads in later rounds of a loop. Nothing where registers are to be
    left: to ask may have cost the one that was spilled."""
    if not target.spare:
        for t in read:
            s[products].prefetch(layout.source(t), loop, ahead)


def _read(stage: te.Tensor, is_packed: bool) -> Iterator[te.Tensor]:
    """Yield what a stage reads of constant weights, which lie in panels, or of anything else."""
    for t in dict.fromkeys(map(source_of, structure.reads(stage))):
        form = layout.form_of(t)
        if (form is not None and form.first is not None) is is_packed:
            yield t
