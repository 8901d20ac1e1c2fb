"""A norm behind a product with dequantized weights becomes part of their scales, where that is exact."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.frontends import onnx_runtime

import renorm
from renorm import ops
from renorm.core.dims import static
from renorm.core.dtypes import numpy_dtype
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.verify import verify
from renorm.passes.pipeline import optimize
from renorm.runtime.report import NormRecord

Array = np.ndarray[Any, Any]


def parameters(rng: np.random.Generator, scale: Array) -> list[Array]:
    """scale, bias, mean, var"""
    shifts = rng.normal(0, 1, (2, scale.size))
    return [a.astype(np.float32) for a in (scale, *shifts, rng.uniform(0.1, 2, scale.size))]


def data(g: Graph, *shape: int) -> Value:
    return ops.dequantize_linear(g.input("x", "int8", shape), np.float32(0.05), np.int8(-3))


def weight(w: Array, axis: int, scale: Any, zero: int | None, like: Value) -> Value:
    scale = np.asarray(scale, np.float32)
    zeros = None if zero is None else np.full(scale.shape, zero, w.dtype)
    held = like.graph.constant(w, "w")
    return ops.dequantize_linear(held, scale, zeros, axis=axis, name="wd")


def product(rng: np.random.Generator, kind: str, several: bool, b: Array | None) -> tuple[Graph, Value]:
    """A graph, and a product of dequantized data and weights in it that has 6 channels."""
    g = Graph()
    scale = rng.uniform(0.005, 0.02, 6 if several else ())
    if kind.startswith("conv"):
        group = 3 if "groups" in kind else 1
        low, high, dtype, zero = (1, 256, "uint8", 128) if "uint8" in kind else (-127, 128, "int8", None)
        if "int4" in kind:
            low, high, dtype, zero = -7, 8, "int4", 0
        w = rng.integers(low, high, (6, 6 // group, 3, 2)).astype(numpy_dtype(dtype))
        x = data(g, 2, 6, 5, 7)
        return g, ops.conv(x, weight(w, 0, scale, zero, x), b, group=group, pads=(1, 0, 0, 1), name="f")
    w, x = rng.integers(-127, 128, (5, 6)).astype(np.int8), data(g, 3, 5)
    if kind == "matmul":
        return g, ops.matmul(x, weight(w, 1, scale, 0, x), name="f")
    turned = kind == "turned gemm"
    wd = weight(w.T.copy() if turned else w, 0 if turned else -1, scale, 0, x)
    return g, ops.gemm(x, wd, b, transB=turned, alpha=0.5, beta=1.5, name="f")


def folded(rng: np.random.Generator, g: Graph, *results: Value) -> tuple[list[NormRecord], Graph]:
    """The records of norms, and the graph then, which gives what it gave but for the rounding of its constants."""
    g.outputs = list(results)
    x = rng.integers(-128, 128, static(g.inputs[0].shape)).astype(np.int8)
    expected = interpret.run(g, [x])
    done, report = optimize(g, level=2, for_export=True)
    verify(done)
    for got, wanted in zip(interpret.run(done, [x]), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-7 * np.abs(wanted).max())
    return [*report.norms], done


def weights_of(g: Graph) -> list[Node]:
    return [n for n in g.nodes if n.op.name == "dequantize_linear" and n.inputs[0] and n.inputs[0].is_constant]


def elements(v: Value | None) -> Array:
    assert v is not None
    assert v.data is not None
    return v.data


KINDS = ["conv", "conv of groups", "conv of uint8", "conv of int4", "matmul", "gemm", "turned gemm"]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_scales_take_factors(kind: str, bias: bool, several: bool) -> None:
    rng = np.random.default_rng(3)
    g, y = product(rng, kind, several, rng.normal(0, 1, 6).astype(np.float32) if bias else None)
    dtype = y.graph.nodes[1].inputs[0]
    scale = rng.normal(0, 1, 6)
    scale[1], scale[2] = 0, -0.7
    (record,), done = folded(rng, g, ops.batch_norm(y, *parameters(rng, scale), name="bn"))
    assert record.fate == "folded"
    (node,) = weights_of(done)
    w, scales, zero = node.inputs
    assert w is not None
    assert dtype is not None
    assert (w.dtype, elements(scales).shape) == (dtype.dtype, (6,))
    assert zero is None or zero.shape == (6,)
    assert (elements(scales) > 0).all()
    (of_scales,) = [c for c in record.constants if c.node == node.name]
    assert of_scales.is_weight
    assert of_scales.grown is not None
    assert not any(n.op.is_normalization for n in done.nodes)


def test_integers_stay_where_factors_are_above_zero() -> None:
    rng = np.random.default_rng(4)
    g = Graph()
    x, w = data(g, 1, 3, 5, 4), np.arange(-128, 16).reshape(16, 3, 3, 1).astype(np.int8)
    y = ops.conv(x, weight(w, 0, 0.01, 0, x), name="f")
    p = parameters(rng, rng.uniform(0.5, 2, 16))
    k = p[0] / np.sqrt(p[3].astype(float) + 1e-5)
    _, done = folded(rng, g, ops.batch_norm(y, *p))
    (node,) = weights_of(done)
    np.testing.assert_array_equal(elements(node.inputs[0]), w)
    np.testing.assert_array_equal(elements(node.inputs[1]), (np.float32(0.01).astype(float) * k).astype(np.float32))


@pytest.mark.parametrize(
    ("least", "zero", "dtype", "said"),
    [
        (-128, 0, "int8", "would negate -128 in weight 'w', and int8 has no 128"),
        (0, 128, "uint8", "would negate 0 in weight 'w', and uint8 has no 256"),
        (255, 100, "uint8", "would negate 255 in weight 'w', and uint8 has no -55"),
        (-8, None, "int4", "would negate -8 in weight 'w', and int4 has no 8"),
    ],
)
def test_integers_that_cannot_be_negated_keep_the_norm(least: int, zero: int | None, dtype: str, said: str) -> None:
    rng = np.random.default_rng(5)
    g = Graph()
    x, w = data(g, 1, 3, 5, 4), np.full((4, 3, 2, 2), zero or 0).astype(numpy_dtype(dtype))
    w[2, 1, 0, 1] = least
    y = ops.conv(x, weight(w, 0, 0.01, zero, x), name="f")
    (record,), done = folded(rng, g, ops.batch_norm(y, *parameters(rng, np.array([1, 1, -1, 1])), name="bn"))
    assert record.fate == "kept"
    assert said in record.reason
    assert any(n.op.is_normalization for n in done.nodes)


def test_scales_that_no_number_holds_keep_the_norm() -> None:
    rng = np.random.default_rng(6)
    for factor in (1e-38, 1e-30):
        g = Graph()
        x, w = data(g, 1, 3, 5, 4), rng.integers(-9, 9, (4, 3, 2, 2)).astype(np.int8)
        y = ops.conv(x, weight(w, 0, 1e-9, 0, x), name="f")
        (record,), _ = folded(rng, g, ops.batch_norm(y, *parameters(rng, np.array([1, factor, 1, 1])), name="bn"))
        assert record.fate == ("kept" if factor == 1e-38 else "folded")
        assert record.fate == "folded" or "scales of weight 'w' are lost in float32" in record.reason


def test_scales_along_what_is_summed_keep_the_norm() -> None:
    rng = np.random.default_rng(7)
    g = Graph()
    x, w = data(g, 3, 5), rng.integers(-9, 9, (5, 4)).astype(np.int8)
    y = ops.matmul(x, weight(w, 0, rng.uniform(0.1, 1, 5), None, x), name="f")
    (record,), _ = folded(rng, g, ops.batch_norm(y, *parameters(rng, np.ones(4) * 2), name="bn"))
    assert record.fate == "kept"


def test_two_that_share_a_weight_and_two_norms_in_a_row() -> None:
    rng = np.random.default_rng(8)
    g = Graph()
    x, w = data(g, 1, 3, 5, 4), rng.integers(-127, 128, (4, 3, 2, 2)).astype(np.int8)
    shared = weight(w, 0, 0.01, 0, x)
    y = ops.conv(x, shared, name="a")
    z = ops.conv(ops.dequantize_linear(g.inputs[0], np.float32(1)), shared, name="b")
    first, second, other = (parameters(rng, rng.normal(0, 1, 4)) for _ in range(3))
    twice = ops.batch_norm(ops.relu(ops.batch_norm(y, *first)), *parameters(rng, np.ones(4)))
    records, done = folded(rng, g, ops.batch_norm(ops.batch_norm(y, *first), *second), ops.batch_norm(z, *other), twice)
    assert [r.fate for r in records].count("folded") >= 3
    assert len({n.inputs[0] for n in weights_of(done)}) >= 2


def test_what_is_rounded_before_keeps_the_norm() -> None:
    rng = np.random.default_rng(9)
    g, y = product(rng, "conv", True, None)
    q = ops.quantize_linear(y, np.float32(0.1), np.uint8(120))
    d = ops.dequantize_linear(q, np.float32(0.1), np.uint8(120), name="after")
    (record,), done = folded(rng, g, ops.batch_norm(d, *parameters(rng, np.ones(6)), name="bn"))
    assert record.fate == "kept"
    assert "what it reads is rounded to steps of uint8 before (node 'after')" in record.reason
    assert sum(n.op.is_normalization for n in done.nodes) == 1


# --- files ------------------------------------------------------------------------------------------------------------


def quantized(opset: int, several: bool) -> onnx.ModelProto:
    """QDQ(x), a convolution with an int32 bias, a batch norm, QDQ."""
    rng = np.random.default_rng(11)
    scale = rng.uniform(0.005, 0.02, 6 if several else ()).astype(np.float32)
    held = {
        "xs": np.float32(0.05), "xz": np.uint8(120), "ys": np.float32(0.1), "yz": np.uint8(128),
        "w": rng.integers(-127, 128, (6, 3, 3, 2)).astype(np.int8), "ws": scale, "wz": np.zeros(scale.shape, np.int8),
        "b": rng.integers(-900, 900, 6).astype(np.int32), "bs": np.float32(0.05) * scale,
        **dict(zip("sbmv", parameters(rng, rng.normal(0, 1, 6)))),
    }  # fmt: skip
    held["bias"], held["b"] = held["b"], rng.integers(-900, 900, 6).astype(np.int32)
    axis: dict[str, Any] = {"axis": 0} if several else {}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], **axis),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bd"], **axis),
        helper.make_node("Conv", ["xd", "wd", "bd"], ["c"], pads=[1, 0, 0, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "bias", "m", "v"], ["n"]),
        helper.make_node("QuantizeLinear", ["n", "ys", "yz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "yz"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantized",
        [helper.make_tensor_value_info("x", 1, [2, 3, 7, 9])],
        [helper.make_tensor_value_info("y", 1, [2, 6, 6, 9])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


@pytest.mark.parametrize(("opset", "several"), [(11, False), (13, False), (13, True), (17, False), (21, True)])
def test_files_stay_quantized_and_lead_back(opset: int, several: bool, tmp_path: Path) -> None:
    source, path = quantized(opset, several), tmp_path / "folded.onnx"
    x = np.random.default_rng(12).normal(0, 2, (2, 3, 7, 9)).astype(np.float32)
    (expected,) = onnx_runtime.run(onnx_runtime.session(source), x)
    assert len(np.unique(expected)) > 100
    renorm.optimize(source, path, reversible=True)
    written = onnx.load(path)
    kinds = [n.op_type for n in written.graph.node]
    assert "BatchNormalization" not in kinds
    assert kinds.count("DequantizeLinear") == (3 if opset >= 13 else 2)  # no scale per channel before
    weights = {t.name: t.data_type for t in written.graph.initializer}
    assert (onnx.TensorProto.INT8 in weights.values()) == (opset >= 13)
    for model in (source, path):
        np.testing.assert_allclose(renorm.compile(model).run(x)[0], expected, atol=1e-5)
    # ONNX Runtime quantizes a bias of floats itself, by the scales of data and weight
    (got,) = onnx_runtime.run(onnx_runtime.session(path), x)
    assert np.abs(got - expected).max() < 0.101
    assert (np.abs(got - expected) > 0.01).mean() < (0.01 if opset >= 13 else 0.3)
    renorm.unfold(path, tmp_path / "back.onnx")
    (back,) = onnx_runtime.run(onnx_runtime.session(tmp_path / "back.onnx"), x)
    np.testing.assert_array_equal(back, expected)
