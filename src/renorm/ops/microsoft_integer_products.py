"""Matrix products of integers as ONNX Runtime has them: with scales, and of weights of a few bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Bool, Float, Int
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import Composite, apply
from renorm.ops.shared.few_bits import check_bits, dequantized, unpacked


def _scaled(total: Any, scale: Any, bias: Any) -> Any:
    """Return sums of integers times a scale, plus a bias, in the dtype of scale."""
    y = apply("mul", apply("cast", total, to=scale.dtype), scale)
    return y if bias is None else apply("add", y, bias)


class MatmulIntegerToFloat(Composite):
    """y = matmul(a - a_zero, b - b_zero) * (a_scale * b_scale) + bias. Scales and zero points of b: one for all, or
    one per column."""

    takes = "a, b, a_scale, b_scale, a_zero?, b_zero?, bias?"
    onnx = {"com.microsoft::MatMulIntegerToFloat": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        a, b, a_scale, b_scale, a_zero, b_zero, bias = operands
        total = apply("matmul_integer", a, b, a_zero, b_zero)
        return _scaled(total, apply("mul", a_scale, b_scale), bias)


class DynamicQuantizeMatmul(Composite):
    """y = matmul(a, (b - b_zero) * b_scale) + bias, where a is quantized to uint8 by its own range first."""

    takes = "a, b, b_scale, b_zero?, bias?"
    onnx = {"com.microsoft::DynamicQuantizeMatMul": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        a, b, b_scale, b_zero, bias = operands
        held, a_scale, a_zero = apply("dynamic_quantize_linear", a)
        total = apply("matmul_integer", held, b, a_zero, b_zero)
        return _scaled(total, apply("mul", a_scale, b_scale), bias)


class Qgemm(Composite):
    """y = (matmul(a - a_zero, b - b_zero) + c) * (alpha * a_scale * b_scale), quantized where y has a scale; a and b
    may stand transposed."""

    takes = "a, a_scale, a_zero, b, b_scale, b_zero, c?, y_scale?, y_zero?"
    onnx = {"com.microsoft::QGemm": 1}
    alpha = Float(1.0)
    turn_a = Bool(False, onnx="transA")
    turn_b = Bool(False, onnx="transB")

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = operands
        a, b = (apply("transpose", x, perm=(1, 0)) if turn else x for x, turn in ((a, self.turn_a), (b, self.turn_b)))
        total = apply("matmul_integer", a, b, a_zero, b_zero)
        total = total if c is None else apply("add", total, c)
        scale = apply("mul", a_scale, b_scale)
        scale = scale if self.alpha == 1 else apply("mul", scale, np.asarray(self.alpha, np.float32))
        if y_scale is None:
            return _scaled(total, scale, None)
        to = {"to": a.dtype} if y_zero is None else {}
        return apply("quantize_linear", _scaled(total, scale, None), y_scale, y_zero, **to)


class MatmulNbits(Composite):
    """y = matmul(a, w') + bias, where w [N, K] are constant integers of a few bits, (q - zero) * scale with a scale and
    a zero point for each block of block_size along K (2^(bits - 1) where zero points are left out)."""

    takes = "a, b, scales, zeros?, places?, bias?"
    onnx = {"com.microsoft::MatMulNBits": 1}
    onnx_ignored = ("accuracy_level",)  # how roughly it may be computed
    depth = Int(onnx="K")
    columns = Int(onnx="N")
    bits = Int(4)
    block_size = Int(at_least=1)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        a, b, scales, zeros, places, bias = operands
        if any(v is not None and v.data is None for v in (b, scales, zeros, places)):
            raise OperandError(f"{node.op_type}: weights, scales and zero points must be constants")
        check_bits(node, self.bits)
        blocks = -(-self.depth // self.block_size)
        self._check(node, blocks, *(None if v is None else v.data for v in (b, scales, zeros, places)))
        at = np.arange(self.depth) // self.block_size if places is None else places.data.reshape(-1)[: self.depth]
        held = zeros if zeros is None else zeros.data.reshape(self.columns, -1)
        if held is not None and held.dtype == np.uint8:
            held = unpacked(held, self.bits)
        packed, steps = b.data.reshape(self.columns, -1), scales.data.reshape(self.columns, blocks)
        weight = dequantized(packed, self.bits, steps, held, at).T.astype(numpy_dtype(a.dtype))
        y = apply("matmul", a, np.ascontiguousarray(weight))
        return y if bias is None else apply("add", y, bias)

    def _check(self, node: OnnxNode, blocks: int, b: Any, scales: Any, zeros: Any, places: Any) -> None:
        """Raise OperandError where a constant is not of the size that attributes say."""
        is_packed = zeros is not None and zeros.dtype == np.uint8
        sizes = {
            "b": (b, blocks * (self.block_size * self.bits // 8)),
            "scales": (scales, blocks),
            "zero_points": (zeros, -(-blocks * self.bits // 8) if is_packed else blocks),
        }
        wrong = [f"B is {b.dtype}, expected uint8"] * (b.dtype != np.uint8)
        for name, (held, size) in sizes.items():
            if held is not None and held.size != self.columns * size:
                wrong.append(f"{name} has {held.size} elements, expected {self.columns * size}")
        if places is not None and (places.size < self.depth or places.min() < 0 or places.max() >= blocks):
            wrong.append(f"g_idx must say for each of {self.depth} which of {blocks} blocks")
        if wrong:
            raise OperandError(f"{node.op_type}: constants do not fit K = {self.depth}, N = {self.columns}", wrong)
