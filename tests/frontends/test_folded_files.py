"""Folded files open and run in the runtimes of their formats, with the output names that they had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.frontends import onnx_runtime
from tests.frontends.test_tflite_writer import operators, seed_001
from tests.frontends.test_unfold import random_network
from tests.frontends.tflite_files import File, litert

import renorm
from renorm import ops
from renorm.core.dims import Sym
from renorm.frontends import tflite
from renorm.graph.ir import Graph

pytest.importorskip("torch", reason="PyTorch is not installed")
from tests.frontends.test_circle_reader import NETWORKS, exported

Array = np.ndarray[Any, Any]


def output_names(content: bytes) -> list[str]:
    """As LiteRT gives them."""
    runtime = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    return [d["name"] for d in runtime.Interpreter(model_content=content).get_output_details()]


def reference(content: bytes, *xs: Any) -> tuple[list[str], list[Array]]:
    """Output names and outputs by tico's reference runtime of Circle."""
    runtime = pytest.importorskip("tico.circle.runtime", reason="tico is not installed")
    made = runtime.CircleReferenceRuntime(content)
    return [t.name for t in made.output_tensors], [np.asarray(y) for y in made.run(xs).outputs]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("reversible", [False, True])
def test_onnx_files(seed: int, reversible: bool, tmp_path: Path):
    source = random_network(seed)
    renorm.optimize(source, tmp_path / "folded.onnx", reversible=reversible)
    onnx.checker.check_model(tmp_path / "folded.onnx", full_check=True)
    before, after = (onnx_runtime.session(m) for m in (source, tmp_path / "folded.onnx"))
    names = [[o.name for o in s.get_outputs()] for s in (before, after)]
    assert names[0] == names[1]
    (given,) = before.get_inputs()
    x = np.random.default_rng(seed).standard_normal(given.shape).astype(np.float32)
    for y, e in zip(onnx_runtime.run(after, x), onnx_runtime.run(before, x), strict=True):
        np.testing.assert_allclose(y, e, atol=2e-4 * np.abs(e).max())


@pytest.mark.parametrize(
    "name",
    [
        "conv_norm_relu",
        "tconv_stride",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("depthwise", "conv_dilated")),
    ],
)
def test_circle_files_in_their_reference_runtime(name: str, tmp_path: Path):
    make, shape = NETWORKS[name]
    content, xs, expected = exported(make(), tmp_path / "net.circle", shape)
    names, _ = reference(content, *xs)
    for reversible in (False, True):
        renorm.optimize(tmp_path / "net.circle", tmp_path / "folded.circle", reversible=reversible)
        folded = (tmp_path / "folded.circle").read_bytes()
        kinds = [kind for kind, _ in operators(folded)]
        assert not {"MUL", "ADD"} & set(kinds), kinds
        found, (y,) = reference(folded, *xs)
        assert found == names
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=2e-5)


def test_the_network_of_the_article_in_the_reference_runtime(tmp_path: Path):
    content, _ = seed_001()
    (tmp_path / "net.circle").write_bytes(content)
    renorm.optimize(tmp_path / "net.circle", tmp_path / "folded.circle")
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 2, 2, 1)
    (names, (e,)), (found, (y,)) = reference(content, x), reference((tmp_path / "folded.circle").read_bytes(), x)
    assert names == found == ["output"]
    assert e.max() > 10
    np.testing.assert_allclose(y, e, rtol=1e-6)


def several_outputs() -> tuple[bytes, Array]:
    """Two convolutions with scale and shift; the first one's result is an output too, as is what lies between."""
    rng, file = np.random.default_rng(7), File()
    file.tensor("x", (1, 5, 6, 3))
    before, channels = "x", 3
    for i in range(2):
        file.constant(f"w{i}", rng.standard_normal((4, 3, 3, channels)).astype(np.float32))
        file.constant(f"b{i}", rng.standard_normal(4).astype(np.float32))
        file.constant(f"k{i}", rng.standard_normal(4).astype(np.float32))
        for t in (f"conv{i}", f"scaled{i}", f"shifted{i}"):
            file.tensor(t, (1, 5, 6, 4))
        file.operator("CONV_2D", [before, f"w{i}", f"b{i}"], [f"conv{i}"], "Conv2DOptions", stride_h=1, stride_w=1)
        file.operator("MUL", [f"conv{i}", f"k{i}"], [f"scaled{i}"], "MulOptions")
        file.operator("ADD", [f"scaled{i}", f"k{i}"], [f"shifted{i}"], "AddOptions", fused_activation_function=i)
        before, channels = f"shifted{i}", 4
    content = file.written(["x"], ["shifted1", "conv1", "shifted0"])
    return content, rng.standard_normal((1, 5, 6, 3)).astype(np.float32)


