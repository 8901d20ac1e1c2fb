"""Layer normalization: every slice over its last axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.core.shapes import normalize_axis, spreads
from renorm.graph.attributes import Float, Int
from renorm.graph.op import REDUCTION, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.shared import builders
from renorm.ops.shared.folding import is_known, scaled_bias
from renorm.ops.shared.moments import moments
from renorm.ops.shared.precision import spread
from renorm.te import tag


class LastAxesNorm(OpDef):
    """Base of norms over axis and all axes after it, whose parameters broadcast to x."""

    fusion = REDUCTION
    scheduled_as = "normalization"
    is_normalization = True
    axis = Int(-1)
    epsilon = Float(1e-5, at_least=0.0)
    stash_type = Int(1)

    def infer(self, x: Operand, *parameters: Operand | None) -> None:
        normalize_axis(self.axis, x.rank)
        for p in parameters:
            if p is not None and not spreads(p.shape, x.shape):
                raise OperandError(f"{self.name}({x}, {p}): {p.name} does not broadcast to x")


class LayerNorm(LastAxesNorm):
    """y = (x - mean) / sqrt(var + epsilon) * scale + bias; mean and population variance over axis and all axes after
    it.

    scale and bias broadcast to x. stash_type: the ONNX number of the dtype in which a file wants statistics; ours are
    never less exact than that.
    """

    signature = "x: T[*S], scale: T[...], bias?: T[...] -> y: T[*S]"
    types = {"T": FLOATS}
    onnx = {"LayerNormalization": 17}

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        x, *parameters = operands
        along = [None if v is None else v.reshape(-1, *[1] * (x.rank - 1 - axis)) for v in (k, shift)]
        if not all(p is None or is_known(p) for p in parameters):
            return f"scale and bias of {self.name} are not constants"
        return self, [x, scaled_bias(parameters[0], along[0], None), scaled_bias(parameters[1], *along)]

    def compute(self, x: te.Tensor, scale: te.Tensor, bias: te.Tensor | None) -> te.Tensor:
        first = normalize_axis(self.axis, x.ndim)
        m = moments(lambda *i: x[i], x.shape[:first], x.shape[first:], x.dtype, x.name)
        one, zero = te.const(1.0, m.dtype), te.const(0.0, m.dtype)
        standard = m.affine(x.shape[:first], lambda *at: (at, one, zero), self.epsilon)

        def element(*index: Any) -> Any:
            y = standard(x[index], *index[:first]) * spread(scale, index)
            return y if bias is None else y + spread(bias, index)

        return te.compute(x.shape, element, name="layer_norm", tag=tag.BROADCAST).astype(x.dtype)

    def reference(self, x: Any, scale: Any, bias: Any) -> Any:
        axes = tuple(range(normalize_axis(self.axis, x.ndim), x.ndim))
        y = (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(x.var(axis=axes, keepdims=True) + self.epsilon) * scale
        return y if bias is None else y + bias

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Results 1 and 2, the statistics, are computed by reductions of their own where somebody reads them."""
        y = super().from_onnx(node)
        if not any(node.is_asked[1:]):
            return y
        x, axis = node.operands[0], normalize_axis(node.attribute("axis", -1), node.operands[0].rank)
        axes = tuple(range(axis, x.rank))
        stash = {1: "float32", 11: "float64", 10: "float16", 16: "bfloat16"}[node.attribute("stash_type", 1)]
        wide = x if x.dtype == stash else builders.find("cast")(x, to=stash)
        mean = builders.find("reduce_mean")(wide, axes=axes)
        distance = builders.find("sub")(wide, mean)
        var = builders.find("reduce_mean")(builders.find("mul")(distance, distance), axes=axes)
        epsilon = np.asarray(node.attribute("epsilon", 1e-5), stash)
        return [y, mean, builders.find("reciprocal")(builders.find("sqrt")(builders.find("add")(var, epsilon)))]

    samples = [
        Sample(f32[2, 3, 40], f32[40], f32[40]),
        Sample(f32[2, 3, 4, 5], f32[3, 4, 5], f32[3, 4, 5], axis=1),
        Sample(f32[2, 3, 4], f32[1, 4], axis=-2, epsilon=0.1),
        Sample(f32[3, 5].between(79999.0, 80003.0), f32[5], f32[5]),
        Sample(f32[3, 5].between(9999.0, 10001.0), f32[5], f32[5]),
        Sample(f32[3, 5].between(0.7, 0.7), f32[5], f32[5], tolerance=0.0),
        Sample(f32[3, 5].between(-1e30, 1e30), f32[5], f32[5]),
        Sample(f32[2, 3].of([[float("nan"), 1, 2], [1, 2, 3]]), f32[3], f32[3]),
        Sample(f32[0, 3], f32[3], f32[3]),
        Sample(f32[5], f32[()], f32[()], axis=0),
        Sample(f64[2, 3], f64[3], stash_type=11),
        Sample(f16[2, 300].between(100, 101), f16[300], f16[300]),
        Sample(bf16[2, 8], bf16[8]),
    ]
    rejects = [
        Reject(f32[2, 3], f32[3], axis=2, because="axis 2 is outside"),
        Reject(f32[2, 3], f32[4], because="scale does not broadcast to x"),
        Reject(f32[2, 3], f32[3], f32[2, 2, 3], because="bias does not broadcast to x"),
        Reject(f32[2, 3], f16[3], because="scale is float16 but x is float32"),
    ]
