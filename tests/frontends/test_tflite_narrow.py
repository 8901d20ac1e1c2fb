"""Networks with weights of float16, and with integers of 8 bits: read as float arithmetic, folded, and written so that
LiteRT computes of them what it computes of the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.test_tflite_writer import operators
from tests.frontends.tflite_files import File, litert
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.frontends import tflite
from renorm.graph.ir import Graph


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def optimized(content: bytes, path: Path) -> bytes:
    (path / "in.tflite").write_bytes(content)
    renorm.optimize(path / "in.tflite", path / "out.tflite")
    return (path / "out.tflite").read_bytes()


def test_weights_of_float16_fold(tmp_path: Path):
    """DEQUANTIZE of constants goes; what is folded is stored in float32, which holds what it is."""
    file = File()
    file.tensor("x", (1, 6, 5, 3))
    file.constant("w16", f(4, 3, 3, 3).astype(np.float16))
    file.constant("b16", f(4).astype(np.float16))
    file.constant("k", f(4))
    file.constant("shift", f(1, 1, 1, 4))
    for name, shape in {"w": (4, 3, 3, 3), "b": (4,), "c": (1, 6, 5, 4), "m": (1, 6, 5, 4), "y": (1, 6, 5, 4)}.items():
        file.tensor(name, shape)
    file.operator("DEQUANTIZE", ["w16"], ["w"])
    file.operator("DEQUANTIZE", ["b16"], ["b"])
    file.operator("CONV_2D", ["x", "w", "b"], ["c"], "Conv2DOptions", stride_h=1, stride_w=1)
    file.operator("MUL", ["c", "k"], ["m"], "MulOptions")
    file.operator("ADD", ["m", "shift"], ["y"], "AddOptions", fused_activation_function=1)
    content, x = file.written(["x"], ["y"]), f(1, 6, 5, 3)
    written = optimized(content, tmp_path)
    assert operators(written) == [("CONV_2D", 1)]
    np.testing.assert_allclose(litert(written, x)[0], litert(content, x)[0], rtol=1e-5, atol=1e-5)


def test_a_norm_in_front_of_weights_of_float16(tmp_path: Path):
    """What the shift does at the border is an image that is added: of float32 too."""
    file = File()
    file.tensor("x", (2, 6, 5, 3))
    file.constant("k", f(3))
    file.constant("shift", f(1, 1, 1, 3))
    file.constant("w16", f(4, 3, 3, 3).astype(np.float16))
    file.constant("b", f(4))
    for name, shape in {"w": (4, 3, 3, 3), "m": (2, 6, 5, 3), "a": (2, 6, 5, 3), "y": (2, 6, 5, 4)}.items():
        file.tensor(name, shape)
    file.operator("MUL", ["x", "k"], ["m"], "MulOptions")
    file.operator("ADD", ["m", "shift"], ["a"], "AddOptions")
    file.operator("DEQUANTIZE", ["w16"], ["w"])
    file.operator("CONV_2D", ["a", "w", "b"], ["y"], "Conv2DOptions", stride_h=1, stride_w=1)
    content, x = file.written(["x"], ["y"]), f(2, 6, 5, 3)
    written = optimized(content, tmp_path)
    assert [kind for kind, _ in operators(written)] == ["CONV_2D", "ADD"]
    np.testing.assert_allclose(litert(written, x)[0], litert(content, x)[0], rtol=1e-5, atol=2e-5)


def quantized(depthwise: bool, ends: str) -> tuple[bytes, Any, float]:
    """Convolution, ReLU, convolution in int8, with a scale per channel; an input, and a step of the result. ends: dtype
    of what goes in and comes out."""
    file = File()
    scale_x, scale_y = 0.05, 0.4
    file.tensor("x8", (2, 7, 6, 4), "int8", scale=([scale_x], [3], 0))
    w = RNG.integers(-127, 128, (1, 3, 3, 4) if depthwise else (5, 3, 3, 4)).astype(np.int8)
    channels = 4 if depthwise else 5
    steps = RNG.uniform(0.002, 0.02, channels)
    axis = 3 if depthwise else 0
    file.constant("w", w, scale=(steps, [0] * channels, axis))
    bias = RNG.integers(-200, 200, channels).astype(np.int32)
    file.constant("b", bias, scale=(np.float32(scale_x) * steps, [0] * channels, 0))
    file.tensor("c", (2, 7, 6, channels), "int8", scale=([scale_y], [-128], 0))
    v = RNG.integers(-127, 128, (3, 1, 1, channels)).astype(np.int8)
    own = RNG.uniform(0.002, 0.02, 3)
    file.constant("v", v, scale=(own, [0] * 3, 0))
    file.constant("d", np.zeros(3, np.int32), scale=(np.float32(scale_y) * own, [0] * 3, 0))
    file.tensor("y8", (2, 7, 6, 3), "int8", scale=([scale_y], [5], 0))
    if ends == "float32":
        file.tensor("x", (2, 7, 6, 4))
        file.tensor("y", (2, 7, 6, 3))
        file.operator("QUANTIZE", ["x"], ["x8"])
    kind, options = ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions") if depthwise else ("CONV_2D", "Conv2DOptions")
    step: dict[str, Any] = {"stride_h": 1, "stride_w": 1}
    more = {"depth_multiplier": 1} if depthwise else {}
    file.operator(kind, ["x8", "w", "b"], ["c"], options, 3, **step, **more, fused_activation_function=1)
    file.operator("CONV_2D", ["c", "v", "d"], ["y8"], "Conv2DOptions", 3, **step)
    if ends == "float32":
        file.operator("DEQUANTIZE", ["y8"], ["y"])
        return file.written(["x"], ["y"]), f(2, 7, 6, 4), scale_y
    return file.written(["x8"], ["y8"]), RNG.integers(-128, 128, (2, 7, 6, 4)).astype(np.int8), 1


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("ends", ["int8", "float32"])
def test_integers_of_8_bits_stay_integers(depthwise: bool, ends: str, tmp_path: Path):
    """The same operators over the same tensors, so that what they make is the same."""
    content, x, step = quantized(depthwise, ends)
    written = optimized(content, tmp_path)
    assert [kind for kind, _ in operators(written)] == [kind for kind, _ in operators(content)]
    (before,), (after,) = litert(content, x), litert(written, x)
    assert before.dtype == after.dtype == np.dtype(ends)
    np.testing.assert_array_equal(before, after)
    (ours,) = renorm.compile(tmp_path / "out.tflite").run(x)
    assert np.abs(ours.astype(np.float64) - after.astype(np.float64)).max() <= 1.01 * step


@pytest.mark.parametrize("op", ["reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "reduce_prod"])
@pytest.mark.parametrize("axes", [(), None, (1,), (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_over_no_axes_and_over_all(op: str, axes: Any, keepdims: bool):
    g = Graph()
    g.outputs = [getattr(ops, op)(g.input("x", "float32", (2, 3, 4)), axes=axes, keepdims=keepdims)]
    x = f(2, 3, 4)
    numpy = {"mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[op.removeprefix("reduce_")]
    expected = numpy(x.astype(np.float64), axis=axes, keepdims=keepdims)
    (found,) = litert(tflite.write(g), x)
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
