"""Group normalization between reshapes becomes one op that computes the same as the interpreter does in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.rewrite import Driver
from renorm.graph.verify import verify
from renorm.passes import raise_group_norm


def between_reshapes(shape: tuple[int, ...], inside: tuple[int, ...], back: tuple[int, ...], dtype: str) -> Graph:
    groups = inside[1] if inside[1] > 0 else shape[1]
    scale, bias = (RNG.standard_normal(groups).astype(dtype) for _ in range(2))
    g = Graph()
    x = ops.reshape(g.input("x", dtype, shape), np.array(inside, np.int64))
    y = ops.instance_norm(x, scale, bias, epsilon=1e-3, name="norm")
    g.outputs = [ops.reshape(y, np.array(back, np.int64))]
    return g


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], int]:
    groups = draw(st.integers(1, 4))
    channels = groups * draw(st.integers(1, 3))
    return (draw(st.integers(1, 3)), channels, *draw(st.lists(st.integers(1, 5), min_size=0, max_size=3))), groups


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_it_computes_the_same(case: tuple[tuple[int, ...], int]) -> None:
    shape, groups = case
    g = between_reshapes(shape, (shape[0], groups, -1), shape, "float64")
    x = RNG.standard_normal(shape)
    (before,) = interpret.run(g, [x])
    Driver(raise_group_norm.RULES).run(g)
    verify(g)
    assert [n.op.name for n in g.nodes] == ["group_norm"]
    np.testing.assert_allclose(interpret.run(g, [x])[0], before, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "inside", "back"),
    [
        ((2, 6, 5), (2, 6, 5, 1), (2, 30)),  # goes on in another shape
        ((4, 6, 5), (2, 3, -1), (4, 6, 5)),  # statistics over two samples
        ((2, 3, 4), (2, 2, 6), (2, 3, 4)),  # a channel belongs to two groups
    ],
)
def test_what_is_no_group_normalization_stays(shape: Any, inside: Any, back: Any) -> None:
    g = between_reshapes(shape, inside, back, "float32")
    Driver(raise_group_norm.RULES).run(g)
    assert [n.op.name for n in g.nodes] == ["reshape", "instance_norm", "reshape"]


def test_the_report_says_that_it_is_there() -> None:
    g = between_reshapes((1, 6, 7, 5), (1, 3, 70), (1, 6, 7, 5), "float32")
    x = RNG.standard_normal((1, 6, 7, 5)).astype(np.float32)
    (expected,) = interpret.run(g, [x])
    module = renorm.compile(g)
    np.testing.assert_allclose(module.run(x)[0], expected, rtol=0, atol=1e-5)
    (record,) = module.report.norms
    assert (record.name, record.fate) == ("norm", "kept")
