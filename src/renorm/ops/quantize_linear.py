"""Numbers as the nearest integers of a quantized tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from renorm import te
from renorm.core import dtypes
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, cast
from renorm.graph.attributes import Bool, Int, Type
from renorm.graph.op import BROADCAST, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f8e4m3fn, f16, f32, i4, i8, i16, i32, u4, u8
from renorm.ops.dequantize_linear import FLOATS
from renorm.ops.shared import quantization
from renorm.ops.shared.precision import wide


class QuantizeLinear(OpDef):
    """y = round(x / scale) + zero, halves to even, cut to the range of its dtype. scale and zero are scalars, or have
    one element for each index along axis, or one for each block_size neighbours along axis.

    to: the dtype of y where no zero says it, uint8 unless given. precision: the dtype that the quotient is rounded to
    first. NaN becomes 0.
    """

    signature = "x: T[*S], scale: U[...], zero?: Z[...] -> y: Z[*S]"
    types = {"T": (*FLOATS, "int32"), "U": FLOATS, "Z": quantization.ALL}
    axis = Int(1)
    block_size = Int(0, at_least=0)
    to = Type(None, onnx="output_dtype")
    precision = Type("float32")
    saturate = Bool(True)
    onnx = {"QuantizeLinear": 10, "com.microsoft::QuantizeLinear": 1}
    fusion = BROADCAST
    scheduled_as = "injective"

    def infer(self, x: Operand, scale: Operand, zero: Operand | None) -> TensorType:
        quantization.check_parameters(self.name, x, scale, zero, self.axis, self.block_size)
        dtype = zero.dtype if zero is not None else self.to or "uint8"
        if self.to not in (None, dtype):
            raise OperandError(f"{self.name}: to = {self.to}, but {zero} is {dtype}", do="leave one of both out")
        if dtype not in quantization.ALL:
            raise OperandError(f"{self.name}: to = {dtype} is not one of {', '.join(quantization.ALL)}")
        if dtype in quantization.ROUNDED and self.to is None:
            raise OperandError(f"{self.name}: results are {dtype}, which to must say")
        if self.precision not in FLOATS:
            raise OperandError(f"{self.name}: precision = {self.precision} is not one of {', '.join(FLOATS)}")
        return TensorType(dtype, x.shape)

    def compute(self, x: te.Tensor, scale: te.Tensor, zero: te.Tensor | None) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            step = quantization.parameter(scale, i, self.axis, self.block_size)
            whole = None if zero is None else quantization.parameter(zero, i, self.axis, self.block_size)
            quotient = cast(self.precision, cast("float32", x[i]) / wide(step))
            return quantization.quantized(cast("float32", quotient), whole, self._dtype(zero), self.saturate)

        return te.compute(x.shape, element, name="quantized", tag=te.tag.BROADCAST)

    def reference(self, x: Any, scale: Any, zero: Any) -> Any:
        """The quotient is that of float32: which integer a half becomes is decided by its last digit."""

        def at(p: Any) -> Any:
            return quantization.parameters(p, np.shape(x), self.axis, self.block_size)

        with np.errstate(all="ignore"):
            quotient = np.float32(x) / np.float32(at(scale))
            quotient = quotient.astype(dtypes.numpy_dtype(self.precision))
        return quantization.quantized_array(
            quotient, None if zero is None else at(zero), self._dtype(zero), self.saturate
        )

    def _dtype(self, zero: Any) -> str:
        """The dtype of results; arrays of floats come as float64, so that `to` says which."""
        return self.to or ("uint8" if zero is None else dtypes.lookup(zero.dtype).name)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Since opset 23 ONNX divides in the type of scale unless it is told another one; before, it does not say."""
        _, scale, zero = cls.arrange(node.operands)
        own = {"precision": scale.dtype} if node.opset >= 23 and node.op_type == "QuantizeLinear" else {}
        own |= {"output_dtype": zero.dtype} if zero is not None and zero.dtype in quantization.ROUNDED else {}
        return super().from_onnx(replace(node, attributes={**own, **node.attributes}))

    def to_onnx(self, node: Any, opset: int) -> Any:
        """Versions differ in what they have: axes since 13, narrow floats since 19, blocks, 16 bits and a dtype of the
        result since 21, a precision since 23."""
        x, scale, zero = node.inputs
        y, is_axis = node.output.dtype, not quantization.is_single(scale.shape)
        needs = [
            (13, is_axis),
            (19, {x.dtype, scale.dtype} - {"float32", "int32"}),
            (19, y in quantization.ROUNDED),
            (21, self.block_size > 0 or y in ("int16", "uint16", "int4", "uint4")),
            (23, y == "float4e2m1"),
            (25, y in ("int2", "uint2")),
            (23, self.precision != "float32" or x.dtype not in ("int32", scale.dtype)),
        ]
        if opset < 10 or any(opset < since for since, needed in needs if needed):
            return None
        given = {"axis": self.axis} if is_axis and self.axis != 1 else {}
        given |= {"block_size": self.block_size} if self.block_size else {}
        given |= {"precision": self.precision} if self.precision != scale.dtype and opset >= 23 else {}
        if zero is None and y != "uint8" and opset < 21:  # what says the dtype is a zero point
            zero = np.zeros([d if isinstance(d, int) else 1 for d in scale.shape], dtypes.numpy_dtype(y))
            return None if zero.shape != scale.shape else ("QuantizeLinear", given, [x, scale, zero])
        given |= {} if self.saturate else {"saturate": 0}
        given |= {"output_dtype": y} if zero is None and y != "uint8" else {}
        return "QuantizeLinear", given, list(node.inputs)

    samples = [
        Sample(f32[2, 3, 5].between(-20, 20), f32[()].of(0.1), u8[()].of(100)),
        Sample(
            f32[12].of([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, -128.5, 3e9, -3e9, np.inf, -np.inf]),
            f32[()].of(1),
            i8[()].of(0),
        ),
        Sample(f32[3].of([np.nan, -0.0, 1e-45]), f32[()].of(0.25), u8[()].of(0)),
        Sample(f32[2, 3, 5].between(-20, 20), f32[3].of([0.5, 0.1, 3]), i8[3].of([-3, 0, 100])),
        Sample(f32[7, 2].between(-20, 20), f32[7].between(0.1, 1), u8[7].between(0, 255), axis=0),
        Sample(
            i32[3, 4].of(np.arange(12) * 10**6), f32[4].of([1e4, 3e4, 7e4, 2e5]), i8[4].of([0, -100, 3, 127]), axis=-1
        ),
        Sample(f32[3, 35].between(-2000, 2000), f32[3, 5].between(0.01, 1), i16[3, 5], block_size=7),
        Sample(f32[10, 3].between(-20, 20), f32[3, 3].between(0.1, 1), axis=0, block_size=4, to="int8"),
        Sample(f32[9].between(-1e4, 1e4), f32[()].of(0.3), to="uint16"),
        Sample(f16[2, 9].between(-100, 100), f16[()].of(0.3), i8[()].of(7), precision="float16"),
        Sample(bf16[9].between(-20, 20), bf16[()].of(0.3), u8[()].of(128), precision="bfloat16"),
        Sample(f16[9].between(-20, 20), f32[()].of(0.3)),
        Sample(f32[2, 9].between(-20, 20), f32[9].between(0.5, 1), i4[9]),
        Sample(f32[9].of([np.nan, np.inf, -np.inf, 7.5, -8.5, 9, 8, -9, 0.5]), f32[()].of(1), to="int4"),
        Sample(f32[7, 3].between(0, 9), f32[4, 3].of([0.5] * 12), u4[4, 3].of([3] * 12), axis=0, block_size=2),
        Sample(f32[5].of([-2.5, -1.5, 0.5, 1.5, 2.5]), f32[()].of(1), to="uint2"),
        Sample(f32[9].between(-900, 900), f32[()].of(0.5), f8e4m3fn[()].of(0), to="float8e4m3fn"),
        Sample(f32[4].of([1e9, -np.inf, np.nan, 2]), f32[()].of(0.5), to="float8e5m2", saturate=False),
        Sample(f32[4].of([1e9, -9, 0.25, 2]), f32[()].of(0.5), to="float4e2m1"),
        Sample(f32[0, 3], f32[3], u8[3]),
        Sample(f32[()].of(200), f32[()].of(0.1)),
    ]
    rejects = [
        Reject(f32[2, 3], f32[2], because="scale: f32[2], where axis 1 of x: f32[2, 3] asks for [3]"),
        Reject(f32[2, 3], f32[3], u8[()], because="zero: u8[], where scale: f32[3] asks for [3]"),
        Reject(f32[2, 3], f32[3], axis=2, because="axis 2 is outside"),
        Reject(
            f32[2, 7], f32[2, 3, 1], block_size=3, because="blocks of 3 along axis 1 of x: f32[2, 7] ask for [2, 3]"
        ),
        Reject(f32[2, 3], f32[()], i8[()], to="uint8", because="to = uint8, but zero: i8[] is int8"),
        Reject(f32[2, 3], f32[()], f8e4m3fn[()], because="which to must say"),
        Reject(f32[2, 3], f32[()], to="int32", because="to = int32 is not one of"),
        Reject(f32[2, 3], f32[()], precision="float64", because="precision = float64 is not one of"),
    ]
