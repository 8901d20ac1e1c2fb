"""A batch of nothing gives nothing, whatever the kernels do for one that is not empty."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.graph.ir import Graph, Value


def w(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def squeezed(x: Value) -> Value:
    y = ops.conv(x, w(32, 32, 1, 1))
    return ops.conv(ops.mul(y, ops.global_average_pool(y)), w(16, 32, 3, 3), pads=(1, 1, 1, 1))


def joined(x: Value) -> Value:
    return ops.max_pool(ops.concat([ops.relu(x), ops.sigmoid(x)], axis=1), kernel_shape=(2, 2))


def normal(x: Value) -> Value:
    return ops.instance_norm(ops.conv(x, w(32, 32, 3, 3)), w(32), w(32))


@pytest.mark.parametrize("make", [squeezed, joined, normal])
@pytest.mark.parametrize("level", [0, 2, 3])
def test_an_empty_batch(make: Callable[[Value], Value], level: int) -> None:
    g = Graph()
    g.outputs = [make(g.input("x", "float32", (0, 32, 32, 32)))]
    y = renorm.compile(g, opt_level=level).run(np.zeros((0, 32, 32, 32), np.float32))[0]
    assert y.shape == tuple(int(str(d)) for d in g.outputs[0].shape)
    assert y.size == 0


def test_a_convolution_to_no_channels() -> None:
    g = Graph()
    g.outputs = [ops.conv(g.input("x", "float32", (1, 8, 8, 8)), w(0, 8, 3, 3))]
    assert renorm.compile(g).run(np.zeros((1, 8, 8, 8), np.float32))[0].shape == (1, 0, 6, 6)


def test_groups_of_no_channels() -> None:
    g = Graph()
    x, weight = g.input("x", "float32", (1, 0, 4, 4)), g.input("w", "float32", (0, 0, 3, 3))
    g.outputs = [ops.conv(x, weight, group=2)]
    given = np.zeros((1, 0, 4, 4), np.float32), np.zeros((0, 0, 3, 3), np.float32)
    assert renorm.compile(g).run(*given)[0].size == 0


@pytest.mark.parametrize("strides", [(1,), (2,)])
def test_a_transposed_window_of_no_elements_reaches_nothing(strides: tuple[int, ...]) -> None:
    g = Graph()
    x, weight = g.input("x", "float32", (1, 2, 3)), g.input("w", "float32", (2, 4, 0))
    g.outputs = [ops.conv_transpose(x, weight, w(4), strides=strides, output_padding=(1,))]
    (y,) = renorm.compile(g).run(w(1, 2, 3), w(2, 4, 0))
    assert np.array_equal(y, np.broadcast_to(w(4)[:, None], y.shape))
    assert y.size
