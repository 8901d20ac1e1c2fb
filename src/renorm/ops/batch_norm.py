"""Batch normalization at inference, with stored statistics; or, with training_mode, with those of the batch itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS, compute_dtype
from renorm.core.errors import UnsupportedOp
from renorm.graph.attributes import Bool, Float
from renorm.graph.op import BROADCAST, REDUCTION, Fusion, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import TensorType, bf16, f16, f32, f64
from renorm.ops.batch_norm_training import BatchNormTraining
from renorm.ops.cast import Cast
from renorm.ops.shared.folding import scaled_affine
from renorm.ops.shared.moments import inverse_root, moments
from renorm.ops.shared.reshaping import flattened, reshaped, reshaped_like
from renorm.te import tag


def _as_listed(statistics: Sequence[Any], node: OnnxNode, mean: Any, var: Any) -> list[Any]:
    """Statistics in the shapes and dtypes that ONNX gives them: those of what is updated; saved ones have that of x."""
    found = list[Any]()
    for s, old, is_asked, is_saved in zip(
        statistics, (mean, var, mean, var), node.is_asked[1:], (False, False, True, True)
    ):
        s = reshaped_like(s, old) if is_asked and old.rank != 1 else s
        dtype = node.operands[0].dtype
        found.append(Cast(to=dtype)(s) if is_asked and is_saved and s.dtype != dtype else s)
    return found


class BatchNorm(OpDef):
    """y = scale * (x - mean) / sqrt(var + epsilon) + bias, everything but x per channel.

    mean and var are the stored (running) statistics. With training_mode they are ignored: mean and population
    variance of the batch take their place, over all axes but the channel's. momentum plays no part in y; it says how
    the stored statistics would be updated: momentum * old + (1 - momentum) * batch.
    """

    signature = "x: T[N, C, *S], scale: U[C], bias: U[C], mean: V[C], var: V[C] -> y: T[N, C, *S]"
    types = {"T": FLOATS, "U": FLOATS, "V": FLOATS}
    onnx = {"BatchNormalization": 1}
    onnx_ignored = ("consumed_inputs", "is_test", "spatial")  # read by from_onnx
    fusion = BROADCAST
    scheduled_as = "normalization"
    is_normalization = True
    epsilon = Float(1e-5, at_least=0.0)
    momentum = Float(0.9)
    training_mode = Bool(False)

    def fusion_of(self, operands: Sequence[TensorType | None]) -> Fusion:
        return REDUCTION if self.training_mode else BROADCAST

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        return scaled_affine(self, operands, axis, 1, k, shift)

    def compute(self, x: te.Tensor, scale: te.Tensor, bias: te.Tensor, mean: te.Tensor, var: te.Tensor) -> te.Tensor:
        if self.training_mode:
            element = self._with_batch_statistics(x, scale, bias)
        else:
            dtype = "float64" if "float64" in {t.dtype for t in (x, scale, mean)} else compute_dtype(x.dtype)

            def element(n: Any, c: Any, *at: Any) -> Any:
                # the distance from the mean first: x * k + shift would lose the digits that a large mean and x share
                factor = scale[c].astype(dtype) * inverse_root(var[c].astype(dtype), self.epsilon)
                return (x[(n, c, *at)].astype(dtype) - mean[c].astype(dtype)) * factor + bias[c].astype(dtype)

        return te.compute(x.shape, element, name="batch_norm", tag=tag.BROADCAST).astype(x.dtype)

    def _with_batch_statistics(self, x: te.Tensor, scale: te.Tensor, bias: te.Tensor) -> Any:
        m = moments(lambda c, n, *at: x[(n, c, *at)], x.shape[1:2], (x.shape[0], *x.shape[2:]), x.dtype, x.name)
        standard = m.affine(x.shape[1:2], lambda c: ((c,), scale[c], bias[c]), self.epsilon)
        return lambda n, c, *at: standard(x[(n, c, *at)], c)

    def reference(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        if self.training_mode:
            others = tuple(a for a in range(x.ndim) if a != 1)
            mean, var = x.mean(axis=others), x.var(axis=others)
        last = np.moveaxis(x, 1, -1)
        return np.moveaxis((last - mean) / np.sqrt(var + self.epsilon) * scale + bias, -1, 1)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Until opset 6 `is_test` chooses between stored and batch statistics, until 13 the number of outputs, then
        `training_mode`. `spatial` = 0 (until opset 8) normalizes every activation by itself: C * S channels without
        spatial axes."""
        x, scale, bias, mean, var = cls.arrange(node.operands)
        training = bool(
            not node.attribute("is_test", 0)
            if node.opset < 7
            else len(node.outputs) > 1
            if node.opset < 14
            else node.attribute("training_mode", 0)
        )
        if any(node.is_asked[1:]) and not training:
            raise UnsupportedOp(
                f"{node.op_type}: results {', '.join(n for n in node.outputs[1:] if n)} exist in training mode only",
                [f"is_test is {node.attribute('is_test')}" if node.opset < 7 else "training_mode is 0"],
                "set the mode of this node, or read its first result only",
            )
        data, parameters = x, [scale, bias, mean, var]
        if x.rank == 1:
            data = reshaped(x, -1, 1)
        elif node.opset < 9 and not node.attribute("spatial", 1) and x.rank > 2:
            flat = [p if p.rank == 1 else reshaped(p, -1) for p in parameters]
            if flat[0].shape[0] != x.shape[1]:
                data, parameters = flattened(x, 1), flat
        chosen = {a: node.attributes[a] for a in ("epsilon", "momentum") if a in node.attributes}
        if any(node.is_asked[1:]):
            y, *statistics = cls(**chosen).updating(data, *parameters, name=node.name)
        else:
            y, statistics = cls(**chosen, training_mode=training)(data, *parameters, name=node.name), []
        return [y if data is x else reshaped_like(y, x), *_as_listed(statistics, node, mean, var)]

    def updating(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, name: str) -> Any:
        """y, mean and var after this batch, mean and population variance of the batch: what training mode computes."""
        op = BatchNormTraining(epsilon=self.epsilon, momentum_multiplies="old", corrected=False)
        momentum = x.graph.constant(np.array([self.momentum]), f"{name}.momentum")
        return op(x, scale, bias, mean, var, momentum, name=name)[:5]

    def to_onnx(self, node: Any, opset: int) -> Any:
        """The mode is chosen by `training_mode`, before opset 14 by `onnx_outputs`, and before opset 7 by `is_test`."""
        said = super().to_onnx(node, opset)
        if said is None or opset >= 14:
            return said
        op_type, written, operands = said
        written.pop("training_mode", None)
        return op_type, written | ({"is_test": int(not self.training_mode)} if opset < 7 else {}), operands

    def onnx_outputs(self, opset: int) -> int:
        """In training the updated and, before opset 14, the saved statistics."""
        return 0 if not self.training_mode else 3 if opset >= 14 else 5

    samples = [
        Sample(f32[2, 3, 5, 7], f32[3], f32[3], f32[3], f32[3].between(0.1, 2)),
        Sample(f32[4, 3], f32[3], f32[3], f32[3], f32[3].between(0, 1e-12), epsilon=1e-12),
        Sample(f32[2, 3, 4], f32[3], f32[3], f32[3], f32[3].between(0.1, 2), epsilon=0.1, momentum=0.5),
        Sample(f32[1, 2, 2, 3, 4], f32[2], f32[2], f32[2], f32[2].between(0.1, 2)),
        Sample(f32[0, 3, 2], f32[3], f32[3], f32[3], f32[3].between(0.1, 2)),
        Sample(f32[1, 2, 4].between(9990, 10010), f32[2], f32[2], f32[2].of([10000, 9995]), f32[2].of([25, 1])),
        Sample(f64[2, 3, 2], f64[3], f64[3], f64[3], f64[3].between(0.1, 2)),
        Sample(f16[2, 3, 4], f32[3], f32[3], f32[3], f32[3].between(0.1, 2)),
        Sample(bf16[2, 3, 4], bf16[3], bf16[3], f32[3], f32[3].between(0.1, 2)),
        Sample(f32[2, 3, 5, 7], f32[3], f32[3], f32[3], f32[3], training_mode=True),
        Sample(f32[4, 2].between(80000, 80003), f32[2], f32[2], f32[2], f32[2], training_mode=True),
    ]
    rejects = [
        Reject(f32[2, 3, 5], f32[4], f32[3], f32[3], f32[3], because="scale has C = 4 but x has C = 3"),
        Reject(f32[2, 3, 5], f32[3], f32[3], f32[3], f32[1], because="var has C = 1"),
        Reject(f32[2, 3, 5], f32[3], f32[3], f32[3], f16[3], because="var is float16"),
        Reject(f32[2], f32[2], f32[2], f32[2], f32[2], because="x has rank 1"),
    ]
