"""Division by the p-norm along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.core.shapes import normalize_axis
from renorm.graph.attributes import Int
from renorm.graph.op import REDUCTION, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.lp_pool import powered, rooted
from renorm.ops.shared.precision import wide
from renorm.te import tag
from renorm.topi.reduction import reduce


class LpNorm(OpDef):
    """y = x / (sum of |x| ** p along axis) ** (1/p), p = 1 or 2; zero where the norm is zero."""

    signature = "x: T[*S] -> y: T[*S]"
    types = {"T": FLOATS}
    onnx = {"LpNormalization": 1}
    fusion = REDUCTION
    scheduled_as = "normalization"
    is_normalization = True
    axis = Int(-1)
    p = Int(2)

    def infer(self, x: Operand) -> None:
        normalize_axis(self.axis, x.rank)
        if self.p not in (1, 2):
            raise OperandError(f"{self.name}({x}): p is {self.p}, not 1 or 2")

    def compute(self, x: te.Tensor) -> te.Tensor:
        axis = normalize_axis(self.axis, x.ndim)
        total = reduce("sum", x, axis, True, formula=lambda e, _: powered(e, self.p), name="total")

        def element(*index: Any) -> Any:
            norm = rooted(total[(*index[:axis], 0, *index[axis + 1 :])], self.p)
            zero = te.const(0.0, norm.dtype)
            return te.select(norm.equal(zero), zero, wide(x[index]) / norm).astype(x.dtype)

        return te.compute(x.shape, element, name="lp_norm", tag=tag.BROADCAST)

    def reference(self, x: Any) -> Any:
        norm = np.linalg.norm(x, self.p, axis=self.axis, keepdims=True)
        return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))

    samples = [
        Sample(f32[3, 5]),
        Sample(f32[2, 3, 4], axis=1, p=1),
        Sample(f32[2, 3].of([[0, 0, 0], [0, 3, -4]])),
        Sample(f32[2, 3].of([[float("nan"), 1, 2], [1, 2, 3]])),
        Sample(f32[0, 3]),
        Sample(f64[2, 3], axis=0),
        Sample(f16[2, 300]),
        Sample(bf16[2, 8]),
    ]
    rejects = [
        Reject(f32[2, 3], axis=2, because="axis 2 is outside"),
        Reject(f32[2, 3], p=3, because="p is 3, not 1 or 2"),
    ]
