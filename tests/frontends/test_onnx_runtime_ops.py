"""Operators that ONNX Runtime's optimizer writes, against that runtime: every operand and attribute, odd sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser
from tests.frontends import onnx_runtime
from tests.frontends.runtime_nodes import MICROSOFT, check, f, i, model

import renorm
from renorm.core.errors import RenormError, UnsupportedOp

# --- norms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [(2, 5, 37), (1, 5, 37), (5, 37)])
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True), (False, False)])
def test_skip_layer_norm(skip: tuple[int, ...], given: tuple[bool, bool]) -> None:
    beta, bias = (f(37) if is_given else None for is_given in given)
    check("SkipLayerNormalization", f(2, 5, 37), f(*skip), f(37), beta, bias, outputs=["y", "", "", "s"], epsilon=1e-3)


def test_skip_simplified_layer_norm() -> None:
    operands = f(3, 2, 19), f(3, 2, 19), f(19)
    check("SkipSimplifiedLayerNormalization", *operands, f(19), outputs=["y", "", "", "s"])
    check("SkipSimplifiedLayerNormalization", *operands, epsilon=0.1)


@pytest.mark.parametrize("axis", [-1, 1])
def test_simplified_layer_norm(axis: int) -> None:
    x = f(3, 4, 7)
    check("SimplifiedLayerNormalization", x, f(*x.shape[axis:]), domain="", axis=axis, epsilon=0.25, outputs=2)


@pytest.mark.parametrize("has_segments", [True, False])
@pytest.mark.parametrize("has_positions", [True, False])
def test_embed_layer_norm(has_segments: bool, has_positions: bool) -> None:
    words, tables = i(2, 5, below=11), (f(11, 13), f(7, 13))
    segments = (i(2, 5, below=2), f(2, 13)) if has_segments else (None, None)
    mask = np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    positions = i(2, 5, below=7) if has_positions else None
    operands = words, segments[0], *tables, segments[1], f(13), f(13), mask, positions
    check("EmbedLayerNormalization", *operands, outputs=3, epsilon=1e-2)


def _group_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, groups: int, epsilon: float) -> np.ndarray:
    n, *plane, c = x.shape
    cut = x.astype(np.float64).reshape(n, -1, groups, c // groups)
    mean, var = cut.mean((1, 3), keepdims=True), cut.var((1, 3), keepdims=True)
    return ((cut - mean) / np.sqrt(var + epsilon)).reshape(n, *plane, c) * gamma + beta


@pytest.mark.parametrize("is_skipped", [True, False])
def test_group_norm_of_channels_that_lie_last(is_skipped: bool) -> None:
    """ONNX Runtime has these on GPUs only."""
    x, gamma, beta, skip, bias = f(2, 3, 5, 6), f(6), f(6), f(2, 6), f(6)
    operands = (x, gamma, beta, skip, bias) if is_skipped else (x, gamma, beta)
    attributes = {"groups": 3, "epsilon": 0.01, "activation": 1}
    held = model("SkipGroupNorm" if is_skipped else "GroupNorm", operands, 1 + is_skipped, MICROSOFT, attributes)
    y, *s = renorm.compile(held).run(*operands)
    total = x + skip[:, None, None] + bias if is_skipped else x
    expected = _group_norm(total, gamma, beta, 3, 0.01)
    np.testing.assert_allclose(y, expected / (1 + np.exp(-expected)), rtol=2e-5, atol=2e-5)
    for found in s:
        np.testing.assert_allclose(found, total, rtol=1e-6)


# --- activations ------------------------------------------------------------------------------------------------------


def test_activations() -> None:
    x, bias = f(2, 3, 22), f(22)
    check("Gelu", x)
    check("BiasGelu", x, bias)
    check("FastGelu", x)
    check("FastGelu", x, bias)
    check("QuickGelu", x, alpha=0.75)
    check("QuickGelu", x)


def test_activations_that_onnx_runtime_has_on_gpus_only() -> None:
    x, bias, skip = f(2, 3, 22), f(22), f(2, 3, 22)
    (y,) = renorm.compile(model("BiasAdd", (x, bias, skip), 1, MICROSOFT, {})).run(x, bias, skip)
    np.testing.assert_allclose(y, x + bias + skip, rtol=1e-6, atol=1e-6)
    (y,) = renorm.compile(model("BiasSplitGelu", (x, bias), 1, MICROSOFT, {})).run(x, bias)
    (gelu,) = renorm.compile(model("Gelu", ((x + bias)[..., 11:],), 1, MICROSOFT, {})).run((x + bias)[..., 11:])
    np.testing.assert_allclose(y, (x + bias)[..., :11] * gelu, rtol=1e-5, atol=1e-6)


# --- products ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((3, 5, 7), (3, 7, 4), {}),
        ((3, 7, 5), (3, 4, 7), {"transA": 1, "transB": 1, "alpha": 0.5}),
        ((5, 3, 7), (3, 7, 4), {"transBatchA": 1}),
        ((5, 3, 7), (4, 3, 7), {"transBatchA": 1, "transBatchB": 1, "transB": 1, "alpha": -2.0}),
        ((7, 3, 5), (3, 7, 4), {"transBatchA": 1, "transA": 1}),
        ((7,), (7, 4), {"alpha": 3.0}),
    ],
)
def test_fused_matmul(a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, Any]) -> None:
    check("FusedMatMul", f(*a), f(*b), **attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {"activation": "Relu"},
        {"activation": "LeakyRelu", "activation_alpha": 0.25},
        {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.25, "alpha": 0.5},
        {"activation": "Tanh", "transA": 1, "beta": 0.5},
        {"activation": "Sigmoid", "transB": 1},
        {"activation": "Elu", "activation_alpha": 0.5},
    ],
)
def test_fused_gemm(attributes: dict[str, Any]) -> None:
    a, b = (7, 5) if attributes.get("transA") else (5, 7), (3, 7) if attributes.get("transB") else (7, 3)
    check("FusedGemm", f(*a), f(*b), f(3), **attributes)
    check("FusedGemm", f(*a), f(*b), **attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"activation": "Relu", "pads": [1, 0, 2, 1], "strides": [2, 1]},
        {"activation": "LeakyRelu", "activation_params": [0.125], "group": 2},
        {"activation": "Clip", "activation_params": [-0.5, 0.75], "auto_pad": "SAME_UPPER"},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.6], "dilations": [1, 2]},
    ],
)
def test_fused_conv(attributes: dict[str, Any]) -> None:
    x, w, bias = f(2, 4, 7, 9), f(6, 4 // attributes.get("group", 1), 3, 2, low=-0.3, high=0.3), f(6)
    check("FusedConv", x, w, bias, kernel_shape=[3, 2], **attributes)
    check("FusedConv", x, w, **attributes)
    (y,) = renorm.compile(model("FusedConv", (x, w, bias), 1, MICROSOFT, attributes)).run(x, w, bias)
    check("FusedConv", x, w, bias, f(*y.shape), **attributes)
    turned = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    (z,) = renorm.compile(model("NhwcFusedConv", (turned, w, bias), 1, MICROSOFT, attributes)).run(turned, w, bias)
    np.testing.assert_allclose(z, y.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-6)


def test_an_activation_that_is_not_known_is_named() -> None:
    held = model("FusedGemm", (f(3, 4), f(4, 5)), 1, MICROSOFT, {"activation": "Cosh"})
    with pytest.raises(RenormError, match="activation 'Cosh' is not read"):
        renorm.compile(held)


# --- others -----------------------------------------------------------------------------------------------------------


def test_operators_that_onnx_has_since() -> None:
    x = f(2, 5, 7)
    check("Trilu", x, upper=0)
    check("Inverse", f(2, 3, 4, 4) + 3 * np.eye(4, dtype=np.float32))
    check("GatherND", x, np.array([[1, 4], [0, 2], [1, 0]], np.int64))
    held = model("ExpandDims", (x, np.array(1, np.int32)), 1, MICROSOFT, {})
    axis = held.graph.input.pop()
    held.graph.initializer.append(numpy_helper.from_array(np.array(-2, np.int32), axis.name))
    (y,) = renorm.compile(held).run(x)
    np.testing.assert_array_equal(y, onnx_runtime.run(held, x)[0])


NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 4, 7, 9] x, float[6, 4, 3, 3] w, float[6] b, float[6] gamma, float[6] beta, float[6, 5] m) => (y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        r = Relu (c)
        t = ReduceMean <axes = [3], keepdims = 0> (r)
        s = Transpose <perm = [0, 2, 1]> (t)
        o = Constant <value = float {1.0}> ()
        h = Constant <value = float {0.5}> ()
        q = Constant <value = float {1.4142135}> ()
        d = Div (s, q)
        e = Erf (d)
        p = Add (e, o)
        g = Mul (s, p)
        k = Mul (g, h)
        n = Add (s, k)
        l = LayerNormalization (n, gamma, beta)
        z = MatMul (t, l)
        u = Constant <value = float {0.125}> ()
        v = Mul (z, u)
        a = MatMul (v, m)
        y = Identity (a)
    }"""


