"""Statistics of each tile of an image: its mean, and what norms merge, mean and sum of squared distances from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.dtypes import compute_dtype
from renorm.expr.nodes import as_expr, cast
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.shared.moments import ACCUMULATOR, summed
from renorm.ops.shared.precision import wide
from renorm.ops.shared.tags import STATISTIC
from renorm.ops.shared.tile_statistics import TileStatistics, counts, elements, sizes
from renorm.te import tag
from renorm.te.open_dims import smaller


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
        return means.astype(x.dtype)

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
        Reject(f32[2, 3, 0, 7], tile=(2, 2), because="must not be 0"),
    ]


SCALE = 2.0**-64  # what brings distances from 2^64 on into the range of those whose squares are finite
# Beside distances so scaled: squares are no subnormal numbers, for which CPUs take a hundred cycles; of those for which
# it matters, from 2^50 on, it changes no bit
BESIDE = 2.0**-40
FEW = 32  # elements of which the mean is a pivot


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
            return distance(e, at) * te.const(SCALE, dtype) + te.const(BESIDE, dtype)

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
        extent, (*_, tile) = x.shape[-1], sizes(x.shape[2:], self.tile)
        few = smaller(FEW, extent - ((extent + (tile - 1)) // tile - 1) * tile)  # of the last tile

        def element(index: Any, inside: Any) -> Any:
            *place, last = (i * t for i, t in zip(index[1:-1], self.tile))
            return x[(index[0], index[-1], *place, last + inside)].astype(dtype)

        attrs = {"channel": x.ndim - 1}
        sums = summed(tiles, [few], lambda i, r: element(i, r[0]) - element(i, 0), "tile_pivot_sum", attrs)

        def mean(*index: Any) -> Any:
            return element(index, 0) + sums[index] / cast(dtype, as_expr(few))

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
