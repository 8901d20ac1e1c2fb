"""Zeros that a node of their own puts around an image become the padding of the convolution behind it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm import ops
from renorm.core.dims import Sym
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.verify import verify
from renorm.passes import padding
from renorm.passes.context import Context
from renorm.passes.pipeline import optimize
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
        ({"around": [0, 0, 1, 1, 0, 0, 1, 1], "value": np.inf}, "it pads with inf, and convolutions pad with 0"),
        ({"around": [0, 0, 1, -1, 0, 0, 1, 1]}, "it crops, which convolutions cannot"),
        ({"around": [1, 0, 1, 1, 0, 0, 1, 1]}, "it pads batch or channels"),
        ({"around": [0] * 8, "auto_pad": "SAME_UPPER"}, "auto_pad = SAME_UPPER depends on the padded extents"),
    ],
)
def test_what_a_convolution_cannot_say_stays(arguments: dict[str, Any], reason: str) -> None:
    assert run(padded_conv(**arguments)) == (["pad", "conv"], [reason])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 2), min_size=4, max_size=4).filter(any),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.lists(st.integers(1, 2), min_size=2, max_size=2),
    st.lists(st.integers(1, 2), min_size=2, max_size=2),
    st.sampled_from([0.5, -3.0, 1e-3]),
)
def test_other_values_are_an_image_at_the_border(
    outer: list[int], inner: list[int], strides: list[int], dilations: list[int], value: float
) -> None:
    g = padded_conv([0, 0, *outer[:2], 0, 0, *outer[2:]], None, value, pads=inner, strides=strides, dilations=dilations)
    assert run(g) == (["conv", "add"], [])
    image = g.nodes[1].inputs[1]
    assert image is not None
    assert image.shape == (1, *g.outputs[0].shape[1:])


def test_an_image_that_is_large_or_not_known_stays_a_pad() -> None:
    def reasons(n: Any, side: Any) -> list[str]:
        g, w = Graph(), np.ones((64, 3, 3, 3), np.float32)
        y = ops.pad(g.input("x", "float32", (n, 3, side, 8)), np.array([0, 0, 1, 1, 0, 0, 1, 1]), np.float32(2))
        g.outputs = [ops.conv(y, w)]
        ApplyRules(padding.RULES).run(g, context := Context())
        return [r.reason for r in context.log.refused.values()]

    assert reasons(Sym("N"), 8) == []
    assert "depends on extents that are not known" in reasons(1, Sym("H"))[0]
    assert "would take" in reasons(1, 1 << 20)[0]


@pytest.mark.parametrize("places", ["before", "between", "behind", "all"])
@pytest.mark.parametrize("value", [0.5, -2.0])
@pytest.mark.parametrize("groups", [1, 2])
def test_norms_around_such_a_pad_fold(places: str, value: float, groups: int) -> None:
    """conv, norm, pad, norm, conv, norm: nothing is left but convolutions and what they add at the border."""
    rng, g = np.random.default_rng(3), Graph()

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    def norm(x: Any, name: str) -> Any:
        c = x.shape[1]
        return ops.batch_norm(x, normal(c), normal(c), normal(c), np.abs(normal(c)) + 0.1, name=name)

    def wanted(place: str) -> bool:
        return places in (place, "all")

    x = g.input("x", "float32", (2, 4, 6, 7))
    y = ops.conv(x, normal(8, 4, 3, 3), normal(8)) if places != "before" else x
    y = norm(y, "first") if wanted("before") else y
    y = ops.pad(y, np.array([0, 0, 2, 1, 0, 0, 1, 0]), np.float32(value))
    y = norm(y, "second") if wanted("between") else y
    y = ops.conv(y, normal(6, y.shape[1] // groups, 3, 2), normal(6), group=groups, pads=(1, 0, 0, 1))
    g.outputs = [norm(y, "third") if wanted("behind") else y]
    data = normal(2, 4, 6, 7)
    (expected,) = interpret.run(g, [data])
    after, report = optimize(g, level=2, for_export=True, verify=True)
    assert {n.fate for n in report.norms} == {"folded"}, report
    assert {n.op.name for n in after.nodes} <= {"conv", "add"}, after
    (found,) = interpret.run(after, [data])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_other_modes_stay() -> None:
    g = Graph()
    x = g.input("x", "float64", (2, 3, 5, 6))
    y = ops.pad(x, np.array([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect")
    g.outputs = [ops.conv(y, np.ones((4, 3, 3, 2)))]
    assert run(g) == (["pad", "conv"], [])
