"""Parts of batch norm in training: moments of a batch, running statistics after one more batch, and normalization with
given statistics, which is all of batch norm at inference."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.attributes import Bool, Float, String
from renorm.graph.op import OPAQUE, OpDef, Reject, Sample
from renorm.graph.types import bf16, boolean, f16, f32, f64
from renorm.ops.shared.batch_references import moments_reference, moved_reference, normalized_reference
from renorm.ops.shared.batch_statistics import batch_moments, double, moved, normalized
from renorm.te import tag


class BatchMoments(OpDef):
    """count = values per channel; mean = their mean; squares = sum of (x - mean)^2. All in float64.

    Of x only the elements count where mask is true; without a mask all do. Of no values count, mean and squares are 0.
    The population variance is squares / count; whoever merges parts of a batch needs all three.
    """

    signature = "x: T[N, C, *S], mask?: bool[N, *S] -> count: f64[1], mean: f64[C], squares: f64[C]"
    types = {"T": FLOATS}
    fusion = OPAQUE
    scheduled_as = "reduction"

    def compute(self, x: te.Tensor, mask: te.Tensor | None) -> list[te.Tensor]:
        m = batch_moments(x, mask)
        count = te.compute((1,), lambda _: m.count, name="count", tag=tag.ELEMWISE)
        mean, squares = (
            te.compute(t.shape, lambda c, t=t: t[c], name=name, tag=tag.ELEMWISE)
            for t, name in ((m.mean, "batch_mean"), (m.squares, "squared_distances"))
        )
        return [count, mean, squares]

    def reference(self, x: Any, mask: Any) -> list[Any]:
        count, mean, squares = moments_reference(x, mask)
        return [np.array([count], np.float64), mean, squares]

    samples = [
        Sample(f32[2, 3, 5, 7]),
        Sample(f32[6, 3], boolean[6]),
        Sample(f32[4, 3, 5], boolean[4, 5], tolerance=1e-12),
        Sample(f32[2, 3, 2, 3, 2], boolean[2, 2, 3, 2]),
        Sample(f32[1, 3, 1]),
        Sample(f32[0, 3, 5]),
        Sample(f32[2, 3, 5].between(79999.0, 80003.0), tolerance=1e-12),
        Sample(f32[3, 2, 4].between(0.7, 0.7), tolerance=0.0),
        Sample(f32[3, 2, 4].between(-1e30, 1e30), tolerance=1e-12),
        Sample(f64[3, 2, 4], tolerance=1e-12),
        Sample(f16[3, 20].between(200.0, 201.0), tolerance=1e-12),
        Sample(bf16[3, 2, 4], boolean[3, 4], tolerance=1e-12),
    ]
    rejects = [
        Reject(f32[3], because="x has rank 1"),
        Reject(f32[4, 3, 5], boolean[4, 3, 5], because="mask has S = [3, 5] but x has [5]"),
        Reject(f32[4, 3, 5], f32[4, 5], because="mask is float32"),
    ]


MULTIPLIES = ("batch", "old")
TORCH: dict[str, Any] = {"momentum_multiplies": "batch", "corrected": True}
KERAS: dict[str, Any] = {"momentum_multiplies": "old", "corrected": False}


class UpdateStatistics(OpDef):
    """new = (1 - momentum) * old + momentum * batch, or, where momentum multiplies the old, the other way round.

    momentum_multiplies: "batch" or "old". corrected: the variance of the batch (the population's, as everywhere) is
    first multiplied by count / (count - 1), where count exceeds 1. Computed in float64 and rounded once. A batch
    without values (count 0) changes nothing.
    """

    signature = (
        "count: f64[1], mean: V[C], var: V[C], momentum: f64[1], running_mean: P[C], running_var: P[C]"
        " -> new_mean: P[C], new_var: P[C]"
    )
    types = {"V": FLOATS, "P": FLOATS}
    fusion = OPAQUE
    scheduled_as = "injective"
    momentum_multiplies = String(among=MULTIPLIES)
    corrected = Bool()

    def compute(
        self, count: te.Tensor, mean: te.Tensor, var: te.Tensor, momentum: te.Tensor, *running: te.Tensor
    ) -> list[te.Tensor]:
        def after(old: te.Tensor, batch: te.Tensor, corrected: bool, name: str) -> te.Tensor:
            def element(c: Any) -> Any:
                values = double(old[c]), double(batch[c]), count[0], momentum[0]
                return moved(*values, self.momentum_multiplies, corrected).astype(old.dtype)

            return te.compute(old.shape, element, name=name, tag=tag.BROADCAST)

        return [after(running[0], mean, False, "new_mean"), after(running[1], var, self.corrected, "new_var")]

    def reference(self, count: Any, mean: Any, var: Any, momentum: Any, *running: Any) -> list[Any]:
        n, m, which = count[0], momentum[0], self.momentum_multiplies
        return [
            np.asarray(moved_reference(running[0], mean, n, m, which, False)),
            np.asarray(moved_reference(running[1], var, n, m, which, self.corrected)),
        ]

    samples = [
        Sample(f64[1].of([6]), f64[3], f64[3].between(0, 2), f64[1].of([0.1]), f32[3], f32[3].between(0, 2), **TORCH),
        Sample(f64[1].of([4]), f32[5], f32[5], f64[1].of([0.99]), f32[5], f32[5], **KERAS),
        Sample(f64[1].of([1]), f64[2], f64[2], f64[1].of([1.0]), f64[2].of([np.inf, np.nan]), f64[2], **TORCH),
        Sample(f64[1].of([0]), f64[2], f64[2], f64[1].of([0.5]), f32[2], f32[2], **TORCH, tolerance=0.0),
        Sample(f64[1].of([9]), f64[2], f64[2], f64[1].of([0.5]), f16[2], f16[2], **KERAS),
    ]
    rejects = [
        Reject(f64[1], f64[3], f64[3], f64[1], f32[3], f32[2], **TORCH, because="running_var has C = 2"),
        Reject(f64[1], f64[3], f64[3], f64[1], f32[3], f64[3], **TORCH, because="running_var is float64"),
        Reject(
            f64[1], f64[3], f64[3], f64[1], f32[3], f32[3], momentum_multiplies="both", corrected=True,
            because="known: batch, old",
        ),
        Reject(f64[1], f64[3], f64[3], f64[1], f32[3], f32[3], corrected=True, because="needs momentum_multiplies"),
    ]  # fmt: skip


class Normalize(OpDef):
    """y = scale * (x - mean) / sqrt(var + epsilon) + bias + residual, per channel; relu: max(that, 0).

    Without scale, bias, residual they are 1, 0, 0. What belongs to a channel is computed in float64 and rounded once.
    """

    signature = (
        "x: T[N, C, *S], mean: V[C], var: V[C], scale?: U[C], bias?: U[C], residual?: T[N, C, *S] -> y: T[N, C, *S]"
    )
    types = {"T": FLOATS, "U": FLOATS, "V": FLOATS}
    fusion = OPAQUE
    scheduled_as = "reduction"
    epsilon = Float(1e-5, at_least=0.0)
    relu = Bool(False)

    def compute(
        self,
        x: te.Tensor,
        mean: te.Tensor,
        var: te.Tensor,
        scale: te.Tensor | None,
        bias: te.Tensor | None,
        residual: te.Tensor | None,
    ) -> te.Tensor:
        return normalized(
            x, lambda c: double(mean[c]), lambda c: double(var[c]), self.epsilon, scale, bias, residual, self.relu
        )

    def reference(self, x: Any, mean: Any, var: Any, scale: Any, bias: Any, residual: Any) -> Any:
        y = normalized_reference(x, mean, var, self.epsilon, scale, bias)
        y = y if residual is None else y + residual
        return np.maximum(y, 0.0) if self.relu else y

    samples = [
        Sample(f32[2, 3, 5, 7], f32[3], f32[3].between(0.1, 2), f32[3], f32[3]),
        Sample(f32[4, 3], f64[3], f64[3].between(0, 1e-12), f32[3], None, epsilon=1e-12),
        Sample(f32[2, 3, 4], f64[3], f64[3].between(0.1, 2), None, f32[3], f32[2, 3, 4], relu=True, epsilon=0.1),
        Sample(f32[2, 3, 4].of([np.nan] * 24), f64[3], f64[3].between(0.1, 2), relu=True),
        Sample(f32[0, 3, 2], f32[3], f32[3].between(0.1, 2)),
        Sample(
            f32[1, 2, 3].of([1, 2, 3, 4, 5, 6]), f32[2].of([2, 5]), f32[2].of([0, 1]), epsilon=0.0
        ),  # -inf, NaN, inf
        Sample(f32[1, 2, 4].between(9990, 10010), f64[2].of([10000.00001, 9995]), f64[2].of([25, 1])),
        Sample(f64[2, 3, 2], f64[3], f64[3].between(0.1, 2), f64[3], f64[3]),
        Sample(f16[2, 3, 4], f32[3], f32[3].between(0.1, 2), f32[3], f32[3]),
        Sample(bf16[2, 3, 4], f64[3], f64[3].between(0.1, 2), f32[3], f32[3], bf16[2, 3, 4]),
    ]
    rejects = [
        Reject(f32[2, 3, 5], f32[4], f32[3], because="mean has C = 4 but x has C = 3"),
        Reject(f32[2, 3, 5], f32[3], f64[3], because="var is float64"),
        Reject(f32[2, 3, 5], f32[3], f32[3], f32[3], f16[3], because="bias is float16"),
        Reject(f32[2, 3, 5], f32[3], f32[3], None, None, f16[2, 3, 5], because="residual is float16"),
    ]
