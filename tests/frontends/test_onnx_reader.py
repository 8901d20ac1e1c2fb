"""Reading ONNX: what becomes a constant, names, extents, functions, branches, and what is said of what cannot be
read."""

from __future__ import annotations

import contextlib
import re
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser
from tests.frontends import onnx_runtime
from tests.frontends.models import DIGITS, batch_norm, model

import renorm
from renorm import Limits, frontends
from renorm.core.dims import Sym
from renorm.core.errors import InvalidModel, LimitExceeded, OperandError, RenormError, UnsupportedOp, UserCodeError
from renorm.core.stated import Undecided
from renorm.frontends.onnx import reader
from renorm.graph import interpret, registry
from renorm.graph.op import OpDef
from renorm.graph.verify import verify

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_names_are_kept_even_where_node_and_value_share_one() -> None:
    g = frontends.read(model("g (float[2] x) => (float[2] y) { [y] y = Relu(x) }"))
    assert [n.name for n in g.nodes] == ["y"]
    assert g.nodes[0].output.name == "y"
    verify(g)


def test_unnamed_nodes_are_called_by_type_and_place() -> None:
    g = frontends.read(model("g (float[2] x) => (float[2] y) { a = Relu(x) y = Exp(a) }"))
    assert [n.name for n in g.nodes] == ["Relu_0", "Exp_1"]


def test_a_constant_made_on_the_way_takes_no_name_of_the_model() -> None:
    # `reshape` of opset 1 has its shape as an attribute, which becomes a constant; later values keep their names all
    # the same
    body = "g (float[2, 3] x) => (float[6] shape) { const = Reshape <shape = [6]> (x) shape = Relu(const) }"
    g = frontends.read(model(body, opset=1))
    assert [n.output.name for n in g.nodes if n.op.name in ("reshape", "relu")] == ["const", "shape"]


@pytest.mark.parametrize("ir", [3, 8])
def test_an_input_with_an_initializer_is_a_constant(ir: int) -> None:
    g = frontends.read(model("g (float[2, 3] x, float[2, 3] w) => (float[2, 3] y) { y = Add(x, w) }", ir=ir, w=W))
    assert [v.name for v in g.inputs] == ["x"]
    assert g.constants["w"].source == "initializer 'w'"
    np.testing.assert_array_equal(g.constants["w"].data, W)


def test_identity_between_initializer_and_reader_is_seen_through() -> None:
    body = "g (float[2, 3] x) => (float[2, 3] y) { a = Identity(w) b = Identity(a) y = Add(x, b) }"
    g = frontends.read(model(body, w=W))
    assert [n.op.name for n in g.nodes] == ["add"]
    assert g.nodes[0].inputs[1] is g.constants["w"]


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value": numpy_helper.from_array(W)}, W),
        ({"value_float": 1.5}, np.float32(1.5)),
        ({"value_floats": [1.5, 2.0]}, np.array([1.5, 2], np.float32)),
        ({"value_int": 3}, np.int64(3)),
        ({"value_ints": [3, 4]}, np.array([3, 4], np.int64)),
    ],
)
def test_constant_nodes(attribute: dict[str, Any], expected: np.ndarray) -> None:
    node = helper.make_node("Constant", [], ["c"], **attribute)
    out = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(expected.dtype), expected.shape)
    g = helper.make_graph([node, helper.make_node("Identity", ["c"], ["y"])], "g", [], [out])
    read = frontends.read(helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    (y,) = interpret.run(read, [])
    np.testing.assert_array_equal(y, expected)
    assert y.dtype == expected.dtype
    assert read.outputs[0].name == "y"


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", "int8", "uint8", "int16", "int32", "uint16", "uint32", "uint64", "bool", "bfloat16"]
)
def test_initializers_of_every_dtype(dtype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 3]]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    code = TensorProto.DataType.Value(dtype.upper().replace("FLOAT64", "DOUBLE"))
    out = helper.make_tensor_value_info("y", code, [3, 2])
    node = helper.make_node("Transpose", ["w"], ["y"])
    g = helper.make_graph([node], "g", [], [out], [numpy_helper.from_array(array, "w")])
    read = frontends.read(helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert read.constants["w"].dtype == dtype
    assert np.asarray(read.constants["w"].data).dtype == array.dtype
    np.testing.assert_array_equal(read.constants["w"].data, array)


def test_sparse_initializers() -> None:
    values = numpy_helper.from_array(np.array([5.0, 7.0], np.float32), "w")
    m = model("g (float[2, 3] x) => (float[2, 3] y) { y = Add(x, w) }")
    flat = numpy_helper.from_array(np.array([1, 5], np.int64))
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, flat, [2, 3]))
    dense = np.array([[0, 5, 0], [0, 0, 7]], np.float32)
    np.testing.assert_array_equal(frontends.read(m).constants["w"].data, dense)
    m.graph.sparse_initializer[0].indices.CopyFrom(numpy_helper.from_array(np.array([[0, 1], [1, 2]], np.int64)))
    np.testing.assert_array_equal(frontends.read(m).constants["w"].data, dense)


