"""`check` beside LiteRT, and what it says where the reference is not what the definition says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.frontends.models import model
from tests.frontends.quantized_files import spotter
from tests.frontends.tflite_files import File

import renorm
from renorm.cli import main
from renorm.core.errors import InvalidInput
from renorm.driver import runners
from renorm.driver.compare import compare

pytestmark = pytest.mark.usefixtures("kept_code")


def product() -> bytes:
    file, rng = File(), np.random.default_rng(0)
    file.tensor("x", (2, 4))
    file.constant("w", rng.standard_normal((3, 4)).astype(np.float32))
    file.tensor("y", (2, 3))
    file.operator("FULLY_CONNECTED", ["x", "w", None], ["y"], "FullyConnectedOptions", 6)
    return file.written(["x"], ["y"])


def check(path: Path, *options: str) -> Any:
    return CliRunner().invoke(main, ["check", str(path), *options])


def test_litert_is_a_reference_for_its_files(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    path = tmp_path / "m.tflite"
    path.write_bytes(product())
    found = check(path, "--reference", "litert", "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["reference"] == "litert"
    assert told["outputs"][0]["error"] < 1e-5
    with pytest.raises(InvalidInput, match="is no TensorFlow Lite or Circle file"):
        compare(model("g (float[2] x) => (float[2] y) { y = Relu(x) }"), {"x": np.ones(2, "f")}, reference="litert")


def test_quantized_networks_are_held_to_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ai_edge_litert")
    content, x = spotter(np.random.default_rng(1))
    name = renorm.read(content).inputs[0].name
    assert compare(content, {name: x}, reference="litert").agrees
    true = runners.RUNNERS["litert"]

    def wrong(*given: Any) -> Any:
        (found,), said = true(*given)
        return [np.clip(found.astype(int) + np.where(found > 0, -8, 8), -128, 127).astype(np.int8)], said

    monkeypatch.setitem(runners.RUNNERS, "litert", wrong)
    found = compare(content, {name: x}, reference="litert")
    assert not found.agrees
    assert found.outputs[0].departs is None  # integers of a runtime are its own; there is no definition beside it


def test_a_reference_that_departs_from_the_definition_is_said_to(tmp_path: Path) -> None:
    """ONNX Runtime computes Shrink of float64 in float32."""
    m = model("g (double[64] x) => (double[64] y) { [s] y = Shrink <lambd = 0.1, bias = 0.3> (x) }")
    path = tmp_path / "m.onnx"
    path.write_bytes(m.SerializeToString())
    found = check(path, "--reference", "ort")
    assert found.exit_code == 0, found.output
    assert "agrees with the definition: from float64 ort is off by" in " ".join(found.stdout.split())
    told = json.loads(check(path, "--reference", "ort", "--json").stdout)["outputs"][0]
    assert told["departs"] > 1e-9
    assert told["own"] < 1e-14


def test_a_fault_of_ours_differs_from_the_definition_too(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model("g (float[64] x) => (float[64] y) { [s] y = Sin(x) }")
    x = {"x": np.linspace(-3, 3, 64, dtype=np.float32)}
    assert compare(m, x, reference="ort").agrees
    op = renorm.read(m).nodes[0].op
    monkeypatch.setattr(type(op), "element", lambda self, e: e)
    monkeypatch.setenv("RENORM_CACHE", "0")
    (found,) = compare(m, x, reference="ort").outputs
    assert not found.agrees
    assert found.own is not None
    assert found.departs is not None
    assert found.departs < 1e-5 < found.own


def test_a_wrong_second_result_is_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that computes it is named, not the one that reads it."""
    m = model("g (float[2, 6] x) => (float[2, 3] y) { [halves] a, b = Split <axis = 1> (x) [last] y = Tanh(b) }")
    x = {"x": np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)}
    op = renorm.read(m).nodes[0].op
    right = type(op).compute

    def compute(self: Any, *operands: Any) -> Any:
        a, _ = right(self, *operands)
        return a, a

    monkeypatch.setattr(type(op), "compute", compute)
    monkeypatch.setenv("RENORM_CACHE", "0")
    found = compare(m, x, reference="interpreter", opt_level=0)
    assert not found.agrees
    assert found.first is not None
    assert found.first.node == "halves"
