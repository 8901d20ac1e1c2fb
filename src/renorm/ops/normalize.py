"""Normalization with given statistics: the third part of batch norm in training, and all of it at inference."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.attributes import Bool, Float
from renorm.graph.op import OPAQUE, OpDef, Reject, Sample
from renorm.graph.types import bf16, f16, f32, f64
from renorm.ops.shared.batch_references import normalized_reference
from renorm.ops.shared.batch_statistics import double, normalized


class Normalize(OpDef):
    """y = scale * (x - mean) / sqrt(var + epsilon) + bias + residual, per channel; relu: max(that, 0).

    Without scale, bias, residual they are 1, 0, 0. What belongs to a channel is computed in float64 and rounded once.
    """

    signature = (
        "x: T[N, C, *S], mean: V[C], var: V[C], scale?: U[C], bias?: U[C], residual?: T[N, C, *S] -> y: T[N, C, *S]"
    )
    types = {"T": FLOATS, "U": FLOATS, "V": FLOATS}
    fusion = OPAQUE
    scheduled_as = "reduction"
    epsilon = Float(1e-5, at_least=0.0)
    relu = Bool(False)

    def compute(
        self,
        x: te.Tensor,
        mean: te.Tensor,
        var: te.Tensor,
        scale: te.Tensor | None,
        bias: te.Tensor | None,
        residual: te.Tensor | None,
    ) -> te.Tensor:
        return normalized(
            x, lambda c: double(mean[c]), lambda c: double(var[c]), self.epsilon, scale, bias, residual, self.relu
        )

    def reference(self, x: Any, mean: Any, var: Any, scale: Any, bias: Any, residual: Any) -> Any:
        y = normalized_reference(x, mean, var, self.epsilon, scale, bias)
        y = y if residual is None else y + residual
        return np.maximum(y, 0.0) if self.relu else y

    samples = [
        Sample(f32[2, 3, 5, 7], f32[3], f32[3].between(0.1, 2), f32[3], f32[3]),
        Sample(f32[4, 3], f64[3], f64[3].between(0, 1e-12), f32[3], None, epsilon=1e-12),
        Sample(f32[2, 3, 4], f64[3], f64[3].between(0.1, 2), None, f32[3], f32[2, 3, 4], relu=True, epsilon=0.1),
        Sample(f32[2, 3, 4].of([np.nan] * 24), f64[3], f64[3].between(0.1, 2), relu=True),
        Sample(f32[0, 3, 2], f32[3], f32[3].between(0.1, 2)),
        Sample(
            f32[1, 2, 3].of([1, 2, 3, 4, 5, 6]), f32[2].of([2, 5]), f32[2].of([0, 1]), epsilon=0.0
        ),  # -inf, NaN, inf
        Sample(f32[1, 2, 4].between(9990, 10010), f64[2].of([10000.00001, 9995]), f64[2].of([25, 1])),
        Sample(f64[2, 3, 2], f64[3], f64[3].between(0.1, 2), f64[3], f64[3]),
        Sample(f16[2, 3, 4], f32[3], f32[3].between(0.1, 2), f32[3], f32[3]),
        Sample(bf16[2, 3, 4], f64[3], f64[3].between(0.1, 2), f32[3], f32[3], bf16[2, 3, 4]),
    ]
    rejects = [
        Reject(f32[2, 3, 5], f32[4], f32[3], because="mean has C = 4 but x has C = 3"),
        Reject(f32[2, 3, 5], f32[3], f64[3], because="var is float64"),
        Reject(f32[2, 3, 5], f32[3], f32[3], f32[3], f16[3], because="bias is float16"),
        Reject(f32[2, 3, 5], f32[3], f32[3], None, None, f16[2, 3, 5], because="residual is float16"),
    ]
