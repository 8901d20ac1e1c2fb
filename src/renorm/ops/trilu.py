"""Triangles of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Shape, maximum, minimum
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, const, select
from renorm.graph.attributes import Bool
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, boolean, f32, i64
from renorm.ops.shared.family import Injective
from renorm.te.open_dims import OpenDims


class Trilu(Injective):
    """y = x on and above the k-th diagonal of its last two axes (upper), or on and below it; 0 elsewhere."""

    signature = "x: T[*S, M, N], k!?: i64[...] -> y: T[*S, M, N]"
    upper = Bool(True)
    onnx = {"Trilu": 14}

    def infer(self, x: Operand, k: Operand | None) -> Shape:
        if k is not None and k.shape not in ((), (1,)):
            raise OperandError(f"trilu: {k} is not a scalar")
        return x.shape

    def compute(self, x: te.Tensor, k: np.ndarray[Any, Any] | None) -> te.Tensor:
        # a diagonal outside the matrix is the same as one just outside it
        open_dims = OpenDims()
        reach = sum(open_dims.shape(x.shape[-2:]))
        diagonal = 0 if k is None else k.reshape(-1)[0]
        diagonal = open_dims.dim(diagonal) if isinstance(diagonal, Expr) else int(diagonal)
        within = 0 if k is None else maximum(-reach, minimum(reach, diagonal))
        offset = open_dims.extent(within)

        def element(*i: Expr) -> Expr:
            row, column = i[-2], i[-1]
            inside = column >= row + offset if self.upper else column <= row + offset
            return select(inside, x[i], const(0, x.dtype))

        return te.compute(x.shape, element, name="trilu", tag=te.tag.INJECTIVE)

    def reference(self, x: Any, k: Any) -> Any:
        offset = 0 if k is None else int(np.reshape(k, ()))
        return np.triu(x, offset) if self.upper else np.tril(x, offset)

    samples = [
        Sample(f32[4, 5]),
        Sample(f32[2, 4, 3], i64[()].of(1), upper=0),
        Sample(i64[3, 3], i64[1].of([-1])),
        Sample(f32[3, 3], i64[()].of(2**40)),
        Sample(boolean[2, 3], None, upper=0),
    ]
    rejects = [
        Reject(f32[3], because="has rank 1"),
        Reject(f32[3, 3], i64[2].of([0, 1]), because="is not a scalar"),
    ]
