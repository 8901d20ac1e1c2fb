"""Pooling by the p-norm of a window."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.attributes import Float
from renorm.graph.op import Sample
from renorm.graph.types import bf16, f32, f64
from renorm.ops.shared.pooling import Pool
from renorm.ops.shared.precision import wide
from renorm.te import tag


class LpPool(Pool):
    """y[n, c, o] = (sum over k of |x[n, c, o*strides + k*dilations - pads]| ** p) ** (1/p); zeros outside of x."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    types = {"T": FLOATS}
    onnx = {"LpPool": 1}
    p = Float(2.0)

    def compute(self, x: te.Tensor) -> te.Tensor:
        total = self.over_windows(x, te.sum, lambda e: powered(wide(e), self.p))
        root = te.compute(total.shape, lambda *i: rooted(total[i], self.p), name="lp_pool", tag=tag.ELEMWISE)
        return root.astype(x.dtype)

    def reference(self, x: Any) -> Any:
        return (np.abs(self.window_elements(x)) ** self.p).sum(axis=-1) ** (1 / self.p)

    samples = [
        *Pool.samples,
        Sample(f32[1, 2, 7, 6], kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), p=1.0),
        Sample(f32[1, 2, 8, 8], kernel_shape=(3, 3), strides=(2, 2), ceil_mode=True, p=3.0),
        Sample(f32[1, 2, 9, 8].between(0.1, 2), kernel_shape=(2, 3), dilations=(3, 2), p=1.5),
        Sample(f64[1, 2, 4, 4, 3], kernel_shape=(2, 2, 1)),
        Sample(bf16[1, 2, 4, 4], kernel_shape=(2, 2)),
    ]


def powered(e: Any, p: float) -> Any:
    """|e| ** p."""
    if p == 1:
        return te.abs(e)
    return e * e if p == 2 else te.power(te.abs(e), te.const(p, e.dtype))


def rooted(e: Any, p: float) -> Any:
    """e ** (1/p) of a sum of powers."""
    if p == 1:
        return e
    return te.sqrt(e) if p == 2 else te.power(e, te.const(1 / p, e.dtype))
