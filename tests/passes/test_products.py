"""Whatever an exporter wrote for a fully connected layer, the kernels are the same (seed 004, part 7)."""

from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

from renorm import ops
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.passes.pipeline import optimize

C, R = 8, 2
_RNG = np.random.default_rng(0)
W1, W2 = _RNG.standard_normal((R, C)), _RNG.standard_normal((C, R))
B1, B2 = _RNG.standard_normal(R), _RNG.standard_normal(C)


def linear(x: Value, w: np.ndarray, b: np.ndarray | None, style: str) -> Any:
    """x @ w.T (+ b) as exporters have written it."""
    match style:
        case "gemm":
            return ops.gemm(x, w, b, transB=True)
        case "matmul":
            y = ops.matmul(x, w.T.copy())
        case "transpose":
            y = ops.matmul(x, ops.transpose(x.graph.constant(w), perm=(1, 0)))
        case "zero C":  # what the article proposes
            y = ops.gemm(x, w.T.copy(), np.zeros(len(w)), beta=0.0)
        case "scaled":
            y = ops.gemm(x, w.T / 2, np.zeros((1, len(w))), alpha=2.0)
        case _:
            raise AssertionError(style)
    return y if b is None else ops.add(y, b)


def block(style: str, bias: bool) -> Graph:
    """Squeeze and excitation."""
    g = Graph()
    x = g.input("x", "float64", (2, C, 5, 5))
    y = ops.flatten(ops.global_average_pool(x))
    y = ops.relu(linear(y, W1, B1 if bias else None, style))
    y = ops.sigmoid(linear(y, W2, B2 if bias else None, style))
    g.outputs = [ops.mul(x, ops.unsqueeze(y, axes=(2, 3)))]
    return g


STYLES = ["gemm", "matmul", "transpose", "zero C", "scaled"]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_all_ways_to_write_a_block_give_the_same_kernels(style: str, bias: bool) -> None:
    x = RNG.standard_normal((2, C, 5, 5))
    g = block(style, bias)
    expected = interpret.run(g, [x])[0]
    done, _ = optimize(g, level=2)
    same, _ = optimize(block("gemm", True), level=2)
    assert [k.name for k in done.groups] == [k.name for k in same.groups]
    assert [k.name for k in done.groups] == [
        *("reduce_mean", "fused_gemm_relu", "fused_gemm_sigmoid", "fused_unsqueeze_mul")
    ]
    for n in done.nodes:
        if n.op.name == "gemm":
            assert (n.op.values["transB"], n.op.values["alpha"], n.op.values["beta"]) == (False, 1.0, 1.0)
            assert (n.operands[2] is not None) == bias
            assert n.operands[1].is_constant
    np.testing.assert_allclose(interpret.run(done, [x])[0], expected, rtol=0, atol=1e-12)


def test_products_of_other_ranks_stay() -> None:
    g = Graph()
    x = g.input("x", "float32", (2, 3, 4))
    y = ops.matmul(x, np.ones((4, 5), np.float32))
    g.outputs = [ops.add(y, np.ones(5, np.float32))]
    done, report = optimize(g, level=2)
    assert [n.op.name for n in done.nodes] == ["matmul", "add"]
    reasons = {r[0]: r[2] for r in report.refusals}
    assert reasons["MatmulToGemm"] == "operands are of rank 3 and 2, and gemm takes matrices"
    assert [k.name for k in done.groups] == ["fused_matmul_add"]


def test_a_transposed_input_becomes_an_attribute() -> None:
    g = Graph()
    x, y = g.input("x", "float32", (3, 4)), g.input("y", "float32", (5, 4))
    g.outputs = [ops.matmul(x, ops.transpose(y, perm=(1, 0)))]
    a, b = RNG.standard_normal((3, 4)), RNG.standard_normal((5, 4))
    done, _ = optimize(g, level=2)
    assert [repr(n.op) for n in done.nodes] == ["Gemm(transB=True)"]
    np.testing.assert_allclose(interpret.run(done, [a, b])[0], a @ b.T, rtol=1e-5, atol=1e-5)


def test_integers_are_not_rounded() -> None:
    g = Graph()
    x = g.input("x", "int64", (1, 2))
    g.outputs = [ops.gemm(x, np.array([[2**61], [1]]), np.array([[1]]), alpha=2.0, beta=3.0)]
    done, _ = optimize(g, level=2)
    assert interpret.run(done, [np.array([[1, 1]])])[0].tolist() == [[2**62 + 5]]