def test_a_network_that_onnx_runtime_has_optimized(tmp_path: Path) -> None:
    held = parser.parse_model(NETWORK)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in held.graph.input}
    arrays = {name: f(*shape) for name, shape in shapes.items()}
    for name in [*arrays][1:]:
        held.graph.initializer.append(numpy_helper.from_array(arrays[name], name))
    del held.graph.input[1:]
    expected = onnx_runtime.run(held, arrays["x"])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(held.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = {n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert found >= {"FusedConv", "FusedMatMul", "SkipLayerNormalization"}
    (y,) = renorm.compile(tmp_path / "optimized.onnx").run(arrays["x"])
    np.testing.assert_allclose(y, expected[0], rtol=1e-4, atol=1e-5)


def test_a_layout_of_one_machine_says_how_to_save_the_network() -> None:
    held = model("ReorderInput", (f(1, 16, 3, 3),), 1, f"{MICROSOFT}.nchwc", {})
    held.opset_import.append(helper.make_opsetid(f"{MICROSOFT}.nchwc", 1))
    with pytest.raises(UnsupportedOp, match="ORT_ENABLE_EXTENDED"):
        renorm.compile(held)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(4, 5), (1, 3), (2, 1)])
def test_boxes_of_images(mode: str, size: tuple[int, int]) -> None:
    """Boxes that lie outside of their images, and some that are turned over."""
    x, boxes, batch = f(3, 2, 7, 9), f(6, 4, low=-0.3, high=1.3), i(6, below=3)
    boxes[0] = [0, 0, 1, 1]
    held = model("CropAndResize", (x, boxes, batch, np.array(size, np.int32)), 1, MICROSOFT,
                 {"mode": mode, "extrapolation_value": 0.75})  # fmt: skip
    last = held.graph.input.pop()
    held.graph.initializer.append(numpy_helper.from_array(np.array(size, np.int32), last.name))
    expected = onnx_runtime.run(held, {"x0": x, "x1": boxes, "x2": batch})[0]
    (y,) = renorm.compile(held).run(x, boxes, batch)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-5)
