"""Numbers that open extents are likely to be, for decisions that weigh costs: what is decided holds for all numbers.

The one rule: the first of several axes is a batch of 1; axes from the third on are 224 elements of an image where there
are two of them, 128 of a sequence where there is one, 32 of a volume where there are more; all other axes are 128
elements of a sequence. A symbol of several axes takes the largest, a multiple the nearest below, and what is known of a
symbol (core.stated) comes before all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm.core.dims import Dim, Typed, linear, substitute, symbols_of

BATCH, SEQUENCE, SIDE, SIDE_OF_VOLUME = 1, 128, 224, 32


def typical_sizes(inputs: Sequence[Typed]) -> dict[str, int]:
    """Return a number for each symbol of these inputs."""
    found: dict[str, int] = {}
    for v in inputs:
        for axis, extent in enumerate(v.shape):
            aim = _aim(axis, len(v.shape))
            for symbol in symbols_of(extent):
                told = linear(extent)
                size = (aim - told[2]) // told[1] if told and told[1] > 0 else aim
                size = int(min(max(size, symbol.least, 1), symbol.most))
                found[str(symbol)] = max(found.get(str(symbol), 0), size)
    return found


def _aim(axis: int, rank: int) -> int:
    if axis == 0 and rank > 1:
        return BATCH
    if axis < 2 or rank < 4:
        return SEQUENCE
    return SIDE if rank == 4 else SIDE_OF_VOLUME


def typical_shape(shape: Sequence[Dim], sizes: dict[str, int]) -> tuple[int, ...]:
    """Return a shape at these sizes; extents that depend on data are as long as a sequence."""
    found: list[int] = []
    for extent in shape:
        unknown = {s: SEQUENCE for s in symbols_of(extent) if s not in sizes}
        made = substitute(substitute(extent, sizes), unknown)
        assert isinstance(made, int)
        found.append(max(0, made))
    return tuple(found)
