"""Graphs print and parse back to the same text, whatever is in them; mistakes are found with line and column."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mutated_texts import mutated
from tests.ops.one_node import OneNode

from renorm import ops
from renorm.core.dims import Sym, bounds, maximum, minimum
from renorm.core.errors import ParseError
from renorm.graph import interpret, registry
from renorm.graph.ir import Graph, Group
from renorm.graph.op import OpDef, Sample
from renorm.graph.parse import parse
from renorm.graph.text import digest, text
from renorm.graph.verify import verify

SAMPLES = [pytest.param(op, s, id=f"{op.name}-{i}") for op in registry.all_ops() for i, s in enumerate(op.samples)]


def constants_of(g: Graph) -> dict[str, np.ndarray]:
    return {v.name: v.data for v in g.constants.values() if v.data is not None}


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_every_op_prints_and_parses(op: type[OpDef], sample: Sample) -> None:
    g = OneNode(op, sample).graph
    verify(g)
    again = parse(str(g), constants_of(g))
    assert str(again) == str(g)
    assert [n.op for n in again.nodes] == [n.op for n in g.nodes]
    assert [n.name for n in again.nodes] == [n.name for n in g.nodes]
    verify(again)


def test_how_a_graph_reads() -> None:
    g = Graph("net", metadata={"opset": 17, "unprintable": object()})
    x = g.input("x", "float32", (1, 3, 8, 8))
    w = g.constant(np.zeros((4, 3, 3, 3), np.float32), "w", "conv1.weight")
    y = g.apply(registry.find("conv")(strides=(2, 2)), [x, w], name="Conv_0", outputs=["input.4"])
    g.outputs = [ops.relu(y, name="Relu_1")]
    assert text(g).splitlines() == [
        "graph net(x: f32[1, 3, 8, 8]) -> (%Relu_1_out) {opset=17} {",
        f"  const %w: f32[4, 3, 3, 3] = #{digest(np.asarray(w.data))}  // conv1.weight",
        "  %input.4: f32[1, 4, 3, 3] = conv(%x, %w) {strides=[2, 2]}  // Conv_0",
        "  %Relu_1_out: f32[1, 4, 3, 3] = relu(%input.4)  // Relu_1",
        "}",
    ]
    g.groups = [Group("fused_conv2d_relu", list(g.nodes))]
    lines = str(g).splitlines()
    assert lines[2:] == [
        "  kernel fused_conv2d_relu {",
        "    %input.4: f32[1, 4, 3, 3] = conv(%x, %w) {strides=[2, 2]}  // Conv_0",
        "    %Relu_1_out: f32[1, 4, 3, 3] = relu(%input.4)  // Relu_1",
        "  }",
        "}",
    ]
    again = parse(str(g), constants_of(g))
    assert str(again) == str(g)
    assert [[n.name for n in k.nodes] for k in again.groups] == [["Conv_0", "Relu_1"]]
    assert again.metadata == {"opset": 17}


def test_absent_and_variadic_operands_and_origins() -> None:
    g = Graph()
    x = g.input("x", "float32", (2, 3))
    a = g.apply(registry.find("clip")(), [x, None, g.constant(np.float32(1))], origin=("Min_3", "Max_4"))
    g.outputs = [g.apply(registry.find("concat")(axis=0), [[a, x, a]])]
    assert "clip(%x, -, %const)  // clip (Min_3, Max_4)" in str(g)
    assert "concat([%clip_out, %x, %clip_out]) {axis=0}" in str(g)
    again = parse(str(g))
    assert str(again) == str(g)
    assert again.nodes[0].origin == ("Min_3", "Max_4")


NAMES = st.text(min_size=1, max_size=12).filter(lambda n: n.isprintable())


@settings(deadline=None, max_examples=60)
@given(st.lists(NAMES, min_size=5, max_size=5, unique=True))
def test_any_name_survives(names: list[str]) -> None:
    g = Graph(names[0])
    x = g.input(names[1], "float32", (2,))
    c = g.constant(np.array([1, 2], np.float32), names[2], names[0], exact=True)
    y = g.apply(registry.find("add")(), [x, c], name=names[3], outputs=[names[4]], origin=(names[0],))
    g.outputs = [y]
    again = parse(str(g))
    assert str(again) == str(g)
    assert (again.name, again.inputs[0].name, again.outputs[0].name) == (names[0], names[1], names[4])
    assert (again.nodes[0].name, again.nodes[0].origin) == (names[3], (names[0],))


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["float32", "float64", "float16", "int64", "int8", "uint8", "bool"]),
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
)
def test_small_constants_are_written_exactly(dtype: str, rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(0, 3, rank))
    bits = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    data = bits.view(dtype).reshape(shape) if dtype != "bool" else bits.reshape(shape) > 127
    g = Graph()
    c = g.constant(data, "c")
    g.outputs = [ops.identity(c)]
    with np.errstate(invalid="ignore"):
        again = parse(str(g)).constants["c"].data
    assert again is not None
    assert again.dtype == data.dtype
    assert again.shape == data.shape
    np.testing.assert_array_equal(again, data)


def test_symbolic_extents() -> None:
    n, h = Sym("N"), Sym("H")
    g = Graph()
    x = g.input("x", "float32", (n, 2 * h + 1, (h + 1) // 2, (h + n) % 3))
    g.outputs = [ops.relu(x)]
    again = parse(str(g))
    assert again.inputs[0].shape == x.shape
    assert str(again) == str(g)


def test_what_is_known_of_symbols() -> None:
    n, h = Sym("N", 1, 64), Sym("H", 2)
    g = Graph()
    x = g.input("x", "float32", (n, minimum(16 * h, maximum(n, 5))))
    g.outputs = [ops.relu(x)]
    again = parse(str(g))
    assert "x: f32[N:1..64, min(16*H:2.., max(5, N:1..64))]" in str(g)
    assert str(again) == str(g)
    assert [bounds(d) for d in again.outputs[0].shape] == [bounds(d) for d in x.shape] == [(1, 64), (5, 64)]
    with pytest.raises(ParseError, match="sup is neither min nor max"):
        parse(str(g).replace("min(", "sup("))


def test_elements_that_are_extents() -> None:
    g, n = Graph(), Sym("N", 1)
    x = g.input("x", "float32", (n, 4))
    to = g.open_constant(np.array([2 * n, 2], dtype=object), "to", "int64")
    assert g.open_constant(np.array([2 * n, 2], dtype=object), "again", "int64") is to
    g.outputs = [ops.reshape(x, to)]
    assert "extents %to: i64[2] = [2*N, 2]" in str(g)
    again = parse(str(g))
    assert str(again) == str(g)
    assert again.outputs[0].shape == (2 * n, 2)
    given = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(interpret.run(again, [given])[0], given.reshape(6, 2))
    fixed = again.copy({"N": 3})
    assert not fixed.extents
    np.testing.assert_array_equal(interpret.run(fixed, [given])[0], given.reshape(6, 2))
    with pytest.raises(ParseError, match="which does not have 1 elements"):
        parse(str(g).replace("[2*N, 2]\n", "[2*N]\n"))


def test_large_constants_are_looked_up_and_compared() -> None:
    g = Graph("g")
    w = g.constant(np.arange(100.0).reshape(10, 10), "w")
    v = g.constant(np.arange(50), "v")
    g.outputs = [ops.identity(w), ops.identity(v)]
    with pytest.raises(ParseError, match="elements of 2 constants") as error:
        parse(str(g))
    assert error.value.facts == ("%w: f64[10, 10]", "%v: i64[50]")
    with pytest.raises(ParseError, match=r"line 2, column 9: %w has digest"):
        parse(str(g), {"w": np.zeros((10, 10)), "v": np.arange(50)})
    with pytest.raises(ParseError, match=r"%w is f64\[10, 10\], but the array given is float64\[100\]"):
        parse(str(g), {"w": np.arange(100.0), "v": np.arange(50)})
    again = parse(str(g), constants_of(g))
    np.testing.assert_array_equal(interpret.run(again, [])[0], np.arange(100.0).reshape(10, 10))


GOOD = """graph g(x: f32[2, 3]) -> (%y) {
  %a: f32[2, 3] = relu(%x)  // first
  %y: f32[2, 3] = add(%a, %x)  // second
}"""


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("add(%a", "add(%b", "line 3, column 23", "%b is not defined above; nearest: "),
        ("= relu", "= reluu", "line 2, column 19", "nearest: relu"),
        ("%a: f32[2, 3]", "%a: f32[2, 4]", "line 2, column 3", r"%a is written as f32\[2, 4\] but is f32\[2, 3\]"),
        ("%y: f32[2, 3]", "%a: f32[2, 3]", "line 3", "used twice"),
        ("f32[2, 3]) ->", "f99[2, 3]) ->", "line 1, column 12", "expected a dtype .*, found 'f99'"),
        ("(%y) {", "(%z) {", "line 1, column 27", "%z is not defined"),
        ("relu(%x)", "relu(%x) {alpha=1}", "line 2, column 3", "relu has no attribute 'alpha'"),
        ("// second\n}", "// second\n", "line 4", "the end of the text"),
        ("// second\n}", "// second\n} }", "line 4, column 3", "expected the end"),
        ("add(%a, %x)", "add(%a; %x)", "line 3, column 25", r"expected ',' or '\)', found ';'"),
        ("x: f32[2, 3]) ->", "x: f32[2., 3]) ->", "line 1, column 16", "expected an extent or ']', found '2.'"),
        ("x: f32[2, 3]) ->", '"\\x": f32[2, 3]) ->', "line 1, column 9", "expected the name of an input"),
        ("{\n", "{\n  const %c: f32[N] = [1]\n", "line 2, column 9", "a constant has no open extents"),
        ("{\n", "{\n  const %c: u8[1] = [300]\n", "line 2, column 9", r"%c is u8\[1\]: .*300"),
        ("{\n", "{\n  const %c: f32[-1] = #0\n", "line 2, column 9", r"%c is f32\[-1\]: .*non-negative"),
        ("{\n", "{\n  const %x: i64[] = 3\n", "line 2, column 9", "used twice"),
        ("(x: f32[2, 3])", "(x: f32[2, 3], x: f32[2, 3])", "line 1, column 23", "used twice"),
        ("(x: f32[2, 3])", "(x: f32[(N)//(N + -1*N), 3])", "line 1, column 19", "N is divided by 0"),
        ("(x: f32[2, 3])", f"(x: f32[{'2' * 5000}, 3])", "line 1, column 16", "4300 digits"),
        ("(%a, %x)", "(%a, %x) {axis=inf}", "line 3, column 3", "no attribute 'axis'"),
        ("relu(%x)", "softmax(%x) {axis=inf}", "line 2, column 3", "axis = inf is not an integer"),
    ],
)
def test_mistakes_have_line_and_column(old: str, new: str, where: str, what: str) -> None:
    parse(GOOD)
    assert old in GOOD
    with pytest.raises(ParseError, match=what) as error:
        parse(GOOD.replace(old, new))
    assert where in str(error.value)


def test_mistakes_are_shown() -> None:
    with pytest.raises(ParseError) as error:
        parse(GOOD.replace("relu(%x)", "relu(x)"))
    assert error.value.facts == ("  %a: f32[2, 3] = relu(x)  // first", " " * 23 + "^")
    assert error.value.do == "the grammar is in renorm.graph.parse"
    with pytest.raises(ParseError, match="line 1, column 1009") as error:
        parse(f"graph g({'x' * 1000};")
    assert error.value.facts == ("x" * 100 + ";", " " * 100 + "^")  # not all of a long line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("graph g(x: f32[" + "(" * 100_000, "line 1, column 100016: expected an extent, found the end of the text"),
        ("graph g() -> () {a = " + "[" * 100_000, "line 1, column 100022: expected a value or ']', found the end"),
        ("graph g() -> () {const %c: f32[] = " + "[" * 100_000 + "]" * 100_000 + "}", r"column 24: %c is f32\[\]"),
        ("graph g(x: f32[" + "(" * 10_000 + "N" + ")//(M)" * 10_000 + "]) -> () {}", "too many brackets"),
    ],
)
def test_brackets_within_brackets_without_end_are_an_error(text: str, expected: str) -> None:
    with pytest.raises(ParseError, match=expected):
        parse(text)


def test_brackets_are_read_however_deep_they_are() -> None:
    read = parse("graph g() -> () {a = " + "[" * 100_000 + "]" * 100_000 + "} {}").metadata["a"]
    for _ in range(99_999):
        (read,) = read
    assert read == []
    text = f"graph g(x: f32[{'(' * 40}N{')//(M)' * 40}]) -> () {{\n}}"  # took a time that doubles with each bracket
    assert str(parse(text)) == text


def test_names_of_attributes_are_quoted_where_they_are_no_words() -> None:
    g = Graph("g", metadata={"a b": 1, "const": 2, "kernel": "3"})
    assert str(g).splitlines()[0] == 'graph g() -> () {"a b"=1, const=2, kernel="3"} {'
    assert parse(str(g)).metadata == g.metadata
    assert parse("graph g() -> () {const=2} {const %c: i64[] = 3}").metadata == {"const": 2}


WRONG = [GOOD, *(str(OneNode(op, s).graph) for op in registry.all_ops() for s in op.samples[:1])]


@settings(deadline=None, max_examples=300)
@given(mutated(WRONG))
def test_what_is_wrong_in_a_text_is_a_parse_error(text: str) -> None:
    with suppress(ParseError):
        graph = parse(text)
        assert str(parse(str(graph))) == str(graph)
