"""Networks as ONNX Runtime's quantizer writes them, in both of its formats, against that runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from tests.frontends import onnx_runtime

import renorm

Array = np.ndarray[Any, Any]
SHAPE = (2, 3, 27, 31)


class Network:
    def __init__(self, seed: int):
        self.rng, self.nodes, self.held = np.random.default_rng(seed), list[Any](), dict[str, Array]()

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, list(inputs), [f"n{len(self.nodes)}"], **attributes))
        return f"n{len(self.nodes) - 1}"

    def constant(self, array: Any) -> str:
        self.held[f"c{len(self.held)}"] = np.asarray(array, np.float32)
        return f"c{len(self.held) - 1}"

    def conv(self, x: str, cin: int, cout: int, k: int, stride: int = 1, group: int = 1) -> str:
        w = self.rng.normal(0, 1 / np.sqrt(cin // group * k * k), (cout, cin // group, k, k))
        b = self.rng.normal(0, 0.1, cout)
        attributes: dict[str, Any] = {"pads": [k // 2] * 4, "strides": [stride] * 2, "kernel_shape": [k, k]}
        return self.node("Conv", x, self.constant(w), self.constant(b), group=group, **attributes)


def network(seed: int = 0) -> onnx.ModelProto:
    """A residual block, a depthwise one, branches that are joined, and a classifier."""
    net = Network(seed)
    x = net.node("Relu", net.conv("x", 3, 32, 3, stride=2))
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = net.conv(net.node("Relu", net.conv(x, 32, 32, 3)), 32, 32, 3)
    x = net.node("Relu", net.node("Add", x, y))
    y = net.node("Clip", net.conv(x, 32, 64, 1), net.constant(0), net.constant(6))
    y = net.node("Sigmoid", net.conv(y, 64, 64, 3, group=64))
    x = net.node("Concat", y, net.conv(x, 32, 16, 1), axis=1)
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    w, b = net.constant(net.rng.normal(0, 0.3, (10, 80))), net.constant(net.rng.normal(0, 0.1, 10))
    y = net.node("Gemm", x, w, b, transB=1)
    graph = helper.make_graph(
        net.nodes,
        "classifier",
        [helper.make_tensor_value_info("x", 1, SHAPE)],
        [helper.make_tensor_value_info(y, 1, (SHAPE[0], 10))],
        [numpy_helper.from_array(a, n) for n, a in net.held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def image(seed: int) -> Array:
    return np.random.default_rng(seed).normal(0, 1, SHAPE).astype(np.float32)


class Images(CalibrationDataReader):
    def __init__(self) -> None:
        self._images: Iterator[Any] = iter([{"x": image(seed)} for seed in range(3)])

    def get_next(self) -> Any:
        return next(self._images, None)


@pytest.fixture
def float_file(tmp_path: Path) -> Path:
    onnx.save(network(), tmp_path / "float.onnx")
    return tmp_path / "float.onnx"


STATIC = [
    (form, activation, weight)
    for form in (QuantFormat.QDQ, QuantFormat.QOperator)
    for activation, weight in (("QUInt8", "QInt8"), ("QInt8", "QInt8"), ("QUInt8", "QUInt8"), ("QInt16", "QInt8"))
    if form is QuantFormat.QDQ or activation != "QInt16"
]


@pytest.mark.parametrize(("form", "activation", "weight"), STATIC, ids=str)
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
def test_static_quantization(
    form: Any, activation: str, weight: str, per_channel: bool, target: str, float_file: Path
) -> None:
    """Results are steps of one scale; ONNX Runtime's own error is 5 to 10 of them."""
    path = float_file.with_name("static.onnx")
    types: dict[str, Any] = {"activation_type": QuantType[activation], "weight_type": QuantType[weight]}
    quantize_static(float_file, path, Images(), quant_format=form, per_channel=per_channel, **types)
    x = image(9)
    (expected,) = onnx_runtime.run(onnx_runtime.session(path), x)
    exact = onnx_runtime.run(onnx_runtime.session(float_file), x)[0]
    (got,) = renorm.compile(path, target=target).run(x)
    wide = float(np.abs(exact).max())
    assert np.abs(expected - exact).max() > 1e-3 * wide  # it is quantized
    assert np.abs(got - expected).max() < 0.012 * wide  # a step of 256 is 0.008
    assert (np.abs(got - expected) > 1e-4 * wide).mean() < 0.2


def test_dynamic_quantization(float_file: Path) -> None:
    path = float_file.with_name("dynamic.onnx")
    quantize_dynamic(float_file, path)
    x = image(9)
    (expected,) = onnx_runtime.run(onnx_runtime.session(path), x)
    np.testing.assert_allclose(renorm.compile(path).run(x)[0], expected, rtol=1e-4, atol=1e-5)
