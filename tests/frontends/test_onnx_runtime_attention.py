"""Attention as ONNX Runtime's optimizer writes it, against that runtime: every operand and attribute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends import onnx_runtime
from tests.frontends.runtime_nodes import MICROSOFT, RNG, check, f, i, model, run

import renorm


def _angles(rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    angles = RNG.uniform(-3, 3, (rows, width))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    cos, sin = _angles(9, 4)
    offset, positions = np.array([3], np.int64), i(2, 5, below=9, dtype=np.int64)
    for place in (offset, positions):
        check("RotaryEmbedding", f(2, 5, 24), place, cos, sin, interleaved=interleaved)
        check("RotaryEmbedding", f(2, 3, 5, 8), place, cos, sin, interleaved=interleaved)
    attributes: dict[str, Any] = {"interleaved": interleaved, "num_heads": 2, "rotary_embedding_dim": 8}
    check("RotaryEmbedding", f(2, 5, 24), positions, cos, sin, **attributes)


PADDING = {
    "none": None,
    "ends": np.array([3, 5], np.int32),
    "ends and begins": np.array([4, 5, 1, 0], np.int32),
    "keys": np.array([[1, 1, 0, 1, 0], [1] * 5], np.int32),
    "queries and keys": i(2, 5, 5, below=2) | np.eye(5, dtype=np.int32),
}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(padding: str, unidirectional: int) -> None:
    operands = f(2, 5, 7), f(7, 36), f(36), PADDING[padding]
    check("Attention", *operands, num_heads=3, unidirectional=unidirectional, scale=0.25)
    check("Attention", *operands, None, f(1, 3, 5, 5), num_heads=3, unidirectional=unidirectional)
    sizes: dict[str, Any] = {"qkv_hidden_sizes": [12, 12, 18]}
    check("Attention", f(2, 5, 7), f(7, 42), f(42), PADDING[padding], num_heads=3, mask_filter_value=-50.0, **sizes)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_past(unidirectional: int) -> None:
    x, w, b, past = f(2, 3, 7), f(7, 36), f(36), f(2, 2, 3, 4, 4)
    keys = np.array([[1, 1, 0, 1, 1, 0, 1], [1] * 7], np.int32)
    check("Attention", x, w, b, None, past, outputs=2, num_heads=3, unidirectional=unidirectional)
    check("Attention", x, w, b, keys, past, outputs=2, num_heads=3, unidirectional=unidirectional)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("padding", ["none", "ends", "keys", "queries and keys"])
def test_multi_head_attention(padding: str, unidirectional: int) -> None:
    q, k, v, bias = f(2, 5, 12), f(2, 5, 12), f(2, 5, 18), f(42)
    attributes: dict[str, Any] = {"num_heads": 3, "unidirectional": unidirectional}
    check("MultiHeadAttention", q, k, v, bias, PADDING[padding], f(2, 1, 5, 5), **attributes)
    check("MultiHeadAttention", q, k, v, None, PADDING[padding], None, scale=0.5, **attributes)


def test_multi_head_attention_in_other_forms() -> None:
    check("MultiHeadAttention", f(2, 7, 12), f(2, 3, 5, 4), f(2, 3, 5, 4), num_heads=3)
    past = f(2, 3, 4, 4), f(2, 3, 4, 4)
    new = f(2, 5, 12), f(2, 5, 12), f(2, 5, 12)
    check("MultiHeadAttention", *new, f(36), None, f(2, 3, 5, 9), *past, num_heads=3, outputs=3)
    check("MultiHeadAttention", *new, None, None, None, *past, num_heads=3, outputs=3, unidirectional=1)


GROUPED: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2}


def _lengths(*lengths: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array(lengths, np.int32) - 1, np.array(max(lengths), np.int32)


@pytest.mark.parametrize(
    "attributes", [{}, {"scale": 0.3}, {"softcap": 1.5}, {"local_window_size": 2}, {"causal": 0}, {"smooth_softmax": 1}]
)
def test_group_query_attention(attributes: dict[str, Any]) -> None:
    q, k, v, *past = f(2, 5, 32), f(2, 5, 16), f(2, 5, 16), f(2, 2, 0, 8), f(2, 2, 0, 8)
    check("GroupQueryAttention", q, k, v, *past, *_lengths(5, 5), outputs=3, **GROUPED, **attributes)
    q, k, v, *past = f(2, 1, 32), f(2, 1, 16), f(2, 1, 16), f(2, 2, 6, 8), f(2, 2, 6, 8)
    check("GroupQueryAttention", q, k, v, *past, *_lengths(7, 7), outputs=3, **GROUPED, **attributes)


def test_queries_keys_and_values_in_one_tensor() -> None:
    """ONNX Runtime has this form on GPUs only."""
    packed = f(2, 5, 3, 3, 4)
    apart = [np.ascontiguousarray(packed[:, :, :, n]).reshape(2, 5, 12) for n in range(3)]
    expected = run("MultiHeadAttention", apart, 1, num_heads=3)[0]
    pair = np.ascontiguousarray(packed[:, :, :, 1:])
    for operands in ([packed], [apart[0], pair]):
        found = run("MultiHeadAttention", operands, 1, num_heads=3)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_group_query_attention_that_turns(interleaved: int) -> None:
    cos, sin = _angles(9, 8)
    attributes: dict[str, Any] = {"do_rotary": 1, "rotary_interleaved": interleaved, "outputs": 3, **GROUPED}
    packed, past = f(2, 1, 128), (f(2, 2, 6, 16), f(2, 2, 6, 16))
    check("GroupQueryAttention", packed, None, None, *past, *_lengths(7, 7), cos, sin, **attributes)
    packed, past = f(2, 5, 128), (f(2, 2, 0, 16), f(2, 2, 0, 16))
    check("GroupQueryAttention", packed, None, None, *past, *_lengths(5, 5), cos, sin, **attributes)


@pytest.mark.parametrize("window", [-1, 3])
def test_group_query_attention_to_sentences_of_several_lengths(window: int) -> None:
    """New keys stand behind those that are valid; beyond these a cache may hold anything."""
    cos, sin = _angles(9, 8)
    past = f(2, 2, 6, 16), f(2, 2, 6, 16)
    lengths, total = _lengths(7, 4)
    operands = f(2, 1, 64), f(2, 1, 32), f(2, 1, 32), *past, lengths, total, cos, sin
    attributes: dict[str, Any] = {"do_rotary": 1, "local_window_size": window, **GROUPED}
    held = model("GroupQueryAttention", operands, 3, MICROSOFT, attributes)
    expected = onnx_runtime.run(held, {f"x{n}": a for n, a in enumerate(operands)})
    got = run("GroupQueryAttention", operands, 3, **attributes)
    np.testing.assert_allclose(got[0], expected[0], rtol=2e-5, atol=2e-5)
    for a, b in zip(got[1:], expected[1:]):
        for n, length in enumerate(lengths + 1):
            np.testing.assert_allclose(a[n, :, :length], b[n, :, :length], rtol=2e-5, atol=2e-5)


def test_group_query_attention_with_more_operands() -> None:
    q, k, v, *past = f(2, 5, 64), f(2, 5, 32), f(2, 5, 32), f(2, 2, 0, 16), f(2, 2, 0, 16)
    operands = q, k, v, *past, *_lengths(5, 5)
    check("GroupQueryAttention", *operands, None, None, None, f(1, 4, 5, 5), outputs=3, **GROUPED)
    check("GroupQueryAttention", *operands, None, None, None, None, f(4), outputs=3, **GROUPED)
    cos, sin = _angles(9, 8)
    places = np.arange(5, dtype=np.int64)[None] + np.zeros((2, 1), np.int64)
    check("GroupQueryAttention", *operands, cos, sin, places, outputs=3, do_rotary=1, **GROUPED)


def test_group_query_attention_of_normed_heads() -> None:
    """ONNX Runtime has this on GPUs only."""
    q, k, v, *past = f(2, 5, 64), f(2, 5, 32), f(2, 5, 32), f(2, 2, 0, 16), f(2, 2, 0, 16)
    weights = f(16, low=0.5), f(16, low=0.5)
    rest = (v, *past, *_lengths(5, 5))
    (y,) = run("GroupQueryAttention", (q, k, *rest, *[None] * 7, *weights), 1, q_norm_epsilon=1e-3, **GROUPED)

    def normed(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
        heads = x.reshape(2, 5, -1, 16)
        return (heads / np.sqrt(np.square(heads).mean(-1, keepdims=True) + epsilon) * weight).reshape(x.shape)

    operands = (normed(q, weights[0], 1e-3), normed(k, weights[1], 1e-6), *rest)
    np.testing.assert_allclose(y, run("GroupQueryAttention", operands, 1, **GROUPED)[0], rtol=2e-5, atol=2e-5)


def test_group_query_attention_whose_cache_grows() -> None:
    """One module for every length: a first call of five tokens, then tokens one by one, as of all of them at once."""
    operands = f(2, 6, 64), f(2, 6, 32), f(2, 6, 32), f(2, 2, 0, 16), f(2, 2, 0, 16), *_lengths(6, 6)
    held = model("GroupQueryAttention", operands, 3, MICROSOFT, GROUPED)
    for place, axes in {0: {1: "new"}, 1: {1: "new"}, 2: {1: "new"}, 3: {2: "past"}, 4: {2: "past"}}.items():
        for axis, name in axes.items():
            held.graph.input[place].type.tensor_type.shape.dim[axis].dim_param = name
    module = renorm.compile(held)
    whole = module.run(*operands)
    rows, cache = list[np.ndarray](), operands[3:5]
    for begin, end in ((0, 4), (4, 5), (5, 6)):
        new = [np.ascontiguousarray(x[:, begin:end]) for x in operands[:3]]
        y, *cache = module.run(*new, *cache, *_lengths(end, end))
        rows.append(y)
    np.testing.assert_allclose(np.concatenate(rows, 1), whole[0], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(cache[0], whole[1], rtol=1e-6)
