"""GroupQueryAttention of ONNX Runtime: attention of several queries to each head of keys, which a cache holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Bool, Float, Int, String
from renorm.graph.op import OnnxNode
from renorm.ops.rotary_embedding import rotated
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

_REFUSED = ("k_scale", "v_scale", "query_seqlens")


class GroupQueryAttention(Composite):
    """Keys and values are turned (`do_rotary`) and put behind those that are valid in the cache, of which `lengths` - 1
    says how many there are then. A query takes no later key; a head's sink is one more score, of a value of 0."""

    takes = (
        "q, k?, v?, past_k?, past_v?, lengths, total, cos?, sin?, positions?, added?, sink?, k_scale?, v_scale?, "
        "q_norm?, k_norm?, query_seqlens?"
    )
    onnx = {"com.microsoft::GroupQueryAttention": 1}
    num_heads = Int(at_least=1)
    kv_num_heads = Int(at_least=1)
    scale = Float(None)
    softcap = Float(0.0)
    causal = Bool(True)
    local_window_size = Int(-1)
    do_rotary = Bool(False)
    rotary_interleaved = Bool(False)
    smooth_softmax = Int(-1)
    qk_norm_epsilon = Float(1e-6)
    q_norm_epsilon = Float(None)
    k_norm_epsilon = Float(None)
    sliding_window_cache = Bool(False)
    qk_output = Int(0)
    kv_cache_bit_width = Int(None)
    k_quant_type = String("NONE")
    v_quant_type = String("NONE")

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        q, k, v, past_k, past_v, lengths, _, cos, sin, positions, bias, sink, *refused, q_norm, k_norm, rows = operands
        given = [name for name, x in zip(_REFUSED, (*refused, rows)) if x is not None]
        if given or self.sliding_window_cache or any(node.is_asked[3:]):
            raise OperandError(
                "GroupQueryAttention: caches in few bits or of a window, query_seqlens and the result output_qk are "
                "not read",
                [f"given: {', '.join(given)}"] if given else [],
            )
        q, k, v = self._heads(q, k, v)
        q, k = (self._normed(x, w, own) for x, w, own in zip((q, k), (q_norm, k_norm), ("q", "k")))
        total = apply("add", per_batch(_flat(lengths)), np.asarray(1))  # keys of each sentence, with these
        offset = apply("max", [apply("sub", total, length(q)), np.asarray(0)])
        if self.do_rotary:
            if positions is None:
                positions = apply("squeeze", apply("add", _column(q), offset), axes=(1, 3))
            cos, sin = (apply("unsqueeze", apply("gather", x, positions), axes=(1,)) for x in (cos, sin))
            q, k = (rotated(x, cos, sin, self.rotary_interleaved, 2 * cos.shape[-1]) for x in (q, k))
        if past_k is not None:
            node.assumed.append(
                f"{node.name!r} (GroupQueryAttention) keeps no buffer: present keys are as long as past and new ones"
            )
            k, v = (_behind(past, x, offset) for past, x in ((past_k, k), (past_v, v)))
        mask = self._mask(q, k, total, offset, bias)
        scale = standard_scale(q) if self.scale is None else self.scale
        held = [q, k, v, mask]
        if sink is not None or self.smooth_softmax == 1:
            held = _with_sink(q, k, v, mask, sink)
        y = side_by_side(apply("attention", *held, scale=scale, softcap=self.softcap, empty_is_zero=True))
        return [y, k, v] if any(node.is_asked[1:]) else y

    def _heads(self, q: Any, k: Any, v: Any) -> list[Any]:
        """Return queries, keys and values as [N, H, L, E]."""
        if k is None:
            heads = self.num_heads + 2 * self.kv_num_heads
            sizes = np.asarray([self.num_heads, self.kv_num_heads, self.kv_num_heads])
            return [*apply("split", in_heads(q, heads), sizes, axis=1)]
        return [in_heads(q, self.num_heads), in_heads(k, self.kv_num_heads), in_heads(v, self.kv_num_heads)]

    def _normed(self, x: Any, weight: Any, own: str) -> Any:
        if weight is None:
            return x
        epsilon = getattr(self, f"{own}_norm_epsilon")
        return apply("rms_norm", x, weight, epsilon=self.qk_norm_epsilon if epsilon is None else epsilon)

    def _mask(self, q: Any, k: Any, total: Any, offset: Any, bias: Any) -> Any:
        left = self.local_window_size - 1 if self.local_window_size > 0 else -1
        near = within(q, k, offset, left, 0) if self.causal else None
        return masked(bias, all_of(near, apply("less", row_numbers(k), total)))


def _flat(lengths: Any) -> Any:
    return lengths if lengths.rank == 1 else apply("reshape", lengths, np.asarray([-1]))


def _column(x: Any) -> Any:
    return apply("unsqueeze", row_numbers(x), axes=(1,))


def _behind(past: Any, x: Any, offset: Any) -> Any:
    """Return a cache, of which `offset` rows are valid, with new rows behind these."""
    both = apply("transpose", joined([past], [x])[0], perm=(0, 2, 1, 3))
    row = _column(apply("transpose", both, perm=(0, 2, 1, 3)))
    moved = apply("add", apply("sub", row, offset), length(past))
    last = apply("sub", apply("add", length(past), length(x)), np.asarray(1))
    source = apply("where", apply("less", row, offset), row, apply("min", [moved, last]))
    rows = apply("gather_nd", both, apply("squeeze", source, axes=(1,)), batch_dims=1)
    return apply("transpose", rows, perm=(0, 2, 1, 3))


def _with_sink(q: Any, k: Any, v: Any, mask: Any, sink: Any) -> list[Any]:
    """Return operands with one more key, of nothing, which scores as each head's sink says, or 0."""
    zero = np.asarray(0, numpy_dtype(q.dtype))
    behind = np.asarray([0, 0, 0, 0, 0, 0, 1, 0])
    all_keys, values = (apply("pad", x, behind) for x in (k, v))
    if mask.dtype == "bool":
        mask = apply("where", mask, zero, np.asarray(-math.inf, zero.dtype))
    mask = apply("pad", mask, np.asarray([0] * (2 * mask.rank - 1) + [1]))
    if sink is not None:
        is_sink = apply("equal", row_numbers(all_keys), length(k))
        added = apply("where", is_sink, apply("unsqueeze", sink, axes=(0, 2, 3)), zero)
        mask = apply("add", mask, added)
    return [q, all_keys, values, mask]
