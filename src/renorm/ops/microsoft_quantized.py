"""Operators of ONNX Runtime on quantized tensors, each of which is defined as one over the numbers that integers stand
for: dequantized, computed in float32, quantized."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from renorm.core.errors import OperandError
from renorm.graph import registry
from renorm.graph.attributes import Bool, Float, Int, Ints, String
from renorm.graph.op import OnnxNode
from renorm.ops.dequantize_linear import finite
from renorm.ops.shared.composite import Composite, apply, read_as

UNARY = "x, x_scale, x_zero?, y_scale, y_zero?"


def numbers(x: Any, scale: Any, zero: Any) -> Any:
    """Return what integers stand for."""
    return finite(apply("dequantize_linear", x, scale, zero), x, scale, zero)


def integers(y: Any, scale: Any, zero: Any, like: Any) -> Any:
    """Return what stands for numbers, in the dtype of a quantized value where no zero point has one."""
    return apply("quantize_linear", y, scale, zero, **({"to": like.dtype} if zero is None else {}))


class QlinearBinary(Composite):
    """y = a + b, or a * b."""

    takes = "a, a_scale, a_zero?, b, b_scale, b_zero?, y_scale, y_zero?"
    onnx = {"com.microsoft::QLinearAdd": 1, "com.microsoft::QLinearMul": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        a, b, (y_scale, y_zero) = operands[:3], operands[3:6], operands[6:]
        y = apply("add" if node.op_type == "QLinearAdd" else "mul", numbers(*a), numbers(*b))
        return integers(y, y_scale, y_zero, a[0])


class QlinearUnary(Composite):
    """y = f(x)."""

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, *_, y_scale, y_zero = operands
        return integers(self.of(node, numbers(*operands[:3])), y_scale, y_zero, x)

    def of(self, node: OnnxNode, x: Any) -> Any:
        """Return f(x), of numbers."""
        raise NotImplementedError(f"{self.name} has no function")


class QlinearSigmoid(QlinearUnary):
    """y = sigmoid(x)."""

    takes = UNARY
    onnx = {"com.microsoft::QLinearSigmoid": 1}

    def of(self, node: OnnxNode, x: Any) -> Any:
        return apply("sigmoid", x)


class QlinearLeakyRelu(QlinearUnary):
    """y = leaky_relu(x)."""

    takes = UNARY
    onnx = {"com.microsoft::QLinearLeakyRelu": 1}
    alpha = Float(0.01)

    def of(self, node: OnnxNode, x: Any) -> Any:
        return apply("leaky_relu", x, alpha=self.alpha)


class QlinearSoftmax(QlinearUnary):
    """y = softmax(x) along axis; before opset 13, over all axes from there on."""

    takes = UNARY
    onnx = {"com.microsoft::QLinearSoftmax": 1}
    axis = Int(-1)
    opset = Int()

    def of(self, node: OnnxNode, x: Any) -> Any:
        return apply("softmax", x, axis=self.axis, flatten=self.opset < 13)


class QlinearReduceMean(QlinearUnary):
    """y = mean of x along axes."""

    takes = UNARY
    onnx = {"com.microsoft::QLinearReduceMean": 1}
    axes = Ints(None)
    keepdims = Bool(True)

    def of(self, node: OnnxNode, x: Any) -> Any:
        return apply("reduce_mean", x, axes=self.axes, keepdims=self.keepdims)


class QlinearGlobalAveragePool(QlinearUnary):
    """y = mean of each channel of x. channels_last: channels are the last axis."""

    takes = UNARY
    onnx = {"com.microsoft::QLinearGlobalAveragePool": 1}
    channels_last = Bool(False)

    def of(self, node: OnnxNode, x: Any) -> Any:
        return _channels_last(apply("global_average_pool", _channels_first(x, self.channels_last)), self.channels_last)


class QlinearAveragePool(QlinearUnary):
    """y = means of windows of x. channels_last: channels are the last axis."""

    takes = UNARY
    onnx = {"com.microsoft::QLinearAveragePool": 1}
    auto_pad = String(None)
    ceil_mode = Int(None)
    channels_last = Bool(False)
    count_include_pad = Int(None)
    kernel_shape = Ints()
    pads = Ints(None)
    strides = Ints(None)

    def of(self, node: OnnxNode, x: Any) -> Any:
        own = {name: v for name, v in self.values.items() if name != "channels_last" and v is not None}
        pooled = read_as(node, "AveragePool", [_channels_first(x, self.channels_last)], own)
        return _channels_last(pooled, self.channels_last)


class QlinearConcat(Composite):
    """y = one tensor after the other along axis, all in the scale of y."""

    takes = "y_scale, y_zero, x, x_scale, x_zero"
    onnx = {"com.microsoft::QLinearConcat": 1}
    axis = Int()

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Operands are scale and zero point of the result, then value, scale and zero point of each part."""
        if len(node.operands) < 5 or len(node.operands) % 3 != 2:
            raise OperandError(f"{node.op_type}: {len(node.operands)} operands are not two, and three for each part")
        (scale, zero), rest = node.operands[:2], node.operands[2:]
        parts = [integers(numbers(*rest[i : i + 3]), scale, zero, rest[i]) for i in range(0, len(rest), 3)]
        return apply("concat", parts, axis=cls(**cls.stated(node)).axis)


class QlinearWhere(Composite):
    """y = a where condition, else b."""

    takes = "condition, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero"
    onnx = {"com.microsoft::QLinearWhere": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        condition, a, b, (y_scale, y_zero) = operands[0], operands[1:4], operands[4:7], operands[7:]
        return integers(apply("where", condition, numbers(*a), numbers(*b)), y_scale, y_zero, a[0])


class MicrosoftQlinearConv(Composite):
    """QLinearConv. channels_last: channels are the last axis of x and y."""

    takes = "x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b?"
    onnx = {"com.microsoft::QLinearConv": 1}
    auto_pad = String(None)
    channels_last = Bool(False)
    dilations = Ints(None)
    group = Int(None)
    kernel_shape = Ints(None)
    pads = Ints(None)
    strides = Ints(None)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, *others = operands
        own = {name: v for name, v in self.values.items() if name != "channels_last" and v is not None}
        y = read_as(node, "QLinearConv", [_channels_first(x, self.channels_last), *others], own)
        return _channels_last(y, self.channels_last)


class Qattention(Composite):
    """Attention of ONNX Runtime over numbers that integers stand for."""

    takes = "x, weights, bias, x_scale, weight_scale, padding?, x_zero?, weight_zero?, past?"
    onnx = {"com.microsoft::QAttention": 1}
    onnx_ignored = (  # but by Attention
        "num_heads", "unidirectional", "scale", "mask_filter_value", "do_rotary", "past_present_share_buffer",
    )  # fmt: skip

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, weights, bias, x_scale, weight_scale, padding, x_zero, weight_zero, past = operands
        own = numbers(x, x_scale, x_zero), numbers(weights, weight_scale, weight_zero), bias, padding, past
        attention = registry.find_onnx("com.microsoft::Attention", 1)
        assert attention is not None
        return attention.from_onnx(replace(node, op_type="Attention", operands=own))


def _channels_first(x: Any, is_last: bool) -> Any:
    return apply("transpose", x, perm=(0, x.rank - 1, *range(1, x.rank - 1))) if is_last else x


def _channels_last(y: Any, is_last: bool) -> Any:
    return apply("transpose", y, perm=(0, *range(2, y.rank), 1)) if is_last else y
