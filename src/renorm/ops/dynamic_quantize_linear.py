"""Quantization of a tensor by its own range."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.expr.nodes import Expr, const, maximum, minimum, select
from renorm.graph.op import REDUCTION, OpDef, Reject, Sample
from renorm.graph.types import f32, f64
from renorm.ops.shared import quantization
from renorm.ops.shared.moments import statistic
from renorm.topi.reduction import reduce

MOST = 255  # of uint8


class DynamicQuantizeLinear(OpDef):
    """y, scale, zero = quantize_linear(x, scale, zero) in uint8, scale and zero, where scale = (high - low) / 255 (1
    where that is 0), zero = round(-low / scale), and x and 0 lie from low to high."""

    signature = "x: f32[*S] -> y: u8[*S], scale: f32[], zero: u8[]"
    onnx = {"DynamicQuantizeLinear": 11}
    fusion = REDUCTION
    scheduled_as = "reduction"

    def compute(self, x: te.Tensor) -> list[te.Tensor]:
        most, least = (reduce(combiner, x, name=combiner) for combiner in ("max", "min"))
        nothing = const(0.0, "float32")

        def step() -> Expr:
            span = maximum(most[()], nothing) - minimum(least[()], nothing)
            return select(span.equal(nothing), const(1.0, "float32"), span / float(MOST))

        scale = statistic((), step, "scale")

        def from_low() -> Expr:
            steps = (nothing - minimum(least[()], nothing)) / scale[()]
            return quantization.quantized(steps, None, "uint8")

        zero = statistic((), from_low, "zero")

        def element(*i: Expr) -> Expr:
            return quantization.quantized(x[i] / scale[()], zero[()], "uint8")

        return [te.compute(x.shape, element, name="quantized", tag=te.tag.BROADCAST), scale, zero]

    def reference(self, x: Any) -> Any:
        """In float32, since the last digit of a quotient decides which integer a half becomes."""
        x = np.float32(x)
        high, low = (np.float32(f(x, initial=0)) for f in (np.max, np.min))
        with np.errstate(all="ignore"):
            scale = (high - low) / np.float32(MOST) if high != low else np.float32(1)
            zero = np.rint(np.clip((0 - low) / scale, 0, MOST))
            y = quantization.quantized_array(x / scale, zero, "uint8")
        return y, np.asarray(scale), np.asarray(zero, np.uint8)

    samples = [
        Sample(f32[3, 5].between(-3, 7)),
        Sample(f32[2, 3, 35].between(1, 7)),
        Sample(f32[7].between(-7, -1)),
        Sample(f32[2, 2].of([[0, 0], [0, -0.0]])),
        Sample(f32[9].of([-1.5, 0.5, 1.5, 2.5, 253.5, 100.25, 0, 1, 2])),
        Sample(f32[0, 3]),
        Sample(f32[()].of(3)),
    ]
    rejects = [Reject(f64[3], because="x is float64")]
