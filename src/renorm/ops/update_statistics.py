"""Running statistics after one more batch: the second part of batch norm in training."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.attributes import Bool, String
from renorm.graph.op import OPAQUE, OpDef, Reject, Sample
from renorm.graph.types import f16, f32, f64
from renorm.ops.shared.batch_references import moved_reference
from renorm.ops.shared.batch_statistics import double, moved
from renorm.te import tag

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
