"""Attention, one op, whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_dtypes import finfo

from renorm import ops
from renorm.core.dims import Dim
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.keras.call import Call, Tensor
from renorm.frontends.keras.layers.masks import where_masked
from renorm.frontends.keras.layers.products import einsum_dense
from renorm.frontends.keras.layers.table import reads
from renorm.frontends.keras.weights import Weights
from renorm.graph.ir import Value


def _big(dtype: str) -> float:
    """Return what Keras takes from scores of keys that are masked."""
    return 65504.0 if dtype == "float16" else 1e9


def _both(a: Value | None, b: Value | None) -> Value | None:
    return b if a is None else a if b is None else ops.logical_and(a, b)


def _causal(c: Call, queries: Dim, keys: Dim) -> Value:
    """Return where keys stand no later than queries."""
    if isinstance(queries, int) and isinstance(keys, int):
        return c.constant(np.tril(np.ones((queries, keys), numpy_dtype("bool"))), "causal")
    return ops.less_or_equal(c.positions(keys), c.reshaped(c.positions(queries), (queries, 1)))


def _near(c: Call, queries: Dim, keys: Dim, window: int) -> Value:
    """Return where keys stand less than `window` steps from queries."""
    if not isinstance(queries, int) or not isinstance(keys, int):
        raise UnsupportedOp("a sliding window over a number of steps that is open")
    steps = np.abs(np.arange(queries)[:, None] - np.arange(keys))
    return c.constant(steps < window, "window")


def _named(c: Call, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) > len(names) or not set(kwargs) <= set(names):
        raise InvalidModel(f"it is called with {len(args)} arguments and {', '.join(kwargs)}")
    return {**dict(zip(names, args)), **kwargs}


_ARGUMENTS = (
    "query", "value", "key", "query_mask", "value_mask", "key_mask", "attention_mask", "return_attention_scores",
    "training", "use_causal_mask",
)  # fmt: skip


@reads("MultiHeadAttention", "GroupedQueryAttention", "GroupQueryAttention")
def _multi_head(c: Call, *args: Any, **kwargs: Any) -> Any:
    given = _named(c, _ARGUMENTS, args, kwargs)
    if given.get("return_attention_scores"):
        raise UnsupportedOp("its scores are a result", do="return the attention alone")
    query, value = given["query"], given["value"]
    key = given.get("key") or value
    if c.option("attention_axes") not in (None, [1], (1,), 1) or query.value.rank != 3:
        raise UnsupportedOp(f"attention over axes {c.option('attention_axes')} of {query.value.type}")
    heads = c.count("num_query_heads") if "num_query_heads" in c.layer.config else c.count("num_heads")
    own_heads = c.count("num_key_value_heads") if "num_key_value_heads" in c.layer.config else heads
    width = c.count("head_dim") if "head_dim" in c.layer.config else c.count("key_dim")
    depth = c.count("value_dim", width) if c.option("value_dim") is not None else width
    q = _projected(c, query, "query", heads, width)
    k = _projected(c, key, "key", own_heads, width)
    v = _projected(c, value, "value", own_heads, depth)
    mask = _mask(c, given, query, value, key)
    y = ops.attention(q, k, v, *([] if mask is None else [mask]), scale=1 / math.sqrt(width), **_of_no_key(c, q.dtype))
    merged = ops.transpose(y, perm=(0, 2, 1, 3))
    if c.option("use_gate"):
        merged = ops.mul(merged, ops.sigmoid(_project(c, query.stored(), c.weights, "gate", 2)))
    return c.tensor(_output(c, merged), query.mask)


def _of_no_key(c: Call, dtype: str) -> dict[str, Any]:
    """Return what becomes of a query that takes no key: the mean of all values; 0 where weights may be dropped, which
    Keras computes another way."""
    if c.number("dropout", 0.0) > 0:
        return {"empty_is_zero": True}
    return {"masked": float(finfo(numpy_dtype(dtype)).min) * 0.7}


def _project(c: Call, x: Value, weights: Weights, name: str, free: int) -> Value:
    """Return [batch, steps, heads, width] of [batch, steps, channels]."""
    own = weights.part(f"{name}_dense", f"_{name}_dense")
    held = own.own(["kernel", "bias"] if c.option("use_bias", True) else ["kernel"])
    return einsum_dense(c, "abc,cde->abde", x, held["kernel"], held.get("bias"))


def _projected(c: Call, x: Tensor, name: str, heads: int, width: int) -> Value:
    """Return [batch, heads, steps, width]."""
    y = _project(c, x.stored(), c.weights, name, 2)
    if y.shape[2:] != (heads, width):
        raise InvalidModel(f"the {name} has {y.shape[2:]} heads and elements, expected {(heads, width)}")
    return ops.transpose(y, perm=(0, 2, 1, 3))


def _output(c: Call, x: Value) -> Value:
    own = c.weights.part("output_dense", "_output_dense", "attention_output")
    held = own.own(["kernel", "bias"] if c.option("use_bias", True) else ["kernel"])
    free = "efgh"[: held["kernel"].ndim - 2]
    return einsum_dense(c, f"abcd,cd{free}->ab{free}", x, held["kernel"], held.get("bias"))


def _mask(c: Call, given: Mapping[str, Any], query: Tensor, value: Tensor, key: Tensor) -> Value | None:
    """Return which keys a query takes, [batch, 1, queries, keys] or what broadcasts to that."""
    batch, queries = query.value.shape[:2]
    keys = key.value.shape[1]
    rows = _time_mask(c, given.get("query_mask"), query)
    whole = None if rows is None else c.reshaped(rows, (batch, 1, queries, 1))
    for name, tensor in (("value_mask", value), ("key_mask", key)):
        columns = _time_mask(c, given.get(name), tensor) if name == "value_mask" or key is not value else None
        whole = _both(whole, None if columns is None else c.reshaped(columns, (batch, 1, 1, keys)))
    if given.get("use_causal_mask"):
        whole = _both(whole, _causal(c, queries, keys))
    if c.option("sliding_window") is not None:
        whole = _both(whole, _near(c, queries, keys, c.count("sliding_window")))
    stated = given.get("attention_mask")
    if stated is not None:
        own = c.cast(c.held(stated).stored(), "bool")
        shape = own.shape if own.rank != 3 else (own.shape[0], 1, *own.shape[1:])
        whole = _both(whole, c.reshaped(own, shape))
    return whole


def _time_mask(c: Call, stated: Any, tensor: Tensor) -> Value | None:
    if stated is not None:
        return c.cast(c.held(stated).stored(), "bool")
    return tensor.mask


# --- without heads ----------------------------------------------------------------------------------------------------


@reads("Attention", "AdditiveAttention")
def _attention(
    c: Call,
    inputs: Sequence[Tensor],
    return_attention_scores: bool = False,
    use_causal_mask: bool = False,
) -> Any:
    if return_attention_scores:
        raise UnsupportedOp("its scores are a result", do="return the attention alone")
    query, value = inputs[0], inputs[1]
    key = inputs[2] if len(inputs) > 2 else value
    q, k, v = query.stored(), key.stored(), value.stored()
    taken = None if value.mask is None else c.reshaped(value.mask, (v.shape[0], 1, v.shape[1]))
    if use_causal_mask:
        taken = _both(taken, _causal(c, q.shape[1], k.shape[1]))
    is_dot = c.layer.kind == "Attention" and c.option("score_mode", "dot") == "dot"
    if is_dot:
        scale = float(c.own("scale")["scale"]) if c.option("use_scale") else 1.0
        more = [] if taken is None else [taken]
        y = ops.attention(q, k, v, *more, scale=scale, masked=-_big(q.dtype))
    else:
        y = ops.matmul(ops.softmax(_scores(c, q, k, taken), axis=-1), v)
    if query.mask is not None:
        y = where_masked(c, y, query.mask)
    return c.tensor(y, query.mask)


def _scores(c: Call, q: Value, k: Value, taken: Value | None) -> Value:
    """Return [batch, queries, keys], sums over the hyperbolic tangent of a query and a key."""
    rows = c.reshaped(q, (*q.shape[:2], 1, q.shape[2]))
    columns = c.reshaped(k, (k.shape[0], 1, *k.shape[1:]))
    together = ops.add(rows, columns)
    if c.layer.kind == "AdditiveAttention":
        curve = ops.tanh(together)
        curve = ops.mul(curve, c.constant(c.own("scale")["scale"], "scale")) if c.option("use_scale", True) else curve
        scores = ops.reduce_sum(curve, axes=(3,), keepdims=False)
    else:
        held = c.own(*(["scale"] if c.option("use_scale") else []), "concat_score_weight")
        if "scale" in held:
            together = ops.mul(together, c.constant(held["scale"], "scale"))
        scores = ops.reduce_sum(ops.tanh(together), axes=(3,), keepdims=False)
        scores = ops.mul(scores, c.constant(held["concat_score_weight"], "weight"))
    if taken is None:
        return scores
    return ops.where(taken, scores, ops.sub(scores, c.scalar(_big(scores.dtype), scores.dtype)))
