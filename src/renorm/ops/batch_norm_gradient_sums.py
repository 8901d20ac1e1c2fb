"""Sums that the gradient of a batch norm needs of each channel: what ranks add up."""

from __future__ import annotations

from typing import Any

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.attributes import Bool
from renorm.graph.op import OPAQUE, OpDef, Reject, Sample
from renorm.graph.types import bf16, boolean, f16, f32, f64
from renorm.ops.shared.batch_gradient import Gradient
from renorm.ops.shared.batch_references import passed_reference, sums_reference


class BatchNormGradientSums(OpDef):
    """sums[0] = sum of g, sums[1] = sum of g * (x - mean), sums[2] = sum of (x - mean), per channel, in float64.

    g is dy, or, where y is given (the result of a ReLU after the norm), dy where y is above 0, and 0 elsewhere. The
    first two run over all elements, the third over those where mask is true; frozen: it is 0.
    """

    signature = "dy: T[N, C, *S], x: T[N, C, *S], mean: V[C], mask?: bool[N, *S], y?: T[N, C, *S] -> sums: f64[3, C]"
    types = {"T": FLOATS, "V": FLOATS}
    fusion = OPAQUE
    scheduled_as = "reduction"
    frozen = Bool(False)

    def compute(
        self, dy: te.Tensor, x: te.Tensor, mean: te.Tensor, mask: te.Tensor | None, y: te.Tensor | None
    ) -> te.Tensor:
        return Gradient(dy, x, mean, mean, mask, y, self.frozen).sums()

    def reference(self, dy: Any, x: Any, mean: Any, mask: Any, y: Any) -> Any:
        return sums_reference(passed_reference(dy, y), x, mean, mask, self.frozen)

    samples = [
        Sample(f32[2, 3, 5, 7], f32[2, 3, 5, 7], f32[3]),
        Sample(f32[6, 3], f32[6, 3], f64[3], boolean[6], f32[6, 3]),
        Sample(f32[2, 3, 4], f32[2, 3, 4], f32[3], None, f32[2, 3, 4], frozen=True),
        Sample(f32[0, 3, 4], f32[0, 3, 4], f32[3]),
        Sample(f64[2, 3, 4], f64[2, 3, 4], f64[3], boolean[2, 4]),
        Sample(f16[2, 3, 4], f16[2, 3, 4], f32[3]),
        Sample(bf16[2, 3, 4], bf16[2, 3, 4], f32[3]),
    ]
    rejects = [
        Reject(f32[2, 3, 4], f32[2, 3, 5], f32[3], because="x has S = [5] but dy has [4]"),
        Reject(f32[2, 3, 4], f16[2, 3, 4], f32[3], because="x is float16 but dy is float32"),
        Reject(f32[2, 3, 4], f32[2, 3, 4], f32[4], because="mean has C = 4"),
    ]
