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
from renorm.core.dims import Shape, take
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.expr.extents import same_extent
from renorm.expr.nodes import Expr
from renorm.graph.attributes import Ints
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import REDUCTION, OpDef
from renorm.graph.types import Operand
from renorm.ops.shared.tags import TILE_ROWS
from renorm.te import tag


def counts(extents: Sequence[Any], tile: Sequence[int]) -> tuple[Any, ...]:
    """Return how many tiles there are along each axis, of which extents may be open."""
    return tuple((e + (t - 1)) // t for e, t in zip(extents, tile, strict=True))


def sizes(extents: Sequence[int], tile: Sequence[int]) -> list[int]:
    """Return how many elements a tile has at most along each axis; of open ones as many as it may have."""
    return [t if isinstance(e, Expr) else min(t, e) for e, t in zip(extents, tile, strict=True)]


def are_ragged(extents: Sequence[int], tile: Sequence[int]) -> list[bool]:
    """Return for each axis whether tiles may have fewer elements than `sizes`."""
    return [not same_extent(e % size, 0) for e, size in zip(extents, sizes(extents, tile), strict=True)]


def elements(extents: Sequence[int], tile: Sequence[int], at: Sequence[Any], dtype: str) -> Any:
    """Return how many elements tile number `at` has, as an expression of `dtype`."""
    ragged = are_ragged(extents, tile)
    count = te.const(float(prod(size for size, cut in zip(sizes(extents, tile), ragged) if not cut)), dtype)
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

    def tiles(self, x: Operand) -> Shape:
        """Return how many tiles there are along each spatial axis of x, which must have elements."""
        if len(self.tile) != x.rank - 2 or any(t < 1 for t in self.tile):
            raise OperandError(
                f"{self.name}: tile {list(self.tile)} needs one number from 1 up for each of {x.rank - 2} spatial axes"
            )
        if 0 in x.shape[2:]:
            raise OperandError(f"{self.name}: the spatial extents of {x} must not be 0")
        for d in x.shape[2:]:
            take(1, "<=", d)
        return counts(x.shape[2:], self.tile)

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.EITHER if index == 0 else Accepts.ROW_MAJOR

    def total(self, x: te.Tensor, terms: Sequence[Callable[[Any, Any], Any]], wide_sums: str) -> te.Tensor:
        """sums[n, t.., k, c] = sum of terms[k](element of x, (n, t.., c)) over each tile: rows of the last axis in the
        dtype of terms, their sums in `wide_sums`."""
        extents = x.shape[2:]
        within = sizes(extents, self.tile)
        shape = (x.shape[0], *counts(extents, self.tile), len(terms), x.shape[1])
        rank, cut = len(within), are_ragged(extents, self.tile)
        *outer, last = [te.reduce_axis((0, size), name=f"r{i}") for i, size in enumerate(within)]

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
        rows = te.compute((*shape, *within[:-1]), row, name="tile_rows", tag=TILE_ROWS, attrs=attrs)

        def tile(*index: Any) -> Any:
            value = rows[(*index, *outer)].astype(wide_sums)
            return te.sum(value, axis=outer) if outer else value

        return te.compute(shape, tile, name="tile_sums", tag=tag.COMM_REDUCE if outer else tag.ELEMWISE, attrs=attrs)

    def pieces(self, x: Any) -> dict[tuple[int, ...], Any]:
        """The elements of each tile of an array."""
        cut = [[slice(b, b + t) for b in range(0, e, t)] for e, t in zip(x.shape[2:], self.tile)]
        numbers = product(*(range(len(c)) for c in cut))
        return {at: x[(slice(None), slice(None), *(c[i] for c, i in zip(cut, at)))] for at in numbers}
