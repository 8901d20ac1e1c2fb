"""Convolutions of bytes, which count from the least number that a quantized tensor has."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.expr.nodes import cast
from renorm.graph.attributes import Int
from renorm.graph.op import Reject, Sample
from renorm.graph.types import f32, i8, i32, u8
from renorm.ops.exact_conv import ExactConv
from renorm.ops.shared.precision import add_channels


class ByteConv(ExactConv):
    """Conv of bytes, summed in int32: exact for fewer than 2^16 terms. Outside of x there is the number `outside`,
    which stands for 0."""

    signature = "x: u8[N, C, *S], w: i8[M, P, *K], b?: i32[M] -> y: i32[...]"
    types = {}
    outside = Int(0, at_least=0)

    def compute(self, x: te.Tensor, w: te.Tensor, b: te.Tensor | None) -> te.Tensor:
        return add_channels(self.sums(x, w, lambda e: cast("int32", e), self.outside), b)

    def reference(self, x: Any, w: Any, b: Any, outside: float = 0.0) -> Any:
        y = super().reference(np.asarray(x, np.int64), np.asarray(w, np.int64), b, self.outside)
        return y.astype(np.int32)

    samples = [
        Sample(u8[2, 3, 5, 7], i8[4, 3, 3, 2], i32[4], pads=(1, 0, 2, 1), outside=3),
        Sample(u8[1, 16, 5, 4].between(0, 255), i8[18, 16, 1, 1].between(-128, 127), strides=(2, 1)),
        Sample(u8[1, 4, 6, 5].between(0, 255), i8[6, 2, 3, 2].between(-128, 127), group=2, kernel_shape=(3, 2),
               auto_pad="SAME_UPPER", dilations=(1, 2)),
        Sample(u8[0, 2, 4, 4], i8[3, 2, 3, 3]),
    ]  # fmt: skip
    rejects = [
        Reject(u8[2, 3, 5, 7], i8[4, 2, 3, 3], because="x has 3 channels, expected 2"),
        Reject(f32[2, 3, 5, 7], i8[4, 3, 3, 3], because="x is float32"),
    ]
