"""Where the greatest and the smallest element along an axis stand."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from renorm import te, topi
from renorm.core.dims import Dim, take
from renorm.core.dtypes import NUMBERS
from renorm.core.errors import OperandError
from renorm.core.shapes import normalize_axis
from renorm.graph.attributes import Bool, Int
from renorm.graph.op import REDUCTION, OpDef, Reject, Sample
from renorm.graph.types import Operand, f16, f32, f64, i32, u8
from renorm.topi.reduction import reduced_shape


class ArgExtreme(OpDef):
    """Base of arg_max and arg_min. The first of equal elements counts, or the last; NaN counts as most extreme."""

    types = {"T": NUMBERS}
    fusion = REDUCTION
    scheduled_as = "reduction"
    axis = Int(0)
    keepdims = Bool(True)
    select_last_index = Bool(False)
    greatest: ClassVar[bool] = True

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        gone = normalize_axis(self.axis, x.rank)
        if x.shape[gone] == 0:
            raise OperandError(f"{self.name}({x}): axis {self.axis} has no elements")
        take(1, "<=", x.shape[gone])
        return reduced_shape(x.shape, [gone], self.keepdims)

    def compute(self, x: te.Tensor) -> te.Tensor:
        find = topi.argmax if self.greatest else topi.argmin
        return find(x, self.axis, self.keepdims, self.select_last_index, dtype="int64")

    def reference(self, x: Any) -> Any:
        find = np.argmax if self.greatest else np.argmin
        axis = normalize_axis(self.axis, x.ndim)
        if not self.select_last_index:
            return find(x, axis=axis, keepdims=self.keepdims)
        return x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis, keepdims=self.keepdims)

    samples = [
        Sample(f32[3, 4, 5], axis=1),
        Sample(f32[3, 4, 5], axis=-1, keepdims=False),
        Sample(f32[2, 4].of([[1, 3, 3, 1], [2, 2, 2, 2]]), axis=1),
        Sample(f32[2, 4].of([[1, 3, 3, 1], [2, 2, 2, 2]]), axis=1, select_last_index=True),
        Sample(f32[2, 3].of([[1, math.nan, 3], [-math.inf, -math.inf, math.nan]]), axis=1),
        Sample(f32[0, 3], axis=1),
        Sample(f64[5]),
        Sample(f16[2, 3], axis=1),
        Sample(i32[3, 2]),
        Sample(u8[3, 2]),
    ]
    rejects = [
        Reject(f32[2, 3], axis=2, because="axis 2 is outside"),
        Reject(f32[2, 0], axis=1, because="axis 1 has no elements"),
    ]


class ArgMax(ArgExtreme):
    """y = index along axis of the greatest element of x."""

    signature = "x: T[...] -> y: i64[...]"
    onnx = {"ArgMax": 1}


class ArgMin(ArgExtreme):
    """y = index along axis of the smallest element of x."""

    signature = "x: T[...] -> y: i64[...]"
    onnx = {"ArgMin": 1}
    greatest = False
