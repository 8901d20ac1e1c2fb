"""Norms that ONNX Runtime's optimizer writes: with sums, look-ups and activations around them in one op."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dtypes import compute_dtype, numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Bool, Float, Int
from renorm.graph.op import OnnxNode
from renorm.ops.layer_norm import LayerNorm
from renorm.ops.shared.attending_nodes import row_numbers
from renorm.ops.shared.composite import Composite, apply


def added(*terms: Any) -> Any:
    """Return the sum of terms, those that are None left out."""
    given = [t for t in terms if t is not None]
    total = given[0]
    for term in given[1:]:
        total = apply("add", total, term)
    return total


class SkipLayerNormalization(Composite):
    """A layer norm of x + skip + bias, which is the fourth result. The second and the third are its statistics."""

    takes = "x, skip, gamma, beta?, bias?"
    onnx = {"com.microsoft::SkipLayerNormalization": 1}
    epsilon = Float(1e-12, at_least=0.0)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, skip, gamma, beta, bias = operands
        total = added(x, skip, bias)
        attributes = {"epsilon": self.epsilon}
        given = (total, gamma, beta)
        norm = OnnxNode("LayerNormalization", 17, node.name, given, node.outputs[:3], attributes)
        made = LayerNorm.from_onnx(norm)
        made = [*made] if isinstance(made, (tuple, list)) else [made, None, None]
        return [m if m is not None else total for m in (*made, total)]


class SimplifiedLayerNormalization(Composite):
    """A root-mean-square norm over `axis` and all axes after it; the second result is what x is multiplied by."""

    takes = "x, scale"
    onnx = {"SimplifiedLayerNormalization": 1}
    axis = Int(-1)
    epsilon = Float(1e-5, at_least=0.0)
    stash_type = Int(1)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, scale = operands
        y = apply("rms_norm", x, scale, axis=self.axis, epsilon=self.epsilon)
        if not any(node.is_asked[1:]):
            return y
        return [y, inverse_root(x, tuple(range(self.axis % x.rank, x.rank)), self.epsilon)]


class SkipSimplifiedLayerNormalization(Composite):
    """A root-mean-square norm of x + skip + bias, which is the fourth result; the third is what it is multiplied by."""

    takes = "x, skip, gamma, bias?"
    onnx = {"com.microsoft::SkipSimplifiedLayerNormalization": 1}
    epsilon = Float(1e-12, at_least=0.0)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, skip, gamma, bias = operands
        asked = (*node.is_asked, *[False] * 4)
        if asked[1]:
            raise OperandError("SkipSimplifiedLayerNormalization: its second result, the mean, is not computed")
        total = added(x, skip, bias)
        factor = inverse_root(total, (-1,), self.epsilon) if asked[2] else total
        return [apply("rms_norm", total, gamma, epsilon=self.epsilon), total, factor, total]


class EmbedLayerNormalization(Composite):
    """A layer norm of the sum of rows of three tables; then how many of a mask are 1, and the sum."""

    takes = "words, segments?, word_table, position_table, segment_table?, gamma, beta, mask?, positions?"
    onnx = {"com.microsoft::EmbedLayerNormalization": 1}
    epsilon = Float(1e-12, at_least=0.0)
    mask_index_type = Int(1)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        words, segments, word_table, position_table, segment_table, gamma, beta, mask, positions = operands
        if positions is None:
            positions = row_numbers(apply("unsqueeze", words, axes=(2,)))  # [N, L, 1]: its rows are positions
        of_segments = None if segments is None else apply("gather", segment_table, segments)
        total = added(apply("gather", word_table, words), apply("gather", position_table, positions), of_segments)
        y = apply("layer_norm", total, gamma, beta, epsilon=self.epsilon)
        if not any(node.is_asked[1:]):
            return y
        held = apply("sub", words, words) if mask is None else apply("equal", mask, np.asarray(1, mask.dtype))
        count = apply("reduce_sum", apply("cast", held, to="int32"), axes=(1,), keepdims=False)
        return [y, count, total]


class MicrosoftGroupNorm(Composite):
    """A group norm of x, channels last, and an activation; of x + skip + bias, which is then the second result."""

    takes = "x, gamma, beta, skip?, bias?"
    onnx = {"com.microsoft::GroupNorm": 1, "com.microsoft::SkipGroupNorm": 1}
    epsilon = Float(1e-5, at_least=0.0)
    groups = Int(at_least=1)
    activation = Int(0)
    channels_last = Bool(True)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, gamma, beta, skip, bias = operands
        if x.rank != 4 or self.activation not in (0, 1):
            raise OperandError(f"{node.op_type}: {x.type} has rank 4, and activation {self.activation} is 0 or 1")
        last = self.channels_last
        if skip is not None and skip.rank == 2:
            skip = apply("unsqueeze", skip, axes=(1, 2) if last else (2, 3))
        if bias is not None and not last:
            bias = apply("unsqueeze", bias, axes=(1, 2))
        total = added(x, skip, bias)
        y = apply("transpose", total, perm=(0, 3, 1, 2)) if last else total
        y = _as(apply("group_norm", _as(y, gamma.dtype), gamma, beta, num_groups=self.groups, epsilon=self.epsilon), x)
        y = apply("swish", y) if self.activation else y
        return [apply("transpose", y, perm=(0, 2, 3, 1)) if last else y, total]


def _as(x: Any, like: Any) -> Any:
    dtype = like if isinstance(like, str) else like.dtype
    return x if x.dtype == dtype else apply("cast", x, to=dtype)


def inverse_root(x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    """Return 1 / sqrt(mean(x * x) + epsilon)."""
    wide = _as(x, compute_dtype(x.dtype))
    mean = apply("reduce_mean", apply("mul", wide, wide), axes=axes)
    return apply("rsqrt", apply("add", mean, np.asarray(epsilon, numpy_dtype(wide.dtype))))
