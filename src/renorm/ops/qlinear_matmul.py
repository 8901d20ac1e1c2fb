"""Matrix product of quantized tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim, take
from renorm.core.errors import OperandError
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, OpDef, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f16, f32, i8, u8
from renorm.ops.dequantize_linear import FLOATS
from renorm.ops.matmul_integer import MatmulInteger
from renorm.ops.shared import quantization
from renorm.ops.shared.precision import wide


class QlinearMatmul(OpDef):
    """y = round(matmul(a - a_zero, b - b_zero) * (a_scale * b_scale / y_scale)) + y_zero: the sum in int32, its product
    with the scale in float32, rounded halves to even and cut to the range of the dtype of y.

    What is of a matrix is a scalar, or one number per row of a, or column of b, or broadcasts; what is of y is a
    scalar.
    """

    signature = (
        "a: A[...], a_scale: T[...], a_zero: A[...], b: B[...], b_scale: T[...], b_zero: B[...], "
        "y_scale: T[...], y_zero: Y[...] -> y: Y[...]"
    )
    types = {"A": quantization.BYTES, "B": quantization.BYTES, "Y": quantization.BYTES, "T": FLOATS}
    onnx = {"QLinearMatMul": 10}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "gemm"
    is_product = True
    factors = 0

    def infer(
        self, a: Operand, a_scale: Operand, a_zero: Operand, b: Operand, b_scale: Operand, b_zero: Operand,
        y_scale: Operand, y_zero: Operand,
    ) -> tuple[Dim, ...]:  # fmt: skip
        quantization.check_single(self.name, y_scale, y_zero)
        for given in (a_scale, a_zero):
            quantization.check_zero(self.name, a, given, axis=-2)
        for given in (b_scale, b_zero):
            quantization.check_zero(self.name, b, given, axis=-1)
        for x, scale, along in ((a, a_scale, -1), (b, b_scale, -2)):
            if scale.rank > 1 and isinstance(scale.shape[along], int) and scale.shape[along] != 1:
                raise OperandError(f"{self.name}: {scale} differs along what is summed over in {x}")
            if scale.rank > 1:
                take(scale.shape[along], "==", 1)
        return MatmulInteger().infer(a, b, None, None)

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        weight = operands[3]
        return 1 if index == 3 and weight and weight.rank == 2 else None

    def compute(
        self, a: te.Tensor, a_scale: te.Tensor, a_zero: te.Tensor, b: te.Tensor, b_scale: te.Tensor, b_zero: te.Tensor,
        y_scale: te.Tensor, y_zero: te.Tensor,
    ) -> te.Tensor:  # fmt: skip
        def place(i: Sequence[Any]) -> Sequence[Any]:
            """The index of an element where no axis is left out."""
            row, column = (i[:-1], i[-1:]) if b.ndim > 1 else (i, (0,))
            return (*row, *column) if a.ndim > 1 else (*row, 0, *column)

        def factor(*i: Any) -> Any:
            given = ((a_scale, -2), (b_scale, -1), (y_scale, -1))
            return quantization.joint(*(wide(quantization.parameter(p, place(i), axis)) for p, axis in given))

        total = MatmulInteger().compute(a, b, a_zero, b_zero)
        shift = quantization.parameter(y_zero, (), axis=-1)
        return quantization.requantized(total, factor, lambda *_: shift, y_zero.dtype)

    def reference(
        self, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
    ) -> Any:
        total = MatmulInteger().reference(a, b, a_zero, b_zero)
        whole = total if b.ndim > 1 else total[..., None]
        whole = whole if a.ndim > 1 else whole[..., None, :]
        given = ((a_scale, -2), (b_scale, -1), (y_scale, -1))
        factor = quantization.joint(*(np.float32(quantization.parameters(p, whole.shape, axis)) for p, axis in given))
        return quantization.requantized_array(whole, factor, y_zero).reshape(total.shape)

    samples = [
        Sample(u8[5, 7].between(0, 255), f32[()].of(0.02), u8[()].of(131), i8[7, 3].between(-128, 127),
               f32[()].of(0.02), i8[()].of(0), f32[()].of(0.1), u8[()].of(120)),
        Sample(u8[5, 7].between(0, 255), f32[5].between(0.01, 0.03), u8[5].between(0, 255), u8[7, 35].between(0, 255),
               f32[35].between(0.01, 0.03), u8[35].between(0, 255), f32[1].of([0.25]), i8[1].of([-3])),
        Sample(i8[2, 3, 7].between(-128, 127), f32[2, 3, 1].between(0.01, 0.03), i8[2, 3, 1],
               i8[2, 7, 3].between(-128, 127), f32[2, 1, 3].between(0.01, 0.03), i8[2, 1, 3], f32[()].of(0.1),
               i8[()].of(7)),
        Sample(i8[5, 4].between(-128, 127), f16[1].of([0.02]), i8[1].of([7]), u8[3, 4, 6].between(0, 255),
               f16[1].of([0.02]), u8[1].of([100]), f16[1].of([0.06]), u8[1].of([100])),
        Sample(u8[4].between(0, 255), bf16[()].of(0.02), u8[()].of(7), u8[4].between(0, 255), bf16[()].of(0.02),
               u8[()].of(99), bf16[()].of(0.06), u8[()].of(100)),
        Sample(u8[0, 3], f32[()], u8[()], i8[3, 2], f32[()], i8[()], f32[()], u8[()]),
    ]  # fmt: skip
    rejects = [
        Reject(u8[5, 7], f32[()], u8[()], i8[6, 3], f32[()], i8[()], f32[()], u8[()], because="b has 6 rows"),
        Reject(u8[5, 7], f32[7], u8[()], i8[7, 3], f32[()], i8[()], f32[()], u8[()], because="asks for [5]"),
        Reject(u8[5, 7], f32[5, 7], u8[()], i8[7, 3], f32[()], i8[()], f32[()], u8[()], because="what is summed over"),
        Reject(u8[5, 7], f32[()], u8[()], i8[7, 3], f32[()], i8[()], f32[5], u8[()], because="is not a scalar"),
    ]  # fmt: skip
