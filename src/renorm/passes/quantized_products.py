"""Products of dequantized data and weights as products of integers, scaled once.

    conv((x - x_zero) * x_scale, (w - w_zero) * w_scale, b)
        ->   conv(x - x_zero, w - w_zero) * (x_scale * w_scale) + b

whatever comes behind them. A bias that counts steps of x_scale * w_scale, as files have it, is added to the integers,
so that what is rounded is one product, as that of integer kernels is. Their sums are exact up to 2^24, and beyond as
those of floats, which files of this kind state (`integer_products` has those that must be exact). Weights stay integers
until then, in written models too.

It is done where a machine multiplies such integers faster than others: elsewhere numbers that may be rounded are open
to algorithms of fewer products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from renorm import ops
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.rewrite import Match, Plan, Rewrite, node_of
from renorm.ops.shared import quantization
from renorm.passes.context import Context
from renorm.passes.held_integers import is_of_steps
from renorm.passes.integer_products import EXACT, Sums, is_one, is_padded
from renorm.passes.quantization import Array
from renorm.passes.rewriting import ApplyRules

PRODUCTS = ("conv", "matmul", "gemm")


def is_weight(node: Node) -> bool:
    """Return whether a node dequantizes a constant that products alone read, beside data that is dequantized."""
    if (
        not _is_of(node, quantization.WEIGHTS)
        or (w := node.inputs[0]) is None
        or not w.is_constant
        or node.op.values["block_size"]
    ):
        return False
    readers = node.output.readers
    return bool(readers) and all(
        u.op.name in PRODUCTS and u.inputs[1] is node.output and (x := u.inputs[0]) is not None
        and x.producer is not None and x.producer is not node and _is_of(x.producer, quantization.BYTES)
        for u in readers
    )  # fmt: skip


def _is_of(node: Node, dtypes: Sequence[str]) -> bool:
    """Return whether a node dequantizes integers of one of these dtypes."""
    x = node.inputs[0] if node.op.name == "dequantize_linear" else None
    return x is not None and x.dtype in dtypes


def counted(v: Value | None) -> tuple[Value, Value | None, Array] | None:
    """Return data as integers, their zero point (None for 0 and for integers that floats hold), and their scale; None
    for other data."""
    node = v.producer if v is not None else None
    if node is None or node.op.name not in ("mul", "dequantize_linear") or node.output.dtype != "float32":
        return None
    x, scale, *zero = node.inputs
    if x is None or scale is None or scale.data is None or not is_one(scale):
        return None
    by = scale.data.reshape(()).astype(np.float32)
    if node.op.name == "mul":
        return (x, None, by) if is_of_steps(x) else None
    return (x, zero[0], by) if x.dtype in quantization.BYTES and is_one(zero[0]) else None


@dataclass(frozen=True)
class ProductOfIntegers(Rewrite):
    """f(x * x_scale, w * w_scale, b) -> f(x, w) * (x_scale * w_scale) + b, where f is a sum of products"""

    product: str
    sums: type[Sums] = Sums

    def pattern(self) -> Any:
        return node_of(self.product)

    def plan(self, m: Match) -> Plan | None:
        data, op = counted(m.root.inputs[0]), m.root.op
        w = m.root.inputs[1]
        weight = w.producer if w is not None else None
        if data is None or weight is None or not _is_of(weight, quantization.WEIGHTS) or weight.op.values["block_size"]:
            return None
        if op.name == "gemm" and (op.values["alpha"] != 1 or op.values["beta"] != 1 or op.values["transA"]):
            return None
        held, scale, zero = weight.inputs
        assert held is not None
        axis = 0 if op.name == "conv" or op.values.get("transB") else held.rank - 1
        if (
            scale is None
            or scale.data is None
            or not (is_one(scale) or weight.op.values["axis"] in (axis, axis - held.rank))
        ):
            return None
        scales = scale.data.astype(np.float32)
        if op.name == "conv":
            sums = self.sums.of_conv(m.root, held, zero, rounds=True)
            bias = m.root.inputs[2] if len(m.root.inputs) > 2 else None
            if sums is not None and bias is not None and bias.data is not None:
                sums = replace(sums, bias=_steps(bias.data, data[2] * scales.reshape(-1)))
        else:
            sums = self.sums.of_matmul(held, zero, is_turned=axis == 0, rounds=True)
        x, x_zero, _ = data
        if sums is None or not (x.dtype == "float32" or sums.takes(x, x_zero, op.name == "conv" and is_padded(m.root))):
            return None
        return Plan(lambda m: self._made(m, sums, data, scales))

    @staticmethod
    def _made(m: Match, sums: Sums, data: tuple[Value, Value | None, Array], scales: Array) -> Value:
        x, zero, scale = data
        window = [1] * (m.root.output.rank - 2) if m.root.op.name == "conv" else []
        factor = (scale * scales.reshape(-1)).astype(np.float32)
        factor = factor.reshape(-1, *window) if factor.size > 1 else factor.reshape(())
        y = ops.mul(sums.made(m, x, zero, "float32"), factor)
        bias = m.root.inputs[2] if len(m.root.inputs) > 2 else None
        if bias is None or sums.bias is not None:
            return y
        return ops.add(y, ops.unsqueeze(bias, axes=range(1, len(window) + 1)) if window else bias)


def _steps(bias: Array, factor: Array) -> Array | None:
    """Return the integers whose products with a factor a bias is, as files of quantized networks have it; else None."""
    with np.errstate(all="ignore"):  # of scales that are 0
        found = np.rint(bias.astype(np.float64) / factor.astype(np.float64))
        is_exact = np.abs(found) <= EXACT
        is_exact &= (found * factor.astype(np.float64)).astype(np.float32) == bias
    return found.astype(np.int32) if is_exact.all() else None


@dataclass(frozen=True)
class MultiplyIntegers:
    """Products of dequantized tensors -> products of integers, on machines that multiply pairs"""

    def run(self, graph: Graph, context: Context) -> None:
        if context.multiplies_pairs:
            ApplyRules(tuple(map(ProductOfIntegers, PRODUCTS))).run(graph, context)
