"""Gradient of batch norm: as one kernel, and in two parts, sums over channels and elements from sums. Between the parts
ranks add up their sums."""

from __future__ import annotations

from typing import Any

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.attributes import Bool
from renorm.graph.op import OPAQUE, OpDef, Reject, Sample
from renorm.graph.types import bf16, boolean, f16, f32, f64
from renorm.ops.shared.batch_gradient import BatchGradient, Gradient
from renorm.ops.shared.batch_references import passed_reference, selected, sums_reference
from renorm.ops.shared.batch_statistics import counted, statistics_dtype


class BatchNormGradient(BatchGradient):
    """dx = scale * invstd * (g - (sum(g) + xhat * sum(g * xhat)) / count), xhat = (x - mean) * invstd, per channel.

    g is dy + plus (the gradients of two that read the result), or, where y is given (the result of a ReLU after the
    norm), that where y is above 0, and 0 elsewhere. Sums run over all elements, count is the number of those where mask
    is true. Where it is false, and with frozen (mean and invstd are constants, not statistics of x), dx = scale *
    invstd * g. dscale = sum(g * xhat), dbias = sum(g). residual: g is a result too, the gradient of what was added
    after the norm.
    """

    signature = (
        "dy: T[N, C, *S], x: T[N, C, *S], scale?: U[C], mean: V[C], invstd: V[C], mask?: bool[N, *S], y?: T[N, C, *S],"
        " plus?: T[N, C, *S] -> dx: T[N, C, *S], dscale: V[C], dbias: V[C], *dresidual: T[N, C, *S]"
    )
    scheduled_as = "normalization"

    def compute(
        self,
        dy: te.Tensor,
        x: te.Tensor,
        scale: te.Tensor | None,
        mean: te.Tensor,
        invstd: te.Tensor,
        mask: te.Tensor | None,
        y: te.Tensor | None,
        plus: te.Tensor | None,
    ) -> list[te.Tensor]:
        gradient = Gradient(dy, x, mean, invstd, mask, y, self.frozen, plus)
        count = counted(x, mask)
        return gradient.results(gradient.sums(), count, scale, statistics_dtype(x.dtype), self.residual)

    def reference(self, dy: Any, x: Any, scale: Any, mean: Any, invstd: Any, mask: Any, y: Any, plus: Any) -> list[Any]:
        g = passed_reference(dy if plus is None else dy + plus, y)
        sums = sums_reference(g, x, mean, mask, self.frozen)
        count = selected(x, mask).shape[1]
        return self.results_reference(g, x, mean, invstd, sums, count, scale, mask)

    samples = [
        Sample(f32[2, 3, 5, 7], f32[2, 3, 5, 7], f32[3], f32[3], f32[3]),
        Sample(f32[6, 3], f32[6, 3], None, f64[3], f64[3], boolean[6], f32[6, 3], residual=True),
        Sample(f32[2, 3, 4], f32[2, 3, 4], f32[3], f32[3], f32[3], None, f32[2, 3, 4], frozen=True),
        Sample(f32[2, 3, 4], f32[2, 3, 4], f32[3], f32[3], f32[3], None, f32[2, 3, 4]),
        Sample(*(f32[2, 3, 7], f32[2, 3, 7], f32[3], f32[3], f32[3], None, f32[2, 3, 7], f32[2, 3, 7]), residual=True),
        Sample(f32[2, 3, 4], f32[2, 3, 4], None, f64[3], f64[3], boolean[2, 4], None, f32[2, 3, 4]),
        Sample(f32[0, 3, 4], f32[0, 3, 4], f32[3], f32[3], f32[3]),
        Sample(f64[2, 3, 4], f64[2, 3, 4], f64[3], f64[3], f64[3], boolean[2, 4]),
        Sample(f16[2, 3, 4], f16[2, 3, 4], f32[3], f32[3], f32[3], None, None, f16[2, 3, 4]),
        Sample(bf16[2, 3, 4], bf16[2, 3, 4], bf16[3], f32[3], f32[3]),
    ]
    rejects = [
        Reject(f32[2, 3, 4], f32[2, 3, 5], f32[3], f32[3], f32[3], because="x has S = [5] but dy has [4]"),
        Reject(f32[2, 3, 4], f16[2, 3, 4], f32[3], f32[3], f32[3], because="x is float16 but dy is float32"),
        Reject(f32[2, 3, 4], f32[2, 3, 4], f32[3], f32[3], f32[4], because="invstd has C = 4"),
    ]


