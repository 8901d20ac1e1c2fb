"""Writing ONNX: the same numbers under ONNX Runtime, in the terms of the file that was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.conftest import Zoo
from tests.frontends import onnx_runtime
from tests.frontends.models import DIGITS, model
from tests.shared_files import ZOO, shared

import renorm
from renorm import frontends
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.onnx import write
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.op import OpDef
from renorm.ops.batch_norm import BatchNorm


def _inputs(session: onnxruntime.InferenceSession, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        i.name: rng.standard_normal([d if isinstance(d, int) else 2 for d in i.shape]).astype(np.float32)
        for i in session.get_inputs()
    }


def _assert_same(source: Any, written: Any, exact: bool = True) -> None:
    ours, theirs = (onnx_runtime.session(m, rewrites=False) for m in (written, source))
    assert [o.name for o in ours.get_outputs()] == [o.name for o in theirs.get_outputs()]
    a, b = ([(i.name, i.type, i.shape) for i in s.get_inputs()] for s in (ours, theirs))
    assert a == b
    given = _inputs(theirs)
    for a, b in zip(onnx_runtime.run(ours, given), onnx_runtime.run(theirs, given)):
        np.testing.assert_allclose(a, b, rtol=0, atol=0 if exact else 1e-4 * np.abs(b).max())


def test_a_network_that_is_read_and_written_is_the_same_network(tmp_path: Path) -> None:
    source, path = DIGITS / "model.onnx", tmp_path / "out.onnx"
    write(frontends.read(source), path)
    _assert_same(source, path)
    before, after = onnx.load(source), onnx.load(path)
    assert after.ir_version == before.ir_version
    assert [(o.domain, o.version) for o in after.opset_import] == [("", 17)]
    assert after.producer_name == "renorm"
    assert [(n.name, n.op_type, list(n.input), list(n.output)) for n in after.graph.node] == [
        (n.name, n.op_type, list(n.input), list(n.output)) for n in before.graph.node
    ]
    assert [list(n.attribute) for n in after.graph.node] == [list(n.attribute) for n in before.graph.node]
    assert after.graph.input[0].type == before.graph.input[0].type
    assert after.graph.output[0].type == before.graph.output[0].type
    assert {t.name for t in after.graph.initializer} == {t.name for t in before.graph.initializer}


@pytest.mark.parametrize("opset", [13, 22])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_windows_that_begin_in_the_padding(op: str, opset: int, tmp_path: Path) -> None:
    """As PyTorch and ONNX Runtime count them, none; ONNX's shape inference counts them before opset 22."""
    source = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
        agraph (float[1, 2, 7, 7] x) => (float y) {{
            p = {op} <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1> (x)
            y = Relu (p)
        }}""")
    source.graph.output[0].type.tensor_type.ClearField("shape")
    renorm.optimize(source, tmp_path / "out.onnx")
    _assert_same(source, tmp_path / "out.onnx")


def test_reading_what_was_written_gives_the_same_graph(tmp_path: Path) -> None:
    g = frontends.read(DIGITS / "model.onnx")
    write(g, tmp_path / "out.onnx")
    assert str(frontends.read(tmp_path / "out.onnx")) == str(g)


def test_old_files_list_their_initializers_as_inputs(tmp_path: Path) -> None:
    w = np.ones((2, 3), np.float32)
    m = model("g (float[N, 3] x, float[2, 3] w) => (float[N, 3] y) { y = Add(x, w) }", ir=3, opset=9, w=w)
    written = write(frontends.read(m))
    assert written.ir_version == 3
    assert [i.name for i in written.graph.input] == ["x", "w"]


def test_open_extents_keep_their_names() -> None:
    m = model('g (float["batch size", N, ?] x) => (float["batch size", N, ?] y) { y = Relu(x) }')
    dims = write(frontends.read(m)).graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param for d in dims] == ["batch size", "N", ""]
    assert not dims[2].HasField("dim_value")


def test_attributes_that_became_operands_and_back() -> None:
    # at opset 1, what later became operands of Reshape and Clip stands in attributes
    body = "g (float[2, 3] x) => (float[6] y) { a = Clip <min = -1.0, max = 1.0> (x) y = Reshape <shape = [-1]> (a) }"
    for opset in (1, 4):
        m = model(body, opset=opset, ir=3)
        written = write(frontends.read(m))
        clip, reshape = written.graph.node
        assert {a.name for a in clip.attribute} == {"min", "max"}
        assert {a.name for a in reshape.attribute} == {"shape"}


def test_a_node_that_was_changed_is_written_at_the_opset_of_the_file() -> None:
    g = frontends.read(model("g (float[2, 3] x) => (float[3, 2] y) { [t] y = Transpose <perm = [1, 0]> (x) }"))
    g.nodes[0].op = g.nodes[0].op.with_attributes(perm=(0, 1))
    g.outputs[0].type = g.inputs[0].type
    (node,) = write(g).graph.node
    assert [list(a.ints) for a in node.attribute] == [[0, 1]]


@pytest.mark.parametrize(
    ("opset", "listed", "attributes", "written"),
    [(9, 5, {}, 5), (13, 5, {}, 5), (14, 1, {"training_mode": 1}, 3), (15, 3, {"training_mode": 1}, 3)],
)
@pytest.mark.parametrize("changed", [False, True])
def test_a_norm_in_training_mode_lists_the_outputs_that_choose_it(
    opset: int, listed: int, attributes: dict[str, Any], written: int, changed: bool, tmp_path: Path
) -> None:
    outputs = ["y", "mean_out", "var_out", "saved_mean", "saved_var"][:listed]
    node = onnx.helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], outputs, name="bn", **attributes)
    one = np.ones(3, np.float32)
    constants = [onnx.numpy_helper.from_array(one, name) for name in "sbmv"]
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [2, 3, 4]) for name in "xy")
    graph = onnx.helper.make_graph([node], "training", [x], [y], constants)
    source = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    g = frontends.read(source)
    if changed:  # it is then not written as the file had it
        g.nodes[0].op = g.nodes[0].op.with_attributes(epsilon=1e-3)
    (after,) = write(g).graph.node
    assert len([name for name in after.output if name]) == written
    assert len(set(after.output)) == written
    again = frontends.read(write(g))
    (node,) = again.nodes
    assert node.op == g.nodes[0].op
    assert isinstance(node.op, BatchNorm)
    assert node.op.training_mode
    report = renorm.optimize(source, tmp_path / "out.onnx")
    assert [n.fate for n in report.norms] == ["kept"]
    assert "its statistics come from" in report.norms[0].reason


def test_a_graph_built_by_hand() -> None:
    g = Graph("built")
    x = g.input("x", "float32", (2, 3, 8, 8))
    w = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    y = renorm.ops.relu(renorm.ops.conv(x, w, pads=(1, 1, 1, 1)))
    g.outputs = [renorm.ops.softmax(y, axis=1)]
    written = write(g)
    session = onnx_runtime.session(written, rewrites=False)
    given = _inputs(session)
    np.testing.assert_allclose(onnx_runtime.run(session, given)[0], interpret.run(g, given)[0], rtol=1e-4, atol=1e-5)


def test_what_onnx_cannot_say_is_named_at_once() -> None:
    class Cube(OpDef):
        """y = x ** 3."""

        signature = "x: f32[*S] -> y: f32[*S]"

    g = Graph("built")
    x = g.input("x", "float32", (2,))
    g.outputs = [Cube()(renorm.ops.relu(Cube()(x, name="first")))]
    with pytest.raises(UnsupportedOp) as raised:
        write(g)
    assert "node 'first' is Cube(), which ai.onnx 21 cannot express" in str(raised.value)
    assert "all such nodes: cube (2)" in str(raised.value)


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_norms_whose_definition_the_checker_does_not_follow(dtype: str, tmp_path: Path) -> None:
    source = model(f"g ({dtype}[2, 3, 4, 5] x) => ({dtype}[2, 3, 4, 5] y) {{ [n] y = MeanVarianceNormalization(x) }}")
    if dtype == "double":
        source.graph.node[0].attribute.append(onnx.helper.make_attribute("axes", [0, 2]))
    report = renorm.optimize(source, tmp_path / "out.onnx")
    assert [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node] == ["MeanVarianceNormalization"]
    assert [n.fate for n in report.norms] == ["kept"]


def test_positions_of_maxima_are_the_second_output() -> None:
    body = "g (float[1, 2, 5, 7] x) => (float[1, 2, 4, 3] y, int64[1, 2, 4, 3] i)"
    source = model(f"{body} {{ y, i = MaxPool <kernel_shape = [2, 3], strides = [1, 2], storage_order = 1> (x) }}")
    written = write(frontends.read(source))
    ours, theirs = (onnx_runtime.session(m, rewrites=False) for m in (written, source))
    for a, b in zip(onnx_runtime.run(ours, _inputs(ours)), onnx_runtime.run(theirs, _inputs(theirs)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("offsets", [1, 2])
def test_deformed_windows_are_written_as_samples(offsets: int, tmp_path: Path) -> None:
    taps, rng = 6, np.random.default_rng(0)
    parts = [
        onnx.helper.make_tensor_value_info(name, 1, shape)
        for name, shape in (("x", [2, 4, 7, 9]), ("o", [2, 2 * offsets * taps, 6, 7]), ("y", [2, 3, 6, 7]))
    ]
    w = onnx.numpy_helper.from_array(rng.standard_normal((3, 4, 2, 3)).astype(np.float32), "w")
    node = onnx.helper.make_node("DeformConv", ["x", "w", "o"], ["y"], kernel_shape=[2, 3], offset_group=offsets)
    graph = onnx.helper.make_graph([node], "deformed", parts[:2], parts[2:], [w])
    source = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    renorm.optimize(source, tmp_path / "out.onnx")
    shapes = {p.name: [d.dim_value for d in p.type.tensor_type.shape.dim] for p in parts[:2]}
    given = {name: rng.normal(0, 2, shape).astype(np.float32) for name, shape in shapes.items()}
    (expected,) = interpret.run(frontends.read(source), given)
    session = onnx_runtime.session(tmp_path / "out.onnx")
    np.testing.assert_allclose(np.asarray(session.run(None, given)[0]), expected, rtol=1e-4, atol=1e-4)


def test_many_weights_go_beside_the_model(tmp_path: Path) -> None:
    g, path = frontends.read(DIGITS / "model.onnx"), tmp_path / "out.onnx"
    write(g, path, inline_limit=1000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data"]
    assert path.stat().st_size < 20_000
    _assert_same(DIGITS / "model.onnx", path)
    assert str(frontends.read(path)) == str(g)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g, path = frontends.read(DIGITS / "model.onnx"), tmp_path / "out.onnx"
    path.write_bytes(b"precious")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InvalidModel, match="No space left on device"):
        write(g, path)
    assert path.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_model_can_be_replaced_by_its_optimized_self(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write(frontends.read(DIGITS / "model.onnx"), path, inline_limit=0)
    renorm.optimize(path, path)
    _assert_same(DIGITS / "model.onnx", path, exact=False)


# --- renorm.optimize -----------------------------------------------------------------------------------------------


def test_optimize_folds_the_digits_network(tmp_path: Path) -> None:
    path = tmp_path / "folded.onnx"
    report = renorm.optimize(DIGITS / "model.onnx", path)
    _assert_same(DIGITS / "model.onnx", path, exact=False)
    kept = [n.name for n in report.norms if n.fate != "folded"]
    assert kept == ["/block/norm1/BatchNormalization", "/style/InstanceNormalization"]
    types = [n.op_type for n in onnx.load(path).graph.node]
    assert types.count("BatchNormalization") == 1
    assert types.count("Conv") == 5


def test_optimize_a_trained_network_of_2019(tmp_path: Path) -> None:
    source, path = shared("models/ultra_light_rfb_320.onnx"), tmp_path / "folded.onnx"
    report = renorm.optimize(source, path)
    assert [n.fate for n in report.norms] == ["folded"] * 35
    ours, theirs = (onnx_runtime.session(m, rewrites=False) for m in (path, source))
    given = {"input": np.random.default_rng(0).standard_normal((1, 3, 240, 320)).astype(np.float32)}
    for a, b in zip(onnx_runtime.run(ours, given), onnx_runtime.run(theirs, given)):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * np.abs(b).max())
    after = onnx.load(path)
    assert [o.name for o in after.graph.output] == ["scores", "boxes"]
    assert after.ir_version == onnx.load(source).ir_version
    chains = {"Shape", "Gather", "Unsqueeze", "ConstantOfShape"}
    assert not chains & {n.op_type for n in after.graph.node}


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_the_networks_of_the_benchmark(name: str, zoo: Zoo, tmp_path: Path) -> None:
    source = zoo(name, 1)
    path = tmp_path / "same.onnx"
    write(frontends.read(source), path)
    _assert_same(source, path)
    report = renorm.optimize(source, path)
    _assert_same(source, path, exact=False)
    fates = {n.fate for n in report.norms if n.kind == "batch_norm"}
    assert fates <= ({"folded", "kept"} if "ibn" in name else {"folded"})


@pytest.mark.parametrize("shape", ["2, 6, 4, 5", "n, 6, h, w", "n, 6"])
def test_group_norms_of_an_opset_whose_op_is_deprecated(shape: str, tmp_path: Path) -> None:
    source = model(
        f"""g (float[{shape}] x) => (float[{shape}] y) <float[3] s = {{1, -2, 3}}, float[3] b = {{4, 5, 6}}>
      {{ [gn] z = GroupNormalization <num_groups = 3, epsilon = 0.01> (x, s, b) y = Sigmoid(z) }}""",
        opset=18,
    )
    renorm.optimize(source, tmp_path / "out.onnx", reversible=True)
    _assert_same(source, tmp_path / "out.onnx", exact=False)
    written = onnx.load(tmp_path / "out.onnx").graph.node
    assert [n.name for n in written if "z" in n.output] == ["gn"]
    renorm.unfold(tmp_path / "out.onnx", tmp_path / "back.onnx")
    assert [n.op_type for n in onnx.load(tmp_path / "back.onnx").graph.node] == ["GroupNormalization", "Sigmoid"]


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("node", ["BiasGelu(x, s)", "FastGelu(x, s)", "SkipSimplifiedLayerNormalization(x, x, s)"])
def test_pieces_of_microsofts_ops_that_the_opset_does_not_have(node: str, opset: int, tmp_path: Path) -> None:
    body = f"g (float[n, 5, 3] x) => (float[n, 5, 3] y) <float[3] s = {{1, -2, 3}}> {{ y = com.microsoft.{node} }}"
    source = model(body, opset=opset)
    source.opset_import.add(domain="com.microsoft", version=1)
    renorm.optimize(source, tmp_path / "out.onnx")
    _assert_same(source, tmp_path / "out.onnx", exact=False)


def test_ops_that_onnx_says_by_others() -> None:
    g = Graph("built")
    x = g.input("x", "float32", (2, 3))
    g.outputs = [renorm.ops.swish(x, alpha=1.5), renorm.ops.rsqrt(x)]
    written = write(g)
    assert [n.op_type for n in written.graph.node] == ["Mul", "Sigmoid", "Mul", "Sqrt", "Reciprocal"]
    given = np.array([[3, 1, 0.1], [0.5, 2, 40]], np.float32)
    swish, rsqrt = onnx_runtime.run(onnx_runtime.session(written), {"x": given})
    np.testing.assert_allclose(swish, given / (1 + np.exp(-1.5 * given.astype(float))), rtol=1e-5)
    np.testing.assert_allclose(rsqrt, 1 / np.sqrt(given), rtol=1e-6)
