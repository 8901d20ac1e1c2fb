"""Layouts of values: they are printed, parsed, copied and checked; of them the interpreter sees the dtype alone."""

import numpy as np
import pytest

from renorm import ops
from renorm.core.dims import Sym
from renorm.core.errors import InvalidGraph, ParseError
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.layout import Layout
from renorm.graph.parse import parse
from renorm.graph.strided_region import nbytes
from renorm.graph.verify import verify


def network() -> Graph:
    """x -> relu -> split in two -> sum; the first three results lie in blocks of 4."""
    g = Graph("layouts")
    y = ops.relu(g.input("x", "float32", (2, 16, 3, 5)))
    a, b = ops.split(y, None, axis=1, num_outputs=2)
    for v in (y, a, b):
        v.layout = Layout(1, 4)
    g.outputs = [ops.add(a, b)]
    return g


def layouts(g: Graph) -> list[Layout | None]:
    return [v.layout for n in g.nodes for v in n.outputs]


def test_text_says_the_layout_and_gives_it_back() -> None:
    g = network()
    assert str(g).count("f32[2, 8, 3, 5] blocked(1, 4)") == 2
    again = parse(str(g))
    assert layouts(again) == layouts(g) == [Layout(1, 4)] * 3 + [None]
    assert str(again) == str(g)


def test_copies_keep_layouts() -> None:
    assert layouts(network().copy()) == layouts(network())


def test_the_interpreter_sees_no_blocks() -> None:
    g, plain = network(), network()
    for n in plain.nodes:
        for v in n.outputs:
            v.layout = None
    x = np.random.default_rng(0).standard_normal((2, 16, 3, 5)).astype(np.float32)
    assert np.array_equal(interpret.run(g, [x])[0], interpret.run(plain, [x])[0])


@pytest.mark.parametrize(
    ("layout", "because"),
    [
        (Layout(4, 4), "cuts axis 4"),
        (Layout(-1, 4), "cuts axis -1"),
        (Layout(2, 2), "multiple of 2 elements along axis 2"),
        (Layout(1, 1), "multiple of 1"),
    ],
)
def test_a_layout_must_fit_its_value(layout: Layout, because: str) -> None:
    g = network()
    g.nodes[0].output.layout = layout
    with pytest.raises(InvalidGraph, match=because):
        verify(g)


def test_a_layout_needs_a_known_extent() -> None:
    g = Graph()
    y = ops.relu(g.input("x", "float32", (1, Sym("c"), 3)))
    g.outputs = [ops.neg(y)]
    y.layout = Layout(1, 4)
    with pytest.raises(InvalidGraph, match="multiple of 4"):
        verify(g)
    verify(g.copy({"c": 8}))


def test_what_callers_see_is_row_major() -> None:
    verify(network())
    for pick, what in ((lambda g: g.inputs[0], "an input"), (lambda g: g.outputs[0], "an output")):
        g = network()
        pick(g).layout = Layout(1, 4)
        with pytest.raises(InvalidGraph, match=f"is {what} of the graph and has layout blocked\\(1, 4\\)"):
            verify(g)
    g = network()
    constant = g.constant(np.ones((2, 8, 3, 5), np.float32))
    g.outputs = [ops.mul(g.outputs[0], constant)]
    constant.layout = Layout(1, 4)
    with pytest.raises(InvalidGraph, match="is a constant of the graph"):
        verify(g)


def test_a_layout_that_is_not_one_is_a_parse_error() -> None:
    text = str(network()).replace("blocked(1, 4)", "blocked(1, x)", 1)
    with pytest.raises(ParseError, match="expected a number, found 'x'"):
        parse(text)


def test_memory_may_hold_a_value_in_another_dtype() -> None:
    g = network()
    whole, part = g.nodes[0].output, g.nodes[1].outputs[0]
    whole.layout, part.layout = Layout(1, 4, "bfloat16"), Layout(dtype="bfloat16")
    verify(g)
    again = parse(str(g))
    assert layouts(again) == layouts(g.copy()) == layouts(g)
    assert "blocked(1, 4) as bf16 = " in str(g)
    assert "f32[2, 8, 3, 5] as bf16" in str(g)
    assert [nbytes(v) for v in (whole, part, g.outputs[0])] == [960, 480, 960]


def test_a_value_is_read_as_memory_holds_it() -> None:
    g = network()
    x = np.random.default_rng(0).standard_normal((2, 16, 3, 5)).astype(np.float32)
    plain = interpret.evaluate(g, [x])
    y = g.nodes[0].output
    y.layout = Layout(dtype="bfloat16")
    rounded = interpret.evaluate(g, [x])
    assert np.array_equal(rounded[y], interpret.widen(interpret.narrow(plain[y], "bfloat16")))
    assert (rounded[g.outputs[0]] != plain[g.outputs[0]]).any()
    assert all(np.array_equal(a, plain[v]) for v, a in interpret.evaluate(g, [x], held=False).items())


def test_only_float32_is_held_in_fewer_digits() -> None:
    g = Graph()
    y = ops.neg(g.input("x", "float64", (2, 4)))
    g.outputs = [ops.neg(y)]
    y.layout = Layout(dtype="bfloat16")
    with pytest.raises(InvalidGraph, match="is float64, which memory does not hold as bf16"):
        verify(g)
