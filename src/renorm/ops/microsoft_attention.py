"""Attention as ONNX Runtime's optimizer writes it: projections, biases and caches of earlier calls in one op.

Masks are added to scores, as that runtime does: a key of padding scores `mask_filter_value` less, so that a query that
takes no other key mixes all of them. A key that is later than the query is not taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Bool, Float, Int, Ints
from renorm.graph.op import OnnxNode
from renorm.ops.shared.attending_nodes import (
    all_of,
    in_heads,
    joined,
    length,
    masked,
    per_batch,
    row_numbers,
    side_by_side,
    standard_scale,
    within,
)
from renorm.ops.shared.composite import Composite, apply


class _Heads(Composite):
    """What these ops share. scale: None for 1 / sqrt(elements of a query)."""

    num_heads = Int(at_least=1)
    unidirectional = Bool(False)
    scale = Float(None)
    mask_filter_value = Float(-10000.0)

    def mixture(self, q: Any, k: Any, v: Any, padding: Any, bias: Any, offset: Any) -> Any:
        """Return the results of heads, side by side. offset: position of the first query."""
        mask = self.added(padding, q, k)
        if bias is not None:
            mask = bias if mask is None else apply("add", mask, bias)
        if self.unidirectional:
            mask = masked(mask, within(q, k, offset, right=0))
        scale = standard_scale(q) if self.scale is None else self.scale
        return side_by_side(apply("attention", q, k, v, *([] if mask is None else [mask]), scale=scale))

    def added(self, padding: Any, q: Any, k: Any) -> Any:
        """Return what is added to scores for keys that are padding: [N] are how many come before it, [2 * N] where it
        begins and where keys begin, [N, keys] and [N, L, keys] 0 where it is."""
        if padding is None:
            return None
        batch = q.shape[0]
        if padding.rank == 1:
            ends = starts = None
            if isinstance(batch, int) and padding.shape[0] == 2 * batch and batch:
                ends, starts = apply("split", padding, axis=0, num_outputs=2)
            elif not isinstance(batch, int) and isinstance(n := padding.shape[0], int) and n % 2 == 0:
                raise OperandError(
                    f"a mask {padding.type} is for a batch of {n}, or for one of {n // 2}: {batch} is not known",
                    do="give the shapes of the inputs (shapes=)",
                )
            elif not isinstance(batch, int) or padding.shape[0] in (batch, 1):
                ends = padding
            if ends is None:
                raise OperandError(f"a mask {padding.type} is for a batch of {batch} neither ends nor begins of keys")
            taken = apply("less", row_numbers(k), per_batch(ends))
            if starts is not None:
                taken = all_of(taken, apply("greater_or_equal", row_numbers(k), per_batch(starts)))
        elif padding.rank in (2, 3):
            shown = apply("greater", padding, np.asarray(0, padding.dtype))
            taken = apply("unsqueeze", shown, axes=(1, 2) if padding.rank == 2 else (1,))
        else:
            raise OperandError(f"a mask {padding.type} is not read: its rank is 1, 2 or 3")
        dtype = numpy_dtype(q.dtype)
        return apply("where", taken, np.asarray(0, dtype), np.asarray(self.mask_filter_value, dtype))


class MicrosoftAttention(_Heads):
    """Heads of x @ weights + bias; past and present hold keys and values of earlier calls, [2, N, H, L, E]."""

    takes = "x, weights, bias?, padding?, past?, added?, past_length?"
    onnx = {"com.microsoft::Attention": 1}
    qkv_hidden_sizes = Ints(None)
    do_rotary = Bool(False)
    past_present_share_buffer = Bool(False)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, weights, bias, padding, past, added, past_length = operands
        if self.do_rotary or self.past_present_share_buffer or past_length is not None:
            raise OperandError("Attention of com.microsoft: do_rotary and past_present_share_buffer are not read")
        y = apply("matmul", x, weights)
        y = y if bias is None else apply("add", y, bias)
        sizes, offset = self.qkv_hidden_sizes, None
        if sizes:
            parts = apply("split", y, np.asarray(sizes, np.int64), axis=-1)
        else:
            parts = apply("split", y, axis=-1, num_outputs=3)
        q, k, v = (in_heads(part, self.num_heads) for part in parts)
        if past is not None:
            earlier = [apply("gather", past, np.asarray(i)) for i in range(2)]
            k, v = joined(earlier, (k, v))
            offset = length(past)
        y = self.mixture(q, k, v, padding, added, offset)
        if not any(node.is_asked[1:]):
            return y
        return [y, apply("concat", [apply("unsqueeze", t, axes=(0,)) for t in (k, v)], axis=0)]


class MultiHeadAttention(_Heads):
    """Heads of queries, keys and values + bias; keys and values may lie with queries, or come in heads."""

    takes = "q, k?, v?, bias?, padding?, added?, past_k?, past_v?, past_length?, beams?"
    onnx = {"com.microsoft::MultiHeadAttention": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        q, k, v, bias, padding, added, past_k, past_v, past_length, beams = operands
        if past_length is not None or beams is not None or any(node.is_asked[3:]):
            raise OperandError(
                "MultiHeadAttention: past_sequence_length, cache_indirection and the result qk are not read"
            )
        if (past_k is None) != (past_v is None):
            raise OperandError("MultiHeadAttention: past_key and past_value come together")
        q, k, v = self._heads(q, k, v, bias)
        k, v = joined((past_k, past_v), (k, v))
        y = self.mixture(q, k, v, padding, added, None if past_k is None else length(past_k))
        return [y, k, v] if any(node.is_asked[1:]) else y

    def _heads(self, q: Any, k: Any, v: Any, bias: Any) -> list[Any]:
        """Return queries, keys and values as [N, H, L, E]."""
        given = [q, k, v]
        if bias is not None:
            held = [x for x in given if x is not None and x.rank == 3]
            if len(held) != 3 and (q.rank != 3 or k is None or k.rank != 4):
                raise OperandError("MultiHeadAttention: a bias is added to [N, L, H * E] each")
            begin = 0
            for i, x in enumerate(given):
                if x.rank == 3:  # what comes in heads has had its own
                    ends = np.asarray([begin + x.shape[2]])
                    part = apply("slice", bias, np.asarray([begin]), ends, np.asarray([0]))
                    given[i], begin = apply("add", x, part), begin + x.shape[2]
        if k is None:
            given = _cut(q, 3)
        elif v is None:
            given[1:] = _cut(k, 2)
        return [in_heads(x, self.num_heads) if x.rank == 3 else x for x in given]


def _cut(x: Any, count: int) -> list[Any]:
    """Return [N, H, L, E] of each of [N, L, H, count, E]."""
    if x.rank != 5:
        raise OperandError(f"attention: {x.type} is alone, and not [N, L, H, {count}, E]")
    return [apply("transpose", apply("gather", x, np.asarray(i), axis=3), perm=(0, 2, 1, 3)) for i in range(count)]
