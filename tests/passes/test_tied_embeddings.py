"""Matrices that are looked up in and multiplied: held once, and what is found is what was there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.graph.ir import Graph

WORDS, DEPTH = 523, 260


def model(w: Any, product: str, other: bool = False) -> Graph:
    """Scores of all words for the sum of those that were given. other: the product is of another matrix."""
    g = Graph("language")
    words = g.input("words", "int64", (2, 3))
    found = ops.gather(w, words, axis=0)
    scored = w + 1 if other else w
    x = ops.relu(found)
    y = ops.matmul(x, np.ascontiguousarray(scored.T)) if product == "matmul" else _gemm(x, scored)
    g.outputs = [found, y]
    return g


def _gemm(x: Any, w: Any) -> Any:
    return ops.gemm(ops.reshape(x, np.array([6, DEPTH], np.int64)), w, transB=True)


@pytest.mark.parametrize("product", ["matmul", "gemm"])
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
def test_a_matrix_is_held_once(product: str, target: str) -> None:
    w = np.random.default_rng(0).standard_normal((WORDS, DEPTH), np.float32)
    module = renorm.compile(model(w, product), target=target)
    other = renorm.compile(model(w, product, other=True), target=target)
    held, separate = (m.report.memory.weights for m in (module, other))
    assert w.nbytes <= held < 1.1 * w.nbytes
    assert separate >= 2 * w.nbytes
    words = np.array([[0, 522, -1], [17, -523, 260]])
    found, scores = module.run(words)
    np.testing.assert_array_equal(found, w[words])
    expected = np.maximum(w[words], 0).astype(np.float64) @ w.T.astype(np.float64)
    np.testing.assert_allclose(scores.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
def test_it_is_looked_up_as_it_is_where_products_round_it(target: str) -> None:
    w = np.random.default_rng(1).standard_normal((WORDS, DEPTH), np.float32)
    words = np.array([[0, 1, 2], [3, 4, 5]])
    module = renorm.compile(model(w, "matmul"), precision="bfloat16", target=target)
    found, _ = module.run(words)
    np.testing.assert_array_equal(found, w[words])
    assert "transpose" not in str(module.graph)


def test_a_matrix_that_something_else_reads_stays() -> None:
    w = np.random.default_rng(2).standard_normal((WORDS, DEPTH), np.float32)
    g = model(w, "matmul")
    constant = g.nodes[0].inputs[0]
    assert constant is not None
    g.outputs = [*g.outputs, ops.relu(constant)]
    assert "transpose" not in str(renorm.compile(g).graph)


def test_small_and_kept_ones_stay() -> None:
    w = np.random.default_rng(3).standard_normal((16, DEPTH), np.float32)
    assert "transpose" not in str(renorm.compile(model(w, "matmul")).graph)
    w = np.random.default_rng(3).standard_normal((WORDS, DEPTH), np.float32)
    assert "transpose" not in str(renorm.compile(model(w, "matmul"), keep=["gather"]).graph)
