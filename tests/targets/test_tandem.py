"""Tandem: programs against an oracle of its numbers, bit by bit; its text; whole networks on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.driver.test_external import branches, residual
from tests.shared_files import shared
from tests.targets import tandem_oracle as oracle

import renorm
from renorm import ops
from renorm.core.dims import static, symbols_of
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.targets.tandem import machine, numbers, simulate
from renorm.targets.tandem.generate import codegen
from renorm.targets.tandem.instructions import Conv, LoadW, LoadX, Program, parse
from renorm.targets.tandem.launch import TandemCode, load

Array = np.ndarray[Any, Any]


class Layer:
    """A random layer: the group as codegen is given it, and everything for the oracle."""

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)

        def pick(*values: Any) -> Any:
            return values[rng.integers(len(values))]

        def array(*shape: int) -> Array:
            return (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3)).astype(np.float32)

        self.groups = pick(1, 1, 1, 2, 3, "depthwise")
        one_in, one_out = int(rng.integers(1, 9)), int(rng.integers(1, 9))
        if self.groups == "depthwise":
            self.groups, one_in, one_out = int(rng.integers(2, 12)), 1, pick(1, 1, 2)
        kernel = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        self.strides = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        self.dilations = pick((1, 1), (1, 1), (2, 1), (1, 3))
        self.pads = tuple(int(rng.integers(0, k + 1)) for k in (*kernel, *kernel))
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilations, kernel)]
        size = [r + int(rng.integers(0, 9)) for r in reach]
        self.x = array(int(rng.integers(1, 4)), one_in * self.groups, *size)
        self.w = array(one_out * self.groups, one_in, *kernel)
        self.w[rng.integers(len(self.w))] *= pick(0, 1, 1e-6)
        m = len(self.w)
        self.b = array(m) if rng.random() < 0.5 else None
        self.norm = (array(m), array(m), array(m), np.abs(array(m)) + np.float32(1e-3), 1e-5)
        self.norm = self.norm if rng.random() < 0.7 else None
        self.relu = bool(rng.random() < 0.5)

        self.group = Graph("layer")
        y = self.group.input("x", "float32", self.x.shape)
        attributes = {"strides": self.strides, "dilations": self.dilations, "pads": self.pads, "group": self.groups}
        y = ops.conv(y, self.w, self.b, **attributes)
        y = ops.batch_norm(y, *self.norm[:4], epsilon=self.norm[4]) if self.norm else y
        self.group.outputs = [ops.relu(y) if self.relu else y]

    def expected(self) -> Array:
        return oracle.launch(
            self.x, self.w, self.b, self.norm, self.relu, self.strides, self.dilations, self.pads, self.groups
        )

    def run(self, launch: TandemCode) -> Array:
        y = np.full(interpret.run(self.group, [self.x])[0].shape, np.nan, np.float32)
        launch.run([self.x], [y])
        return y


def made(group: Graph) -> TandemCode:
    launch = codegen(group)
    assert isinstance(launch, TandemCode), launch
    return launch


def same_bits(a: Array, b: Array) -> None:
    np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))


@pytest.mark.parametrize("seed", range(40))
def test_a_layer_has_the_bits_of_its_number_format(seed: int) -> None:
    layer = Layer(seed)
    same_bits(layer.run(made(layer.group)), layer.expected())


@pytest.mark.parametrize("seed", range(100, 140))
def test_small_buffers_cut_a_layer_into_tiles_and_change_no_bit(seed: int, monkeypatch: Any) -> None:
    layer = Layer(seed)
    whole = made(layer.group)
    for name, size in [("INPUT", 400), ("WEIGHTS", 130), ("SUMS", 60), ("CHANNELS", 5)]:
        monkeypatch.setattr(machine, name, size)
    launch = codegen(layer.group)
    if isinstance(launch, str):
        assert layer.groups > 1 or layer.w[0, 0].size > 12
        assert launch.startswith("one window of")
        return
    assert len(launch.program.instructions) >= len(whole.program.instructions)
    same_bits(layer.run(launch), layer.expected())
    assert parse(str(launch.program)) == launch.program
    assert parse(launch.source) == launch.program
    same_bits(layer.run(load(launch.save())), layer.expected())


def test_how_close_the_numbers_come() -> None:
    worst = 0.0
    for seed in range(60):
        layer = Layer(seed)
        exact = interpret.run(layer.group, [layer.x])[0].astype(np.float64)
        size = max(1e-30, float(np.abs(exact).max()))  # a relu may leave nothing
        worst = max(worst, float(np.abs(layer.run(made(layer.group)) - exact).max()) / size)
    assert 1e-6 < worst < 2e-3


def test_integers_and_their_exponents() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=300).astype(np.float32) * np.float32(2.0) ** rng.integers(-126, 127, 300)
    values = np.concatenate([values, np.array([0, -0.0, 1e-45, 3.4e38, 1, 2, 0.5, -0.99999994], np.float32)]).astype(
        np.float32
    )
    for v in values:
        e = oracle.exponent(float(abs(v)))
        assert int(numbers.exponent(abs(v))) == e
        near = (np.array([v, v / 2, v / 3, -v / 65536], np.float32) if np.isfinite(v) else values[:0]).astype(
            np.float32
        )
        np.testing.assert_array_equal(numbers.integers(near, e), oracle.integers(near, e))
    ties = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 32767.5, 40000, -40000], np.float32)
    np.testing.assert_array_equal(numbers.integers(ties, 0), [0, 2, 2, 0, -2, 32767, 32767, -32767])


def test_an_input_that_is_no_finite_number_stops_the_launch() -> None:
    g, x = residual(), np.zeros((2, 5, 9, 7), np.float32)
    m = renorm.compile(g, target="tandem")
    for value in (np.nan, np.inf):
        x[1, 2, 3, 4] = value
        with pytest.raises(renorm.errors.UserCodeError, match="tandem computes with integers"):
            m.run(x)


# --- programs ---------------------------------------------------------------------------------------------------------


def test_a_program_as_text_and_what_it_costs() -> None:
    g = Graph("one")
    x = g.input("x", "float32", (1, 32, 6, 10))
    y = ops.conv(x, np.ones((20, 32, 3, 3), np.float32), pads=(1, 1, 1, 1))
    one = np.ones(20, np.float32)
    g.outputs = [ops.relu(ops.batch_norm(y, one, one, one, one))]
    launch = made(g)
    assert str(launch.program).splitlines() == [
        ".input 1x32x6x10",
        ".weights 20x32x3x3",
        ".output 1x20x6x10",
        "scan x",
        "loadp p[0:20]",
        "loadw w[0:20, 0:32]",
        "loadx x[0, 0:32, -1:7, -1:11]",
        "conv 6x10 stride 1x1 dilation 1x1 groups 1 first",
        "norm relu",
        "store y[0, 0:20, 0:6, 0:10]",
    ]
    cost = machine.cost(launch.program)
    assert cost.products == 60 * 20 * 32 * 9
    image, result = 4 * 32 * 60, 4 * 20 * 60
    assert cost.bytes == image + 8 * 20 + 2 * 20 * 32 * 9 + image + result
    assert cost.convolution == 60 * 9 * 2 * 2  # two blocks of 16 channels either way
    assert cost.per_channel == 1200 // 16
    assert cost.transfer == cost.bytes // 16
    assert cost.bound == "the convolution engine"
    assert launch.work is not None
    assert launch.work.flops == 2 * cost.products
    assert launch.source.startswith(f"; {cost.products} products, {cost.bytes} bytes; at least 2160 cycles, bound by")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("relu", "line 4: 'relu' is no instruction"),
        ("norm gelu", "cannot read 'norm gelu'"),
        ("loadx x[0, 0:3, 1:2]", "cannot read"),
        ("conv 3x3 stride 1x1 dilation 1x1 groups 1", "cannot read"),
        (".input 3x4", "is no shape"),
        (f"loadp p[0:{'9' * 5000}]", "cannot read"),
        (f".input {'9' * 5000}x1x1x1", "is no shape"),
    ],
)
def test_text_that_is_no_program(line: str, words: str) -> None:
    shapes = ".input 1x2x3x4\n.weights 1x2x1x1\n.output 1x1x3x4\n"
    assert parse(shapes + " scan   x ; finds e\n\n").instructions
    with pytest.raises(renorm.errors.ParseError, match=words.replace("[", r"\[")):
        parse(shapes + line)
    with pytest.raises(renorm.errors.ParseError, match="does not say"):
        parse(shapes.rpartition(".")[0])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["loadw w[0:9, 0:8]"], "0:9 of 8"),
        (["loadw w[5:4, 0:8]"], "5:4 of 8"),
        (["loadx x[2, 0:8, 0:9, 0:9]"], "2:3 of 1"),
        (["loadx x[0, 0:8, -90:90, 0:90]"], "129600 elements, the input buffer holds 32768"),
        (["loadw w[0:8, 0:8]", "conv 1x1 stride 1x1 dilation 1x1 groups 1 first"], r"reads \[8, 3, 3\]"),
        (["loadw w[0:8, 0:8]", "conv 99x99 stride 1x1 dilation 1x1 groups 1 first"], "the accumulators holds 16384"),
        (
            ["loadw w[0:8, 0:8]", "loadx x[0, 0:8, 0:3, 0:3]", "conv 1x1 stride 1x1 dilation 1x1 groups 1 more"],
            r"accumulators hold \[0, 0, 0\]",
        ),
        (["loadx x[0, 0:8, 5:2, 0:3]"], r"a box of \[8, -3, 3\]"),
        (["loadx x[0, 0:8, 0:4294967296, 0:4294967296]"], "147573952589676412928 elements"),
        (["conv 1x1 stride 1x1 dilation 1x1 groups 1 first"], r"weights of \[0, 0, 0, 0\]"),
        *(
            (["loadw w[0:8, 0:8]", "loadx x[0, 0:8, 0:3, 0:3]", f"conv {wrong} first"], "below 1")
            for wrong in (
                "1x1 stride 1x1 dilation 1x1 groups 0",
                "1x1 stride 0x1 dilation 1x1 groups 1",
                "1x1 stride 1x1 dilation 1x0 groups 1",
                "0x1 stride 1x1 dilation 1x1 groups 1",
            )
        ),
        (["norm", "loadp p[0:3]", "norm"], "0 channels, parameters of 3"),
        (["store y[0, 0:8, 0:4, 0:4]"], r"output buffer holds \[0, 0, 0\]"),
    ],
)
def test_what_the_machine_cannot_do_stops_the_simulator(lines: list[str], words: str) -> None:
    program = parse(".input 1x8x6x6\n.weights 8x8x3x3\n.output 1x8x4x4\n" + "\n".join(lines))
    w, p, x = (np.ones(s, t) for s, t in (((8, 8, 3, 3), np.int16), ((2, 8), np.float32), ((1, 8, 6, 6), np.float32)))
    with pytest.raises(renorm.errors.InvalidArtifact, match=words) as caught:
        simulate.run(program, w, p, x, np.zeros((1, 8, 4, 4), np.float32))
    assert f"instruction {len(lines) - 1}, `{lines[-1]}`" in str(caught.value)
    with pytest.raises(renorm.errors.InvalidArtifact, match="do not fit"):
        simulate.run(program, w, p, x, np.zeros((1, 8, 4, 5), np.float32))


def test_large_layers_are_cut_along_every_axis() -> None:
    def cuts(n: int, c: int, m: int, h: int, w: int, kernel: int) -> tuple[Program, set[Any], set[Any]]:
        g = Graph("large")
        x = g.input("x", "float32", (n, c, h, w))
        g.outputs = [ops.conv(x, np.ones((m, c, kernel, kernel), np.float32), pads=(kernel // 2,) * 4)]
        program = made(g).program
        used = [i for i in program.instructions if isinstance(i, (LoadW, LoadX))]
        return program, {i.m for i in used if isinstance(i, LoadW)}, {(i.h, i.w) for i in used if isinstance(i, LoadX)}

    program, blocks, boxes = cuts(1, 512, 512, 7, 7, 3)
    assert len(blocks) > 1
    assert len(boxes) == 1
    assert any(isinstance(i, Conv) and not i.is_first for i in program.instructions)
    _, _, boxes = cuts(1, 64, 64, 56, 56, 3)
    assert len({h for h, _ in boxes}) > 1
    _, _, boxes = cuts(1, 3, 8, 4, 20_000, 3)
    assert len({w for _, w in boxes}) > 1


# --- networks ---------------------------------------------------------------------------------------------------------


class Net:
    """Random weights of the sizes that training leaves."""

    def __init__(self, seed: int, batch: int, size: int):
        self.rng = np.random.default_rng(seed)
        self.graph = Graph("network")
        self.x = self.graph.input("pixels", "float32", (batch, 3, size, size + 3))

    def array(self, *shape: int) -> Array:
        return self.rng.normal(size=shape).astype(np.float32)

    def conv(self, x: Any, channels: int, kernel: int, stride: int = 1, group: int = 1) -> Any:
        w = self.array(channels, x.shape[1] // group, kernel, kernel)
        w /= np.sqrt(w[0].size / 2).astype(np.float32)
        y = ops.conv(x, w, strides=(stride, stride), pads=(kernel // 2,) * 4, group=group)
        near = [1 + self.array(channels) / 10, self.array(channels) / 10, self.array(channels) / 10]
        return ops.batch_norm(y, *near, 1 + np.abs(self.array(channels)) / 5)

    def head(self, y: Any) -> Graph:
        y = ops.flatten(ops.global_average_pool(y))
        self.graph.outputs = [ops.gemm(y, self.array(y.shape[1], 10) / 8, self.array(10))]
        return self.graph


def resnet(seed: int, batch: int = 1, size: int = 32) -> Graph:
    net = Net(seed, batch, size)
    y = ops.max_pool(ops.relu(net.conv(net.x, 16, 7, 2)), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        z = net.conv(ops.relu(net.conv(y, channels, 3, stride)), channels, 3)
        y = ops.relu(ops.add(z, net.conv(y, channels, 1, stride) if stride > 1 else y))
    return net.head(y)


def mobilenet(seed: int) -> Graph:
    net = Net(seed, 2, 24)
    y = ops.relu(net.conv(net.x, 8, 3, 2))
    for channels, stride in ((16, 1), (24, 2), (24, 1)):
        wide = ops.relu(net.conv(y, 4 * y.shape[1], 1))
        z = net.conv(ops.relu(net.conv(wide, wide.shape[1], 3, stride, wide.shape[1])), channels, 1)
        y = ops.add(z, y) if z.shape == y.shape else z
    return net.head(y)


@pytest.mark.parametrize(("build", "launches"), [(resnet, 9), (mobilenet, 10)])
def test_a_network_runs_on_it_with_the_rest_on_the_base(build: Any, launches: int, tmp_path: Path) -> None:
    g = build(1)
    x = np.random.default_rng(0).normal(size=g.inputs[0].shape).astype(np.float32)
    (exact,) = interpret.run(g, [x])
    m = renorm.compile(g, target="tandem")
    (y,) = m.run(x)
    error = float(np.abs(y - exact).max() / np.abs(exact).max())
    assert 1e-7 < error < 5e-4
    on_tandem = [k for k in m.report.kernels if k.target == "tandem"]
    assert len(on_tandem) == launches
    assert {n.fate for n in m.report.norms} == {"unit"}
    assert all(n.into[0].startswith("fused_conv2d_batch_norm") for n in m.report.norms)
    rest = [str(k) for k in m.report.kernels if not k.target]
    assert rest
    assert not any("conv" in k for k in rest)
    for level in (0, 2):
        same_bits(renorm.compile(g, target="tandem", opt_level=level, threads=2).run(x)[0], y) if level else None
    path = tmp_path / "m.renorm"
    m.save(path)
    again = renorm.load(path)
    same_bits(again.run(x)[0], y)
    assert again.report.kernels == m.report.kernels


def test_a_loaded_network_needs_no_compiler(tmp_path: Path) -> None:
    m = renorm.compile(residual(), target="tandem")
    m.save(tmp_path / "m.renorm")
    script = """
