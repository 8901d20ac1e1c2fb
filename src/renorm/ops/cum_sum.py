"""Running sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core import dims
from renorm.core.dims import Shape
from renorm.core.dtypes import NUMBERS, compute_dtype
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, cast
from renorm.graph.attributes import Bool
from renorm.graph.op import OPAQUE, OpDef, Reject, Sample
from renorm.graph.types import Operand, f16, f32, i32, i64


class CumSum(OpDef):
    """y[k] = x[0] + ... + x[k] along axis; exclusive leaves out x[k]; reverse runs from the end.

    Every element sums for itself, n^2 / 2 additions along an axis of n.
    """

    signature = "x: T[*S], axis!: I[...] -> y: T[*S]"
    types = {"T": NUMBERS, "I": ("int64", "int32")}
    exclusive = Bool(False)
    reverse = Bool(False)
    onnx = {"CumSum": 11}
    fusion = OPAQUE
    scheduled_as = "reduction"

    def infer(self, x: Operand, axis: Operand) -> Shape:
        if axis.known is None or axis.shape not in ((), (1,)):
            raise OperandError(f"cum_sum: {axis} is not a scalar that is known at compile time")
        dims.normalize_axis(dims.number(axis.known.reshape(-1)[0], "cum_sum: its axis"), x.rank)
        return x.shape

    def compute(self, x: te.Tensor, axis: np.ndarray[Any, Any]) -> te.Tensor:
        along = dims.normalize_axis(int(axis.reshape(-1)[0]), x.ndim)
        k = te.reduce_axis((0, x.shape[along]), name="k")

        def element(*i: Expr) -> Expr:
            here = i[along]
            reach = k.var >= here if self.reverse else k.var <= here
            if self.exclusive:
                reach = k.var > here if self.reverse else k.var < here
            return te.sum(cast(compute_dtype(x.dtype), x[(*i[:along], k.var, *i[along + 1 :])]), axis=k, where=reach)

        return te.compute(x.shape, element, name="cum_sum", tag=te.tag.COMM_REDUCE).astype(x.dtype)

    def reference(self, x: Any, axis: Any) -> Any:
        along = int(np.reshape(axis, ()))
        turned = np.flip(x, along) if self.reverse else np.asarray(x)
        total = np.cumsum(turned, along, dtype=turned.dtype)
        total = total - turned if self.exclusive else total
        return np.flip(total, along) if self.reverse else total

    samples = [
        Sample(f32[5], i64[()].of(0)),
        Sample(f32[2, 5], i32[()].of(-1), exclusive=1),
        Sample(f32[4, 3], i64[1].of([0]), reverse=1),
        Sample(i64[2, 4], i64[()].of(1), reverse=1, exclusive=1),
        Sample(f16[6], i64[()].of(0), tolerance=2e-3),
    ]
    rejects = [
        Reject(f32[5], i64[()].of(1), because="axis 1 is outside"),
        Reject(f32[5], i64[2].of([0, 0]), because="is not a scalar"),
    ]