def test_tensorflow_lite_files_with_several_outputs(tmp_path: Path):
    content, x = several_outputs()
    (tmp_path / "net.tflite").write_bytes(content)
    renorm.optimize(tmp_path / "net.tflite", tmp_path / "folded.tflite")
    folded = (tmp_path / "folded.tflite").read_bytes()
    assert len(operators(folded)) < len(operators(content))
    assert output_names(folded) == output_names(content) == ["shifted1", "conv1", "shifted0"]
    for y, e in zip(litert(folded, x), litert(content, x), strict=True):
        np.testing.assert_allclose(y, e, rtol=1e-5, atol=1e-5 * np.abs(e).max())


@pytest.mark.parametrize("is_open", [False, True])
def test_outputs_that_are_one_tensor_have_names_of_their_own(is_open: bool):
    """Two results that the file holds in one order of axes, and an output that is a constant twice."""
    rng, graph = np.random.default_rng(8), Graph("twins")
    shape = graph_shape = (2, 3, 5, 6)
    if is_open:
        graph_shape = (Sym("n"), 3, Sym("h"), 6)
    x = graph.input("x", "float32", graph_shape)
    y = ops.conv(x, graph.constant(rng.standard_normal((4, 3, 3, 3)).astype(np.float32)))
    constant = rng.standard_normal((2, 2)).astype(np.float32)
    graph.outputs = [
        ops.transpose(y, perm=(0, 2, 3, 1)),
        ops.transpose(y, perm=(0, 2, 3, 1)),
        y,
        graph.constant(constant, "c"),
        graph.constant(constant, "d"),
    ]
    names = ["first", "second", "third", "fourth", "fifth"]
    for v, name in zip(graph.outputs, names):
        graph.rename(v, name)
    data = rng.standard_normal(shape).astype(np.float32)
    (expected,) = renorm.compile(_only(graph, 2), opt_level=0).run(data)
    content = tflite.write(graph)
    assert output_names(content) == names
    found = litert(content, data)
    for a, e in zip(found, (expected.transpose(0, 2, 3, 1),) * 2 + (expected, constant, constant), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)
    written = tflite.write(graph, identifier=b"CIR0")
    assert [v.name for v in renorm.read(written).outputs] == names


def _only(graph: Graph, output: int) -> Graph:
    part = graph.copy()
    part.outputs = [part.outputs[output]]
    return part


def quantized() -> tuple[bytes, Array]:
    """A convolution of int8 with a scale per channel, and its ReLU in the range of the output."""
    rng, file = np.random.default_rng(9), File()
    file.tensor("x", (1, 6, 7, 3), "int8", scale=([0.05], [3], 0))
    scales = rng.uniform(0.005, 0.02, 4)
    w = rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    file.constant("w", w, scale=(scales, [0] * 4, 0))
    file.constant("b", rng.integers(-900, 900, 4).astype(np.int32), scale=(scales * 0.05, [0] * 4, 0))
    file.tensor("y", (1, 4, 5, 4), "int8", scale=([0.3], [-20], 0))
    file.operator(
        "CONV_2D", ["x", "w", "b"], ["y"], "Conv2DOptions", 3, padding=1, stride_h=1, stride_w=1,
        fused_activation_function=1,
    )  # fmt: skip
    return file.written(["x"], ["y"]), rng.integers(-128, 128, (1, 6, 7, 3)).astype(np.int8)


def test_quantized_networks_are_written_back(tmp_path: Path):
    """As arithmetic over the numbers that the integers stand for: results may differ by one step."""
    content, x = quantized()
    (tmp_path / "net.tflite").write_bytes(content)
    renorm.optimize(tmp_path / "net.tflite", tmp_path / "folded.tflite", reversible=True)
    folded = (tmp_path / "folded.tflite").read_bytes()
    assert output_names(folded) == output_names(content) == ["y"]
    (y,), (e,) = litert(folded, x), litert(content, x)
    assert (y.dtype, y.shape) == (np.int8, e.shape)
    assert len(np.unique(e)) > 20
    assert np.abs(y.astype(int) - e).max() <= 1
    renorm.unfold(tmp_path / "folded.tflite", tmp_path / "back.tflite")
    np.testing.assert_array_equal(litert((tmp_path / "back.tflite").read_bytes(), x)[0], e)
