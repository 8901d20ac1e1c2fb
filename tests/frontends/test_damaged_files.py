"""What damaged files have shown: each was a foreign exception, a crash, or more memory than there is."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.frontends import fuzz_archives, fuzz_outcome
from tests.frontends.models import model
from tests.frontends.tflite_files import File

import renorm
from renorm.errors import InvalidModel, LimitExceeded, RenormError, UnsupportedOp
from renorm.frontends.building import Building
from renorm.graph.ir import Graph

Given = tuple[int, tuple[int | str, ...]]  # element type and shape of an input


def _of(node: Any, *given: Given, opset: int | None = 21) -> bytes:
    """Return a file of one node with inputs of these types."""
    names = [name for name in node.input if name]
    values = [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in zip(names, given)]
    graph = helper.make_graph([node], "g", values, [helper.make_empty_tensor_value_info("y")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset or 1)])
    if opset is None:
        del made.opset_import[:]
    return made.SerializeToString()


def _refused(content: bytes, path: Path, kind: type[RenormError], says: str) -> None:
    path.write_bytes(content)
    with pytest.raises(kind, match=says) as caught:
        renorm.read(path)
    assert path.name in caught.value.headline


def test_an_input_is_listed_once(tmp_path: Path) -> None:
    made = model("g (int64[2] x, int64 z) => (int64[2] y) { y = Neg(x) }")
    made.graph.input[1].name = "x"
    _refused(made.SerializeToString(), tmp_path / "m.onnx", InvalidModel, "input 'x' is listed twice")


def test_a_body_applies_ops_of_a_domain_that_the_model_does_not_state(tmp_path: Path) -> None:
    node = helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview")
    path = tmp_path / "m.onnx"
    path.write_bytes(_of(node, *[(TensorProto.FLOAT, (1, 2, 3, 4))] * 3, opset=None))
    assert renorm.read(path).outputs[0].shape == (1, 2, 3, 4)


def test_types_of_damaged_models_are_not_inferred(tmp_path: Path) -> None:
    """Inference of the onnx package reads an input and a result that this node does not have, and the process ends."""
    node = helper.make_node("LabelEncoder", [""], [], domain="ai.onnx.ml")
    graph = helper.make_graph([node], "g", [], [])
    path = tmp_path / "m.onnx"
    _refused(helper.make_model(graph).SerializeToString(), path, UnsupportedOp, "LabelEncoder")


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Reshape"])
def test_a_shape_of_very_many_extents(op: str, tmp_path: Path) -> None:
    inputs = ["s"] if op == "ConstantOfShape" else ["x", "s"]
    given = [(TensorProto.FLOAT, (2, 3)), (TensorProto.INT64, (1 << 40,))][-len(inputs) :]
    _refused(
        _of(helper.make_node(op, inputs, ["y"]), *given), tmp_path / "m.onnx", RenormError, "at most 64 are possible"
    )


def test_a_range_of_more_elements_than_64_bits_count() -> None:
    least, most = np.array(-(2**63)), np.array(2**63 - 1)
    made = model("g () => (int64[N] y) { y = Range(a, b, c) }", a=least, b=most, c=np.array(1))
    assert renorm.read(made.SerializeToString()).outputs[0].shape == (2**64 - 1,)


@pytest.mark.parametrize(
    ("node", "rank"),
    [
        (helper.make_node("PRelu", ["x", "z", "x"], ["y"]), 2),
        (helper.make_node("Softmax", ["x"], ["y"], axis="0"), 2),
        (helper.make_node("Concat", ["x", ""], ["y"], axis=0), 2),
        (helper.make_node("Dropout", [], ["y"]), 2),
    ],
    ids=lambda node: getattr(node, "op_type", ""),
)
def test_operands_and_attributes_that_an_op_does_not_take(node: Any, rank: int, tmp_path: Path) -> None:
    """No fault of an op's author, which UserCodeError would say."""
    content = _of(node, *[(TensorProto.FLOAT, (2, 3))] * rank, opset=11)
    _refused(content, tmp_path / "m.onnx", InvalidModel, "operands and attributes do not fit")


