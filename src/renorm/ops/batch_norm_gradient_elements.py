"""Gradient of a batch norm from sums that are known: those of this batch, or of all ranks."""

from __future__ import annotations

from typing import Any

from renorm import te
from renorm.graph.op import Reject, Sample
from renorm.graph.types import boolean, f16, f32, f64
from renorm.ops.shared.batch_gradient import BatchGradient, Gradient
from renorm.ops.shared.batch_references import passed_reference
from renorm.ops.shared.batch_statistics import statistics_dtype


class BatchNormGradientElements(BatchGradient):
    """dx = scale * invstd * (g - (sum(g) + xhat * sum(g * xhat)) / count), xhat = (x - mean) * invstd, per channel.

    g as in BatchNormGradientSums, whose result `sums` is; count: how many values a channel has. Where mask is false,
    and with frozen (mean and invstd are constants), dx = scale * invstd * g.
    dscale = sum(g * xhat), dbias = sum(g). residual: g is a result too, the gradient of what was added after the norm.
    """

    signature = (
        "dy: T[N, C, *S], x: T[N, C, *S], scale?: U[C], mean: V[C], invstd: V[C], sums: f64[3, C], count: f64[1],"
        " mask?: bool[N, *S], y?: T[N, C, *S] -> dx: T[N, C, *S], dscale: V[C], dbias: V[C], *dresidual: T[N, C, *S]"
    )
    scheduled_as = "reduction"

    def compute(
        self,
        dy: te.Tensor,
        x: te.Tensor,
        scale: te.Tensor | None,
        mean: te.Tensor,
        invstd: te.Tensor,
        sums: te.Tensor,
        count: te.Tensor,
        mask: te.Tensor | None,
        y: te.Tensor | None,
    ) -> list[te.Tensor]:
        gradient = Gradient(dy, x, mean, invstd, mask, y, self.frozen)
        return gradient.results(sums, count[0], scale, statistics_dtype(x.dtype), self.residual)

    def reference(
        self, dy: Any, x: Any, scale: Any, mean: Any, invstd: Any, sums: Any, count: Any, mask: Any, y: Any
    ) -> list[Any]:
        return self.results_reference(passed_reference(dy, y), x, mean, invstd, sums, count[0], scale, mask)

    samples = [
        Sample(f32[2, 3, 5, 7], f32[2, 3, 5, 7], f32[3], f64[3], f64[3], f64[3, 3], f64[1].of([70])),
        Sample(
            f32[6, 3], f32[6, 3], None, f64[3], f64[3], f64[3, 3], f64[1].of([9]), boolean[6], f32[6, 3], residual=True
        ),
        Sample(f32[2, 3, 4], f32[2, 3, 4], f32[3], f64[3], f64[3], f64[3, 3], f64[1].of([8]), frozen=True),
        Sample(f32[0, 3, 4], f32[0, 3, 4], f32[3], f32[3], f32[3], f64[3, 3].between(0, 0), f64[1].of([0])),
        Sample(f64[2, 3, 4], f64[2, 3, 4], f64[3], f64[3], f64[3], f64[3, 3], f64[1].of([8]), boolean[2, 4]),
        Sample(f16[2, 3, 4], f16[2, 3, 4], f32[3], f64[3], f64[3], f64[3, 3], f64[1].of([8])),
    ]
    rejects = [
        Reject(f32[2, 3], f32[2, 3], None, f64[3], f64[3], f64[2, 3], f64[1], because="sums has 2 where 3 is expected"),
        Reject(f32[2, 3], f32[2, 3], None, f64[3], f32[3], f64[3, 3], f64[1], because="invstd is float32"),
    ]
