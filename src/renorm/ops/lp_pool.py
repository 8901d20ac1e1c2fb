"""Pooling by the p-norm of a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.dtypes import FLOATS
from renorm.graph.attributes import Bool, Float, Ints
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f16, f32, f64
from renorm.ops.shared.pooling import check_padding, covering, window_sum
from renorm.ops.shared.precision import rounded
from renorm.ops.shared.window import Span, Windowed, window_view
from renorm.te import tag


class LpPool(Windowed):
    """y[n, c, o] = (sum over k of |x[n, c, o*strides + k*dilations - pads]| ** p) ** (1/p); zeros outside of x."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    types = {"T": FLOATS}
    onnx = {"LpPool": 1}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "reduction"
    kernel_shape = Ints()
    ceil_mode = Bool(False)
    p = Float(2.0)

    def infer(self, x: Operand) -> tuple[Dim | None, ...]:
        kernel = self.along("kernel_shape", x.rank - 2)
        check_padding(self, kernel)
        return (*x.shape[:2], *self.positions(x.shape[2:], kernel, self.ceil_mode))

    def label(self, operands: Sequence[TensorType | None]) -> str:
        return f"lp_pool{operands[0].rank - 2}d" if operands[0] else self.name

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.ALIKE

    def compute(self, x: te.Tensor) -> te.Tensor:
        spans = self.spans(x.shape[2:], self.kernel_shape)
        total = window_sum(
            x, spans, self.counts(x.shape[2:], self.kernel_shape, self.ceil_mode), lambda e: powered(e, self.p)
        )
        root = te.compute(total.shape, lambda *i: rooted(total[i], self.p), name="lp_pool", tag=tag.ELEMWISE)
        return rounded(root, x.dtype)

    def reference(self, x: Any) -> Any:
        spans = self.spans(x.shape[2:], self.kernel_shape)
        before, after = covering(spans, self.counts(x.shape[2:], self.kernel_shape, self.ceil_mode))
        grown = [Span(s.extent, s.kernel, s.stride, s.dilation, b, a) for s, b, a in zip(spans, before, after)]
        taps = tuple(range(x.ndim, 2 * x.ndim - 2))
        return (np.abs(window_view(x, grown)) ** self.p).sum(axis=taps) ** (1 / self.p)

    samples = [
        Sample(f32[2, 3, 5, 7], kernel_shape=(2, 3)),
        Sample(f32[1, 2, 7, 6], kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), p=1.0),
        Sample(f32[1, 2, 8, 8], kernel_shape=(3, 3), strides=(2, 2), ceil_mode=True, p=3.0),
        Sample(f32[1, 2, 9, 8].between(0.1, 2), kernel_shape=(2, 3), dilations=(3, 2), p=1.5),
        Sample(f32[2, 3, 8], kernel_shape=(3,), auto_pad="SAME_UPPER", strides=(3,)),
        Sample(f64[1, 2, 4, 4, 3], kernel_shape=(2, 2, 1)),
        Sample(f16[1, 2, 4, 4], kernel_shape=(2, 2)),
        Sample(bf16[1, 2, 4, 4], kernel_shape=(2, 2)),
    ]
    rejects = [
        Reject(f32[2, 3, 5, 7], kernel_shape=(3,), because="needs one value for each of 2 spatial axes"),
        Reject(f32[2, 3, 5, 7], because="needs kernel_shape"),
    ]


def powered(e: Any, p: float) -> Any:
    """|e| ** p."""
    if p == 1:
        return te.abs(e)
    return e * e if p == 2 else te.power(te.abs(e), te.const(p, e.dtype))


def rooted(e: Any, p: float) -> Any:
    """e ** (1/p) of a sum of powers."""
    if p == 1:
        return e
    return te.sqrt(e) if p == 2 else te.power(e, te.const(1 / p, e.dtype))
