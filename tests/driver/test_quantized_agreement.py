"""Quantized networks of the benchmarks beside ONNX Runtime's integer kernels: a small part of what
`python -m benchmarks quantized` compares, and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.frontends import onnx_runtime

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from benchmarks import quantized, quantized_files, quantized_page
from benchmarks.quantized_departures import departures
from benchmarks.quantized_files import FORMS
from benchmarks.quantized_networks import NETWORKS
from onnx import helper, numpy_helper

from renorm.passes.dot_sums import sums_for
from renorm.targets import find

CASES = [
    ("ds_cnn", "QDQ u8 s8"),
    ("tc_resnet8", "QDQ s8 s8 symmetric"),
    ("gru", "QDQ u8 u8 per tensor"),
    ("resnet8_group_norm", "QOperator s8 s8 per tensor"),
    ("autoencoder", "QOperator u8 s8"),
    ("autoencoder", "com.microsoft dynamic"),
    ("espcn", "com.microsoft"),
    ("lstm", "dynamic"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(quantized, "AT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "form"), CASES, ids=str)
def test_a_network_is_a_step_from_the_integer_kernels(name: str, form: str, folder: Path) -> None:
    """Or from what the file says, where these cut their sums."""
    file = quantized.made(name, form)
    is_integer = {"QLinearConv", "QuantizeLinear", "MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
    assert is_integer & {node.op_type for node in onnx.load(file).graph.node}
    found = quantized.compare(file, NETWORKS[name])
    if onnx_runtime.SATURATES:
        assert found["from definition"] <= quantized_page.STEP, found
    else:
        assert found["steps"] <= quantized_page.STEP, found
        assert found["share"] < 0.2, found


def test_products_that_are_dequantized_are_those_of_integer_kernels(folder: Path) -> None:
    """To the last element, over 27 layers, also where a product of floats would be rounded to another integer; where
    these cut their sums, a step from what the file says."""
    if sums_for(find("llvm")) is None:
        pytest.skip("the machine multiplies no integers by vector instructions")
    found = quantized.compare(quantized.made("mobilenet_v1", "QDQ s8 s8 symmetric"), NETWORKS["mobilenet_v1"])
    if onnx_runtime.SATURATES:
        assert found["from definition"] <= quantized_page.STEP, found
    else:
        assert found["steps"] == 0


def test_no_number_is_infinitely_many_steps_from_one() -> None:
    found = quantized.differing([np.nan, np.nan, 1.0, np.inf, 2.0], [np.nan, 1.0, np.nan, np.inf, 1.0], 0.5)
    np.testing.assert_array_equal(found, [0, np.inf, np.inf, 0, 2])


def test_every_form_comes_up() -> None:
    assert {form for name in NETWORKS for form in quantized.forms(name)} == set(FORMS)


def model() -> onnx.ModelProto:
    """Two images of integers that are joined, one of them behind a transposition."""
    nodes = [
        helper.make_node("DequantizeLinear", ["a", "fine", "zero"], ["x"]),
        helper.make_node("DequantizeLinear", ["a", "coarse", "zero"], ["y"]),
        helper.make_node("Transpose", ["y"], ["z"]),
        helper.make_node("Concat", ["x", "z"], ["joined"], axis=0),
        helper.make_node("Relu", ["joined"], ["other"]),
    ]
    initializers = {"fine": np.float32(0.25), "coarse": np.float32(0.5), "zero": np.uint8(3)}
    graph = helper.make_graph(
        nodes,
        "joined",
        [helper.make_tensor_value_info("a", onnx.TensorProto.UINT8, (3, 3))],
        [helper.make_tensor_value_info(name, 1, (6, 3)) for name in ("joined", "other")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_steps_are_those_of_the_coarsest_part() -> None:
    assert quantized_files.scale_of(model(), "joined") == 0.5
    assert quantized_files.scale_of(model(), "other") is None


def test_a_departure_is_found_where_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A definition that rounds otherwise is one from which both depart, and at the first tensor already."""
    file = quantized.made("ds_cnn", "QDQ u8 s8")
    given = {"x": np.random.default_rng(0).standard_normal((1, 1, 49, 10)).astype(np.float32)}
    exact = departures(file, given)
    assert list(exact) == ["renorm", "ONNX Runtime"]
    exact |= {} if not onnx_runtime.SATURATES else {"ONNX Runtime": []}
    assert all(steps <= 1 for places in exact.values() for _, steps in places)
    from renorm.ops.shared import quantization

    right = quantization.quantized_array
    monkeypatch.setattr(quantization, "quantized_array", lambda numbers, *more: right(np.asarray(numbers) + 2, *more))
    for places in departures(file, given).values():
        assert places[0][0].startswith("quantize_linear")
        assert places[0][1] == 2


def test_the_page_counts_files_and_names_those_that_are_apart() -> None:
    near = {"steps": 1.0, "share": 0.013, "from definition": 0.0, "reference from definition": 1.0}
    apart: dict[str, Any] = {"steps": 3.5, "share": 0.4, "from definition": 0.0, "reference from definition": 3.5}
    apart["departures"] = {"renorm": [], "ONNX Runtime": ["softmax soft: 3"]}
    refused: dict[str, Any] = {"reference said": "1 : while running Resize node. Status: x", "from definition": 0.0}
    runtimes = {"renorm": {"ms": 2.0}, "ort": {"ms": 4.0}, "openvino": {"failure": "pip install openvino"}}
    page = quantized_page.page(
        {
            "networks": {
                "a": {"QDQ u8 s8": near, "dynamic": apart},
                "b": {"dynamic": {"said": "no\nmore"}, "QDQ u8 s8": refused},
            },
            "flat": {
                "c": {"reference": 1.0, "built in": 1.0, "xnnpack": 2.0, "xnnpack from reference": 2.0},
                "d.int8": {"reference": 0.0, "built in": 0.0, "xnnpack": 0.0, "xnnpack from reference": 0.0},
                "d.int16x8": {"reference": 2.0, "built in": 1.0, "xnnpack": 2.0, "xnnpack from reference": 0.0},
            },
            "latency": [
                (f"On {machine}.", [{"network": "a", "threads": 2, "runtimes": runtimes, "layers": []}])
                for machine in ("one machine", "another")
            ],
            "machine": {"packages": {"onnxruntime": "1.0"}},
        }
    )
    assert "1 of 4 files of 2 networks" in page
    assert page.count("On one machine.") == page.count("On another.") == 1
    assert "Of the others, 2 are at most one step from what the file says" in page
    assert "and 1 is neither" in page
    assert "| b | QDQ u8 s8 | | | 0 | does not run Resize node. |" in page
    assert "- softmax: ONNX Runtime replaces it" in page
    assert "| a | QDQ u8 s8 | 1 | 1.3% | 0 | 1 |" in page
    assert "| a | dynamic | **3.5** |" in page
    assert "| a, dynamic |  | softmax soft: 3 |" in page
    assert "| b | dynamic | not read | | | no |" in page
    assert "0 networks agree in every file" in page
    assert "2 of 3 TensorFlow Lite files" in page
    assert "2 networks, 0 of them drawn at random, 1 are so in every file" in page
    assert "| a | 2 | 2.000 | 4.000 |  |  |  |  | 0.50 |" in page
    assert quantized.is_right(near)
    assert quantized.is_right(apart)
    assert quantized.is_right(refused)
    assert not quantized.is_right({"said": "no"})
    assert not quantized.is_right({**apart, "from definition": 2.0})
