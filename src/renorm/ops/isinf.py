"""Infinities."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dtypes import FLOATS
from renorm.expr.nodes import Expr, any_of, const
from renorm.graph.attributes import Bool
from renorm.graph.op import Reject, Sample
from renorm.graph.types import f16, f32, f64, i32
from renorm.ops.shared.family import Elementwise, method
from renorm.ops.unary import SPECIAL


class Isinf(Elementwise):
    """y = whether x is +inf (detect_positive) or -inf (detect_negative)."""

    signature = "x: T[*S] -> y: bool[*S]"
    types = {"T": FLOATS}
    detect_negative = Bool(True)
    detect_positive = Bool(True)
    onnx = {"IsInf": 10}
    infer = method(lambda x: None)

    def element(self, x: Expr) -> Expr:
        found: list[Expr] = [x.equal(const(float("inf"), x.dtype))] if self.detect_positive else []
        found += [x.equal(const(float("-inf"), x.dtype))] if self.detect_negative else []
        return any_of(*found)

    def numpy(self, x: Any) -> Any:
        return (np.isposinf(x) & self.detect_positive) | (np.isneginf(x) & self.detect_negative)

    samples = [
        Sample(f32[len(SPECIAL)].of(SPECIAL)),
        Sample(f32[len(SPECIAL)].of(SPECIAL), detect_negative=0),
        Sample(f64[len(SPECIAL)].of(SPECIAL), detect_positive=0),
        Sample(f16[len(SPECIAL)].of(SPECIAL), detect_positive=0, detect_negative=0),
    ]
    rejects = [Reject(i32[3], because="x is int32")]
