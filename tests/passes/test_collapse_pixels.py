"""A transposed convolution of one pixel becomes a product that computes the same as the interpreter does in float64."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import renorm
from renorm import ops
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.rewrite import Driver
from renorm.graph.verify import verify
from renorm.passes import collapse_pixels


def rewritten(x: Any, w: Any, b: Any, **attributes: Any) -> tuple[list[str], Any, Any]:
    """Names of the ops after the rewrite, result before, result after."""
    g = Graph()
    g.outputs = [ops.conv_transpose(g.input("x", "float64", x.shape), w, b, **attributes)]
    (before,) = interpret.run(g, [x])
    Driver(collapse_pixels.RULES).run(g)
    verify(g)
    return [n.op.name for n in g.nodes], before, interpret.run(g, [x])[0]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Any], dict[str, Any]]:
    rank = draw(st.integers(1, 3))
    n, c, m = (draw(st.integers(1, 4)) for _ in range(3))

    def each(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(rank)]

    kernel = each(1, 4)
    pads = [draw(st.integers(0, (k - 1) // 2)) for k in (*kernel, *kernel)]
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    b = rng.standard_normal(m) if draw(st.booleans()) else None
    operands = [rng.standard_normal((n, c, *[1] * rank)), rng.standard_normal((c, m, *kernel)), b]
    return operands, {"strides": tuple(each(1, 3)), "dilations": tuple(each(1, 2)), "pads": tuple(pads)}


@given(case=cases())
@settings(max_examples=150, deadline=None)
def test_a_rewritten_convolution_computes_the_same(case: tuple[list[Any], dict[str, Any]]) -> None:
    operands, attributes = case
    _, before, after = rewritten(*operands, **attributes)
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-12 * max(1.0, np.abs(before).max(initial=0)))


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((8, 5, 1, 1), (5, 3, 4, 4), {}),
        ((8, 5, 1, 1), (5, 3, 4, 3), {"pads": (1, 0, 1, 1), "strides": (2, 2)}),
    ],
)
def test_it_is_a_product(x: Any, w: Any, attributes: Any) -> None:
    rng = np.random.default_rng(0)
    names, before, after = rewritten(rng.standard_normal(x), rng.standard_normal(w), None, **attributes)
    assert names == ["reshape", "gemm", "reshape"]
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 4, 1, 1), (4, 2, 3, 3), {"group": 2}),
        ((2, 4, 2, 1), (4, 4, 3, 3), {}),
        ((2, 4, 1, 1), (4, 2, 2, 2), {"dilations": (2, 2)}),
        ((2, 4, 1, 1), (4, 2, 2, 2), {"strides": (2, 2), "output_padding": (1, 1)}),
    ],
)
def test_what_is_more_than_one_product_stays(x: Any, w: Any, attributes: Any) -> None:
    rng = np.random.default_rng(0)
    names, *_ = rewritten(rng.standard_normal(x), rng.standard_normal(w), None, **attributes)
    assert names == ["conv_transpose"]


def test_a_pixel_without_channels() -> None:
    g = Graph()
    g.outputs = [ops.conv_transpose(g.input("x", "float32", (1, 0, 1, 1)), np.zeros((0, 3, 2, 2), np.float32))]
    (y,) = renorm.compile(g).run(np.zeros((1, 0, 1, 1), np.float32))
    np.testing.assert_array_equal(y, np.zeros((1, 3, 2, 2), np.float32))
