"""Operators on integers in written files: a node between what is dequantized and what is quantized again.

    quantize_linear(f(dequantize_linear(x), ..))    is written as f over quantized tensors

where the formats' f is of integers of 8 bits. A bias becomes the nearest steps of data times those of weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from renorm.frontends.tflite.quantized import held, parameter
from renorm.frontends.tflite.tensors import Array
from renorm.graph.ir import Graph, Node, Value
from renorm.ops.shared.quantization import BYTES

_PRODUCTS = {"conv": 4, "gemm": 2, "matmul": 0}  # axes, 0 for any number of them
_EACH = ("add", "hard_swish", "leaky_relu", "mul", "reduce_mean", "relu", "sigmoid", "softmax", "sub", "tanh")
_STEPS = {"sigmoid": (256, -128), "softmax": (256, -128), "tanh": (128, 0)}  # steps of 1, zero points, as int8


def made(graph: Graph, node: Node, result: Value) -> Value | None:
    """Return the integers that an operator can make of integers in the place of a result; None where it has to be of
    floats."""
    users = result.users
    is_alone = len(users) == 1 and users[0].op.name == "quantize_linear" and not graph.is_output(result)
    y = users[0].output if is_alone else None
    data = [v for v in node.inputs if v is not None][: 1 if node.op.name in _PRODUCTS else None]
    whole = [held(v) for v in data]
    if y is None or y.dtype not in BYTES or not all(q is not None and q.dtype == y.dtype for q in whole):
        return None
    step = parameter(users[0])
    if any(q is None or q.is_constant for q in whole) or None in (step, *(parameter(v.producer) for v in data)):
        return None
    if node.op.name in _PRODUCTS:
        return y if _is_product(node, y) else None
    if node.op.name in _STEPS:
        count, zero = _STEPS[node.op.name]
        return y if step == (1 / count, zero + (128 if y.dtype == "uint8" else 0)) else None
    return y if node.op.name in _EACH else None


def _is_product(node: Node, y: Value) -> bool:
    """Return whether the formats have a product of data with these weights and bias."""
    rank, values = _PRODUCTS[node.op.name], node.op.values
    x, w, *rest = node.inputs
    weight, bias = weight_of(w), rest[0] if rest else None
    if x is None or w is None or weight is None or weight.data.dtype.name != y.dtype:
        return False
    axis = 0 if node.op.name == "conv" or values.get("transB") else w.rank - 1
    is_channel = weight.scale.size == 1 or (y.dtype == "int8" and weight.axis == axis)
    is_even = y.dtype == "uint8" or not weight.zero.any()
    is_plain = values.get("alpha", 1) == values.get("beta", 1) == 1 and not values.get("transA")
    fits = w.rank == (rank or 2) and (not rank or x.rank == rank) and values.get("group", 1) in (1, x.shape[1])
    has_bias = bias is None or (bias.data is not None and bias.shape == (w.shape[axis],))
    return is_channel and is_even and is_plain and fits and has_bias


@dataclass(frozen=True)
class Weight:
    """Constant integers with scales and zero points: one for all, or one for each index along an axis."""

    data: Array
    scale: Array
    zero: Array
    axis: int


def weight_of(value: Value | None) -> Weight | None:
    """Return the constant integers that a value dequantizes; None for other values."""
    node = None if value is None else value.producer
    if node is None or node.op.name != "dequantize_linear" or node.op.values["block_size"]:
        return None
    whole, scale, zero = (None if v is None else v.data for v in node.inputs)
    if whole is None or scale is None or (zero is None and node.inputs[2] is not None):
        return None
    zeros = np.zeros(scale.size, np.int64) if zero is None else zero.reshape(-1).astype(np.int64)
    return Weight(whole, scale.reshape(-1), zeros, node.op.values["axis"] % whole.ndim if scale.size > 1 else 0)


def bias_of(bias: Value | None, steps: Array) -> Weight:
    """Return the nearest int32 that stand for a bias, zeros for none."""
    numbers = np.zeros(steps.size) if bias is None or bias.data is None else bias.data.astype(np.float64)
    ends = np.iinfo(np.int32)
    whole = np.clip(np.rint(numbers / steps), ends.min, ends.max).astype(np.int32)
    return Weight(whole, steps, np.zeros(steps.size, np.int64), 0)
