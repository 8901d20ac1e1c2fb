"""Mean, maximum and p-norm of every channel of every sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dtypes import FLOATS
from renorm.expr.nodes import Expr, as_expr, cast
from renorm.graph.attributes import Float
from renorm.graph.op import Reject, Sample
from renorm.graph.types import bf16, f16, f32, f64
from renorm.ops.lp_pool import powered, rooted
from renorm.ops.shared.reduction import Reducing


class GlobalPool(Reducing):
    """Base of pools over all spatial axes, which stay with extent 1."""

    types = {"T": FLOATS}

    def reduced(self, rank: int) -> tuple[int, ...]:
        return tuple(range(2, rank))

    samples = [
        Sample(f32[2, 3, 5, 7]),
        Sample(f32[1, 2, 9].between(-3, -1)),
        Sample(f32[2, 3, 2, 3, 4]),
        Sample(f32[1, 1, 3].of([1, float("nan"), 2])),
        Sample(f32[0, 3, 4, 4]),
        Sample(f64[1, 2, 3, 4]),
        Sample(f16[1, 2, 4, 3]),
        Sample(bf16[1, 2, 4, 4]),
    ]
    rejects = [Reject(f32[3], because="x has rank 1")]


class GlobalAveragePool(GlobalPool):
    """y[n, c, 0..] = mean of x[n, c, ..] over all spatial axes."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    onnx = {"GlobalAveragePool": 1}
    carries = {}

    def after(self, total: Expr, count: int) -> Expr:
        return total / cast(total.dtype, as_expr(count))

    def numpy(self, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return x.mean(axis=axes, keepdims=keepdims)

    samples = [*GlobalPool.samples, Sample(f32[2, 3, 1, 1]), Sample(f16[1, 2, 40, 3].between(1000, 1001))]


class GlobalMaxPool(GlobalPool):
    """y[n, c, 0..] = maximum of x[n, c, ..] over all spatial axes."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    onnx = {"GlobalMaxPool": 1}
    combiner = "max"
    carries = {"positive": True}

    def numpy(self, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return x.max(axis=axes, keepdims=keepdims)


class GlobalLpPool(GlobalPool):
    """y[n, c, 0..] = (sum of |x[n, c, ..]| ** p over all spatial axes) ** (1/p)."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    onnx = {"GlobalLpPool": 1}
    p = Float(2.0)

    def before(self, x: Expr) -> Expr:
        return powered(x, self.p)

    def after(self, total: Expr, count: int) -> Expr:
        return rooted(total, self.p)

    def numpy(self, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return (np.abs(x) ** self.p).sum(axis=axes, keepdims=keepdims) ** (1 / self.p)

    samples = [*GlobalPool.samples, Sample(f32[2, 3, 4], p=1.0), Sample(f32[2, 3, 4].between(0.1, 2), p=2.5)]