class BatchNormGradientSums(OpDef):
    """sums[0] = sum of g, sums[1] = sum of g * (x - mean), sums[2] = sum of (x - mean), per channel, in float64.

    g as in BatchNormGradient. The first two run over all elements, the third over those where mask is true; frozen: it
    is 0.
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


class BatchNormGradientElements(BatchGradient):
    """dx = scale * invstd * (g - (sum(g) + xhat * sum(g * xhat)) / count), xhat = (x - mean) * invstd, per channel.

    As BatchNormGradient, from `sums` that are known: those that BatchNormGradientSums gives of this batch, or of all
    ranks. count: how many values a channel has.
    """

    signature = (
        "dy: T[N, C, *S], x: T[N, C, *S], scale?: U[C], mean: V[C], invstd: V[C], sums: f64[3, C], count: f64[1],"
        " mask?: bool[N, *S], y?: T[N, C, *S] -> dx: T[N, C, *S], dscale: V[C], dbias: V[C], *dresidual: T[N, C, *S]"
    )
    scheduled_as = "reduction"

    def compute(
        self,
        dy: te.Tensor,
        x: te.Tensor,
        scale: te.Tensor | None,
        mean: te.Tensor,
        invstd: te.Tensor,
        sums: te.Tensor,
        count: te.Tensor,
        mask: te.Tensor | None,
        y: te.Tensor | None,
    ) -> list[te.Tensor]:
        gradient = Gradient(dy, x, mean, invstd, mask, y, self.frozen)
        return gradient.results(sums, count[0], scale, statistics_dtype(x.dtype), self.residual)

    def reference(
        self, dy: Any, x: Any, scale: Any, mean: Any, invstd: Any, sums: Any, count: Any, mask: Any, y: Any
    ) -> list[Any]:
        return self.results_reference(passed_reference(dy, y), x, mean, invstd, sums, count[0], scale, mask)

    samples = [
        Sample(f32[2, 3, 5, 7], f32[2, 3, 5, 7], f32[3], f64[3], f64[3], f64[3, 3], f64[1].of([70])),
        Sample(
            f32[6, 3], f32[6, 3], None, f64[3], f64[3], f64[3, 3], f64[1].of([9]), boolean[6], f32[6, 3], residual=True
        ),
        Sample(f32[2, 3, 4], f32[2, 3, 4], f32[3], f64[3], f64[3], f64[3, 3], f64[1].of([8]), frozen=True),
        Sample(f32[0, 3, 4], f32[0, 3, 4], f32[3], f32[3], f32[3], f64[3, 3].between(0, 0), f64[1].of([0])),
        Sample(f64[2, 3, 4], f64[2, 3, 4], f64[3], f64[3], f64[3], f64[3, 3], f64[1].of([8]), boolean[2, 4]),
        Sample(f16[2, 3, 4], f16[2, 3, 4], f32[3], f64[3], f64[3], f64[3, 3], f64[1].of([8])),
    ]
    rejects = [
        Reject(f32[2, 3], f32[2, 3], None, f64[3], f64[3], f64[2, 3], f64[1], because="sums has 2 where 3 is expected"),
        Reject(f32[2, 3], f32[2, 3], None, f64[3], f32[3], f64[3, 3], f64[1], because="invstd is float32"),
    ]