@pytest.mark.parametrize(
    ("indices", "shape"),
    [
        ([1, 6], [2, 3]),
        ([1, -1], [2, 3]),
        ([[0, 0], [1, 3]], [2, 3]),
        ([0], [2, 3]),
        ([0, 1], [-2, 3]),
    ],
)
def test_sparse_initializers_that_are_damaged(indices: Any, shape: list[int]) -> None:
    values = numpy_helper.from_array(np.array([5.0, 7.0], np.float32), "w")
    m = model("g (float[2, 3] x) => (float[2, 3] y) { y = Add(x, w) }")
    places = numpy_helper.from_array(np.array(indices, np.int64))
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, shape))
    with pytest.raises(InvalidModel, match="initializer 'w' is damaged"):
        frontends.read(m)


def test_extents_that_are_open() -> None:
    g = frontends.read(
        model('g (float["batch size", N, 3, ?] x, float[N, ?] z) => (float["batch size", N, 3, M] y) { y = Relu(x) }')
    )
    x, z = g.inputs
    assert x.shape[1] == z.shape[0] == Sym("N")
    assert x.shape[0] == Sym("batch_size")
    assert x.shape[2] == 3
    assert len({x.shape[3], z.shape[1], Sym("N")}) == 3


def test_an_input_without_rank_needs_a_shape() -> None:
    m = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    m.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InvalidModel, match=r"input 'x' states no rank\n  do: give its shape"):
        frontends.read(m)
    assert frontends.read(m, shapes={"x": (4, 5)}).inputs[0].shape == (4, 5)


def test_outputs_keep_their_names() -> None:
    outputs = ", ".join(f"float[2, 3] {name}" for name in "ywxz")
    g = frontends.read(model(f"g (float[2, 3] x) => ({outputs}) {{ y = Relu(x) z = Identity(w) }}", w=W))
    assert [v.name for v in g.outputs] == ["y", "w", "x", "z"]
    x = -W
    for ours, expected in zip(interpret.run(g, [x]), [0 * x, W, x, W]):
        np.testing.assert_array_equal(ours, expected)


# --- files ---------------------------------------------------------------------------------------------------------


