"""The mean of each tile of an image."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.dtypes import compute_dtype
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.shared.precision import wide
from renorm.ops.shared.tile_statistics import TileStatistics, counts, elements
from renorm.te import tag


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
        Reject(f32[2, 3, 0, 7], tile=(2, 2), because="must be known, and not 0"),
    ]
