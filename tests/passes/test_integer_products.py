"""Products of integers in floats: equal to sums of integers in 64 bits and to ONNX Runtime, whatever is cut or held."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from tests.codegen.native import where_it_runs
from tests.frontends import onnx_runtime

import renorm
from renorm.core.conversion import converted, limits
from renorm.graph.ir import Graph
from renorm.passes import integer_products, pipeline
from renorm.targets import find

Array = np.ndarray[Any, Any]
PAIRS = "llvm -mcpu=cooperlake -mattr=-avx512vnni"  # for bytes, see test_dot_products.py
WORDS, PLAIN = "llvm -mcpu=haswell", "llvm -mcpu=skylake-avx512"  # pairs of 16 bits, and no instruction on neighbours
TARGETS = ["llvm", WORDS, where_it_runs(PAIRS)]


class Network:
    """A quantized network in the making, of one input x."""

    def __init__(self, shape: tuple[int, ...], seed: int = 0, kind: Any = np.uint8):
        self.rng, self.nodes, self.held, self.kind = np.random.default_rng(seed), list[Any](), dict[str, Array](), kind
        self.shape, self.scale = shape, {"x": ("x.scale", "x.zero")}
        self.held |= {"x.scale": np.float32(0.02), "x.zero": kind(13)}
        self.channels = {"x": shape[1]}

    def node(self, op_type: str, inputs: list[str], name: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [name], domain=domain, **attributes))
        return name

    def parameters(self, name: str, scale: float, zero: int) -> tuple[str, str]:
        self.held |= {f"{name}.scale": np.float32(scale), f"{name}.zero": self.kind(zero)}
        self.scale[name] = f"{name}.scale", f"{name}.zero"
        return self.scale[name]

    def conv(self, x: str, name: str, out: int, window: int, spread: float = 40.0, **attributes: Any) -> str:
        depth = self.channels[x] // attributes.get("group", 1)
        w = np.clip(np.rint(self.rng.normal(0, spread, (out, depth, window, window))), -127, 127).astype(np.int8)
        scales = self.rng.uniform(0.01, 0.03, out).astype(np.float32)
        bias = self.rng.integers(-2000, 2000, out).astype(np.int32)
        own = f"{name}.w", f"{name}.ws", f"{name}.wz"
        self.held |= dict(zip((*own, f"{name}.b"), (w, scales, np.zeros(out, np.int8), bias)))
        y = self.parameters(name, 0.02 * 0.02 * spread * np.sqrt(w[0].size) * 1.3, 7)
        self.channels[name] = out
        operands = [x, *self.scale[x], *own, *y, f"{name}.b"]
        return self.node("QLinearConv", operands, name, pads=[window // 2] * 4, **attributes)

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.kind))
        graph = helper.make_graph(
            self.nodes,
            "quantized",
            [helper.make_tensor_value_info("x", kind, self.shape)],
            [onnx.ValueInfoProto(name=n) for n in outputs],
            [numpy_helper.from_array(np.asarray(a), n) for n, a in self.held.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def data(self) -> Array:
        info = np.iinfo(self.kind)
        return self.rng.integers(info.min, info.max + 1, self.shape).astype(self.kind)


def branches(kind: Any = np.uint8) -> Network:
    """Two convolutions side by side in one scale, and a third over both."""
    net = Network((2, 16, 9, 11), kind=kind)
    net.conv("x", "a", 32, 3)
    net.conv("x", "b", 16, 1)
    own, net.channels["c"] = net.parameters("c", 1.5 * float(net.held["a.scale"]), 9), 48
    parts = ["a", *net.scale["a"], "b", *net.scale["b"]]
    net.node("QLinearConcat", [*own, *parts], "c", domain="com.microsoft", axis=1)
    net.conv("c", "d", 32, 3)
    return net


def blocks(kind: Any = np.uint8) -> Network:
    """Convolutions of several kinds, and between them a pool and a shuffle of integers."""
    net = Network((2, 3, 19, 23), kind=kind)
    net.conv("x", "a", 32, 3, strides=[2, 2])
    net.scale["pool"], net.channels["pool"] = net.scale["a"], 32
    net.node("MaxPool", ["a"], "pool", kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    net.conv("pool", "b", 32, 3, group=32)
    net.conv("b", "c", 64, 1)
    net.conv("c", "d", 48, 3, spread=70.0, dilations=[2, 2], group=2)
    net.conv("d", "e", 17, 3, spread=70.0)
    return net


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_convolutions_in_a_row_are_those_of_onnx_runtime(kind: Any, target: str) -> None:
    net = blocks(kind)
    model, x = net.model(["c", "e"]), net.data()
    expected = onnx_runtime.run(model, x)
    for level in range(4):
        for got, wanted in zip(renorm.compile(model, target=target, opt_level=level).run(x), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert np.unique(expected[1]).size > 60


def test_branches_that_are_joined_are_those_of_onnx_runtime() -> None:
    """The joined values are rounded twice, and so may be a step off at halves; no integer is between."""
    net = branches()
    model, x = net.model(["d"]), net.data()
    (got,), (wanted,) = renorm.compile(model).run(x), onnx_runtime.run(model, x)
    apart = np.abs(got.astype(int) - wanted.astype(int))
    assert apart.max() <= 1
    assert apart.mean() < 0.02
    nodes = optimized(model, PAIRS).nodes
    assert [v.name for n in nodes for v in n.outputs if v.dtype == "uint8"] == ["d"]


def optimized(model: onnx.ModelProto, target: str) -> Graph:
    return pipeline.optimize(renorm.read(model), target=find(target))[0]


def test_steps_go_from_kernel_to_kernel() -> None:
    """Integers are made of what is an output, and of nothing else."""
    model = blocks().model(["e"])
    held = {v.name: v for n in optimized(model, PAIRS).nodes for v in n.outputs}
    assert [v.name for v in held.values() if v.dtype == "uint8"] == ["e"]
    rounded = [v for v in held.values() if v.held_dtype == "bfloat16"]
    assert len(rounded) >= 5
    assert any(v.layout is not None and v.layout.axis == 1 for v in rounded)
    others = optimized(model, PLAIN)
    assert all(v.held_dtype == v.dtype for n in others.nodes for v in n.outputs)


@pytest.mark.parametrize("depth", [13, 40, 200, 512])
@pytest.mark.parametrize("target", TARGETS)
def test_the_largest_sums_are_exact(depth: int, target: str) -> None:
    """From 3e6 to 1.5e8: one part, several, and more than are made, which are multiplied as integers."""
    rng = np.random.default_rng(depth)
    w = rng.choice(np.array([-128, 127, 126], np.int8), (19, depth, 3, 3))
    w[0], w[1] = 127, -128
    x = rng.choice(np.array([0, 255, 254], np.uint8), (1, depth, 5, 7))
    x[0, :, :, :4] = 255
    g = Graph("sums")
    zero = np.uint8(0)
    g.outputs = [renorm.ops.conv_integer(g.input("x", "uint8", x.shape), w, zero, pads=(1, 1, 1, 1))]
    (got,) = renorm.compile(g, target=target).run(x)
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_array_equal(got, np.einsum("nchwij,ocij->nohw", views, w.astype(np.int64)))
    if target == "llvm":
        return  # what this machine has is not known
    convs = [n for n in pipeline.optimize(g, target=find(target))[0].nodes if n.op.is_product]
    wanted = {13: ("exact_conv", 1), 40: ("exact_conv", 1), 200: ("exact_conv", 5), 512: ("conv_integer", 1)}[depth]
    assert (convs[0].op.name, len(convs)) == (("word_conv", 1) if target == WORDS else wanted)


@pytest.mark.parametrize("depth", [40, 700, 3000, 9000])
@pytest.mark.parametrize("target", TARGETS[:2])
def test_the_largest_sums_of_matrices_are_exact(depth: int, target: str) -> None:
    rng = np.random.default_rng(depth)
    b = rng.choice(np.array([0, 255, 254], np.uint8), (depth, 35))
    a = rng.choice(np.array([0, 255, 254], np.uint8), (2, 3, depth))
    g = Graph("sums")
    x = g.input("a", "uint8", a.shape)
    g.outputs = [renorm.ops.matmul_integer(x, b, np.uint8(1), rng.integers(0, 256, 35).astype(np.uint8) * 0)]
    np.testing.assert_array_equal(renorm.compile(g, target=target).run(a)[0], (a.astype(np.int64) - 1) @ b)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 7), st.integers(1, 300), st.integers(0, 1 << 20), st.integers(0, 10**6))
def test_parts_cover_what_is_summed_and_stay_exact(channels: int, depth: int, most: int, bias: int) -> None:
    magnitudes = np.random.default_rng(most).integers(0, most // depth + 1, (channels, depth))
    found = integer_products.parts(magnitudes, np.full(channels, bias))
    if found is None:
        assert integer_products.FARTHEST * magnitudes.sum(axis=1).max() > integer_products.EXACT
        return
    assert [i for part in found for i in range(part.start, part.stop)] == list(range(depth))
    sums = [integer_products.FARTHEST * magnitudes[:, part].sum(axis=1) for part in found]
    assert max(s.max() for s in sums) + (bias if len(found) == 1 else 0) <= 1 << 24


def test_a_residual_block_is_that_of_onnx_runtime() -> None:
    """A sum is rounded where ONNX Runtime adds in another order: one step, at halves."""
    net = Network((1, 32, 9, 11), seed=3)
    net.conv("x", "a", 32, 3)
    net.conv("a", "b", 32, 3)
    own = net.parameters("s", 0.9 * float(net.held["b.scale"]), 120)
    net.channels["s"] = 32
    net.node("QLinearAdd", ["b", *net.scale["b"], "x", *net.scale["x"], *own], "s", domain="com.microsoft")
    mean = net.parameters("m", float(net.held["s.scale"]) / 4, 3)
    net.node("QLinearGlobalAveragePool", ["s", *own, *mean], "m", domain="com.microsoft")
    model, x = net.model(["s", "m"]), net.data()
    for got, wanted in zip(renorm.compile(model).run(x), onnx_runtime.run(model, x), strict=True):
        apart = np.abs(got.astype(int) - wanted.astype(int))
        assert apart.max() <= 1
        assert apart.mean() < 0.02


def stated(x_shape: tuple[int, ...], weights: list[tuple[str, tuple[int, ...], int, dict[str, Any]]]) -> Any:
    """A network in which every product stands between DequantizeLinear and QuantizeLinear. weights: op type, shape,
    axis of the channels and attributes of each."""
    rng = np.random.default_rng(5)
    held: dict[str, Any] = {"s": np.float32(0.04), "z": np.uint8(128)}
    nodes, at = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])], "q"
    for i, (op_type, shape, axis, attributes) in enumerate(weights):
        own, depth = f"{i}", np.prod(shape) / shape[axis]
        held[f"w{i}"] = rng.integers(-127, 128, shape).astype(np.int8)
        held[f"ws{i}"] = rng.uniform(0.5, 1.5, shape[axis]).astype(np.float32) / np.float32(60 * np.sqrt(depth))
        held[f"b{i}"] = rng.normal(0, 0.3, shape[axis]).astype(np.float32)
        held |= {f"s{i}": np.float32(0.04), f"z{i}": np.uint8(100)}
        bias = [f"b{i}"] if op_type != "MatMul" else []
        nodes += [
            helper.make_node(
                "DequantizeLinear", [at, "s", "z"] if i == 0 else [at, f"s{i - 1}", f"z{i - 1}"], [f"d{i}"]
            ),
            helper.make_node("DequantizeLinear", [f"w{i}", f"ws{i}"], [f"wd{i}"], axis=axis),
            helper.make_node(op_type, [f"d{i}", f"wd{i}", *bias], [f"c{i}"], **attributes),
            helper.make_node("LeakyRelu", [f"c{i}"], [f"r{i}"], alpha=0.25),
            helper.make_node("QuantizeLinear", [f"r{i}", f"s{i}", f"z{i}"], [f"q{own}"]),
        ]
        at = f"q{own}"
    nodes.append(helper.make_node("DequantizeLinear", [at, f"s{len(weights) - 1}", f"z{len(weights) - 1}"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "stated",
        [helper.make_tensor_value_info("x", 1, x_shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, rng.normal(0, 2, x_shape).astype(np.float32)


STATED = {
    "images": ((2, 16, 9, 13), [
        ("Conv", (24, 16, 3, 3), 0, {"pads": [1, 0, 2, 1], "strides": [1, 2]}),
        ("Conv", (24, 1, 3, 3), 0, {"group": 24, "pads": [1, 1, 1, 1]}),
        ("Conv", (40, 24, 1, 1), 0, {}),
    ]),
    "large": ((1, 256, 5, 7), [("Conv", (256, 256, 3, 3), 0, {"pads": [1, 1, 1, 1]})]),
    "rows": ((5, 37), [("Gemm", (37, 48), 1, {}), ("MatMul", (48, 33), 1, {}), ("Gemm", (19, 33), 0, {"transB": 1})]),
}  # fmt: skip


@pytest.mark.parametrize("kind", STATED)
@pytest.mark.parametrize("target", TARGETS)
def test_a_network_that_states_what_is_quantized_is_computed_so(kind: str, target: str) -> None:
    """As ONNX Runtime computes its operators one by one, in floats; few results are a step off."""
    model, x = stated(*STATED[kind])
    (expected,) = onnx_runtime.run(onnx_runtime.session(model, rewrites=False), x)
    for level in (0, 3):
        (got,) = renorm.compile(model, opt_level=level, precision="exact", target=target).run(x)
        apart = np.abs(got - expected) / np.float32(0.04)
        assert apart.max() < 1.01
        assert (apart > 0.01).mean() < 0.01
    if target == "llvm":
        return  # what this machine has is not known
    made = optimized(model, PLAIN if target == WORDS else target)  # for words, see test_dot_products.py
    names = {n.op.name for n in made.nodes}
    assert not names & {"cast", "quantize_linear", "dequantize_linear"}  # no integer is made, no weight left to make
    assert any(v.held_dtype == "bfloat16" for n in made.nodes for v in n.outputs) == (target == PAIRS)
    assert ("exact_conv" in names) == (target == PAIRS and kind != "rows")


def test_files_keep_weights_of_integers(tmp_path: Any) -> None:
    model, x = stated(*STATED["images"])
    before = renorm.compile(model).run(x)[0]
    renorm.optimize(model, tmp_path / "m.onnx")
    again = onnx.load(tmp_path / "m.onnx")
    assert sum(t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 4 for t in again.graph.initializer) == 3
    np.testing.assert_array_equal(renorm.compile(again).run(x)[0], before)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int4", "uint4", "uint2"])
def test_weights_of_a_few_bits_are_integers_as_others(dtype: str, target: str) -> None:
    rng = np.random.default_rng(9)
    low, high = limits(dtype)
    w = converted(rng.integers(low, high + 1, (35, 16, 3, 3)), dtype)
    zeros = None if low else converted(rng.integers(0, high + 1, 35), dtype)
    scales = rng.uniform(0.1, 1, 35).astype(np.float32)
    g = Graph("few")
    x = g.input("x", "uint8", (2, 16, 7, 9))
    steps = renorm.ops.dequantize_linear(x, np.float32(0.25), np.uint8(100))
    weight = renorm.ops.dequantize_linear(g.constant(w, "w"), scales, zeros, axis=0)
    g.outputs = [renorm.ops.conv(steps, weight, pads=(1, 1, 1, 1))]
    a = rng.integers(0, 256, (2, 16, 7, 9)).astype(np.uint8)
    (got,) = renorm.compile(g, target=target).run(a)
    whole = w.astype(np.float64) - (0 if zeros is None else zeros.astype(np.float64)[:, None, None, None])
    padded = np.pad((a - 100.0) / 4, ((0, 0), (0, 0), (1, 1), (1, 1)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", views, whole) * scales[:, None, None]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    names = [n.op.name for n in pipeline.optimize(g, target=find(target))[0].nodes]
    assert target == "llvm" or ("exact_conv" in names) == (target == PAIRS)


def test_a_bound_that_data_give_is_no_bound_of_integers() -> None:
    """min of three is one node: what a third operand says is neither rounded nor known."""
    nodes = [
        helper.make_node("Round", ["x"], ["r"]),
        helper.make_node("Max", ["r", "low"], ["m"]),
        helper.make_node("Min", ["m", "high", "v"], ["c"]),
        helper.make_node("Cast", ["c"], ["q"], to=onnx.TensorProto.UINT8),
        helper.make_node("DequantizeLinear", ["q", "one"], ["y"]),
    ]
    held = {"low": np.float32(0), "high": np.float32(255), "one": np.float32(1)}
    given = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in ("x", "v")]
    graph = helper.make_graph(
        nodes, "cut", given, [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()],
    )  # fmt: skip
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x, v = np.array([10, 100, 300], np.float32), np.array([3.7, 50.5, 500], np.float32)
    for level in range(4):
        np.testing.assert_array_equal(renorm.compile(source, opt_level=level, threads=1).run(x, v)[0], [3, 50, 255])


@pytest.mark.parametrize("kind", [np.float64, np.float16])
def test_numbers_of_other_widths_are_no_steps(kind: Any) -> None:
    nodes = [
        helper.make_node("Round", ["x"], ["r"]),
        helper.make_node("Clip", ["r", "low", "high"], ["c"]),
        helper.make_node("Cast", ["c"], ["q"], to=onnx.TensorProto.UINT8),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["y"]),
    ]
    held = {"low": kind(0), "high": kind(255), "scale": np.float32(0.5)}
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        nodes, "wide", [helper.make_tensor_value_info("x", dtype, [3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()],
    )  # fmt: skip
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.array([-1, 2.5, 300], kind)
    for level in range(4):
        np.testing.assert_array_equal(renorm.compile(source, opt_level=level, threads=1).run(x)[0], [0, 1, 127.5])
