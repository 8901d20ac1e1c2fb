"""Matrix product of integers of 8 bits, summed in 32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, TensorType, f32, i8, i16, u8
from renorm.ops.matmul import Matmul
from renorm.ops.shared import quantization


class MatmulInteger(OpDef):
    """y = matmul(a - a_zero, b - b_zero), summed in int32 as it is. A zero point is a scalar, or one number per row of
    a, or column of b; one of more axes broadcasts to its matrices. Integers of 16 bits are such of which zero points
    are taken already."""

    signature = "a: A[...], b: B[...], a_zero?: A[...], b_zero?: B[...] -> y: i32[...]"
    types = {"A": (*quantization.BYTES, "int16"), "B": (*quantization.BYTES, "int16")}
    onnx = {"MatMulInteger": 10}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "gemm"
    is_product = True

    def infer(self, a: Operand, b: Operand, a_zero: Operand | None, b_zero: Operand | None) -> tuple[Dim, ...]:
        quantization.check_zero(self.name, a, a_zero, axis=-2)
        quantization.check_zero(self.name, b, b_zero, axis=-1)
        return Matmul().infer(a, b)

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return Matmul().channel_axis(index, operands)

    def compute(self, a: te.Tensor, b: te.Tensor, a_zero: te.Tensor | None, b_zero: te.Tensor | None) -> te.Tensor:
        rows, columns = quantization.centred(a, a_zero, axis=-2), quantization.centred(b, b_zero, axis=-1)
        return Matmul().compute(rows, columns)  # which sums in the dtype that it is given

    def reference(self, a: Any, b: Any, a_zero: Any, b_zero: Any) -> Any:
        rows, columns = quantization.centred_array(a, a_zero, axis=-2), quantization.centred_array(b, b_zero, axis=-1)
        return np.matmul(rows, columns).astype(np.int32)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Integers of 16 bits are no operands of a file."""
        for v in node.operands[:2]:
            if v is not None and v.dtype not in quantization.BYTES:
                raise OperandError(f"MatMulInteger: {v.name!r} is {v.dtype}, where ONNX has int8 and uint8")
        return super().from_onnx(node)

    def to_onnx(self, node: Any, opset: int) -> Any:
        is_internal = "int16" in (node.inputs[0].dtype, node.inputs[1].dtype)
        return None if is_internal else super().to_onnx(node, opset)

    samples = [
        Sample(u8[5, 7].between(0, 255), i8[7, 3].between(-128, 127), u8[()].of(131)),
        Sample(u8[5, 7].between(0, 255), u8[7, 35].between(0, 255), u8[5].between(0, 255), u8[35].between(0, 255)),
        Sample(i8[2, 3, 7].between(-128, 127), i8[7, 3].between(-128, 127), i8[2, 3, 1], i8[1].of([-7])),
        Sample(i8[2, 1, 5, 4], u8[3, 4, 6].between(0, 255), None, u8[3, 1, 6].between(0, 255)),
        Sample(u8[4].between(0, 255), i8[2, 4, 3].between(-128, 127), u8[()].of(3), i8[3]),
        Sample(u8[2, 3, 4].between(0, 255), u8[4].between(0, 255), u8[1].of([3]), u8[()].of(9)),
        Sample(i16[9, 40].between(-255, 255), i8[40, 33].between(-128, 127)),
        Sample(u8[0, 3], i8[3, 2]),
    ]
    rejects = [
        Reject(u8[5, 7], i8[6, 3], because="a has 7 columns but b has 6 rows"),
        Reject(u8[5, 7], i8[7, 3], u8[7], because="a_zero: u8[7], where a: u8[5, 7] asks for [5]"),
        Reject(u8[5, 7], i8[7, 3], None, i8[7, 1, 1], because="b_zero: i8[7, 1, 1] does not broadcast"),
        Reject(u8[7], i8[7, 3], u8[7], because="a_zero: u8[7], where a: u8[7] asks for []"),
        Reject(f32[5, 7], i8[7, 3], because="a is float32"),
    ]
