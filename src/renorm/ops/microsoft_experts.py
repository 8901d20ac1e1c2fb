"""Layers of experts as ONNX Runtime has them: each row goes through the k feed-forward networks that its router takes.

    y = sum over the k largest p[e] of p[e] * (act(x @ w1[e]' + b1[e]) @ w2[e]' + b2[e]), p = softmax(router)

Rows are put in the order of their experts, and back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.core.dims import static
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Bool, Float, Int, String
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import Composite, apply
from renorm.ops.shared.few_bits import check_bits, dequantized, unpacked
from renorm.ops.shared.grouped_rows import grouped_product, places_among, positions
from renorm.ops.shared.reshaping import extents_of, reshaped, reshaped_to

_ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": lambda x: apply("relu", x),
    "relu2": lambda x: apply("mul", x, apply("relu", x)),
    "silu": lambda x: apply("swish", x),
    "gelu": lambda x: apply("gelu", x, approximate="tanh"),  # as ONNX Runtime computes it here
}
_GATED = ("swiglu", "geglu")
_BESIDE, _INTERLEAVED, _HALVES = 0, 1, 2  # gates and what they let through: two matrices, or in the rows of one


class MicrosoftExperts(Composite):
    """Networks of float weights [E, N, K] and biases [E, N]; w3: what the activation is multiplied by."""

    takes = "x, router, w1, b1?, w2, b2?, w3?, b3?"
    onnx = {"com.microsoft::MoE": 1}
    k = Int(1, at_least=1)
    activation_type = String("relu")
    normalize_routing_weights = Bool(False)
    use_sparse_mixer = Bool(False)
    activation_alpha = Float(1.0)
    activation_beta = Float(0.0)
    swiglu_limit = Float(math.inf)
    swiglu_fusion = Int(0)
    swiglu_limit_after_activation = Bool(False)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, router, w1, b1, w2, b2, w3, b3 = operands
        return self._made(node, x, router, None, [(w1, b1), (w2, b2), (w3, b3)])

    def _made(self, node: OnnxNode, x: Any, router: Any, shares: Any, layers: Sequence[tuple[Any, Any]]) -> Any:
        """Return the result. shares: of experts, where they are not the router's softmax; layers: weights and
        biases."""
        self._check(node, layers[2][0] is not None)
        rows, own = reshaped(x, -1, x.shape[-1]), apply("softmax", router, axis=-1)
        taken, experts = apply("top_k", own, np.asarray([self.k]))
        taken = taken if shares is None else apply("gather_elements", shares, experts, axis=-1)
        if self.normalize_routing_weights:
            taken = apply("div", taken, apply("reduce_sum", taken, axes=(-1,), keepdims=True))
        count = (rows.shape[0] * self.k,)
        told = extents_of(x.graph, count)
        group, order = apply("top_k", reshaped_to(experts, count), told, largest=False)
        numbers = x.graph.constant(np.arange(static(layers[0][0].shape)[0]), "experts")
        ends = places_among(group, numbers, right=True)

        def layer(x: Any, i: int) -> Any:
            w, b = layers[i]
            y = grouped_product(x, apply("transpose", w, perm=(0, 2, 1)), ends)
            return y if b is None else apply("add", y, apply("gather", b, group))

        given = apply("gather", rows, apply("div", order, np.asarray(self.k)))
        third = None if layers[2][0] is None else layer(given, 2)
        y = layer(self._activated(layer(given, 0), third), 1)
        y = apply("mul", y, apply("unsqueeze", apply("gather", reshaped_to(taken, count), order), axes=(1,)))
        place = apply("scatter_elements", order, order, positions(lambda shape: extents_of(x.graph, shape), *count))
        y = reshaped_to(apply("gather", y, place), (rows.shape[0], self.k, y.shape[1]))
        return reshaped_to(apply("reduce_sum", y, axes=(1,), keepdims=False), x.shape)

    def _activated(self, y: Any, third: Any) -> Any:
        """Return what the second layer reads of the first one's result and the third one's, or None."""
        if self.activation_type not in _GATED:
            y = _ACTIVATIONS[self.activation_type](y)
            return y if third is None else apply("mul", y, third)
        if self.swiglu_fusion == _BESIDE:
            gate, through = y, third
        elif self.swiglu_fusion == _HALVES:
            gate, through = apply("split", y, axis=-1, num_outputs=2)
        else:
            end, axis, step = np.array([np.iinfo(np.int64).max]), np.array([1]), np.array([2])
            gate, through = (apply("slice", y, np.array([first]), end, axis, step) for first in (0, 1))
        if self.activation_type == "geglu":
            return apply("mul", _ACTIVATIONS["gelu"](gate), through)
        dtype = numpy_dtype(y.dtype)
        if math.isfinite(self.swiglu_limit):
            limit = np.asarray(self.swiglu_limit, dtype)
            gate, through = apply("min", [gate, limit]), apply("clip", through, -limit, limit)
        through = apply("add", through, np.asarray(self.activation_beta, dtype)) if self.activation_beta else through
        return apply("mul", apply("swish", gate, alpha=self.activation_alpha), through)

    def _check(self, node: OnnxNode, has_third: bool) -> None:
        """Raise OperandError where attributes are none that are read, or do not fit."""
        kind, fused, wrong = self.activation_type, self.swiglu_fusion, list[str]()
        if kind not in (*_ACTIVATIONS, *_GATED):
            wrong.append(f"activation_type = {kind!r} is none of {', '.join((*_ACTIVATIONS, *_GATED))}")
        if fused not in (_BESIDE, _INTERLEAVED, _HALVES):
            wrong.append(f"swiglu_fusion = {fused} is none of 0, 1 and 2")
        if kind in _GATED and (fused == _BESIDE) != has_third:
            wrong.append(f"{kind} of swiglu_fusion = {fused} {'has' if has_third else 'lacks'} fc3_experts_weights")
        if self.use_sparse_mixer or self.swiglu_limit_after_activation:
            wrong.append("use_sparse_mixer and swiglu_limit_after_activation are not read")
        if wrong:
            raise OperandError(f"{node.op_type}: its experts are not read", wrong)


class MicrosoftQuantizedExperts(MicrosoftExperts):
    """The same of constant integers of a few bits, (q - zero) * scale with a scale and a zero point for each row of a
    matrix, or for each block of block_size along it."""

    takes = "x, router, w1, s1?, b1?, w2, s2?, b2?, w3?, s3?, b3?, z1?, z2?, z3?, shares?, g1?, g2?, a1?, a2?, c1?, c2?"
    onnx = {"com.microsoft::QMoE": 1}
    onnx_ignored = ("accuracy_level",)  # how roughly it may be computed
    expert_weight_bits = Int(4)
    fc1_expert_weight_bits = Int(None)
    fc2_expert_weight_bits = Int(None)
    fc3_expert_weight_bits = Int(None)
    block_size = Int(0)
    quant_type = String("int")
    weights_prepacked = Int(-1)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, router, w1, s1, b1, w2, s2, b2, w3, s3, b3, z1, z2, z3, shares, *of_floats = operands
        if self.quant_type != "int" or any(v is not None for v in of_floats):
            raise OperandError(
                f"{node.op_type}: weights of quant_type = {self.quant_type!r} are not read, but integers"
            )
        own = (self.fc1_expert_weight_bits, self.fc2_expert_weight_bits, self.fc3_expert_weight_bits)
        held = ((w1, s1, z1), (w2, s2, z2), (w3, s3, z3))
        weights = [
            None if w is None else self._weight(node, i, self.expert_weight_bits if bits is None else bits, w, s, z)
            for i, (bits, (w, s, z)) in enumerate(zip(own, held), 1)
        ]
        return self._made(node, x, router, shares, list(zip(weights, (b1, b2, b3))))

    def _weight(self, node: OnnxNode, i: int, bits: int, *held: Any) -> Any:
        """Return what stands for numbers of x's dtype, [E, N, K]."""
        check_bits(node, bits)
        if self.weights_prepacked == 1 and bits < 8:
            raise OperandError(f"{node.op_type}: weights_prepacked = 1 is an order of bytes of ONNX Runtime's own")
        w, scales, zeros = (None if v is None else v.data for v in held)
        if w is None or scales is None or (held[2] is not None and zeros is None):
            raise OperandError(f"{node.op_type}: weights, scales and zero points of fc{i} must be constants")
        experts, rows, depth = w.shape[0], w.shape[1], w.shape[2] * 8 // bits
        blocks = depth // self.block_size if self.block_size else 1
        in_blocks = (experts, rows, -(-blocks * bits // 8)) if self.block_size else (experts, -(-rows * bits // 8))
        wrong = [f"fc{i} has {w.dtype}, expected uint8"] * (w.dtype != np.uint8)
        if scales.size != experts * rows * blocks:
            wrong.append(f"fc{i}_scales has {scales.size} elements, expected {experts * rows * blocks}")
        if zeros is not None and zeros.shape != in_blocks:
            wrong.append(f"fc{i}_zero_points is {zeros.shape}, expected {in_blocks}")
        if wrong:
            raise OperandError(f"{node.op_type}: constants do not fit", wrong)
        if zeros is not None:
            zeros = unpacked(zeros, bits)
            zeros = zeros[..., :blocks] if self.block_size else zeros[:, :rows, None]
        block_of = np.arange(depth) // (self.block_size or depth)
        made = dequantized(w, bits, scales.reshape(experts, rows, blocks), zeros, block_of)
        return node.operands[0].graph.constant(made.astype(numpy_dtype(node.operands[0].dtype)), f"fc{i}")
