"""A matrix with ones on a diagonal."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.expr.nodes import Expr, const, select
from renorm.graph.attributes import Int, Type
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, TensorType, boolean, f32, i64
from renorm.ops.shared.family import Injective


class EyeLike(Injective):
    """y[i, i + k] = 1, 0 elsewhere; of the shape of x, and of its dtype unless one is given."""

    signature = "x: T[M, N] -> y: T[M, N]"
    dtype = Type(None)
    k = Int(0)
    onnx = {"EyeLike": 9}

    def infer(self, x: Operand) -> TensorType:
        return TensorType(self.dtype or x.dtype, x.shape)

    def compute(self, x: te.Tensor) -> te.Tensor:
        def element(i: Expr, j: Expr) -> Expr:
            dtype = self.dtype or x.dtype
            return select((j - i).equal(self.k), const(1, dtype), const(0, dtype))

        return te.compute(x.shape, element, name="eye", tag=te.tag.INJECTIVE)

    def reference(self, x: Any) -> Any:
        rows, columns = np.shape(x)
        return np.eye(rows, columns, self.k)

    samples = [
        Sample(f32[4, 5]),
        Sample(i64[3, 2], k=-1, dtype="float32"),
        Sample(f32[2, 7], k=3, dtype="bool"),
        Sample(boolean[3, 3], k=9),
        Sample(f32[3, 0], dtype="float16"),
    ]
    rejects = [
        Reject(f32[3], because="has rank 1"),
        Reject(f32[3, 3], dtype="complex64", because="complex64"),
    ]
