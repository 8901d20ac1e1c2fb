"""Integers of a quantized tensor as the numbers that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core import conversion, dtypes
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, cast
from renorm.graph.attributes import Int, Type
from renorm.graph.op import BROADCAST, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import (
    Operand,
    TensorType,
    bf16,
    f4e2m1,
    f8e4m3fn,
    f8e5m2,
    f16,
    f32,
    i2,
    i4,
    i8,
    i16,
    i32,
    u4,
    u8,
)
from renorm.ops.shared import builders, quantization
from renorm.ops.shared.precision import wide

GREATEST = {"float32": 3.4028234663852886e38, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}
FLOATS = tuple(GREATEST)  # of scales


def finite(y: Any, x: Any, scale: Any, zero: Any) -> Any:
    """Return the numbers y that integers x stand for, cut to the finite ones where one times its scale is infinite.

    The scale of an attention mask of -3.4e38 may be rounded up, so that -127 times it is. That is none of the numbers
    that were quantized, and 0 * mask would be NaN: what is not masked would be, too (ONNX Runtime 1.32).
    """
    if not dtypes.is_int(x.dtype):
        return y
    ends = conversion.limits(x.dtype)
    zeros = 0 if zero is None else zero.data if zero.is_constant else np.array(ends)
    if scale.is_constant and _are_finite(scale.data, zeros, ends, y.dtype):
        return y
    bounds = (np.array(sign * GREATEST[y.dtype], dtypes.numpy_dtype(y.dtype)) for sign in (-1, 1))
    return builders.find("clip")(y, *bounds)


def _are_finite(scale: Any, zero: Any, ends: tuple[int, int], dtype: str) -> bool:
    """Return whether all integers between ends, less their zero points, have finite products."""
    farthest = max(np.abs(end - np.float32(zero)).max(initial=0) for end in ends)
    with np.errstate(over="ignore"):
        products = (np.abs(scale.astype(np.float32)) * farthest).astype(dtypes.numpy_dtype(dtype))
    return bool(np.isfinite(products).all())


class DequantizeLinear(OpDef):
    """y = (x - zero) * scale. scale and zero are scalars, or have one element for each index along axis, or one for
    each block_size neighbours along axis. to: the dtype of y, that of scale unless given."""

    signature = "x: Z[*S], scale: T[...], zero?: Z[...] -> y: T[*S]"
    types = {"Z": (*quantization.ALL, "int32"), "T": FLOATS}
    axis = Int(1)
    block_size = Int(0, at_least=0)
    to = Type(None, onnx="output_dtype")
    onnx = {"DequantizeLinear": 10, "com.microsoft::DequantizeLinear": 1}
    fusion = BROADCAST
    scheduled_as = "injective"

    def infer(self, x: Operand, scale: Operand, zero: Operand | None) -> TensorType:
        quantization.check_parameters(self.name, x, scale, zero, self.axis, self.block_size)
        if self.to not in (None, *FLOATS):
            raise OperandError(f"{self.name}: to = {self.to} is not one of {', '.join(FLOATS)}")
        return TensorType(self.to or scale.dtype, x.shape)

    def compute(self, x: te.Tensor, scale: te.Tensor, zero: te.Tensor | None) -> te.Tensor:
        exact = "int32" if dtypes.is_int(x.dtype) else "float32"

        def element(*i: Expr) -> Expr:
            steps = cast(exact, x[i])
            if zero is not None:
                steps = steps - cast(exact, quantization.parameter(zero, i, self.axis, self.block_size))
            factor = quantization.parameter(scale, i, self.axis, self.block_size)
            return cast(self.to or scale.dtype, cast("float32", steps) * wide(factor))

        return te.compute(x.shape, element, name="dequantized", tag=te.tag.BROADCAST)

    def reference(self, x: Any, scale: Any, zero: Any) -> Any:
        def at(p: Any) -> Any:
            return quantization.parameters(p, np.shape(x), self.axis, self.block_size)

        steps = np.asarray(x, np.float64)
        return (steps if zero is None else steps - np.asarray(at(zero), np.float64)) * at(scale)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        return finite(super().from_onnx(node), *cls.arrange(node.operands))

    def to_onnx(self, node: Any, opset: int) -> Any:
        """Versions differ in what they have: axes since 13, narrow floats since 19, blocks and 16 bits since 21, a
        dtype of the result since 23."""
        x, scale, _ = node.inputs
        needs = [
            (13, not quantization.is_single(scale.shape)),
            (19, scale.dtype != "float32"),
            (19, x.dtype in quantization.ROUNDED),
            (21, self.block_size > 0 or x.dtype in ("int16", "uint16", "int4", "uint4")),
            (23, x.dtype == "float4e2m1"),
            (25, x.dtype in ("int2", "uint2")),
            (23, self.to not in (None, scale.dtype)),
        ]
        if opset < 10 or any(opset < since for since, needed in needs if needed):
            return None
        given = {"axis": self.axis} if needs[0][1] and self.axis != 1 else {}
        given |= {"block_size": self.block_size} if self.block_size else {}
        given |= {"output_dtype": self.to} if self.to not in (None, scale.dtype) else {}
        return "DequantizeLinear", given, list(node.inputs)

    samples = [
        Sample(u8[2, 3, 5].of(np.arange(30) * 8), f32[()].of(0.1), u8[()].of(100)),
        Sample(i8[2, 3, 5].between(-128, 127), f32[1].of([0.05])),
        Sample(i8[2, 3, 5].between(-128, 127), f32[3].of([0.5, 0.1, 3]), i8[3].of([-3, 0, 100])),
        Sample(u8[7, 2].between(0, 255), f32[7].between(0.1, 1), u8[7].between(0, 255), axis=0),
        Sample(i32[3, 4].of(np.arange(12) * 10**6), f32[4].between(0.1, 1), axis=-1),
        Sample(i16[3, 35].between(-3000, 3000), f32[3, 5].between(0.1, 1), i16[3, 5], block_size=7),
        Sample(i8[10, 3].between(-128, 127), f16[3, 3].between(0.1, 1), axis=0, block_size=4),
        Sample(u8[5].between(0, 255), bf16[()].of(0.1), u8[()].of(7)),
        Sample(u8[5].between(0, 255), f16[()].of(0.1), u8[()].of(7), to="float32"),
        Sample(i4[7, 3], f32[3].between(0.1, 1), i4[3]),
        Sample(u4[9, 3].between(0, 13), f32[2, 3].between(0.1, 1), u4[2, 3], axis=0, block_size=5),
        Sample(i2[5].of([-2, -1, 0, 1, 1]), f16[()].of(0.3)),
        Sample(f8e4m3fn[7].between(-400, 400), f32[()].of(0.5), f8e4m3fn[()].of(0)),
        Sample(f8e5m2[7].between(-400, 400), f32[()].of(0.5), to="float16"),
        Sample(f4e2m1[7].between(-6, 6), f32[()].of(2)),
        Sample(u8[0, 3], f32[3], u8[3]),
        Sample(u8[()].of(200), f32[()].of(0.1)),
    ]
    rejects = [
        Reject(u8[2, 3], f32[2], because="scale: f32[2], where axis 1 of x: u8[2, 3] asks for [3]"),
        Reject(u8[2, 3], f32[3], u8[()], because="zero: u8[], where scale: f32[3] asks for [3]"),
        Reject(u8[2, 3], f32[3], axis=2, because="axis 2 is outside"),
        Reject(
            u8[2, 7], f32[2, 3], block_size=3, axis=0, because="blocks of 3 along axis 0 of x: u8[2, 7] ask for [1, 7]"
        ),
        Reject(u8[2, 3], f32[()], i8[()], because="zero is int8 but x is uint8"),
        Reject(u8[2, 3], f32[()], to="float64", because="to = float64 is not one of"),
    ]