def _external(tmp_path: Path) -> Path:
    m = model(
        "g (float[2, 300] x) => (float[2, 300] y) { y = Add(x, w) }", w=np.arange(600, dtype=np.float32).reshape(2, 300)
    )
    onnx.save(m, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return tmp_path / "m.onnx"


def test_external_data_is_mapped(tmp_path: Path) -> None:
    w = frontends.read(_external(tmp_path)).constants["w"].data
    np.testing.assert_array_equal(w, np.arange(600).reshape(2, 300))
    assert w is not None
    assert not w.flags.writeable


@pytest.mark.parametrize("is_inside", [True, False])
def test_external_data_of_a_model_that_is_a_link(is_inside: bool, tmp_path: Path) -> None:
    """As caches of downloads hold models: a directory of links to files with other names."""
    _external(tmp_path)
    for directory in ("blobs", "elsewhere", "snapshot"):
        (tmp_path / directory).mkdir()
    data = tmp_path / ("blobs" if is_inside else "elsewhere") / "2"
    (tmp_path / "m.onnx").rename(tmp_path / "blobs" / "1")
    (tmp_path / "w.bin").rename(data)
    path = tmp_path / "snapshot" / "m.onnx"
    path.symlink_to(tmp_path / "blobs" / "1")
    (tmp_path / "snapshot" / "w.bin").symlink_to(data)
    if is_inside:
        w = frontends.read(path).constants["w"].data
        np.testing.assert_array_equal(w, np.arange(600).reshape(2, 300))
    else:
        with pytest.raises(InvalidModel, match="lies outside the model's directory"):
            frontends.read(path)


@pytest.mark.parametrize("damage", ["cut", "gone", "outside", "length", "in memory"])
def test_external_data_that_is_damaged(tmp_path: Path, damage: str) -> None:
    path = _external(tmp_path)
    m = onnx.load(path, load_external_data=False)
    entries = {e.key: e for e in m.graph.initializer[0].external_data}
    if damage == "cut":
        (tmp_path / "w.bin").write_bytes(b"1234")
    elif damage == "gone":
        (tmp_path / "w.bin").unlink()
    elif damage == "outside":
        (tmp_path / "inner").mkdir()
        path = tmp_path / "inner" / "m.onnx"
        entries["location"].value = "../w.bin"
        path.write_bytes(m.SerializeToString())
    elif damage == "length":
        entries["length"].value = "12"
        path.write_bytes(m.SerializeToString())
    with pytest.raises(InvalidModel, match="initializer 'w'"):
        frontends.read(m if damage == "in memory" else path)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"")
    with pytest.raises(InvalidModel, match=r"(?s)No such file.*in that directory: other\.onnx"):
        frontends.read(tmp_path / "model.onnx")
    (tmp_path / "pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\n")
    for name in ("other.onnx", "pointer.onnx"):
        with pytest.raises(InvalidModel, match="not an ONNX model"):
            frontends.read(tmp_path / name)
    with pytest.raises(InvalidModel, match="not a model that renorm reads"):
        frontends.read(tmp_path / "model.pt")
    with pytest.raises(InvalidModel, match=r"int: not a model that renorm reads"):
        frontends.read(3)
    with pytest.raises(InvalidModel, match=r"null (byte|character)"):
        frontends.read("zero\0.onnx")


def test_names_that_are_not_text() -> None:
    damaged = batch_norm([1]).SerializeToString().replace(b"BatchNormalization", b"BatchNormalizati\xff\xfe")
    with pytest.raises(InvalidModel, match=r"bytes: a name in the model is not text: b'BatchNorm"):
        frontends.read(damaged)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_damaged_bytes_raise_nothing_but_errors_of_renorm(data: st.DataObject) -> None:
    whole = bytearray(batch_norm([1, 2, 3]).SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # diagnoses
        with contextlib.suppress(RenormError):
            frontends.read(damaged)


# --- what cannot be read -------------------------------------------------------------------------------------------


def test_unsupported_ops_are_named_at_once(tmp_path: Path) -> None:
    body = """detector (float[1, 8, 9, 9] x, float[N, 5] r) => (float[N, 8, 2, 2] y, int64[K] k) {
        [enc] a = Relu(x)
        [pool_1] p = MaxRoiPool <pooled_shape = [2, 2]> (a, r)
        [pool_2] q = MaxRoiPool <pooled_shape = [2, 2]> (x, r)
        [add_3] y = Add(p, q)
        k = Shuffle(y)
    }"""
    m = model(body)
    m.opset_import.append(helper.make_opsetid("com.acme", 2))
    m.graph.node[-1].domain = "com.acme"
    path = tmp_path / "detector.onnx"
    path.write_bytes(m.SerializeToString())
    with pytest.raises(UnsupportedOp) as raised:
        frontends.read(path)
    assert str(raised.value) == (
        "detector.onnx: node 'pool_1' is MaxRoiPool (ai.onnx 17), which renorm does not define\n"
        "  result  p f32[N, 8, 2, 2], read by 'add_3'\n"
        "  1 more node is MaxRoiPool\n"
        "  also missing in this model: Shuffle (com.acme) (1 node)\n"
        "  do: export without it, or add an op file (docs/adding-an-op.md)"
    )


def test_operands_that_do_not_fit_name_file_node_and_op() -> None:
    body = "g (float[2, 3] x) => (float[2, 3] y) { [here] y = Add(x, w) [there] z = Sub(x, w) }"
    with pytest.raises(RenormError) as raised:
        frontends.read(model(body, w=np.zeros((2, 4), np.float32)))
    assert re.match(r"g: node 'here' \(Add \(ai.onnx 17\)\): .*do not broadcast", str(raised.value))
    assert "also: node 'there'" in str(raised.value)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("g (float[2] x) => (float[2] y) { y = Relu(z) }", "'Relu_0' .*: it reads 'z', which nothing makes"),
        ("g (float[2] x) => (float[2] y) { y = Relu(y) }", "in a ring: 'Relu_0' reads 'Relu_0'"),
        ("g (float[2] x) => (float[2] y) { y = Relu(x) y = Exp(x) }", "makes 'y', which exists already"),
        ("g (float[2] x) => (float[2] x) { x = Neg(x) }", "'Neg_0' .*: it makes 'x', which exists already"),
        ("g (float[2] x) => (float[2] z) { y = Relu(x) }", "the list of outputs reads 'z'"),
    ],
)
def test_graphs_that_contradict_themselves(body: str, why: str) -> None:
    with pytest.raises(InvalidModel, match=why):
        frontends.read(model(body))


