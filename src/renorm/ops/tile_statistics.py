"""Statistics of tiles: what a kernel can say of a result piece by piece, while each piece is in a cache.

Spatial axes are cut into tiles of fixed extents, of which the last ones may be smaller. Whoever merges tiles does so in
the order of their numbers, so that no bit depends on which thread computed what. Results have channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.dtypes import FLOATS, compute_dtype
from renorm.core.errors import OperandError
from renorm.core.target import Target
from renorm.graph.attributes import Ints
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import REDUCTION, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops import schedules
from renorm.ops.moments import ACCUMULATOR
from renorm.ops.precision import rounded, wide
from renorm.ops.schedules.cpu_tiles import ROWS, SUMS
from renorm.ops.schedules.structure import STATISTIC
from renorm.te import tag

SCALE = 2.0**-64  # what brings distances from 2^64 on into the range of those whose squares are finite
FEW = 32  # elements of which the mean is a pivot


def counts(extents: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """How many tiles there are along each axis."""
    return tuple(-(-e // t) for e, t in zip(extents, tile, strict=True))


def elements(extents: Sequence[int], tile: Sequence[int], at: Sequence[Any], dtype: str) -> Any:
    """How many elements tile number `at` has, as an expression of `dtype`."""
    ragged = [bool(e % min(t, e)) for e, t in zip(extents, tile, strict=True)]
    count = te.const(float(prod(min(t, e) for e, t, cut in zip(extents, tile, ragged) if not cut)), dtype)
    for e, t, i, cut in zip(extents, tile, at, ragged):
        count = count * te.minimum(t, e - i * t).astype(dtype) if cut else count
    return count


class TileStatistics(OpDef):
    """Base of statistics of tiles. tile: extents of a tile, one for each spatial axis."""

    types = {"T": FLOATS}
    fusion = REDUCTION
    is_statistic = True
    tile = Ints()

    def tiles(self, x: Operand) -> tuple[int, ...]:
        """How many tiles there are along each spatial axis of x; OperandError where that cannot be said."""
        if len(self.tile) != x.rank - 2 or any(t < 1 for t in self.tile):
            raise OperandError(
                f"{self.name}: tile {list(self.tile)} needs one number from 1 up for each of {x.rank - 2} spatial axes"
            )
        if any(not isinstance(d, int) or not d for d in x.shape[2:]):
            raise OperandError(f"{self.name}: the spatial extents of {x} must be known, and not 0")
        return counts([int(str(d)) for d in x.shape[2:]], self.tile)

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.EITHER if index == 0 else Accepts.ROW_MAJOR

    def schedule(self, s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
        schedules.reduction(s, outs, target)

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
        rows = te.compute((*shape, *sizes[:-1]), row, name="tile_rows", tag=ROWS, attrs=attrs)

        def tile(*index: Any) -> Any:
            value = rows[(*index, *outer)].astype(wide_sums)
            return te.sum(value, axis=outer) if outer else value

        return te.compute(shape, tile, name="tile_sums", tag=SUMS if outer else tag.ELEMWISE, attrs=attrs)

    def pieces(self, x: Any) -> dict[tuple[int, ...], Any]:
        """The elements of each tile of an array."""
        cut = [[slice(b, b + t) for b in range(0, e, t)] for e, t in zip(x.shape[2:], self.tile)]
        numbers = product(*(range(len(c)) for c in cut))
        return {at: x[(slice(None), slice(None), *(c[i] for c, i in zip(cut, at)))] for at in numbers}


class TileMeans(TileStatistics):
    """m[n, t.., c] = mean of x[n, c, ..] over tile t.. of the spatial axes."""

    signature = "x: T[N, C, *S] -> m: T[...]"

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        return (x.shape[0], *self.tiles(x), x.shape[1])

    def compute(self, x: te.Tensor) -> te.Tensor:
        extents, dtype = x.shape[2:], compute_dtype(x.dtype)
        sums = self.total(x, [lambda e, _: wide(e)], dtype)
        means = te.compute(
            (*sums.shape[:-2], x.shape[1]),
            lambda *i: sums[(*i[:-1], 0, i[-1])] / elements(extents, self.tile, i[1:-1], dtype),
            name="tile_means",
            tag=tag.ELEMWISE,
        )
        return rounded(means, x.dtype)

    def reference(self, x: Any) -> Any:
        m = np.empty((x.shape[0], *counts(x.shape[2:], self.tile), x.shape[1]))
        for at, piece in self.pieces(x).items():
            m[(slice(None), *at)] = piece.mean(axis=tuple(range(2, x.ndim)))
        return m

    samples = [
        Sample(f32[2, 3, 5, 7], tile=(2, 7)),
        Sample(f32[1, 16, 9, 13], tile=(4, 5)),
        Sample(f32[2, 3, 8], tile=(4,)),
        Sample(f32[1, 2, 3, 4, 5], tile=(9, 2, 2)),
        Sample(f32[0, 3, 4, 4], tile=(2, 2)),
        Sample(f64[1, 2, 3, 4], tile=(1, 4)),
        Sample(f16[1, 2, 40, 3].between(1000, 1001), tile=(20, 3)),
        Sample(bf16[1, 2, 4, 4], tile=(2, 4)),
    ]
    rejects = [
        Reject(f32[3], tile=(1,), because="x has rank 1"),
        Reject(f32[2, 3, 5, 7], tile=(2,), because="tile [2] needs one number from 1 up for each of 2 spatial axes"),
        Reject(f32[2, 3, 5, 7], tile=(2, 0), because="from 1 up"),
        Reject(f32[2, 3, 0, 7], tile=(2, 2), because="must be known, and not 0"),
    ]


class TileMoments(TileStatistics):
    """m[n, t.., 0, c] = mean of x[n, c, ..] over tile t.., m[n, t.., 1, c] = sum of (x - that mean)^2, in float64.

    One pass sums d and d*d with d = x - pivot, in rows in the dtype of arithmetic, rows in float64. The pivot is the
    mean of a few elements of the tile, so that its distance from the mean is at most a few deviations, whatever the
    data: what then cancels in sum(d*d) - sum(d) * sum(d) / n are a few last bits of a float32. Where d*d exceeds what
    its dtype holds, the squares of 2^-64 * d take their place. d itself must not exceed that.
    """

    signature = "x: T[N, C, *S] -> m: float64[...]"

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        return (x.shape[0], *self.tiles(x), 2, x.shape[1])

    def compute(self, x: te.Tensor) -> te.Tensor:
        extents, dtype = x.shape[2:], compute_dtype(x.dtype)
        tiles = (x.shape[0], *counts(extents, self.tile), x.shape[1])
        pivot = self._pivot(x, tiles, dtype)

        def distance(e: Any, at: Any) -> Any:
            return e.astype(dtype) - pivot[at]

        def small(e: Any, at: Any) -> Any:
            return distance(e, at) * te.const(SCALE, dtype)

        terms = [distance, lambda e, at: distance(e, at) * distance(e, at), lambda e, at: small(e, at) * small(e, at)]
        sums = self.total(x, terms, ACCUMULATOR)

        def moment(*index: Any) -> Any:
            *at, k, c = index
            count = elements(extents, self.tile, at[1:], ACCUMULATOR)
            total, squares, scaled = (sums[(*at, i, c)] for i in range(3))
            limit = te.const(float(np.finfo(dtype).max), ACCUMULATOR)
            squares = te.select(squares <= limit, squares, scaled / te.const(SCALE * SCALE, ACCUMULATOR))
            spread = te.maximum(squares - total * total / count, te.const(0.0, ACCUMULATOR))
            return te.select(k < 1, pivot[(*at, c)].astype(ACCUMULATOR) + total / count, spread)

        return te.compute((*tiles[:-1], 2, x.shape[1]), moment, name="tile_moments", tag=tag.ELEMWISE)

    def _pivot(self, x: te.Tensor, tiles: Sequence[int], dtype: str) -> te.Tensor:
        """The mean of the first elements of each tile; of equal ones that number itself."""
        extent, tile = x.shape[-1], min(self.tile[-1], x.shape[-1])
        few = min(FEW, tile, extent % tile or tile)
        r = te.reduce_axis((0, few), name="r")

        def element(index: Any, inside: Any) -> Any:
            *place, last = (i * t for i, t in zip(index[1:-1], self.tile))
            return x[(index[0], index[-1], *place, last + inside)].astype(dtype)

        attrs = {"channel": x.ndim - 1}
        sums = te.compute(
            tiles,
            lambda *i: te.sum(element(i, r) - element(i, 0), axis=r),
            name="tile_pivot_sum",
            tag="reduce",
            attrs=attrs,
        )

        def mean(*index: Any) -> Any:
            return element(index, 0) + sums[index] / te.const(float(few), dtype)

        return te.compute(tiles, mean, name="tile_pivot", tag=STATISTIC, attrs=attrs)

    def reference(self, x: Any) -> Any:
        x = x.astype(np.float64)
        m = np.empty((x.shape[0], *counts(x.shape[2:], self.tile), 2, x.shape[1]))
        for at, piece in self.pieces(x).items():
            axes = tuple(range(2, x.ndim))
            m[(slice(None), *at, 0)] = piece.mean(axis=axes)
            m[(slice(None), *at, 1)] = ((piece - piece.mean(axis=axes, keepdims=True)) ** 2).sum(axis=axes)
        return m

    samples = [
        Sample(f32[2, 3, 5, 7], tile=(2, 7), tolerance=1e-6),
        Sample(f32[1, 16, 9, 13], tile=(4, 5), tolerance=1e-6),
        Sample(f32[2, 3, 8], tile=(4,), tolerance=1e-6),
        Sample(f32[1, 2, 3, 4, 5], tile=(9, 2, 2), tolerance=1e-6),
        Sample(f32[2, 3, 4, 4].between(79999.0, 80003.0), tile=(3, 4), tolerance=1e-6),
        Sample(f32[2, 3, 4, 4].between(0.7, 0.7), tile=(3, 4), tolerance=0.0),
        Sample(f32[1, 2, 4, 4].between(-1e30, 1e30), tile=(2, 2), tolerance=1e-6),
        Sample(f32[0, 3, 4, 4], tile=(2, 2), tolerance=1e-6),
        Sample(f64[1, 2, 3, 4], tile=(1, 4)),
        Sample(f16[1, 2, 8, 8].between(200.0, 201.0), tile=(4, 8), tolerance=1e-6),
        Sample(bf16[1, 2, 4, 4], tile=(2, 4), tolerance=1e-6),
    ]
    rejects = [
        Reject(f32[3], tile=(1,), because="x has rank 1"),
        Reject(f32[2, 3, 5, 7], tile=(2,), because="tile [2] needs one number from 1 up for each of 2 spatial axes"),
    ]
