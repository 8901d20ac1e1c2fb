"""ONNX's Attention, with all that its attributes and operands say, as an attention and smaller ops round it."""

from __future__ import annotations

from typing import Any

from renorm.core.errors import OperandError
from renorm.graph.op import OnnxNode
from renorm.ops.shared import builders
from renorm.ops.shared.attending_nodes import (
    all_of,
    filled_up,
    in_heads,
    joined,
    length,
    masked,
    per_batch,
    row_numbers,
    scores,
    side_by_side,
    standard_scale,
    within,
)

_WINDOW = ("left_window_size", "right_window_size")
_READ = ("scale", "q_num_heads", "kv_num_heads", "is_causal", "softcap", "qk_matmul_output_mode", *_WINDOW)
_IGNORED = ("softmax_precision",)  # exponentials and their sums are those of float32 at least, whatever it says
_CACHE = ("past_key", "past_value", "nonpad_kv_seqlen")


def read(node: OnnxNode) -> Any:
    """Return the results of a node. Heads may be side by side in rows, keys and values of earlier calls in front; a
    query takes no later key where it is causal, none outside of its window, and none of padding."""
    mask, *past, valid = (*node.operands[3:], *[None] * 4)[:4]
    q, k, v = node.operands[:3]
    if unknown := [a for a in node.attributes if a not in (*_READ, *_IGNORED)]:
        raise OperandError(f"Attention: attribute {', '.join(unknown)} is not read")
    if (past[0] is None) != (past[1] is None) or (valid is not None and past[0] is not None):
        raise OperandError(
            "Attention: past_key and past_value come together, and without nonpad_kv_seqlen",
            [f"given: {', '.join(n for n, x in zip(_CACHE, (*past, valid)) if x is not None)}"],
        )
    if is_flat := q.rank == 3:
        heads = [node.attribute(f"{of}_num_heads") for of in ("q", "kv", "kv")]
        q, k, v = (in_heads(x, n) for x, n in zip((q, k, v), heads))
    k, v = joined(past, (k, v))
    scale, softcap = node.attribute("scale"), node.attribute("softcap", 0.0)
    scale = standard_scale(q) if scale is None else scale
    taken = _taken(node, q, k, past[0], valid)
    mask = filled_up(mask, k) if mask is not None and node.opset >= 24 else mask
    mask = masked(mask, taken)
    given = [q, k, v] if mask is None else [q, k, v, mask]
    y = builders.find("attention")(*given, scale=scale, softcap=softcap, empty_is_zero=True, name=node.name)
    made = [side_by_side(y) if is_flat else y, k, v]
    if any(node.is_asked[3:]):
        made.append(scores(q, k, mask, scale, softcap, node.attribute("qk_matmul_output_mode", 0)))
    return made if any(node.is_asked[1:]) else made[0]


def _taken(node: OnnxNode, q: Any, k: Any, past: Any, valid: Any) -> Any:
    """Return which keys a query takes by their positions; None: all. valid: how many are there, the last of them for
    the last query."""
    left, right = (node.attribute(side, -1) for side in _WINDOW)
    if left < -1 or right < -1:
        raise OperandError(f"Attention: a window of {left} and {right}; expected -1 for no end, or 0 and more")
    right = 0 if node.attribute("is_causal") else right
    if valid is None:
        return within(q, k, None if past is None else length(past), left, right)
    valid = per_batch(valid)
    offset = builders.find("sub")(valid, length(q))
    return all_of(within(q, k, offset, left, right), builders.find("less")(row_numbers(k), valid))
