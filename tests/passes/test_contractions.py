"""Sums of products of two operands become matrix products that compute what NumPy's einsum does in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_numbers import RNG

from renorm import ops
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.rewrite import Driver
from renorm.graph.verify import verify
from renorm.passes import contractions

KINDS = [(True, True, True), (True, True, False), (True, False, True), (False, True, True)]  # in a, in b, in the result


def rewritten(equation: str, *arrays: np.ndarray[Any, Any]) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Names of the ops after the rewrite, and the result."""
    g = Graph()
    g.outputs = [ops.einsum([g.input(f"x{i}", "float64", a.shape) for i, a in enumerate(arrays)], equation=equation)]
    Driver(contractions.RULES).run(g)
    verify(g)
    return [n.op.name for n in g.nodes], interpret.run(g, list(arrays))[0]


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    kinds = dict(zip("abcdef", draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))))
    extents = {n: draw(st.integers(1, 4)) for n in kinds}
    a, b, y = ("".join(draw(st.permutations([n for n, where in kinds.items() if where[k]]))) for k in range(3))
    return f"{a},{b}->{y}", tuple(extents[n] for n in a), tuple(extents[n] for n in b)


@given(case=equations())
@settings(max_examples=80, deadline=None)
def test_it_computes_the_same(case: tuple[str, tuple[int, ...], tuple[int, ...]]) -> None:
    equation, *shapes = case
    a, b = (RNG.standard_normal(shape) for shape in shapes)
    names, y = rewritten(equation, a, b)
    assert "einsum" not in names
    np.testing.assert_allclose(y, np.einsum(equation, a, b), rtol=0, atol=1e-12)


def test_heads_need_no_copies() -> None:
    q, k = RNG.standard_normal((2, 3, 5, 4)), RNG.standard_normal((2, 3, 4, 6))
    assert rewritten("bhik,bhkj->bhij", q, k)[0] == ["matmul"]
    assert rewritten("bhik,bhjk->bhij", q, q)[0] == ["transpose", "matmul"]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]), ("ab,bc->c", [(2, 3), (3, 4)]), ("aab,bc->ac", [(2, 2, 3), (3, 4)])],
)
def test_what_is_no_product_of_two_matrices_stays(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [RNG.standard_normal(shape) for shape in shapes]
    names, y = rewritten(equation, *arrays)
    assert names == ["einsum"]
    np.testing.assert_allclose(y, np.einsum(equation, *arrays), rtol=0, atol=1e-12)
