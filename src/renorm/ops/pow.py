"""Power. The exponent has a type of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dtypes import NUMBERS, is_float
from renorm.expr.nodes import Expr, binary, cast
from renorm.graph.op import Reject, Sample
from renorm.graph.types import boolean, f16, f32, f64, i32, i64
from renorm.ops.shared import exact
from renorm.ops.shared.family import Aligned


class Pow(Aligned):
    """y = a^b, in the type of a; integers by way of float64."""

    signature = "a: T[...], b: U[...] -> y: T[...]"
    types = {"T": NUMBERS, "U": NUMBERS}
    onnx = {"Pow": 1}
    known_element = staticmethod(exact.power)

    def element(self, a: Expr, b: Expr) -> Expr:
        """In the type of a base that is a float; a whole power of an integer below 2^53 is exact in float64."""
        wide = a.dtype if is_float(a.dtype) else "float64"
        return cast(a.dtype, binary("pow", cast(wide, a), cast(wide, b)))

    def numpy(self, a: Any, b: Any) -> Any:
        return np.power(np.asarray(a, np.float64), np.asarray(b, np.float64))

    samples = [
        Sample(f32[2, 3, 5].between(0.1, 3), f32[3, 1]),
        Sample(f32[2, 7], f32[()].of(2.0)),
        Sample(f32[7].of([-2, -1, -0.5, 0, 1, 2, 3]), f32[()].of(3)),
        Sample(f32[4].of([0, 1, 4, 9]), f32[()].of(0.5)),
        Sample(f32[3].of([2, 4, 0.5]), f32[()].of(-1)),
        Sample(f32[5].between(0.5, 2), i64[5].of([-2, -1, 0, 1, 3])),
        Sample(f64[5].of([-3, -2, 0, 2, 3]), i32[()].of(2)),
        Sample(i64[4].of([-3, 0, 2, 5]), i64[()].of(3)),
        Sample(i32[3].of([4, 9, 16]), f32[()].of(0.5)),
        Sample(f16[4].between(0.5, 2), f16[()].of(2), tolerance=2e-3),
    ]
    rejects = [
        Reject(f32[3], f32[2], because="do not broadcast"),
        Reject(boolean[3], f32[3], because="a is bool"),
    ]
