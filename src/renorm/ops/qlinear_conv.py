"""Convolution of quantized tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.graph.attributes import Int
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, Reject, Sample
from renorm.graph.types import Operand, TensorType, f32, i8, i32, u8
from renorm.ops.conv_integer import ConvInteger
from renorm.ops.shared import quantization
from renorm.ops.shared.precision import add_channels
from renorm.ops.shared.window import Windowed, check_group


class QlinearConv(Windowed):
    """y = round((conv(x - x_zero, w - w_zero) + b) * (x_scale * w_scale / y_scale)) + y_zero: the sum in int32, its
    product with the scale in float32, rounded halves to even and cut to the range of the dtype of y.

    What is of x and y is a scalar; what is of w, too, or one number per result channel. Outside of x there is x_zero.
    """

    signature = (
        "x: X[N, C, *S], x_scale: f32[...], x_zero: X[...], w: W[M, P, *K], w_scale: f32[...], w_zero: W[...], "
        "y_scale: f32[...], y_zero: Y[...], b?: i32[M] -> y: Y[...]"
    )
    types = {"X": quantization.BYTES, "W": quantization.BYTES, "Y": quantization.BYTES}
    onnx = {"QLinearConv": 10}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "convolution"
    is_product = True
    factors = 0
    group = Int(1, at_least=1)

    def infer(
        self, x: Operand, x_scale: Operand, x_zero: Operand, w: Operand, w_scale: Operand, w_zero: Operand,
        y_scale: Operand, y_zero: Operand, b: Operand | None,
    ) -> tuple[Dim | None, ...]:  # fmt: skip
        check_group(self, self.group, x, w, w.shape[1], w.shape[0])
        quantization.check_single(self.name, x_scale, x_zero, y_scale, y_zero)
        for given in (w_scale, w_zero):
            if given.rank > 1 and not quantization.is_single(given.shape):
                raise OperandError(f"{self.name}: {given} is neither one nor one for each result channel")
            quantization.check_zero(self.name, w, given, axis=0)
        return (x.shape[0], w.shape[0], *self.positions(x.shape[2:], self.known_kernel(w.shape[2:])))

    def label(self, operands: Sequence[TensorType | None]) -> str:
        return f"qlinear_conv{operands[0].rank - 2}d" if operands[0] else self.name

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return 0 if index == 3 else None

    def sums(self) -> ConvInteger:
        """The convolution of integers with this window."""
        return ConvInteger(**self.values)

    def compute(
        self, x: te.Tensor, x_scale: te.Tensor, x_zero: te.Tensor, w: te.Tensor, w_scale: te.Tensor, w_zero: te.Tensor,
        y_scale: te.Tensor, y_zero: te.Tensor, b: te.Tensor | None,
    ) -> te.Tensor:  # fmt: skip
        def factor(*i: Any) -> Any:
            return quantization.joint(*(quantization.parameter(p, i[1:2], axis=0) for p in (x_scale, w_scale, y_scale)))

        total = add_channels(self.sums().compute(x, w, x_zero, w_zero), b)
        shift = quantization.parameter(y_zero, (), axis=0)
        return quantization.requantized(total, factor, lambda *_: shift, y_zero.dtype)

    def reference(
        self, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any, y_zero: Any, b: Any
    ) -> Any:
        total = self.sums().reference(x, w, x_zero, w_zero)
        window = [1] * (total.ndim - 2)
        total = total if b is None else total + b.reshape(-1, *window)
        scales = (np.float32(s).reshape(-1) for s in (x_scale, w_scale, y_scale))
        factors = quantization.joint(*scales).reshape(-1, *window)
        return quantization.requantized_array(total, factors, y_zero)

    samples = [
        Sample(u8[2, 3, 5, 7].between(0, 255), f32[()].of(0.02), u8[()].of(131), i8[4, 3, 3, 2].between(-128, 127),
               f32[4].between(0.01, 0.03), i8[4], f32[()].of(0.15), u8[()].of(120), i32[4].between(-900, 900)),
        Sample(u8[1, 4, 6, 5].between(0, 255), f32[1].of([0.02]), u8[1].of([255]), u8[6, 2, 3, 3].between(0, 255),
               f32[()].of(0.03), u8[6].between(0, 255), f32[1].of([0.5]), i8[1].of([-20]), None, group=2,
               pads=(1, 0, 2, 1), strides=(2, 1)),
        Sample(i8[2, 3, 6, 5].between(-128, 127), f32[()].of(0.02), i8[()].of(-7), i8[3, 1, 3, 3].between(-128, 127),
               f32[3].between(0.01, 0.03), i8[()].of(0), f32[()].of(0.1), i8[()].of(3), i32[3], group=3,
               pads=(1, 1, 1, 1), kernel_shape=(3, 3)),
        Sample(i8[1, 2, 9, 8].between(-128, 127), f32[()].of(0.02), i8[()].of(0), u8[3, 2, 2, 3].between(0, 255),
               f32[()].of(0.01), u8[()].of(100), f32[()].of(0.15), u8[()].of(100), dilations=(3, 2), strides=(2, 3),
               pads=(0, 2, 1, 1)),
        Sample(u8[2, 3, 8].between(0, 255), f32[()].of(0.5), u8[()].of(3), i8[5, 3, 3].between(-128, 127),
               f32[()].of(0.5), i8[()].of(0), f32[()].of(64), u8[()].of(100), auto_pad="SAME_UPPER", strides=(3,)),
        Sample(u8[0, 2, 4, 4], f32[()], u8[()], i8[3, 2, 3, 3], f32[3], i8[3], f32[()], u8[()]),
    ]  # fmt: skip
    rejects = [
        Reject(u8[2, 3, 5], f32[()], u8[()], i8[4, 2, 3], f32[()], i8[()], f32[()], u8[()], because="x has 3 channels"),
        Reject(u8[2, 3, 5], f32[3], u8[()], i8[4, 3, 3], f32[()], i8[()], f32[()], u8[()], because="is not a scalar"),
        Reject(u8[2, 3, 5], f32[()], u8[()], i8[4, 3, 3], f32[3], i8[()], f32[()], u8[()], because="asks for [4]"),
        Reject(u8[2, 3, 5], f32[()], i8[()], i8[4, 3, 3], f32[()], i8[()], f32[()], u8[()], because="x_zero is int8"),
    ]  # fmt: skip
