"""Activations that ONNX Runtime's optimizer writes, mostly with a bias in front."""

from __future__ import annotations

from typing import Any

from renorm.graph.attributes import Float
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import Composite, apply


class MicrosoftGelu(Composite):
    """y = gelu(x + bias)."""

    takes = "x, bias?"
    onnx = {"com.microsoft::Gelu": 1, "com.microsoft::BiasGelu": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        return apply("gelu", _biased(*operands))


class FastGelu(Composite):
    """y = gelu(x + bias), by a tanh."""

    takes = "x, bias?"
    onnx = {"com.microsoft::FastGelu": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        return apply("gelu", _biased(*operands), approximate="tanh")


class QuickGelu(Composite):
    """y = x * sigmoid(alpha * x)."""

    takes = "x"
    onnx = {"com.microsoft::QuickGelu": 1}
    alpha = Float(1.702)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        return apply("swish", *operands, alpha=self.alpha)


class BiasSplitGelu(Composite):
    """y = a * gelu(b), the halves of x + bias along the last axis."""

    takes = "x, bias"
    onnx = {"com.microsoft::BiasSplitGelu": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        left, right = apply("split", _biased(*operands), axis=-1, num_outputs=2)
        return apply("mul", left, apply("gelu", right))


class BiasAdd(Composite):
    """y = x + bias + skip."""

    takes = "x, bias, skip"
    onnx = {"com.microsoft::BiasAdd": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, bias, skip = operands
        return apply("add", _biased(x, bias), skip)


def _biased(x: Any, bias: Any = None) -> Any:
    return x if bias is None else apply("add", x, bias)
