"""Sequences and optionals of tensors in ONNX files, against the reference evaluator of the onnx package."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

import renorm
from renorm import onnx_backend
from renorm.core.stated import Undecided
from renorm.errors import InvalidModel, RenormError, UnsupportedOp, UntoldOperand

HEAD = '<ir_version: 10, opset_import: ["" : 18]>\n'
RNG = np.random.default_rng(3)


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEAD + text)


def f32(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def check(text: str, *inputs: Any) -> Any:
    """Return the results of a model, which are those of the reference evaluator."""
    proto = model(text)
    expected = ReferenceEvaluator(proto).run(None, dict(zip((v.name for v in proto.graph.input), inputs)))
    results = onnx_backend.run_model(proto, list(inputs), threads=1)
    agree(list(results), expected)
    return results


def agree(ours: Any, theirs: Any) -> None:
    if theirs is None or isinstance(theirs, list):
        assert type(ours) is type(theirs)
        for one, other in zip(ours or (), theirs or (), strict=True):
            agree(one, other)
        return
    assert np.asarray(ours).dtype == np.asarray(theirs).dtype
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_sequence_that_only_the_graph_has() -> None:
    check(
        """g (float[2,3] x, float[1,3] y, float[4,3] z) => (float[?,3] a, float[?,3] b, int64 n) {
            e = SequenceEmpty ()
            s = SequenceInsert (e, x)
            minus = Constant <value_int: int = -1> ()
            zero = Constant <value_int: int = 0> ()
            t = SequenceInsert (s, y, minus)
            u = SequenceInsert (t, z, zero)
            v = SequenceErase (u, minus)
            a = ConcatFromSequence <axis: int = 0> (u)
            b = SequenceAt (v, minus)
            n = SequenceLength (v)
        }""",
        f32(2, 3), f32(1, 3), f32(4, 3),
    )  # fmt: skip


@pytest.mark.parametrize("new_axis", [-1, 0, 2])
def test_stacked_pieces(new_axis: int) -> None:
    check(
        f"""g (float[3,5] x) => (float[?,?,?] y) {{
            s = SplitToSequence <axis: int = -1> (x)
            y = ConcatFromSequence <axis: int = {new_axis}, new_axis: int = 1> (s)
        }}""",
        f32(3, 5),
    )


@pytest.mark.parametrize("split", ["2", "{2}", "{1,4}"])
def test_pieces_are_outputs(split: str) -> None:
    """A last piece that is smaller, pieces of these sizes, and one size alone, which has to be all."""
    shape = "" if split == "2" else f"[{split.count(',') + 1}]"
    value = "{2}" if split == "2" else split
    extent = 2 if split == "{2}" else 5
    check(
        f"""g (float[3,{extent}] x) => (seq(float) y) {{
            k = Constant <value: tensor = int64{shape} {value}> ()
            y = SplitToSequence <axis: int = 1> (x, k)
        }}""",
        f32(3, extent),
    )


def test_pieces_without_their_axis() -> None:
    check(
        "g (float[3,5] x) => (seq(float) y) { y = SplitToSequence <axis: int = 1, keepdims: int = 0> (x) }", f32(3, 5)
    )


def test_a_position_that_an_input_gives() -> None:
    text = (
        "g (float[2] x, float[3] y, int64 at) => (float[?] z) { s = SequenceConstruct (x, y)  z = SequenceAt (s, at) }"
    )
    x, y = f32(2), f32(3)
    module = renorm.compile(model(text))
    for at, expected in ((0, x), (-1, y), (1, y)):
        np.testing.assert_array_equal(module.run(x, y, np.asarray(at))[0], expected)
    with pytest.raises(InvalidModel, match="position 2"):
        module.run(x, y, np.asarray(2))


def test_a_position_that_data_give() -> None:
    """Of tensors of one type; others cannot be."""
    text = """g (float[2] x, float[{n}] y, float[70] p) => (float[?] z) {{
        s = SequenceConstruct (x, y)
        at = ArgMax <axis: int = 0, keepdims: int = 0> (p)
        two = Constant <value_int: int = 2> ()
        k = Mod (at, two)
        z = SequenceAt (s, k)
    }}"""
    x, y, p = f32(2), f32(2), f32(70)
    check(text.format(n=2), x, y, p)
    with pytest.raises(UntoldOperand, match="position 'k'"):
        renorm.compile(model(text.format(n=3)))


def test_a_sequence_that_a_loop_makes() -> None:
    """As many elements as rounds, each of another size; the body reads what it made before."""
    text = """g (float[6] x, int64 n) => (seq(float) y, float[?] z) {
        yes = Constant <value: tensor = bool {1}> ()
        e = SequenceEmpty ()
        y = Loop (n, yes, e) <body: graph = body (int64 i, bool c, seq(float) s) => (bool d, seq(float) t) {
            d = Identity (c)
            one = Constant <value: tensor = int64[1] {1}> ()
            zero = Constant <value: tensor = int64[1] {0}> ()
            k = Add (i, one)
            part = Slice (x, zero, k)
            t = SequenceInsert (s, part)
        }>
        z = ConcatFromSequence <axis: int = 0> (y)
    }"""
    check(text, f32(6), np.asarray(4))
    check(text, f32(6), np.asarray(1))


def test_branches_that_hold_sequences() -> None:
    text = """g (bool c, float[3] x) => (seq(float) y) {
        y = If (c) <
            then_branch: graph = one () => (seq(float) a) { a = SequenceConstruct (x) },
            else_branch: graph = two () => (seq(float) b) { m = Neg (x)  b = SequenceConstruct (m, x) }
        >
    }"""
    check(text, np.asarray(True), f32(3))
    check(text, np.asarray(False), f32(3))


def test_a_branch_that_data_choose() -> None:
    """Of sequences of one type, element by element."""
    text = """g (float[70] x) => (seq(float) y) {
        sum = ReduceSum <keepdims: int = 0> (x)
        zero = Constant <value_float: float = 0> ()
        c = Less (sum, zero)
        y = If (c) <
            then_branch: graph = one () => (seq(float) a) { r = Relu (x)  a = SequenceConstruct (r, sum) },
            else_branch: graph = two () => (seq(float) b) { m = Neg (x)  b = SequenceConstruct (m, zero) }
        >
    }"""
    x = f32(70)
    check(text, np.abs(x))
    check(text, -np.abs(x))


MAPPED = """g (seq(float[N]) s, float[M] x) => (seq(float) y, seq(int64) n) {
    y, n = SequenceMap (s, x) <body: graph = body (float[N] a, float[M] b) => (float[K] c, int64[1] d) {
        c = Concat <axis: int = 0> (a, b)
        d = Shape (c)
    }>
}"""


def test_each_element_of_a_sequence() -> None:
    """Elements of other sizes, a tensor that all of them see, and no element at all."""
    proto = model(MAPPED)
    rep = onnx_backend.prepare(proto, threads=1)
    x = f32(4)
    for given in ([f32(3), f32(5)], [f32(2)], [], [f32(3), f32(5)]):
        y, n = rep.run([given, x])
        agree(y, [np.concatenate([a, x]) for a in given])
        agree(n, [np.array([len(a) + 4]) for a in given])


def test_a_sequence_as_inputs_of_a_module() -> None:
    m = renorm.compile(model(MAPPED), shapes={"s.0": (3,), "s.1": (5,), "x": (2,)})
    assert [v.name for v in m.inputs] == ["s.0", "s.1", "x"]
    assert [v.name for v in m.outputs] == ["y.0", "y.1", "n.0", "n.1"]
    a, b, x = f32(3), f32(5), f32(2)
    agree(m.run(a, b, x)[:2], [np.concatenate([a, x]), np.concatenate([b, x])])


def test_a_sequence_that_is_given_when_compiled() -> None:
    a, x = f32(3), f32(2)
    m = renorm.compile(model(MAPPED), inputs={"s": [a]}, shapes={"x": (2,)})
    assert [v.name for v in m.inputs] == ["x"]
    agree(m.run(x)[0], np.concatenate([a, x]))


def test_how_many_elements_nobody_says() -> None:
    with pytest.raises(UntoldOperand, match="how many tensors it has is not known"):
        renorm.compile(model(MAPPED))
    with pytest.raises(RenormError, match=r"s\.2.*is not an input|'s\.2' is not an input"):
        renorm.compile(model(MAPPED), shapes={"s.0": (3,), "s.2": (5,), "x": (2,)})
    assert onnx_backend.is_compatible(model(MAPPED))


OPTIONAL = """g (optional(float[3]) o, float[3] x) => (bool there, optional(float[3]) same) {
    there = OptionalHasElement (o)
    same = Identity (o)
}"""


def test_an_optional_input() -> None:
    rep = onnx_backend.prepare(model(OPTIONAL), threads=1)
    x = f32(3)
    for given in (f32(3), None):
        there, same = rep.run([given, x])
        assert bool(there) == (given is not None)
        agree(same, given)


def test_an_optional_without_a_value_gives_none() -> None:
    text = "g (optional(float[3]) o) => (float[3] y) { y = OptionalGetElement (o) }"
    agree(renorm.compile(model(text)).run(x := f32(3))[0], x)
    with pytest.raises(InvalidModel, match="has no value"):
        renorm.compile(model(text), inputs={"o": None})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("s = SequenceConstruct (x, x)  y = Relu (s)", "'s' is a sequence, where a tensor is expected"),
        ("y = SequenceAt (x, i)", "'x' is none"),
        ("z = Neg (i)  s = SequenceConstruct (x, z)  y = SequenceAt (s, i)", "is a sequence of float32: 'z' is"),
        ("s = SequenceConstruct (x)  y = SequenceErase (s, i)", "output 'y' is a sequence"),
        ("s = SequenceEmpty ()  y = ConcatFromSequence <axis: int = 0> (s)", "of no tensors there is no result"),
        ("e = Optional ()  y = Relu (e)", "an optional without a value"),
        ("s = SequenceConstruct (x)  y = SequenceAt (s, three)", "position 3 is none of a sequence of 1"),
    ],
)
def test_what_is_no_graph(body: str, why: str) -> None:
    text = f"""g (float[3] x) => (float[3] y) {{
        i = Constant <value_int: int = 0> ()  three = Constant <value_int: int = 3> ()  {body}
    }}"""
    with pytest.raises((InvalidModel, UnsupportedOp), match=why):
        renorm.read(model(text))


def test_one_node_of_lists() -> None:
    s, x = [f32(2), f32(3)], f32(4)
    (made,) = onnx_backend.run_node(helper.make_node("SequenceInsert", ["s", "x"], ["y"]), [s, x])
    agree(made, [*s, x])


def test_an_input_that_decides_is_told_first() -> None:
    text = "g (float[4] x, int64 n) => (int64 k) { s = SplitToSequence (x, n)  k = SequenceLength (s) }"
    with pytest.raises(Undecided):
        renorm.read(model(text))
    assert int(renorm.compile(model(text)).run(f32(4), np.asarray(3))[0]) == 2
