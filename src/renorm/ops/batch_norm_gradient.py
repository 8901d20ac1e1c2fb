"""Gradient of batch norm as one kernel: sums over channels, then elements."""

from __future__ import annotations

from typing import Any

from renorm import te
from renorm.graph.op import Reject, Sample
from renorm.graph.types import bf16, boolean, f16, f32, f64
from renorm.ops.shared.batch_gradient import BatchGradient, Gradient
from renorm.ops.shared.batch_references import passed_reference, selected, sums_reference
from renorm.ops.shared.batch_statistics import counted, statistics_dtype


class BatchNormGradient(BatchGradient):
    """dx = scale * invstd * (g - (sum(g) + xhat * sum(g * xhat)) / count), xhat = (x - mean) * invstd, per channel.

    g is dy, or, where y is given (the result of a ReLU after the norm), dy where y is above 0, and 0 elsewhere. Sums
    run over all elements, count is the number of those where mask is true. Where it is false, and with frozen (mean and
    invstd are constants, not statistics of x), dx = scale * invstd * g. dscale = sum(g * xhat), dbias = sum(g).
    residual: g is a result too, the gradient of what was added after the norm.
    """

    signature = (
        "dy: T[N, C, *S], x: T[N, C, *S], scale?: U[C], mean: V[C], invstd: V[C], mask?: bool[N, *S], y?: T[N, C, *S]"
        " -> dx: T[N, C, *S], dscale: V[C], dbias: V[C], *dresidual: T[N, C, *S]"
    )
    scheduled_as = "normalization"

    def compute(
        self,
        dy: te.Tensor,
        x: te.Tensor,
        scale: te.Tensor | None,
        mean: te.Tensor,
        invstd: te.Tensor,
        mask: te.Tensor | None,
        y: te.Tensor | None,
    ) -> list[te.Tensor]:
        gradient = Gradient(dy, x, mean, invstd, mask, y, self.frozen)
        count = counted(x, mask)
        return gradient.results(gradient.sums(), count, scale, statistics_dtype(x.dtype), self.residual)

    def reference(self, dy: Any, x: Any, scale: Any, mean: Any, invstd: Any, mask: Any, y: Any) -> list[Any]:
        g = passed_reference(dy, y)
        sums = sums_reference(g, x, mean, mask, self.frozen)
        count = selected(x, mask).shape[1]
        return self.results_reference(g, x, mean, invstd, sums, count, scale, mask)

    samples = [
        Sample(f32[2, 3, 5, 7], f32[2, 3, 5, 7], f32[3], f32[3], f32[3]),
        Sample(f32[6, 3], f32[6, 3], None, f64[3], f64[3], boolean[6], f32[6, 3], residual=True),
        Sample(f32[2, 3, 4], f32[2, 3, 4], f32[3], f32[3], f32[3], None, f32[2, 3, 4], frozen=True),
        Sample(f32[2, 3, 4], f32[2, 3, 4], f32[3], f32[3], f32[3], None, f32[2, 3, 4]),
        Sample(f32[0, 3, 4], f32[0, 3, 4], f32[3], f32[3], f32[3]),
        Sample(f64[2, 3, 4], f64[2, 3, 4], f64[3], f64[3], f64[3], boolean[2, 4]),
        Sample(f16[2, 3, 4], f16[2, 3, 4], f32[3], f32[3], f32[3]),
        Sample(bf16[2, 3, 4], bf16[2, 3, 4], bf16[3], f32[3], f32[3]),
    ]
    rejects = [
        Reject(f32[2, 3, 4], f32[2, 3, 5], f32[3], f32[3], f32[3], because="x has S = [5] but dy has [4]"),
        Reject(f32[2, 3, 4], f16[2, 3, 4], f32[3], f32[3], f32[3], because="x is float16 but dy is float32"),
        Reject(f32[2, 3, 4], f32[2, 3, 4], f32[3], f32[3], f32[4], because="invstd has C = 4"),
    ]
