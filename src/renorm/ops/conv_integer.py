"""Convolution of integers of 8 bits, summed in 32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.graph.attributes import Int
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, OnnxNode, Reject, Sample
from renorm.graph.types import Operand, TensorType, f32, i8, i16, u8
from renorm.ops.conv import Conv
from renorm.ops.shared import quantization
from renorm.ops.shared.window import Windowed, check_group


class ConvInteger(Windowed):
    """y = conv(x - x_zero, w - w_zero), summed in int32 as it is; outside of x there is x_zero. x_zero is a scalar,
    w_zero one or one number per result channel. Integers of 16 bits are such of which zero points are taken already."""

    signature = "x: X[N, C, *S], w: W[M, P, *K], x_zero?: X[...], w_zero?: W[...] -> y: i32[...]"
    types = {"X": (*quantization.BYTES, "int16"), "W": (*quantization.BYTES, "int16")}
    onnx = {"ConvInteger": 10}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "convolution"
    is_product = True
    group = Int(1, at_least=1)

    def infer(self, x: Operand, w: Operand, x_zero: Operand | None, w_zero: Operand | None) -> tuple[Dim | None, ...]:
        check_group(self, self.group, x, w, w.shape[1], w.shape[0])
        quantization.check_single(self.name, x_zero)
        quantization.check_zero(self.name, w, w_zero, axis=0)
        return (x.shape[0], w.shape[0], *self.positions(x.shape[2:], self.known_kernel(w.shape[2:])))

    def label(self, operands: Sequence[TensorType | None]) -> str:
        return f"conv{operands[0].rank - 2}d_integer" if operands[0] else self.name

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return 0 if index == 1 else None

    def compute(self, x: te.Tensor, w: te.Tensor, x_zero: te.Tensor | None, w_zero: te.Tensor | None) -> te.Tensor:
        return self.as_conv().compute(quantization.centred(x, x_zero), quantization.centred(w, w_zero), None)

    def as_conv(self) -> Conv:
        """The convolution with this window, which sums in the dtype that it is given."""
        return Conv(**self.values)

    def reference(self, x: Any, w: Any, x_zero: Any, w_zero: Any) -> Any:
        exact = self.as_conv().reference(
            quantization.centred_array(x, x_zero), quantization.centred_array(w, w_zero), None
        )
        return exact.astype(np.int32)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Integers of 16 bits are no operands of a file."""
        for v in node.operands[:2]:
            if v is not None and v.dtype not in quantization.BYTES:
                raise OperandError(f"ConvInteger: {v.name!r} is {v.dtype}, where ONNX has int8 and uint8")
        return super().from_onnx(node)

    def to_onnx(self, node: Any, opset: int) -> Any:
        is_internal = "int16" in (node.inputs[0].dtype, node.inputs[1].dtype)
        return None if is_internal else super().to_onnx(node, opset)

    samples = [
        Sample(u8[2, 3, 5, 7].between(0, 255), i8[4, 3, 3, 2].between(-128, 127), u8[()].of(131)),
        Sample(u8[1, 4, 6, 5].between(0, 255), u8[6, 2, 3, 3].between(0, 255), u8[1].of([255]), u8[6].between(0, 255),
               group=2, pads=(1, 0, 2, 1), strides=(2, 1)),
        Sample(i8[2, 3, 6, 5].between(-128, 127), i8[3, 1, 3, 3].between(-128, 127), i8[()].of(-7), None, group=3,
               pads=(1, 1, 1, 1)),
        Sample(i8[1, 2, 9, 8].between(-128, 127), u8[3, 2, 2, 3].between(0, 255), None, u8[()].of(100),
               dilations=(3, 2), strides=(2, 3), pads=(0, 2, 1, 1)),
        Sample(u8[2, 3, 8].between(0, 255), i8[5, 3, 3].between(-128, 127), u8[()].of(3), auto_pad="SAME_UPPER",
               strides=(3,), kernel_shape=(3,)),
        Sample(u8[1, 2, 4, 5, 3].between(0, 255), i8[3, 2, 2, 3, 1], u8[()].of(3), i8[3], pads=(1, 1, 0, 0, 1, 0)),
        Sample(i16[1, 16, 5, 9].between(-255, 255), i8[35, 16, 3, 3].between(-128, 127), pads=(1, 1, 1, 1)),
        Sample(u8[0, 2, 4, 4], i8[3, 2, 3, 3]),
    ]  # fmt: skip
    rejects = [
        Reject(u8[2, 3, 5, 7], i8[4, 2, 3, 3], because="x has 3 channels, expected 2"),
        Reject(u8[2, 3, 5, 7], i8[4, 3, 3, 3], u8[3], because="x_zero: u8[3] is not a scalar"),
        Reject(
            u8[2, 3, 5, 7], i8[4, 3, 3, 3], None, i8[3], because="w_zero: i8[3], where w: i8[4, 3, 3, 3] asks for [4]"
        ),
        Reject(u8[2, 3, 5, 7], i8[4, 3, 3, 3], i8[()], because="x_zero is int8 but x is uint8"),
        Reject(f32[2, 3, 5, 7], i8[4, 3, 3, 3], because="x is float32"),
    ]
