"""Batch norm in training as one kernel: moments of the batch, update of the running statistics, normalization."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.attributes import Bool, Float, String
from renorm.graph.ir import Node
from renorm.graph.op import AFTER_SLICES, OpDef, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, boolean, f16, f32, f64
from renorm.ops.batch_norm_parts import MULTIPLIES
from renorm.ops.shared.batch_references import moments_reference, moved_reference, normalized_reference
from renorm.ops.shared.batch_statistics import batch_moments, double, moved, normalized, number, statistics_dtype
from renorm.ops.shared.moments import inverse_root
from renorm.te import tag

TORCH: dict[str, Any] = {"epsilon": 1e-5, "momentum_multiplies": "batch", "corrected": True}
KERAS: dict[str, Any] = {"epsilon": 1e-3, "momentum_multiplies": "old", "corrected": False}


class BatchNormTraining(OpDef):
    """y = scale * (x - mean) / sqrt(var + epsilon) + bias + residual with mean and population variance of the batch.

    mean, var: per channel, over the elements where mask is true (all without one); every element is normalized.
    new_mean, new_var: the running statistics after this batch, as UpdateStatistics says; without running statistics
    they are mean and var. invstd = 1 / sqrt(var + epsilon). relu: y = max(that, 0).
    Statistics of the batch are float64 for float64, else float32; running statistics keep their dtype. count is the
    number of values per channel.
    """

    signature = (
        "x: T[N, C, *S], scale?: U[C], bias?: U[C], running_mean?: P[C], running_var?: P[C], momentum?: f64[1],"
        " mask?: bool[N, *S], residual?: T[N, C, *S] -> y: T[N, C, *S], new_mean: P[C], new_var: P[C],"
        " mean: V[C], var: V[C], invstd: V[C], count: f64[1]"
    )
    types = {"T": FLOATS, "U": FLOATS, "P": FLOATS, "V": FLOATS}
    fusion = AFTER_SLICES
    scheduled_as = "normalization"
    is_normalization = True
    form_of = "batch_norm"
    epsilon = Float(at_least=0.0)  # nothing that libraries disagree on has a default
    momentum_multiplies = String(among=MULTIPLIES)
    corrected = Bool()
    relu = Bool(False)

    def infer(self, x: Operand, scale: Any, bias: Any, *running: Operand | None) -> list[TensorType | None]:
        of_batch = TensorType(statistics_dtype(x.dtype), (x.shape[1],))
        kept = [of_batch if old is None else TensorType(old.dtype, of_batch.shape) for old in running[:2]]
        return [None, *kept, *[of_batch] * 3, None]

    def compute(
        self,
        x: te.Tensor,
        scale: te.Tensor | None,
        bias: te.Tensor | None,
        running_mean: te.Tensor | None,
        running_var: te.Tensor | None,
        momentum: te.Tensor | None,
        mask: te.Tensor | None,
        residual: te.Tensor | None,
    ) -> list[te.Tensor]:
        m, dtype = batch_moments(x, mask), statistics_dtype(x.dtype)
        y = normalized(x, lambda c: m.mean[c], m.variance, self.epsilon, scale, bias, residual, self.relu)

        def channels(f: Any, name: str, dtype: str = dtype) -> te.Tensor:
            return te.compute(m.mean.shape, lambda c: f(c).astype(dtype), name=name, tag=tag.BROADCAST)

        def after(old: te.Tensor | None, batch: Any, corrected: bool, name: str) -> te.Tensor:
            def element(c: Any) -> Any:
                if old is None or momentum is None:
                    return batch(c)
                return moved(double(old[c]), batch(c), m.count, momentum[0], self.momentum_multiplies, corrected)

            return channels(element, name, dtype if old is None else old.dtype)

        def mean(c: Any) -> Any:
            return m.mean[c]

        return [
            y,
            after(running_mean, mean, False, "new_mean"),
            after(running_var, m.variance, self.corrected, "new_var"),
            channels(mean, "batch_mean"),
            channels(m.variance, "batch_var"),
            channels(lambda c: inverse_root(m.variance(c), self.epsilon), "invstd"),
            te.compute((1,), lambda _: m.count + number(0.0), name="count", tag=tag.ELEMWISE),
        ]

    def reference(
        self, x: Any, scale: Any, bias: Any, old_mean: Any, old_var: Any, momentum: Any, mask: Any, residual: Any
    ) -> list[Any]:
        count, mean, squares = moments_reference(x, mask)
        var = squares / max(count, 1)
        y = normalized_reference(x, mean, var, self.epsilon, scale, bias)
        y = y if residual is None else y + residual
        new = [mean, var]
        if old_mean is not None and momentum is not None:
            m, which = momentum[0], self.momentum_multiplies
            new[0] = moved_reference(old_mean, mean, count, m, which, False)
            new[1] = moved_reference(old_var, var, count, m, which, self.corrected)
        y = np.maximum(y, 0.0) if self.relu else y
        return [y, *new, mean, var, 1 / np.sqrt(var + self.epsilon), np.array([count], np.float64)]

    def to_onnx(self, node: Node, opset: int) -> tuple[str, dict[str, Any], list[Any]] | None:
        """BatchNormalization in training mode, which `training_mode` chooses, before opset 14 the number of outputs,
        and before opset 7 `is_test`. It has neither a correction, nor a mask, nor what this op does after the norm."""
        *operands, momentum, mask, residual = node.inputs
        if self.corrected or self.relu or mask or residual or momentum is None or momentum.data is None:
            return None
        share = float(momentum.data[0])
        written = {"epsilon": self.epsilon, "momentum": share if self.momentum_multiplies == "old" else 1 - share}
        mode = {"training_mode": 1} if opset >= 14 else {"is_test": 0} if opset < 7 else {}
        return ("BatchNormalization", {**written, **mode}, operands) if all(operands) else None

    def onnx_outputs(self, opset: int) -> int:
        """The updated and, before opset 14, the saved statistics."""
        return 3 if opset >= 14 else 5

    samples = [
        Sample(f32[2, 3, 5, 7], f32[3], f32[3], f32[3], f32[3].between(0.1, 2), f64[1].of([0.1]), **TORCH),
        Sample(f32[6, 3], f32[3], f32[3], f32[3], f32[3], f64[1].of([0.9]), **KERAS),
        Sample(f32[2, 3, 4], None, None, f32[3], f32[3], f64[1].of([0.5]), boolean[2, 4], **TORCH),
        Sample(f32[2, 3, 4], f32[3], f32[3], None, None, None, None, f32[2, 3, 4], **TORCH, relu=True),
        Sample(f32[1, 2, 2, 3, 4], f32[2], None, **KERAS),
        Sample(f32[0, 3, 2], f32[3], f32[3], f32[3], f32[3], f64[1].of([0.1]), **TORCH),
        Sample(f32[4, 2].between(80000, 80003), f32[2], f32[2], **TORCH),
        Sample(f32[4, 2, 3].between(0.7, 0.7), f32[2], f32[2], **TORCH, tolerance=0.0),
        Sample(f64[2, 3, 2], f64[3], f64[3], f64[3], f64[3], f64[1].of([0.1]), **TORCH),
        Sample(f16[2, 3, 4], f32[3], f32[3], f32[3], f32[3], f64[1].of([0.1]), **KERAS),
        Sample(f16[2, 3, 4], f16[3], f16[3], f16[3], f16[3], f64[1].of([0.1]), **KERAS),
        Sample(f32[2, 3, 4], f32[3], f32[3], f64[3], f64[3], f64[1].of([0.1]), **TORCH),
        Sample(bf16[2, 3, 4], bf16[3], bf16[3], **TORCH),
    ]
    rejects = [
        Reject(f32[2, 3, 5], f32[4], f32[3], **TORCH, because="scale has C = 4 but x has C = 3"),
        Reject(f32[2, 3, 5], f32[3], f16[3], **TORCH, because="bias is float16"),
        Reject(f32[2, 3, 5], None, None, f32[3], f16[3], f64[1], **TORCH, because="running_var is float16"),
        Reject(f32[2, 3, 5], *[None] * 5, boolean[2, 3], **TORCH, because="mask has S = [3] but x has [5]"),
        Reject(f32[2], **TORCH, because="x has rank 1"),
        Reject(f32[2, 3], epsilon=1e-5, because="needs momentum_multiplies, corrected"),
    ]