import sys
import numpy as np
import renorm
m = renorm.load(sys.argv[1])
m.run(np.ones((2, 5, 9, 7), np.float32))
assert not {"llvmlite", "onnx", "renorm.graph", "renorm.driver", "renorm.te"} & set(sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(renorm.__file__).parents[1])}
    subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path / "m.renorm")],
        env=environment,
        check=True,
        timeout=60,
    )


def test_memory_around_its_launches() -> None:
    g = branches(2)
    x = np.random.default_rng(0).normal(size=(2, 8, 12, 16)).astype(np.float32)
    results = renorm.compile(g, target="tandem").run(x)
    for y, exact in zip(results, interpret.run(g, [x]), strict=True):
        np.testing.assert_allclose(y, exact, rtol=0, atol=1e-3 * np.abs(exact).max())


def test_what_it_refuses_runs_on_the_base_and_says_why() -> None:
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    g = Graph("refused")
    rows = g.input("rows", "float32", (2, 4, 9))
    image = g.input("image", "float32", (1, 4, 8, 9))
    filters = g.input("filters", "float32", (3, 4, 3, 3))
    wide = g.input("wide", "float64", (1, 4, 5, 5))
    four = [np.ones(4, np.float32), array(4), array(4), np.ones(4, np.float32)]
    g.outputs = [
        ops.conv(rows, array(5, 4, 3), name="rank"),
        ops.conv(image, filters, name="filters"),
        ops.conv(wide, array(3, 4, 1, 1).astype(np.float64), name="wide"),
        ops.batch_norm(ops.conv(image, array(4, 4, 1, 1)), *four, training_mode=True, name="training"),
        ops.conv(image, np.full((3, 4, 1, 1), np.inf, np.float32), name="infinite"),
        ops.conv(ops.mul(image, np.float32(1e-36)), np.full((3, 4, 1, 1), 7e36, np.float32), name="far"),
    ]
    inputs = [array(*static(v.shape)).astype(v.dtype) for v in g.inputs]
    m = renorm.compile(g, target="tandem")
    reasons = {node: reason for rule, node, reason in m.report.refusals if rule == "target tandem"}
    assert "two dimensions" in reasons["rank"]
    assert "constants" in reasons["filters"]
    assert "float32" in reasons["wide"]
    assert "from the batch" in reasons["training"]
    assert "NaN or infinity" in reasons["infinite"]
    assert "beyond float32" in reasons["far"]
    assert [str(k) for k in m.report.kernels if k.target] == ["conv2d_2"]  # under the norm that was refused
    found, expected = m.run(*inputs), interpret.run(g, inputs)
    for y, exact in ((found[i], expected[i]) for i in range(len(found)) if i != 4):
        np.testing.assert_allclose(y, exact, rtol=0, atol=1e-3 * np.abs(exact).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_resnet8.tflite"])
def test_a_network_of_somebody_else(name: str) -> None:
    g = renorm.read(shared(f"models/{name}"))
    g = g.copy(dict.fromkeys((s for v in g.inputs for d in v.shape for s in symbols_of(d)), 2))
    inputs = [np.random.default_rng(0).normal(size=v.shape).astype(np.float32) for v in g.inputs]
    m = renorm.compile(g, target="tandem")
    assert any(k.target for k in m.report.kernels)
    for y, exact in zip(m.run(*inputs), interpret.run(g, inputs), strict=True):
        np.testing.assert_allclose(y, exact, rtol=0, atol=2e-3 * np.abs(exact).max())