def test_opsets_that_are_not_known() -> None:
    with pytest.raises(InvalidModel, match=r"ai\.onnx 99 is not a version"):
        frontends.read(model("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=99))


def test_strings_are_refused() -> None:
    with pytest.raises(UnsupportedOp, match="input 'x' has elements of type string"):
        frontends.read(model("g (string[2] x) => (string[2] y) { y = Identity(x) }"))


# --- functions, branches, user ops ---------------------------------------------------------------------------------


def test_functions_of_the_model_are_inlined() -> None:
    m = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[2, 3] x) => (float[2, 3] y) { [call] y = my.twice(x) }
        <domain: "my", opset_import: ["" : 17]>
        twice (a) => (c) { b = Add(a, a) c = Relu(b) }"""
    )
    g = frontends.read(m)
    assert [n.op.name for n in g.nodes] == ["add", "relu"]
    assert g.outputs[0].name == "y"
    np.testing.assert_array_equal(interpret.run(g, [W])[0], 2 * W)


def test_an_op_that_is_not_defined_is_read_as_the_body_onnx_gives_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry._ONNX, "Mish")
    m = model("g (float[2, 3] x) => (float[2, 3] y) { y = Mish(x) }", opset=18)
    g = frontends.read(m)
    assert {n.op.name for n in g.nodes} == {"softplus", "tanh", "mul"}
    np.testing.assert_allclose(interpret.run(g, [W])[0], W * np.tanh(np.log1p(np.exp(W))), rtol=1e-6)


@pytest.mark.parametrize(("known", "ops"), [(1, ["relu", "exp"]), (0, ["neg"])])
def test_an_if_with_a_known_condition_becomes_its_branch(known: int, ops: list[str]) -> None:
    parsed = model(
        f"""g (float[A, 3] x) => (float[A, 3] y) {{
            c = Constant <value = bool {{{known}}}> ()
            y = If (c) <
                then_branch = t () => (float[A, 3] p) {{ q = Relu(x) p = Exp(q) }},
                else_branch = e () => (float[A, 3] r) {{ r = Neg(x) }}
            >
        }}"""
    )
    g = frontends.read(parsed)
    assert [n.op.name for n in g.nodes] == ops
    assert g.nodes[-1].output.name == "y"
    verify(g)


def _if(*condition: str) -> onnx.NodeProto:
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["p"])], "b", [], [])
    branch.output.add(name="p")
    return helper.make_node("If", condition, ["y"], then_branch=branch, else_branch=branch)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (helper.make_node("Constant", [], [], value_int=3), "Constant has no output"),
        (_if(), "If has no condition"),
        (_if("none"), r"'none' of If is bool\[0\], not one element"),
        (_if("two"), r"'two' of If is bool\[2\], not one element"),
        (helper.make_node("Cast", ["x"], ["y"], to=1.5), "attribute to has element type 1.5"),
        (helper.make_node("Cast", ["x"], ["y"], to=[1]), r"attribute to has element type \[1\]"),
    ],
)
def test_nodes_that_lack_what_they_need(node: onnx.NodeProto, why: str) -> None:
    m = model("g (float[2] x) => (float[2] x) { }", none=np.zeros(0, bool), two=np.array([True, False]))
    m.graph.node.append(node)
    with pytest.raises(InvalidModel, match=why):
        frontends.read(m)


def test_an_if_that_an_input_decides_names_it() -> None:
    body = """g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <
            then_branch = t () => (float[2] p) { p = Relu(x) }, else_branch = e () => (float[2] r) { r = Neg(x) }
        >
    }"""
    with pytest.raises(Undecided, match=r"the condition 'c' of If is computed when the network runs") as raised:
        frontends.read(model(body))
    assert raised.value.by == ("c",)
    assert [v.name for v in raised.value.declared] == ["c", "x"]


def test_ops_of_a_domain_of_the_users_own() -> None:
    @renorm.register
    class Threefold(OpDef):
        """y = 3 * x."""

        signature = "x: f32[*S] -> y: f32[*S]"
        onnx = {"com.acme::Threefold": 2}

        def reference(self, x: np.ndarray) -> np.ndarray:
            return 3 * x

    try:
        m = model("g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }")
        m.graph.node[0].op_type, m.graph.node[0].domain = "Threefold", "com.acme"
        m.opset_import.append(helper.make_opsetid("com.acme", 2))
        np.testing.assert_array_equal(interpret.run(frontends.read(m), [W])[0], 3 * W)
        m.opset_import[1].version = 1
        with pytest.raises(UnsupportedOp, match=r"is Threefold \(com.acme 1\)"):
            frontends.read(m)
    finally:
        registry.unregister("threefold")


def test_an_exception_in_a_users_op_names_node_op_operands_and_line() -> None:
    @renorm.register
    class Unlucky(OpDef):
        """y = x, with luck."""

        signature = "x: f32[*S] -> y: f32[...]"
        onnx = {"com.acme::Unlucky": 1}

        def infer(self, x: Any) -> Any:
            return x.shape[13]

    try:
        m = model("g (float[2, 3] x) => (float[2, 3] y) { [here] y = Relu(x) }")
        m.graph.node[0].op_type, m.graph.node[0].domain = "Unlucky", "com.acme"
        m.opset_import.append(helper.make_opsetid("com.acme", 1))
        with pytest.raises(UserCodeError) as raised:
            frontends.read(m)
    finally:
        registry.unregister("unlucky")
    text = str(raised.value)
    assert "node 'here' (Unlucky (com.acme 1)): infer of unlucky failed: IndexError" in text
    assert "operands f32[2, 3]" in text
    assert re.search(r"at .*test_onnx_reader\.py:\d+ in infer: return x\.shape\[13\]", text)


# --- diagnoses -----------------------------------------------------------------------------------------------------


def test_a_negative_variance_is_diagnosed() -> None:
    with pytest.warns(RuntimeWarning, match=r"(?s)node 'bn'.*negative or NaN in 2 of 3 channels.*do: "):
        g = frontends.read(batch_norm([1.0, -0.5, float("nan")]))
    (found,) = g.metadata["diagnoses"]
    assert found.node == "bn"
    assert "[1] = -0.5, [2] = nan" in found.problem
    assert "2 of them stay at or below zero" in found.problem


def test_a_variance_that_epsilon_rescues_is_diagnosed_as_such() -> None:
    with pytest.warns(RuntimeWarning, match="results are finite but not what training computed"):
        frontends.read(batch_norm([1.0, -1e-9]))


def test_zero_and_denormal_variances_are_no_diagnosis() -> None:
    assert "diagnoses" not in frontends.read(batch_norm([0.0, 1e-40, 0.5])).metadata


# --- the network that the repository ships -------------------------------------------------------------------------


def test_the_digits_network() -> None:
    g = frontends.read(DIGITS / "model.onnx")
    verify(g)
    assert sum(n.op.name == "batch_norm" for n in g.nodes) == 7
    assert sum(n.op.name == "instance_norm" for n in g.nodes) == 1
    with np.load(DIGITS / "test.npz") as held:
        x = held["images"][:16, None].astype(np.float32) / 16
    theirs = onnx_runtime.run(DIGITS / "model.onnx", x)[0]
    np.testing.assert_allclose(interpret.run(g, [x])[0], theirs, atol=1e-5 * np.abs(theirs).max())


def _branching(result: str, body: list[Any], of: str) -> onnx.NodeProto:
    made = helper.make_tensor_value_info(of, 1, None)
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["n"])], "else", [], [helper.make_tensor_value_info("n", 1, None)]
    )
    return helper.make_node(
        "If", ["c"], [result], then_branch=helper.make_graph(body, "then", [], [made]), else_branch=other
    )


def _with_condition(nodes: list[Any], output: str, **constants: np.ndarray) -> onnx.ModelProto:
    held = {"c": np.array([True]), **constants}
    inits = [numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()]
    x, y = helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info(output, 1, None)
    graph = helper.make_graph(nodes, "net", [x], [y], inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_branches_read_what_the_graph_around_them_holds_and_may_use_the_same_names() -> None:
    """An initializer of the graph that two branches read is one constant."""
    one = helper.make_node("Constant", [], ["k"], value_float=1.0)
    inner = [one, helper.make_node("Add", ["q", "k"], ["p"])]
    nodes = [_branching("a", [helper.make_node("Add", ["x", "w"], ["q"]), *inner], "p")]
    nodes += [_branching("y", [helper.make_node("Mul", ["a", "w"], ["q"]), *inner], "p")]
    g = frontends.read(_with_condition(nodes, "y", w=np.array([3, 5], np.float32)))
    verify(g)
    np.testing.assert_array_equal(interpret.run(g, [np.array([1, 2], np.float32)])[0], [16, 41])
    assert len(g.constants) == 4  # c, w, and k of each branch


@pytest.mark.parametrize("depth", [3, 400])
def test_branches_within_branches_are_read_however_deep_they_are(depth: int) -> None:
    """Files are no deeper than some 30 graphs; models in memory may be."""
    made = _with_condition([], "y")
    graph = made.graph
    for i in range(depth):
        held = graph.node.add(op_type="If", input=["c"], output=[f"v{i}" if i else "y"])
        taken, other = (
            held.attribute.add(name=f"{n}_branch", type=onnx.AttributeProto.GRAPH) for n in ("then", "else")
        )
        other.g.output.add(name="x")
        graph = taken.g
        graph.output.add(name=f"v{i + 1}")
    graph.node.add(op_type="Neg", input=["x"], output=[f"v{depth}"])
    with pytest.raises(LimitExceeded, match=f"nesting: {depth}, at most 2"):
        frontends.read(made, limits=Limits(nesting=2))
    g = frontends.read(made, limits=Limits(nesting=1000))
    assert [(n.op.name, n.output.name) for n in g.nodes] == [("neg", "y")]


def test_names_that_are_missing_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    suggested, suggest = list[str](), reader.suggest
    monkeypatch.setattr(reader, "suggest", lambda name, known: suggested.append(name) or suggest(name, known))
    nodes = [helper.make_node("Add", ["x", f"no{i}"], [f"y{i}"]) for i in range(300)]
    with pytest.raises(InvalidModel, match=r"reads 'no0', which nothing makes\n.*nearest") as error:
        frontends.read(_with_condition(nodes, "y0"))
    assert "reads 'no50'" in str(error.value)
    assert suggested == ["no0"]


@pytest.mark.parametrize(("op", "w"), [("ConvInteger", "[3, 2, 3, 3]"), ("MatMulInteger", "[1, 2, 5, 4]")])
def test_products_of_integers_of_16_bits_are_none_of_onnx(op: str, w: str) -> None:
    """Within a graph they are what products of centred bytes become."""
    for types in (("int16", "int8"), ("uint8", "int16")):
        source = model(f"g ({types[0]}[1, 2, 5, 5] x, {types[1]}{w} w) => (int32[N, M, P, Q] y) {{ y = {op}(x, w) }}")
        with pytest.raises(OperandError, match="is int16, where ONNX has int8 and uint8"):
            frontends.read(source)
