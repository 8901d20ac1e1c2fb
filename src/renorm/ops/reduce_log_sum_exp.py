"""The logarithm of a sum of exponentials."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import NUMBERS
from renorm.expr.nodes import Expr, cast, const
from renorm.graph.op import Reject, Sample
from renorm.graph.types import f16, f32, f64, i32
from renorm.ops.shared.reduction import Reduction
from renorm.te import tag
from renorm.topi.reduction import joined, reduce, reduced_axes, reduced_shape


class ReduceLogSumExp(Reduction):
    """y = log of the sum of exp(x) over axes; computed as m + log(sum of exp(x - m)) with m the maximum, so that it
    cannot overflow."""

    signature = "x: T[...] -> y: T[...]"
    types = {"T": NUMBERS}
    onnx = {"ReduceLogSumExp": 1}
    floating = True

    def wants_digits(self, index: int) -> str | None:
        return "exponentials make relative errors of absolute ones"

    def compute(self, x: te.Tensor) -> te.Tensor:
        most = reduce("max", x, self.axes, True, name="most", dtype=self.accumulated(x.dtype))
        gone = reduced_axes(self.axes, x.ndim)

        def finite(*index: Any) -> Expr:
            # an infinite maximum must not be subtracted: inf - inf is NaN
            m = most[tuple(0 if a in gone else i for a, i in enumerate(index))]
            return te.select(te.isinf(m), const(0.0, m.dtype), m)

        distance = te.compute(
            x.shape, lambda *i: te.exp(cast(most.dtype, x[i]) - finite(*i)), name="powers", tag=tag.BROADCAST
        )
        total = reduce("sum", distance, self.axes, True, name="total")

        def element(*index: Any) -> Expr:
            at = joined(index, gone, [const(0)] * len(gone), self.keepdims)
            return cast(x.dtype, te.log(total[at]) + finite(*at))

        return te.compute(reduced_shape(x.shape, gone, self.keepdims), element, name=self.name, tag=tag.INJECTIVE)

    def numpy(self, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return (
            np.logaddexp.reduce(x, axis=axes, keepdims=keepdims) if len(axes) == 1 else _log_sum_exp(x, axes, keepdims)
        )

    samples = [
        Sample(f32[3, 4, 5], axes=(1,)),
        Sample(f32[3, 4, 5].between(80, 100), axes=(0, -1), keepdims=False),
        Sample(f32[2, 3]),
        Sample(f32[2, 3].between(1e6, 2e6), axes=(0, 1)),
        Sample(f32[4].of([-math.inf, 1, 2, -math.inf]), axes=(0,)),
        Sample(f32[2, 2].of([[-math.inf, -math.inf], [math.inf, 1]]), axes=(1,)),
        Sample(f32[2, 0], axes=(1,)),
        Sample(f32[2, 3], axes=()),
        Sample(f64[3, 4], axes=(0,)),
        Sample(f16[2, 30], axes=(1,)),
        Sample(i32[2, 3].of([[1, 2, 3], [4, 5, 0]]), axes=(1,)),
    ]
    rejects = [Reject(f32[2, 3], axes=(2,), because="axis 2 is outside")]


def _log_sum_exp(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    most = x.astype(np.longdouble).max(axis=axes, keepdims=True, initial=-np.inf)
    most[~np.isfinite(most)] = 0
    sums = np.log(np.exp(x - most).sum(axis=axes, keepdims=keepdims))
    return (sums + most.reshape(sums.shape)).astype(np.float64)
