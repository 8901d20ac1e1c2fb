"""Choice by a condition."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core.dtypes import ALL
from renorm.graph.op import Reject, Sample
from renorm.graph.types import boolean, f16, f32, i64
from renorm.ops.shared.family import Elementwise


class Where(Elementwise):
    """y = x where condition holds, otherwise elsewhere; all broadcast."""

    signature = "condition: bool[...], x: T[...], otherwise: T[...] -> y: T[...]"
    types = {"T": ALL}
    onnx = {"Where": 9}
    known_element = staticmethod(lambda condition, x, otherwise: x if condition else otherwise)

    def compute(self, condition: te.Tensor, x: te.Tensor, otherwise: te.Tensor) -> te.Tensor:
        return topi.where(condition, x, otherwise)

    def numpy(self, condition: Any, x: Any, otherwise: Any) -> Any:
        return np.where(condition, x, otherwise)

    samples = [
        Sample(boolean[2, 3, 5], f32[2, 3, 5], f32[2, 3, 5]),
        Sample(boolean[3, 1], f32[2, 1, 5], f32[()]),
        Sample(boolean[4], i64[4], i64[1]),
        Sample(boolean[3], boolean[3], boolean[()]),
        Sample(boolean[3], f16[3], f16[3]),
        Sample(boolean[3].of([True, False, True]), f32[3].of([np.nan, np.nan, 1]), f32[3].of([0, 1, np.nan])),
    ]
    rejects = [
        Reject(f32[3], f32[3], f32[3], because="condition is float32"),
        Reject(boolean[3], f32[3], i64[3], because="otherwise is int64 but x is float32"),
        Reject(boolean[3], f32[2], f32[2], because="do not broadcast"),
    ]
