"""Max pooling over a window of the spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.dtypes import FLOATS
from renorm.core.errors import UnsupportedOp
from renorm.expr.nodes import identity_element
from renorm.graph.attributes import Bool, Ints
from renorm.graph.channels import Carry, every
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, OnnxNode, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f16, f32, f64, i8, u8
from renorm.ops.shared.pooling import check_padding, covering
from renorm.ops.shared.window import Span, Windowed, pad, window_view


class MaxPool(Windowed):
    """y[n, c, o] = maximum over k of x[n, c, o*strides + k*dilations - pads]; what is outside of x does not count."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    types = {"T": (*FLOATS, "int8", "uint8")}
    onnx = {"MaxPool": 1}
    onnx_ignored = ("storage_order",)  # order of result 1, which is refused
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "reduction"
    kernel_shape = Ints()
    ceil_mode = Bool(False)

    def infer(self, x: Operand) -> tuple[Dim | None, ...]:
        kernel = self.along("kernel_shape", x.rank - 2)
        check_padding(self, kernel)
        return (*x.shape[:2], *self.positions(x.shape[2:], kernel, self.ceil_mode))

    def label(self, operands: Sequence[TensorType | None]) -> str:
        return f"max_pool{operands[0].rank - 2}d" if operands[0] else self.name

    def propagate_channels(self, node: Node, index: int, axis: int) -> Carry | None:
        return every(node.output.shape[1], 1, positive=True) if axis == 1 else None

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.ALIKE

    def compute(self, x: te.Tensor) -> te.Tensor:
        spans = self.spans(x.shape[2:], self.kernel_shape)
        counts = self.counts(x.shape[2:], self.kernel_shape, self.ceil_mode)
        lowest = identity_element("max", x.dtype).value
        data = pad(x, *covering(spans, counts), lowest)
        ks = [te.reduce_axis((0, s.kernel), name=f"k{i}") for i, s in enumerate(spans)]

        def element(n: Any, c: Any, *out: Any) -> Any:
            at = [o * s.stride + k * s.dilation for o, k, s in zip(out, ks, spans)]
            return te.max(data[(n, c, *at)], axis=ks)

        return te.compute((*x.shape[:2], *counts), element, name="max_pool", tag="pool")

    def reference(self, x: Any) -> Any:
        spans = self.spans(x.shape[2:], self.kernel_shape)
        before, after = covering(spans, self.counts(x.shape[2:], self.kernel_shape, self.ceil_mode))
        grown = [Span(s.extent, s.kernel, s.stride, s.dilation, b, a) for s, b, a in zip(spans, before, after)]
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        return window_view(x, grown, lowest).max(axis=tuple(range(x.ndim, 2 * x.ndim - 2)))

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        if any(node.is_asked[1:]):
            raise UnsupportedOp(
                f"{node.op_type}: result {node.outputs[1]!r}, the positions of the maxima, is read",
                do="renorm computes the maxima only: export with an upsampling that needs no positions",
            )
        return super().from_onnx(node)

    samples = [
        Sample(f32[2, 3, 5, 7], kernel_shape=(2, 3)),
        Sample(f32[1, 2, 7, 6], kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
        Sample(f32[1, 2, 8, 8], kernel_shape=(3, 3), strides=(2, 2), ceil_mode=True),
        Sample(f32[1, 2, 5, 5].between(-3, -1), kernel_shape=(2, 2), strides=(2, 3), pads=(1, 0, 0, 1), ceil_mode=True),
        Sample(f32[1, 2, 9, 8], kernel_shape=(2, 3), dilations=(3, 2)),
        Sample(f32[2, 3, 8], kernel_shape=(3,), auto_pad="SAME_UPPER", strides=(3,)),
        Sample(f32[1, 2, 7, 6], kernel_shape=(4, 3), auto_pad="SAME_LOWER", strides=(2, 2)),
        Sample(f32[1, 2, 4, 5, 3], kernel_shape=(2, 2, 2)),
        Sample(f32[0, 2, 4, 4], kernel_shape=(2, 2)),
        Sample(f32[1, 1, 4].of([1, float("nan"), -float("inf"), 2]), kernel_shape=(2,)),
        Sample(f64[1, 2, 4, 4], kernel_shape=(2, 2)),
        Sample(f16[1, 2, 4, 4], kernel_shape=(2, 2)),
        Sample(bf16[1, 2, 4, 4], kernel_shape=(2, 2), pads=(1, 1, 1, 1)),
        Sample(i8[1, 2, 4, 4].between(-120, -100), kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        Sample(u8[1, 2, 4, 4], kernel_shape=(2, 2)),
    ]
    rejects = [
        Reject(f32[2, 3, 5, 7], kernel_shape=(3,), because="needs one value for each of 2 spatial axes"),
        Reject(f32[2, 3, 5, 7], kernel_shape=(6, 3), because="does not fit into axis 2"),
        Reject(f32[2, 3, 5, 7], kernel_shape=(2, 2), pads=(2, 0, 0, 0), because="a window could lie in padding alone"),
        Reject(f32[2, 3, 5, 7], because="needs kernel_shape"),
    ]