def test_an_activation_whose_slope_is_zero(tmp_path: Path) -> None:
    """alpha * (e^(x / alpha) - 1) of a negative x is -alpha where alpha comes to 0."""
    path = tmp_path / "m.onnx"
    path.write_bytes(_of(helper.make_node("Celu", ["x"], ["y"], alpha=0.0), (TensorProto.FLOAT, (2, 3))))
    assert fuzz_outcome.outcome(path, is_computed=True) == fuzz_outcome.Outcome("read")


@pytest.mark.parametrize("is_told", [False, True])
def test_a_split_into_more_pieces_than_can_be_listed(is_told: bool, tmp_path: Path) -> None:
    inputs = ["x"] if is_told else ["x", "s"]
    node = helper.make_node("Split", inputs, ["y"])
    if is_told:
        node.attribute.append(helper.make_attribute("num_outputs", 1 << 40))
    given = [(TensorProto.FLOAT, ("N",)), (TensorProto.INT64, (1 << 40,))][: len(inputs)]
    _refused(_of(node, *given), tmp_path / "m.onnx", RenormError, "1099511627776 pieces, at most")


def test_an_operator_of_sequences_with_too_many_operands(tmp_path: Path) -> None:
    made = model(
        "g (float[2] x) => (float[2] y) { s = SequenceConstruct(x) y = SequenceAt(s, i, i, i, i) }", i=np.array(0)
    )
    _refused(made.SerializeToString(), tmp_path / "m.onnx", InvalidModel, "operands, attributes and bodies do not fit")


def test_numbers_of_more_than_64_bits(tmp_path: Path) -> None:
    """One segment more than the last one, which is numbered by the largest integer."""
    file = File()
    x, y = file.tensor("x", (2, 3)), file.tensor("y", (2, 3))
    ids = file.constant("ids", np.array([0, 2**63 - 1]))
    file.operator("SEGMENT_SUM", [x, ids], [y], "SegmentSumOptions")
    _refused(file.written([x], [y]), tmp_path / "m.tflite", RenormError, "SEGMENT_SUM_0")


def test_a_split_into_very_many_pieces(tmp_path: Path) -> None:
    made = model("g (float[N] x) => (float[1] y) { s = SplitToSequence(x) y = SequenceAt(s, i) }", i=np.array(0))
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 40
    _refused(made.SerializeToString(), tmp_path / "m.onnx", LimitExceeded, "pieces of SplitToSequence")


def test_quantization_that_is_of_another_kind_and_not_there(tmp_path: Path) -> None:
    file, path = File(), tmp_path / "m.tflite"
    x, y = (file.tensor(name, (2, 3, 5, 4), "int8", scale=([0.5], [0], 0)) for name in "xy")
    file.tables[y]["quantization"]["details_type"] = 1
    file.operator("RELU", [x], [y])
    path.write_bytes(file.written([x], [y]))
    assert fuzz_outcome.outcome(path, is_computed=True) == fuzz_outcome.Outcome("read")


def test_one_scale_along_an_axis_that_is_none(tmp_path: Path) -> None:
    file, path = File(), tmp_path / "m.tflite"
    x = file.tensor("x", (2, 7, 9, 3), "int8", scale=([0.5], [0], 0))
    y = file.tensor("y", (2, 3, 4, 3), "int8", scale=([0.5], [0], 77))
    window: dict[str, Any] = {"stride_h": 2, "stride_w": 2, "filter_height": 2, "filter_width": 2, "padding": 1}
    file.operator("AVERAGE_POOL_2D", [x], [y], "Pool2DOptions", **window)
    path.write_bytes(file.written([x], [y]))
    assert fuzz_outcome.outcome(path, is_computed=True) == fuzz_outcome.Outcome("read")


