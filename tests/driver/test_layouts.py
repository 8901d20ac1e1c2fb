"""Random convolution networks, whose values lie in blocks of channels where they can, against float64."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.core import dtypes
from renorm.core.target import parse
from renorm.driver.module import CompiledModule, KernelText
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.tir.passes import prepare

CHANNELS = (16, 32, 48, 16, 32, 16, 32, 24)
# this machine, and where its vectors are wider what machines have whose vectors are not
TARGETS = ("llvm", "llvm -mcpu=haswell") if parse("llvm").vector_bytes > 32 else ("llvm",)


class Network:
    """A chain of parts over images of odd sizes; some channels fill blocks and some do not."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.graph = Graph(f"seed{seed}")
        n, h, w = self.pick(1, 1, 3), *map(int, self.rng.integers(7, 19, 2))
        y: Value = self.graph.input("x", "float32", (n, self.pick(3, 16, 32), h, w))
        y = self.conv(y)
        parts: dict[str, Callable[[Value], Value]] = {
            name: getattr(self, name) for name in vars(Network) if name.startswith("part_")
        }
        self.parts = [self.pick(*parts) for _ in range(int(self.rng.integers(3, 8)))]
        for part in self.parts:
            y = parts[part](y)
        ends = (lambda v: v, self.part_relu, lambda v: ops.flatten(ops.global_average_pool(v)), self.few)
        self.graph.outputs = [ends[int(self.rng.integers(len(ends)))](y)]

    def pick(self, *among: Any) -> Any:
        return among[int(self.rng.integers(len(among)))]

    def normal(self, *shape: int) -> np.ndarray:
        return (self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def conv(self, x: Value, channels: int = 0, k: int = 0, **attributes: Any) -> Any:
        m, k = channels or self.pick(*CHANNELS), k or self.pick(1, 3)
        bias = self.pick(None, self.normal(m))
        return ops.conv(x, self.normal(m, extents(x)[1], k, k), bias, pads=[k // 2] * 4, **attributes)

    def few(self, x: Value) -> Any:
        return self.conv(x, 3, 1)

    def part_conv(self, x: Value) -> Any:
        return self.conv(x)

    def part_strided(self, x: Value) -> Any:
        return self.conv(x, strides=(2, 1)) if extents(x)[2] > 3 else x

    def part_relu(self, x: Value) -> Any:
        return ops.relu(x)

    def part_residual(self, x: Value) -> Any:
        return ops.relu(ops.add(self.conv(x, extents(x)[1]), x))

    def part_depthwise(self, x: Value) -> Any:
        c = extents(x)[1]
        return ops.conv(x, self.normal(c, 1, 3, 3), self.normal(c), pads=[1] * 4, group=c)

    def part_transposed(self, x: Value) -> Any:
        m = self.pick(*CHANNELS)
        weight = self.normal(extents(x)[1], m, 2, 2)
        return ops.conv_transpose(x, weight, self.normal(m), strides=(2, 2)) if max(extents(x)[2:]) < 20 else x

    def part_rows(self, x: Value) -> Any:
        """Channels of a pixel side by side, as vision transformers have them between convolutions."""
        n, c, h, w = extents(x)
        rows = ops.transpose(ops.reshape(x, np.array([n, c, h * w])), perm=(0, 2, 1))
        rows = ops.matmul(ops.relu(rows), self.normal(c, c).T) if self.pick(True, False) else ops.tanh(rows)
        return ops.reshape(ops.transpose(rows, perm=(0, 2, 1)), np.array([n, c, h, w]))

    def part_channels_last(self, x: Value) -> Any:
        last = ops.transpose(x, perm=(0, 2, 3, 1))
        return ops.transpose(ops.sigmoid(last), perm=self.pick((0, 3, 1, 2), (0, 3, 2, 1)))

    def part_turned(self, x: Value) -> Any:
        return ops.transpose(x, perm=(0, 1, 3, 2))

    def part_max_pool(self, x: Value) -> Any:
        return ops.max_pool(x, kernel_shape=(3, 2), strides=(2, 2), pads=(1, 0, 1, 1)) if min(extents(x)[2:]) > 3 else x

    def part_average_pool(self, x: Value) -> Any:
        return ops.average_pool(x, kernel_shape=(2, 3), pads=(1, 1, 0, 1), count_include_pad=self.pick(False, True))

    def part_concat(self, x: Value) -> Any:
        return ops.concat([x, self.conv(x), self.conv(ops.relu(x))], axis=1)

    def part_squeeze(self, x: Value) -> Any:
        gate = ops.relu(self.conv(ops.global_average_pool(x), k=1))
        return ops.mul(x, ops.sigmoid(self.conv(gate, extents(x)[1], 1)))

    def part_slice(self, x: Value) -> Any:
        start = self.pick(0, 16, 8)
        c = extents(x)[1]
        return ops.slice(x, np.array([start]), np.array([start + 16]), np.array([1])) if c > start + 16 else x

    def part_halves(self, x: Value) -> Any:
        if extents(x)[1] % 2:
            return x
        a, b = ops.split(x, None, axis=1, num_outputs=2)
        c = extents(a)[1]
        return ops.concat([ops.instance_norm(a, self.normal(c), self.normal(c)), ops.relu(self.conv(b, c))], axis=1)

    def part_norm(self, x: Value) -> Any:
        c = extents(x)[1]
        return ops.batch_norm(
            x, self.normal(c), self.normal(c), self.normal(c), self.rng.uniform(0.5, 2, c).astype(np.float32)
        )

    def part_resize(self, x: Value) -> Any:
        mode = self.pick("nearest", "linear")
        scales = np.array([1, 1, 1.5, 2], np.float32)
        return ops.resize(x, None, scales, None, mode=mode) if max(extents(x)[2:]) < 20 else x

    def part_pad(self, x: Value) -> Any:
        return ops.pad(x, np.array([0, 0, 1, 0, 0, 0, 2, 1]), None, None, mode=self.pick("constant", "reflect"))

    def part_scale(self, x: Value) -> Any:
        c = extents(x)[1]
        return ops.add(ops.mul(x, self.normal(c, 1, 1)), self.normal(1, c, 1, 1))


def extents(v: Value) -> list[int]:
    return [int(str(d)) for d in v.shape]


def check(seed: int, target: str) -> int:
    """Compiles and runs a network; gives how many values lie in blocks."""
    network = Network(seed)
    x = np.random.default_rng(seed).standard_normal(extents(network.graph.inputs[0])).astype(np.float32)
    (expected,) = interpret.run(network.graph, [x])
    keep = ("batch_norm",) if seed % 2 else ()
    module = renorm.compile(network.graph, target=target, keep=keep, threads=1 + seed % 2)
    (found,) = module.run(x)
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error < 2e-5, (network.parts, error)
    return sum(v.layout is not None for n in module.graph.nodes for v in n.outputs)


@pytest.mark.parametrize("target", TARGETS)
def test_random_networks(target: str) -> None:
    assert sum(check(seed, target) for seed in (0, 16, 25, 29)) > 12  # else they test nothing


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("first", range(100, 300, 20))
def test_more_random_networks(first: int, target: str) -> None:
    for seed in range(first, first + 20):
        check(seed, target)


def chain() -> CompiledModule:
    rng = np.random.default_rng(0)
    g = Graph()
    y = g.input("x", "float32", (1, 3, 14, 14))
    for m, k in ((32, 3), (64, 3), (32, 1), (48, 5)):
        c = extents(y)[1]
        w = rng.standard_normal((m, c, k, k)).astype(np.float32)
        y = ops.conv(y, w, rng.standard_normal(m).astype(np.float32), pads=[k // 2] * 4)
        y = ops.relu(ops.add(y, ops.conv(y, rng.standard_normal((m, m, 1, 1)).astype(np.float32))))
    g.outputs = [y]
    module = renorm.compile(g, target="llvm -mcpu=skylake-avx512", precision="exact")
    assert isinstance(module, CompiledModule)
    return module


def test_vectors_of_channels_lie_side_by_side() -> None:
    """Every vector that a kernel between two convolutions loads or stores is a run of memory."""
    module = chain()
    seen = 0
    for group in module.graph.groups:
        reads = [v for n in group.nodes for v in n.inputs if v is not None and v.producer not in group.nodes]
        activations = [v for v in reads if not v.is_constant]
        if all(v.layout for v in (*activations, group.nodes[-1].output)):
            kernel = module.kernel(group.name)
            assert isinstance(kernel, KernelText)
            text = str(prepare(kernel.kernel))
            strides = set(re.findall(r"ramp\([^\n]*?, (\d+), 16\)", text))
            assert strides == {"1"}, text
            seen += 1
    assert seen >= 5


def test_single_blocks_side_by_side_in_a_batch() -> None:
    """Which operand of a concat an element comes from is a question of its block alone."""
    rng = np.random.default_rng(3)
    g = Graph()
    y = g.input("x", "float32", (130, 16, 8, 8))
    weights = [rng.standard_normal((m, c, 3, 3)).astype(np.float32) for m, c in ((16, 16), (16, 16), (32, 32))]
    parts = [ops.relu(ops.conv(y, w, pads=[1] * 4)) for w in weights[:2]]
    g.outputs = [ops.conv(ops.concat(parts, axis=1), weights[2])]
    x = rng.standard_normal((130, 16, 8, 8)).astype(np.float32)
    module = renorm.compile(g, target="llvm -mcpu=skylake-avx512", precision="exact")
    assert [n.output.layout is not None for n in module.graph.nodes if n.op.name == "concat"] == [True]
    assert isinstance(module, CompiledModule)
    if module._obstacles:
        pytest.skip("; ".join(map(str, module._obstacles)))
    (expected,), (found,) = interpret.run(g, [x]), module.run(x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("first", [16, 48])
def test_concat_of_large_images(batch: int, first: int) -> None:
    """Threads share runs of an image, so that channels are a part of a fused axis."""
    rng = np.random.default_rng(first)
    g = Graph()
    x = g.input("x", "float32", (batch, 16, 19, 60))
    parts = [ops.conv(x, rng.standard_normal((m, 16, 1, 1)).astype(np.float32)) for m in (first, 32, 16)]
    joined = ops.concat([*parts, ops.pad(parts[2], np.zeros(8, np.int64), None, None)], axis=1)
    g.outputs = [ops.conv(joined, rng.standard_normal((8, first + 64, 1, 1)).astype(np.float32))]
    images = rng.standard_normal((batch, 16, 19, 60)).astype(np.float32)
    (expected,) = interpret.run(g, [images])
    (found,) = renorm.compile(g).run(images)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", dtypes.INTS)
def test_constants_of_integers_are_held_as_they_are(dtype: str) -> None:
    """Beside data of int16, which instructions multiply with weights of int16, too."""
    b = np.array([2, 3, 5, 7], dtype)
    graph = Graph("g")
    x, c = graph.input("x", dtype, (4,)), graph.constant(b, "c")
    graph.outputs = [ops.add(x, c), ops.concat([x, c], axis=0), ops.equal(x, c)]
    graph.outputs += [ops.bitwise_xor(x, c), ops.mod(x, c, fmod=1)]
    data = np.array([np.iinfo(dtype).max, 3, np.iinfo(dtype).min, 8], dtype)
    wanted = [data + b, np.concatenate([data, b]), data == b, data ^ b, np.fmod(data, b)]
    for found, expected in zip(renorm.compile(graph).run(data), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
