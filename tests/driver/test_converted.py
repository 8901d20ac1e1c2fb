"""MNN and ncnn compute what ONNX Runtime does, out of formats of their own; what they cannot is a failure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from tests.random_numbers import RNG

from renorm.driver.measure import Contender, Measured, side_by_side

RUNTIMES = {"mnn": "MNN", "ncnn": "ncnn"}
SEVERAL = """<ir_version: 8, opset_import: ["": 17]>
g (float[2, 3, 9, 7] x, float[2, 4] s, int64[2, 5] i) => (float[2, 4, 9, 7] y, float[2, 5, 6] e, float[2, 4] z) {
c = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(c) m = ReduceMean<axes = [2, 3], keepdims = 0>(r) z = Add(m, s)
y = Sigmoid(r) e = Gather(t, i) }"""
STRANGE = """<ir_version: 8, opset_import: ["": 17]> g (float[6, 5] x) => (int64[2, M] y) { y = NonZero(x) }"""


def written(text: str, path: Path) -> dict[str, np.ndarray]:
    """The file, and inputs for it."""
    model = parser.parse_model(text)
    for name, shape in (("w", (4, 3, 3, 3)), ("t", (11, 6))):
        array = RNG.standard_normal(shape).astype(np.float32)
        if name in text.split("{")[1]:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, path)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {
        name: RNG.integers(0, 11, shape) if name == "i" else RNG.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def compared(runtime: str, text: str, path: Path) -> tuple[Measured, Measured]:
    inputs = written(text, path)
    pytest.importorskip(RUNTIMES[runtime])
    if runtime == "ncnn":
        pytest.importorskip("pnnx")
    contenders = [Contender("ort", "ort", path), Contender(runtime, runtime, path)]
    reference, found = side_by_side(contenders, inputs, 1, rounds=1, seconds=0.01, gap=0.0).measured
    return reference, found


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_several_inputs_and_outputs_in_batches(runtime: str, tmp_path: Path) -> None:
    reference, found = compared(runtime, SEVERAL, tmp_path / "several.onnx")
    assert found.failure == ""
    assert [o.shape for o in found.outputs] == [(2, 4, 9, 7), (2, 5, 6), (2, 4)]
    assert found.error(reference) < 1e-5
    assert found.open_seconds > 0.1  # converting


def test_what_ncnn_has_no_layers_for_is_named(tmp_path: Path) -> None:
    _, found = compared("ncnn", STRANGE, tmp_path / "strange.onnx")
    assert found.latency is None
    assert "ncnn has no layers" in found.failure


def test_a_converter_that_fails_says_why(tmp_path: Path) -> None:
    pytest.importorskip("MNN")
    path = tmp_path / "damaged.onnx"
    path.write_bytes(b"no model")
    (found,) = side_by_side(
        [Contender("mnn", "mnn", path)], {"x": np.ones(3, np.float32)}, 1, rounds=1, seconds=0.01, gap=0.0
    ).measured
    assert found.latency is None
    assert "its converter ended with" in found.failure
