"""Sequences of a batch turned round, each as far as it goes."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core import dims
from renorm.core.dims import Shape
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, as_expr, cast, const, maximum, minimum, select
from renorm.graph.attributes import Int
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, boolean, f32, i64
from renorm.ops.shared.family import Injective


class ReverseSequence(Injective):
    """y[t, b] = x[lengths[b] - 1 - t, b] where t < lengths[b], x[t, b] elsewhere, with t along time_axis and b along
    batch_axis, which are the first two."""

    signature = "x: T[A, B, *S], lengths: i64[N] -> y: T[A, B, *S]"
    batch_axis = Int(1)
    time_axis = Int(0)
    onnx = {"ReverseSequence": 10}

    def infer(self, x: Operand, lengths: Operand) -> Shape:
        if {self.batch_axis, self.time_axis} != {0, 1}:
            raise OperandError(
                f"reverse_sequence: batch_axis {self.batch_axis} and time_axis {self.time_axis} are not 0 and 1"
            )
        batch, (count,) = x.shape[self.batch_axis], lengths.shape
        if isinstance(batch, int) and isinstance(count, int) and batch != count:
            raise OperandError(f"reverse_sequence: {lengths} are not lengths of the {batch} sequences of {x}")
        dims.take(count, "==", batch)
        return x.shape

    def compute(self, x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        extent = cast("int64", as_expr(x.shape[self.time_axis]))

        def element(*i: Expr) -> Expr:
            length, at = maximum(minimum(lengths[i[self.batch_axis]], extent), 0), cast("int64", i[self.time_axis])
            place = select(at < length, length - at - 1, at)
            inside = cast("int32", maximum(minimum(place, extent - 1), const(0, "int64")))
            return x[tuple(inside if a == self.time_axis else k for a, k in enumerate(i))]

        return te.compute(x.shape, element, name="reversed", tag=te.tag.INJECTIVE)

    def reference(self, x: Any, lengths: Any) -> Any:
        y = np.array(np.moveaxis(x, self.batch_axis, 0))
        for row, length in zip(y, lengths):
            turned = np.arange(len(row)) < length
            row[turned] = row[turned][::-1].copy()
        return np.moveaxis(y, 0, self.batch_axis)

    samples = [
        Sample(f32[4, 3], i64[3].of([4, 2, 0])),
        Sample(f32[3, 5, 2], i64[3].of([5, 1, 3]), batch_axis=0, time_axis=1),
        Sample(i64[3, 2, 2, 2], i64[2].of([2, 3])),
        Sample(boolean[2, 3], i64[3].of([9, -1, 2])),
        Sample(f32[0, 3], i64[3]),
    ]
    rejects = [
        Reject(f32[4, 3], i64[4], because="are not lengths of the 3 sequences"),
        Reject(f32[4, 3, 2], i64[2], batch_axis=2, because="are not 0 and 1"),
        Reject(f32[4], i64[4], because="has rank 1"),
    ]
