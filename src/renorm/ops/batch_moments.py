"""Moments of a batch, per channel: the first part of batch norm in training."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.op import OPAQUE, OpDef, Reject, Sample
from renorm.graph.types import bf16, boolean, f16, f32, f64
from renorm.ops.shared.batch_references import moments_reference
from renorm.ops.shared.batch_statistics import batch_moments
from renorm.te import tag


class BatchMoments(OpDef):
    """count = values per channel; mean = their mean; squares = sum of (x - mean)^2. All in float64.

    Of x only the elements count where mask is true; without a mask all do. Of no values count, mean and squares are 0.
    The population variance is squares / count; whoever merges parts of a batch needs all three.
    """

    signature = "x: T[N, C, *S], mask?: bool[N, *S] -> count: f64[1], mean: f64[C], squares: f64[C]"
    types = {"T": FLOATS}
    fusion = OPAQUE
    scheduled_as = "reduction"

    def compute(self, x: te.Tensor, mask: te.Tensor | None) -> list[te.Tensor]:
        m = batch_moments(x, mask)
        count = te.compute((1,), lambda _: m.count, name="count", tag=tag.ELEMWISE)
        mean, squares = (
            te.compute(t.shape, lambda c, t=t: t[c], name=name, tag=tag.ELEMWISE)
            for t, name in ((m.mean, "batch_mean"), (m.squares, "squared_distances"))
        )
        return [count, mean, squares]

    def reference(self, x: Any, mask: Any) -> list[Any]:
        count, mean, squares = moments_reference(x, mask)
        return [np.array([count], np.float64), mean, squares]

    samples = [
        Sample(f32[2, 3, 5, 7]),
        Sample(f32[6, 3], boolean[6]),
        Sample(f32[4, 3, 5], boolean[4, 5], tolerance=1e-12),
        Sample(f32[2, 3, 2, 3, 2], boolean[2, 2, 3, 2]),
        Sample(f32[1, 3, 1]),
        Sample(f32[0, 3, 5]),
        Sample(f32[2, 3, 5].between(79999.0, 80003.0), tolerance=1e-12),
        Sample(f32[3, 2, 4].between(0.7, 0.7), tolerance=0.0),
        Sample(f32[3, 2, 4].between(-1e30, 1e30), tolerance=1e-12),
        Sample(f64[3, 2, 4], tolerance=1e-12),
        Sample(f16[3, 20].between(200.0, 201.0), tolerance=1e-12),
        Sample(bf16[3, 2, 4], boolean[3, 4], tolerance=1e-12),
    ]
    rejects = [
        Reject(f32[3], because="x has rank 1"),
        Reject(f32[4, 3, 5], boolean[4, 3, 5], because="mask has S = [3, 5] but x has [5]"),
        Reject(f32[4, 3, 5], f32[4, 5], because="mask is float32"),
    ]
