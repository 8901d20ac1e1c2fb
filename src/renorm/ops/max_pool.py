"""Max pooling over a window of the spatial axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.core.errors import UnsupportedOp
from renorm.expr.nodes import identity_element
from renorm.graph.channels import Carry, every
from renorm.graph.ir import Node
from renorm.graph.op import OnnxNode, Sample
from renorm.graph.types import f32, f64, i8, u8
from renorm.ops.shared.pooling import Pool


class MaxPool(Pool):
    """y[n, c, o] = maximum over k of x[n, c, o*strides + k*dilations - pads]; what is outside of x does not count."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    types = {"T": (*FLOATS, "int8", "uint8")}
    onnx = {"MaxPool": 1}
    onnx_ignored = ("storage_order",)  # order of result 1, which is refused

    def propagate_channels(self, node: Node, index: int, axis: int) -> Carry | None:
        return every(node.output.shape[1], 1, positive=True) if axis == 1 else None

    def compute(self, x: te.Tensor) -> te.Tensor:
        return self.over_windows(x, te.max, lambda e: e, identity_element("max", x.dtype).value)

    def reference(self, x: Any) -> Any:
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        return self.window_elements(x, lowest).max(axis=-1)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        if any(node.is_asked[1:]):
            raise UnsupportedOp(
                f"{node.op_type}: result {node.outputs[1]!r}, the positions of the maxima, is read",
                do="renorm computes the maxima only: export with an upsampling that needs no positions",
            )
        return super().from_onnx(node)

    samples = [
        *Pool.samples,
        Sample(f32[1, 2, 5, 5].between(-3, -1), kernel_shape=(2, 2), strides=(2, 3), pads=(1, 0, 0, 1), ceil_mode=True),
        Sample(f32[1, 1, 4].of([1, float("nan"), -float("inf"), 2]), kernel_shape=(2,)),
        Sample(f64[1, 2, 4, 4], kernel_shape=(2, 2)),
        Sample(i8[1, 2, 4, 4].between(-120, -100), kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        Sample(u8[1, 2, 4, 4], kernel_shape=(2, 2)),
    ]
