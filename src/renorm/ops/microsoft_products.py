"""Products that ONNX Runtime's optimizer writes: transposed, scaled, and with an activation behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Bool, Float, Floats, Int, Ints, String
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import Composite, apply, read_as

_PARAMETERS: Mapping[str, Sequence[str]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "Softplus": (), "Softsign": (), "HardSwish": (),
    "LeakyRelu": ("alpha",), "Elu": ("alpha",), "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
}  # fmt: skip


def activated(x: Any, node: OnnxNode, activation: str | None, parameters: Mapping[str, float]) -> Any:
    """Return an ONNX activation of `x`, by its name; parameters: its attributes."""
    if not activation:
        return x
    if activation not in _PARAMETERS:
        raise OperandError(
            f"{node.op_type}: activation {activation!r} is not read", [f"known: {', '.join(_PARAMETERS)}, Clip"]
        )
    return read_as(node, activation, [x], {k: v for k, v in parameters.items() if k in _PARAMETERS[activation]})


class FusedMatMul(Composite):
    """y = alpha * a @ b, each transposed before: transA exchanges the last two axes, transBatchA makes the first axis
    the one before the last."""

    takes = "a, b"
    onnx = {"com.microsoft::FusedMatMul": 1, "com.microsoft::TransposeMatMul": 1}
    alpha = Float(1.0)
    turn_a = Bool(False, onnx="transA")
    turn_b = Bool(False, onnx="transB")
    batch_a = Bool(False, onnx="transBatchA")
    batch_b = Bool(False, onnx="transBatchB")

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        turns = ((self.turn_a, self.batch_a), (self.turn_b, self.batch_b))
        y = apply("matmul", *(_turned(x, *turn) for x, turn in zip(operands, turns)))
        return y if self.alpha == 1 else apply("mul", y, np.asarray(self.alpha, numpy_dtype(y.dtype)))


class FusedMatMulActivation(FusedMatMul):
    """An activation of alpha * a @ b."""

    takes = "a, b"
    onnx = {"com.microsoft::FusedMatMulActivation": 1}
    activation = String()
    activation_alpha = Float(None)
    activation_beta = Float(None)
    activation_gamma = Float(None)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        return activated(super().made(node, *operands), node, self.activation, _given(self))


class FusedGemm(Composite):
    """An activation of alpha * a @ b + beta * c."""

    takes = "a, b, c?"
    onnx = {"com.microsoft::FusedGemm": 1}
    alpha = Float(1.0)
    beta = Float(1.0)
    turn_a = Bool(False, onnx="transA")
    turn_b = Bool(False, onnx="transB")
    activation = String(None)
    activation_alpha = Float(None)
    activation_beta = Float(None)
    activation_gamma = Float(None)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        own = {"alpha": self.alpha, "beta": self.beta, "transA": self.turn_a, "transB": self.turn_b}
        return activated(read_as(node, "Gemm", operands, own), node, self.activation, _given(self))


class FusedConv(Composite):
    """An activation of a convolution and a summand. Rows of channels, of Nhwc types, are turned before and after."""

    takes = "x, w, bias?, summand?"
    onnx = {"com.microsoft::FusedConv": 1, "com.microsoft::NhwcFusedConv": 1}
    auto_pad = String(None)
    dilations = Ints(None)
    group = Int(None)
    kernel_shape = Ints(None)
    pads = Ints(None)
    strides = Ints(None)
    activation = String(None)
    activation_params = Floats(())

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, w, bias, summand = operands
        names, last = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"), x.rank - 1
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        is_last = node.op_type == "NhwcFusedConv"
        x = apply("transpose", x, perm=(0, last, *range(1, last))) if is_last else x
        y = read_as(node, "Conv", [x, w, bias], own)
        y = apply("transpose", y, perm=(0, *range(2, last + 1), 1)) if is_last else y
        y = y if summand is None else apply("add", y, summand)
        given = self.activation_params
        if self.activation == "Clip":
            low, high = (np.asarray(limit, numpy_dtype(y.dtype)) for limit in given)
            return apply("clip", y, low, high)
        return activated(y, node, self.activation, dict(zip(_PARAMETERS.get(self.activation or "", ()), given)))


def _given(op: Any) -> dict[str, float]:
    found = {name: getattr(op, f"activation_{name}") for name in ("alpha", "beta", "gamma")}
    return {name: value for name, value in found.items() if value is not None}


def _turned(x: Any, is_turned: bool, is_batched: bool) -> Any:
    if x.rank < 2 or not (is_turned or is_batched):
        return x
    axes = [*range(1, x.rank - 1), 0, x.rank - 1] if is_batched else [*range(x.rank)]
    axes = [*axes[:-2], axes[-1], axes[-2]] if is_turned else axes
    return apply("transpose", x, perm=tuple(axes))
