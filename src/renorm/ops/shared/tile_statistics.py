"""Statistics of tiles: what a kernel can say of a result piece by piece, while each piece is in a cache.

Spatial axes are cut into tiles of fixed extents, of which the last ones may be smaller. Whoever merges tiles does so in
the order of their numbers, so that no bit depends on which thread computed what. Results have channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.graph.attributes import Ints
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import REDUCTION, OpDef
from renorm.graph.types import Operand
from renorm.ops.shared.tags import TILE_ROWS, TILE_SUMS
from renorm.te import tag


def counts(extents: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """Return how many tiles there are along each axis."""
    return tuple(-(-e // t) for e, t in zip(extents, tile, strict=True))


def elements(extents: Sequence[int], tile: Sequence[int], at: Sequence[Any], dtype: str) -> Any:
    """Return how many elements tile number `at` has, as an expression of `dtype`."""
    ragged = [bool(e % min(t, e)) for e, t in zip(extents, tile, strict=True)]
    count = te.const(float(prod(min(t, e) for e, t, cut in zip(extents, tile, ragged) if not cut)), dtype)
    for e, t, i, cut in zip(extents, tile, at, ragged):
        count = count * te.minimum(t, e - i * t).astype(dtype) if cut else count
    return count


class TileStatistics(OpDef):
    """Base of statistics of tiles. tile: extents of a tile, one for each spatial axis."""

    types = {"T": FLOATS}
    fusion = REDUCTION
    scheduled_as = "reduction"
    is_statistic = True
    tile = Ints()

    def tiles(self, x: Operand) -> tuple[int, ...]:
        """Return how many tiles there are along each spatial axis of x; OperandError where that cannot be said."""
        if len(self.tile) != x.rank - 2 or any(t < 1 for t in self.tile):
            raise OperandError(
                f"{self.name}: tile {list(self.tile)} needs one number from 1 up for each of {x.rank - 2} spatial axes"
            )
        if any(not isinstance(d, int) or not d for d in x.shape[2:]):
            raise OperandError(f"{self.name}: the spatial extents of {x} must be known, and not 0")
        return counts([int(str(d)) for d in x.shape[2:]], self.tile)

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.EITHER if index == 0 else Accepts.ROW_MAJOR

    def total(self, x: te.Tensor, terms: Sequence[Callable[[Any, Any], Any]], wide_sums: str) -> te.Tensor:
        """sums[n, t.., k, c] = sum of terms[k](element of x, (n, t.., c)) over each tile: rows of the last axis in the
        dtype of terms, their sums in `wide_sums`."""
        extents = x.shape[2:]
        sizes = [min(t, e) for t, e in zip(self.tile, extents)]
        shape = (x.shape[0], *counts(extents, self.tile), len(terms), x.shape[1])
        rank, cut = len(sizes), [bool(e % t) for e, t in zip(extents, sizes)]
        *outer, last = [te.reduce_axis((0, size), name=f"r{i}") for i, size in enumerate(sizes)]

        def row(*index: Any) -> Any:
            *slice_of, k, c = index[: rank + 3]
            inside = (*index[rank + 3 :], last)
            at = [i * t + r for i, t, r in zip(slice_of[1:], self.tile, inside)]
            limits = [at[i] < extents[i] for i in range(rank) if cut[i]]
            element = x[(index[0], c, *at)]
            value = terms[-1](element, (*slice_of, c))
            for number in reversed(range(len(terms) - 1)):
                value = te.select(k == number, terms[number](element, (*slice_of, c)), value)
            return te.sum(value, axis=last, where=te.all(*limits) if limits else None)

        attrs = {"channel": rank + 2}
        rows = te.compute((*shape, *sizes[:-1]), row, name="tile_rows", tag=TILE_ROWS, attrs=attrs)

        def tile(*index: Any) -> Any:
            value = rows[(*index, *outer)].astype(wide_sums)
            return te.sum(value, axis=outer) if outer else value

        return te.compute(shape, tile, name="tile_sums", tag=TILE_SUMS if outer else tag.ELEMWISE, attrs=attrs)

    def pieces(self, x: Any) -> dict[tuple[int, ...], Any]:
        """The elements of each tile of an array."""
        cut = [[slice(b, b + t) for b in range(0, e, t)] for e, t in zip(x.shape[2:], self.tile)]
        numbers = product(*(range(len(c)) for c in cut))
        return {at: x[(slice(None), slice(None), *(c[i] for c, i in zip(cut, at)))] for at in numbers}