@pytest.mark.parametrize("batch_dims", [-(2**31), -3, 2, 2**31 - 1])
def test_axes_of_batches_that_are_none(batch_dims: int, tmp_path: Path) -> None:
    file = File()
    x, y = file.tensor("x", (2, 3, 5)), file.tensor("y", (2, 3, 4))
    indices = file.tensor("i", (2, 4), "int32")
    file.operator("GATHER", [x, indices], [y], "GatherOptions", axis=1, batch_dims=batch_dims)
    _refused(file.written([x, indices], [y]), tmp_path / "m.tflite", InvalidModel, "batch_dims")


def test_constants_of_no_elements_along_very_many(tmp_path: Path) -> None:
    made = model("g () => (float[N, M] y) { y = Neg(c) }", c=np.zeros((0, 3), np.float32))
    made.graph.initializer[0].dims[1] = 1 << 40
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    assert renorm.read(path).outputs[0].shape == (0, 1 << 40)


def test_very_many_positions_are_not_held() -> None:
    """A window of im2col in a .pt2 file may be said to have as many places."""
    graph = Graph("g")
    assert Building(graph).positions(1 << 40).shape == (1 << 40,)
    assert all(c.data is not None and c.data.size <= 1 for c in graph.constants.values())


def test_variables_of_very_many_elements(tmp_path: Path) -> None:
    file, units = File(), 1 << 30
    names: list[Any] = [file.tensor("x", (2, 3, 4)), file.constant("w", np.ones((5, 4), np.float32))]
    names += [file.constant("r", np.ones((5, 5), np.float32)), file.constant("b", np.ones(5, np.float32))]
    names.append(file.tensor("h", (units, units)))
    file.tables["h"]["is_variable"] = True
    y = file.tensor("y", (2, 3, 5))
    file.operator("UNIDIRECTIONAL_SEQUENCE_RNN", names, [y], "SequenceRNNOptions", fused_activation_function=4)
    _refused(file.written(["x"], [y]), tmp_path / "m.tflite", LimitExceeded, "elements: 1.15e\\+18")


def test_a_layer_of_keras_that_is_called_with_no_tensor(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    given = {"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [None, 3]}, "inbound_nodes": []}
    node = {"args": ["x"], "kwargs": {}}
    layer = {"class_name": "Dropout", "config": {"name": "d", "rate": 0.5}, "inbound_nodes": [node]}
    graph = {"name": "m", "layers": [given, layer], "input_layers": [["x", 0, 0]], "output_layers": [["d", 0, 0]]}
    weights = io.BytesIO()
    with h5py.File(weights, "w"):
        pass
    config = json.dumps({"class_name": "Functional", "config": graph}).encode()
    content = fuzz_archives.packed({"config.json": config, "model.weights.h5": weights.getvalue()})
    _refused(content, tmp_path / "m.keras", InvalidModel, "its result would be str, and no tensor")


def test_a_program_that_pytorch_reads_and_does_not_decompose(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(torch.nn.BatchNorm1d(4), (torch.randn(3, 4),)), path)
    members = fuzz_archives.unpacked(path.read_bytes())
    (name,) = (n for n in members if n.endswith("models/model.json"))
    program = json.loads(members[name])
    for node in program["graph_module"]["graph"]["nodes"]:
        for given in node["inputs"] if "batch_norm" in node["target"] else ():
            if given["name"] == "running_mean":
                given["arg"]["as_tensor"]["name"] = "input"
    content = fuzz_archives.packed({**members, name: json.dumps(program).encode()})
    _refused(
        content, path, InvalidModel, "PyTorch cannot decompose the program: running_mean should contain 4 elements"
    )


def test_a_version_of_a_domain_that_is_negative(tmp_path: Path) -> None:
    node = helper.make_node("Flattened", [], ["y"], domain="com.acme")
    made = helper.make_model(helper.make_graph([node], "g", [], [helper.make_empty_tensor_value_info("y")]))
    made.opset_import.add(domain="com.acme", version=-(2**63))
    _refused(made.SerializeToString(), tmp_path / "m.onnx", UnsupportedOp, "which renorm does not define")
