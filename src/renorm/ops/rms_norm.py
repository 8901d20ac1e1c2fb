"""RMS normalization: every slice divided by the root of its mean square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS, compute_dtype, numpy_dtype
from renorm.core.shapes import normalize_axis
from renorm.graph.ir import Node
from renorm.graph.op import Reject, Sample
from renorm.graph.types import bf16, f16, f32, f64
from renorm.ops.layer_norm import LastAxesNorm
from renorm.ops.shared.composite import apply
from renorm.ops.shared.folding import is_known
from renorm.ops.shared.moments import ACCUMULATOR, average, inverse_root, statistic
from renorm.ops.shared.precision import spread, wide
from renorm.te import tag


class RmsNorm(LastAxesNorm):
    """y = x / sqrt(mean(x*x) + epsilon) * scale; the mean is over axis and all axes after it. scale broadcasts to
    x."""

    signature = "x: T[*S], scale: U[...] -> y: U[*S]"
    types = {"T": FLOATS, "U": FLOATS}
    onnx = {"RMSNormalization": 23}

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        x, scale = operands
        if shift is not None or not is_known(scale):
            return f"{self.name} has no bias" if shift is not None else f"the scale of {self.name} is not a constant"
        return self, [x, scale if k is None else scale * k.reshape(-1, *[1] * (x.rank - 1 - axis))]

    def in_onnx(self, node: Node) -> Any:
        """Before opset 23, with the mean in the dtype that sums have."""
        x, scale = node.operands
        dtype, axes = compute_dtype(x.dtype), range(normalize_axis(self.axis, x.rank), x.rank)
        wide_x = x if x.dtype == dtype else apply("cast", x, to=dtype)
        mean = apply("reduce_mean", apply("mul", wide_x, wide_x), axes=tuple(axes))
        root = apply("sqrt", apply("add", mean, np.asarray(self.epsilon, numpy_dtype(dtype))))
        y = apply("div", wide_x, root)
        return apply("mul", y if scale.dtype == dtype else apply("cast", y, to=scale.dtype), scale)

    def compute(self, x: te.Tensor, scale: te.Tensor) -> te.Tensor:
        first = normalize_axis(self.axis, x.ndim)

        def square(*index: Any) -> Any:
            value = x[index].astype(ACCUMULATOR)
            return value * value

        mean = average(square, x.shape[:first], x.shape[first:], name=f"{x.name}_square")

        factor = statistic(
            x.shape[:first], lambda *at: inverse_root(mean[at], self.epsilon).astype(compute_dtype(x.dtype)), "factor"
        )

        def element(*index: Any) -> Any:
            return wide(x[index]) * factor[index[:first]] * spread(scale, index)

        return te.compute(x.shape, element, name="rms_norm", tag=tag.BROADCAST).astype(scale.dtype)

    def reference(self, x: Any, scale: Any) -> Any:
        axes = tuple(range(normalize_axis(self.axis, x.ndim), x.ndim))
        return x / np.sqrt(np.square(x).mean(axis=axes, keepdims=True) + self.epsilon) * scale

    samples = [
        Sample(f32[2, 3, 40], f32[40]),
        Sample(f32[2, 3, 4, 5], f32[3, 4, 5], axis=1),
        Sample(f32[2, 3, 4], f32[1, 4], axis=-2, epsilon=0.1),
        Sample(f32[3, 5].between(-1e30, 1e30), f32[5]),
        Sample(f32[2, 3].of([[float("nan"), 1, 2], [0, 0, 0]]), f32[3]),
        Sample(f32[0, 3], f32[3]),
        Sample(f64[2, 3], f64[3], stash_type=11),
        Sample(f16[2, 300].between(100, 101), f16[300]),
        Sample(f16[2, 8], f32[8]),
        Sample(bf16[2, 8], bf16[8]),
    ]
    rejects = [
        Reject(f32[2, 3], f32[3], axis=2, because="axis 2 is outside"),
        Reject(f32[2, 3], f32[4], because="scale does not broadcast to x"),
    ]
