"""Statistics of tiles beside convolutions, and normalizations made of them, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import renorm
from renorm import ops
from renorm.driver.module import CompiledModule
from renorm.graph import interpret, registry
from renorm.graph.ir import Graph, Value
from renorm.ops.tile_moments import BESIDE, SCALE, TileMoments

TARGETS = ("llvm", "llvm -mcpu=haswell")


class Network:
    """A convolution to `channels` that computes statistics of its result, what needs them, and one that reads that."""

    def __init__(self, kind: str, n: int, c: int, h: int, w: int, maker: str, seed: int = 0, offset: float = 0.0):
        self.rng = np.random.default_rng(seed)
        self.graph, self.offset = Graph(kind), offset
        x = self.graph.input("x", "float32", (n, 16, h, w))
        y = self.conv(x, c, 1)
        if maker == "winograd":
            y = self.conv(y, c, 3)
        elif maker == "depthwise":
            y = self.conv(y, c, 3, group=c)
        elif maker == "residual":
            y = ops.add(self.conv(y, c, 1), y)
        elif maker == "pool":
            y = ops.sub(registry.find("average_pool")(kernel_shape=(3, 3), pads=(1, 1, 1, 1))(y), y)
        self.graph.outputs = [self.conv(ops.relu(getattr(self, kind)(y, c)), 16, 3)]

    def array(self, *shape: int) -> np.ndarray[Any, Any]:
        return self.rng.standard_normal(shape).astype(np.float32)

    def conv(self, x: Value, m: int, k: int, group: int = 1) -> Value:
        fan = int(str(x.shape[1])) // group
        bias = self.array(m) + np.float32(self.offset)
        weight = self.array(m, fan, k, k) / np.float32(np.sqrt(fan * k * k))
        return ops.conv(x, weight, bias, pads=[k // 2] * 4, group=group)

    def instance(self, y: Value, c: int) -> Value:
        return ops.instance_norm(y, self.array(c), self.array(c))

    def group(self, y: Value, c: int) -> Value:
        return registry.find("group_norm")(num_groups=c // 4)(y, self.array(c), self.array(c))

    def split(self, y: Value, c: int) -> Value:
        bounds = [np.array([b], np.int64) for b in (0, c // 2, c, 1)]
        first, second = ops.slice(y, bounds[0], bounds[1], bounds[3]), ops.slice(y, bounds[1], bounds[2], bounds[3])
        norm = ops.instance_norm(first, self.array(c // 2), self.array(c // 2))
        affine = ops.add(ops.mul(second, self.array(c // 2, 1, 1)), self.array(c // 2, 1, 1))
        return registry.find("concat")(axis=1)(norm, affine)

    def squeeze(self, y: Value, c: int) -> Value:
        return ops.mul(y, ops.sigmoid(self.conv(ops.global_average_pool(y), c, 1)))

    def mean(self, y: Value, c: int) -> Value:
        pooled = registry.find("reduce_mean")(axes=(-2, 3), keepdims=True)(y)
        return ops.mul(y, ops.sigmoid(self.conv(pooled, c, 1)))

    def compiled(self, **options: Any) -> CompiledModule:
        module = renorm.compile(self.graph, **options)
        assert isinstance(module, CompiledModule)
        return module

    def agrees(self, module: CompiledModule, tolerance: float = 2e-5) -> None:
        x = self.array(*(int(str(d)) for d in self.graph.inputs[0].shape))
        (want,) = interpret.run(self.graph, [x.astype(np.float64)])
        assert np.abs(np.asarray(module(x)) - want).max() <= tolerance * np.abs(want).max()


def kernels(module: CompiledModule) -> str:
    return " ".join(k.name for k in module.report.kernels)


@pytest.mark.parametrize("maker", ["direct", "winograd", "depthwise", "residual"])
@pytest.mark.parametrize("kind", ["instance", "group", "split", "squeeze", "mean"])
def test_statistics_join_the_kernel_that_makes_their_data(kind: str, maker: str) -> None:
    network = Network(kind, 2, 32, 27, 30, maker)
    module = network.compiled()
    statistic = "tile_means" if kind in ("squeeze", "mean") else "tile_moments"
    assert [k for k in kernels(module).split() if statistic in k and "conv2d" in k]
    network.agrees(module)


def test_a_norm_of_groups_leaves_blocks_to_its_neighbours() -> None:
    """A pool finishes no tiles: the statistics of what it makes are a kernel of their own, which reads blocks."""
    network = Network("group", 2, 32, 27, 30, "pool")
    module = network.compiled()
    assert "tile_moments" in kernels(module).split()
    assert "group_norm" not in kernels(module)
    network.agrees(module)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["instance", "group", "split", "squeeze", "mean"]),
    maker=st.sampled_from(["direct", "winograd", "depthwise", "residual", "pool"]),
    n=st.integers(1, 3),
    c=st.sampled_from([16, 24, 32, 48, 64, 96]),
    h=st.integers(5, 70),
    w=st.integers(5, 70),
    target=st.sampled_from(TARGETS),
)
def test_random_networks_agree_with_float64(kind: str, maker: str, n: int, c: int, h: int, w: int, target: str) -> None:
    network = Network(kind, n, c, h, w, maker, seed=h * w)
    network.agrees(network.compiled(target=target))


@pytest.mark.parametrize("kind", ["instance", "group"])
def test_data_far_from_zero_keep_their_digits(kind: str) -> None:
    """Means are 10,000 times the deviations: what is lost is what rounding the data to float32 has lost."""
    network = Network(kind, 1, 32, 40, 24, "direct", offset=1e4)
    module = network.compiled()
    plain = network.compiled(opt_level=2)
    x = network.array(1, 16, 40, 24)
    assert "tile_moments" in kernels(module)
    assert "tile_moments" not in kernels(plain)
    (want,) = interpret.run(network.graph, [x.astype(np.float64)])
    errors = [np.abs(np.asarray(m(x)) - want).max() / np.abs(want).max() for m in (module, plain)]
    assert errors[0] <= 2 * errors[1] + 1e-6


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    network = Network("instance", 2, 32, 33, 35, "winograd")
    x = network.array(2, 16, 33, 35)
    one, two = (np.asarray(network.compiled(threads=t)(x)) for t in (1, 2))
    assert one.tobytes() == two.tobytes()


def test_the_report_says_where_a_normalization_went() -> None:
    (norm,) = Network("instance", 1, 32, 30, 30, "direct").compiled().report.norms
    assert norm.fate == "fused"
    assert "its statistics come from what it reads" in norm.reason
    assert any("tile_moments" in k for k in norm.into)


def test_a_kept_normalization_stays_whole() -> None:
    network = Network("instance", 1, 32, 30, 30, "direct")
    module = network.compiled(keep=["instance_norm"])
    assert "tile_moments" not in kernels(module)
    network.agrees(module)


def test_verified_rewrites_pass() -> None:
    network = Network("group", 1, 32, 30, 30, "winograd")
    module = network.compiled(verify=True)
    assert "tile_moments" in kernels(module)
    network.agrees(module)


def test_what_nobody_else_reads_is_reduced_by_itself() -> None:
    """A mean that is the only reader needs no second result: there is nothing to save."""
    graph = Graph("head")
    x = graph.input("x", "float32", (1, 16, 40, 40))
    rng = np.random.default_rng(1)
    w = rng.standard_normal((32, 16, 1, 1)).astype(np.float32)
    graph.outputs = [ops.global_average_pool(ops.conv(x, w))]
    module = renorm.compile(graph)
    assert isinstance(module, CompiledModule)
    assert "tile_means" not in kernels(module)


def test_values_that_lie_in_rows_keep_their_normalization() -> None:
    """A convolution to three channels asks for rows, in which no tile of whole channels is finished."""
    network = Network("instance", 1, 32, 40, 40, "direct")
    y = network.graph.outputs[0].producer
    assert y is not None
    x = y.inputs[0]
    assert x is not None
    network.graph.outputs = [network.conv(x, 3, 5)]
    network.graph.discard([y])
    module = network.compiled()
    assert "tile_moments" not in kernels(module)
    network.agrees(module)


def test_usual_distances_have_no_subnormal_squares() -> None:
    """A kernel of instance norms took four times as long for values near 1."""
    rng = np.random.default_rng(0)
    d = np.concatenate([rng.standard_normal(10_000) * 2.0**k for k in range(-60, 64)]).astype(np.float32)
    t = d * np.float32(SCALE) + np.float32(BESIDE)
    assert ((t * t < np.finfo(np.float32).tiny) & (t != 0)).mean() < 1e-5
    far = d[np.abs(d) >= 2.0**50]
    np.testing.assert_array_equal(far * np.float32(SCALE) + np.float32(BESIDE), far * np.float32(SCALE))


@pytest.mark.parametrize("case", ["first element far away", "squares overflow", "constant", "tiny"])
def test_moments_of_tiles_of_hard_data(case: str) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 16, 10, 45)).astype(np.float32)
    if case == "first element far away":
        x[:, :, 0, 0] = 1e4
    elif case == "squares overflow":
        x[:, :, 5] *= np.float32(1e30)
    elif case == "constant":
        x[:] = 0.7
    else:
        x *= np.float32(1e-15)
    graph = Graph("moments")
    graph.outputs = [TileMoments(tile=(4, 45))(graph.input("x", "float32", x.shape))]
    module = renorm.compile(graph)
    assert isinstance(module, CompiledModule)
    got = np.asarray(module(x)[0])
    for t in range(3):
        rows = x[:, :, 4 * t : 4 * t + 4].astype(np.float64)
        mean, var = rows.mean(axis=(2, 3)), rows.var(axis=(2, 3)) * rows[0, 0].size
        largest = np.abs(rows).max(axis=(2, 3))
        assert (np.abs(got[:, t, 0, 0] - mean) <= 2e-7 * largest).all()
        np.testing.assert_allclose(got[:, t, 0, 1], var, rtol=2e-5, atol=1e-30)
