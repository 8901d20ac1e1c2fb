"""Zeros that a node of their own puts around an image become the padding of the convolution behind it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm import ops
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.verify import verify
from renorm.passes import padding
from renorm.passes.context import Context
from renorm.passes.rewriting import ApplyRules


def padded_conv(around: list[int], axes: list[int] | None = None, value: float | None = None, **conv: Any) -> Graph:
    rng, g = np.random.default_rng(0), Graph()
    x = g.input("x", "float64", (2, 3, 5, 6))
    given = [None if v is None else np.asarray(v, d) for v, d in ((value, "float64"), (axes, "int64"))]
    y = ops.pad(x, np.asarray(around, np.int64), *given, name="pad")
    g.outputs = [ops.conv(y, rng.standard_normal((4, 3, 3, 2)), rng.standard_normal(4), name="conv", **conv)]
    return g


def run(g: Graph) -> tuple[list[str], list[str]]:
    """Op names afterwards and reasons of refusals; the numbers must not change."""
    data = np.random.default_rng(1).standard_normal((2, 3, 5, 6))
    expected, context = interpret.run(g, [data])[0], Context()
    ApplyRules(padding.RULES).run(g, context)
    verify(g)
    np.testing.assert_allclose(interpret.run(g, [data])[0], expected, rtol=0, atol=1e-12)
    return [n.op.name for n in g.nodes], [r.reason for r in context.log.refused.values()]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.booleans(),
    st.integers(1, 2),
)
def test_pads_add_up(outer: list[int], inner: list[int], by_axes: bool, stride: int) -> None:
    pads = outer if by_axes else [0, 0, *outer[:2], 0, 0, *outer[2:]]
    g = padded_conv(pads, [2, -1] if by_axes else None, pads_of_conv(inner), strides=(stride, stride), pads=inner)
    assert run(g) == (["conv"], [])
    assert g.nodes[0].op.values["pads"] == tuple(a + b for a, b in zip(outer, inner))


def pads_of_conv(inner: list[int]) -> float | None:
    """A value of 0, or none at all: both mean zeros."""
    return 0.0 if sum(inner) % 2 else None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"around": [0, 0, 1, 1, 0, 0, 1, 1], "value": 0.5}, "it pads with 0.5, and convolutions pad with 0"),
        ({"around": [0, 0, 1, -1, 0, 0, 1, 1]}, "it crops, which convolutions cannot"),
        ({"around": [1, 0, 1, 1, 0, 0, 1, 1]}, "it pads batch or channels"),
        ({"around": [0] * 8, "auto_pad": "SAME_UPPER"}, "auto_pad = SAME_UPPER depends on the padded extents"),
    ],
)
def test_what_a_convolution_cannot_say_stays(arguments: dict[str, Any], reason: str) -> None:
    assert run(padded_conv(**arguments)) == (["pad", "conv"], [reason])


def test_other_modes_stay() -> None:
    g = Graph()
    x = g.input("x", "float64", (2, 3, 5, 6))
    y = ops.pad(x, np.array([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect")
    g.outputs = [ops.conv(y, np.ones((4, 3, 3, 2)))]
    assert run(g) == (["pad", "conv"], [])
