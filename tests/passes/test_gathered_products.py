"""Products of gathered matrices read these where they lie, and compute what NumPy does in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_numbers import RNG

from renorm import ops
from renorm.driver.compile import compile
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.rewrite import Driver
from renorm.passes import gathered_products

TURNED = (0, 2, 1)
EXTENT = st.integers(0, 4)


def product(form: str, x: Any, w: Any, i: Any) -> Any:
    """Return x times chosen matrices, those turned, or chosen matrices times x."""
    chosen = ops.gather(w, i)
    if form == "right":
        return ops.matmul(chosen, x)
    return ops.matmul(x, chosen if form == "left" else ops.transpose(chosen, perm=TURNED))


def expected(form: str, x: Any, chosen: Any) -> Any:
    if form == "right":
        return chosen @ x
    return x @ (chosen if form == "left" else chosen.transpose(TURNED))


def network(form: str, x: tuple[int, ...], w: np.ndarray[Any, Any], chosen: int, dtype: str) -> Graph:
    g = Graph()
    g.outputs = [product(form, g.input("x", dtype, x), g.constant(w, "w"), g.input("i", "int64", (chosen,)))]
    return g


@given(form=st.sampled_from(["left", "turned", "right"]), b=EXTENT, m=EXTENT, k=EXTENT, n=EXTENT, e=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_it_computes_the_same(form: str, b: int, m: int, k: int, n: int, e: int) -> None:
    shapes = {"left": ((b, m, k), (e, k, n)), "turned": ((b, m, k), (e, n, k)), "right": ((b, k, n), (e, m, k))}
    x, w = (RNG.standard_normal(shape) for shape in shapes[form])
    i = RNG.integers(-e, e, b)
    g = network(form, x.shape, w, b, "float64")
    Driver(gathered_products.RULES).run(g)
    assert [node.op.name for node in g.nodes].count("gather_matmul") == 1
    np.testing.assert_allclose(interpret.run(g, [x, i])[0], expected(form, x, w[i]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["left", "turned", "right"])
def test_nothing_is_gathered(form: str) -> None:
    x, w = RNG.standard_normal((6, 32, 1) if form == "right" else (6, 1, 32)), RNG.standard_normal((3, 32, 32))
    module = compile(network(form, x.shape, w.astype(np.float32), 6, "float32"))
    assert not [k.name for k in module.report.kernels if "gather" in k.name.replace("gather_matmul", "")]
    i = RNG.integers(0, 3, 6)
    np.testing.assert_allclose(module.run(x.astype(np.float32), i)[0], expected(form, x, w[i]), rtol=1e-4, atol=1e-4)


def test_what_stays() -> None:
    """One matrix for all, gathered along another axis, or indices of two axes."""
    g = Graph()
    x, w = g.input("x", "float32", (1, 2, 3)), g.constant(np.zeros((4, 3, 5), np.float32), "w")
    i, pairs = g.input("i", "int64", (2,)), g.input("pairs", "int64", (1, 1))
    g.outputs = [
        ops.matmul(x, ops.gather(w, i)),
        ops.matmul(x, ops.gather(w, pairs)),
        ops.matmul(g.input("z", "float32", (4, 2, 3)), ops.gather(w, i, axis=2)),
    ]
    Driver(gathered_products.RULES).run(g)
    assert all(node.op.name != "gather_matmul" for node in g.nodes)
