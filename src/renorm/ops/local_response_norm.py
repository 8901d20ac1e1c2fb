"""Local response normalization: every element divided by what its neighbouring channels hold at its place."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.attributes import Float, Int
from renorm.graph.op import REDUCTION, OpDef, Reject, Sample
from renorm.graph.types import bf16, f16, f32, f64
from renorm.ops.shared.precision import wide
from renorm.te import tag


class LocalResponseNorm(OpDef):
    """y[n, c] = x[n, c] / (bias + alpha / size * sum of x[n, j]**2) ** beta, j from c - (size-1)//2 to c + size//2."""

    signature = "x: T[N, C, *S] -> y: T[N, C, *S]"
    types = {"T": FLOATS}
    onnx = {"LRN": 1}
    fusion = REDUCTION
    scheduled_as = "reduction"
    is_normalization = True
    size = Int(at_least=1)
    alpha = Float(1e-4)
    beta = Float(0.75)
    bias = Float(1.0)

    def compute(self, x: te.Tensor) -> te.Tensor:
        channels, before = x.shape[1], (self.size - 1) // 2
        k = te.reduce_axis((0, self.size), name="k")

        def squares(n: Any, c: Any, *at: Any) -> Any:
            j = c + k - before
            value = wide(x[(n, j, *at)])
            inside = te.all(j >= 0, j < channels)
            return te.sum(te.if_then_else(inside, value * value, te.const(0, value.dtype)), axis=k)

        total = te.compute(x.shape, squares, name="squares", tag="reduce")

        def element(*index: Any) -> Any:
            base = total[index] * (self.alpha / self.size) + te.const(self.bias, total.dtype)
            return wide(x[index]) / te.power(base, te.const(self.beta, total.dtype))

        return te.compute(x.shape, element, name="local_response_norm", tag=tag.BROADCAST).astype(x.dtype)

    def reference(self, x: Any) -> Any:
        y = np.empty_like(x)
        for c in range(x.shape[1]):
            near = x[:, max(0, c - (self.size - 1) // 2) : c + self.size // 2 + 1]
            total = np.square(near).sum(axis=1)
            y[:, c] = x[:, c] / (self.bias + self.alpha / self.size * total) ** self.beta
        return y

    samples = [
        Sample(f32[2, 7, 3, 4], size=5, alpha=0.1),
        Sample(f32[2, 5, 3, 4], size=4, alpha=0.5, beta=0.5, bias=2.0),
        Sample(f32[1, 3, 6], size=1),
        Sample(f32[1, 2, 2, 3, 2], size=7, alpha=1.0),
        Sample(f32[0, 3, 4, 4], size=3),
        Sample(f64[1, 4, 3, 3], size=3),
        Sample(f16[1, 4, 3, 3], size=3),
        Sample(bf16[1, 4, 3, 3], size=3),
    ]
    rejects = [
        Reject(f32[3], size=3, because="x has rank 1"),
        Reject(f32[2, 3, 4], size=0, because="at least 1"),
        Reject(f32[2, 3, 4], because="needs size"),
    ]
