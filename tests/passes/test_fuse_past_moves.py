"""A normalization writes its result where a transpose or a concatenation puts it; IBN is one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.core.dims import static
from renorm.graph.ir import Graph, Value


def compiled(shapes: dict[str, tuple[int, ...]], build: Any, **options: Any) -> renorm.driver.module.CompiledModule:
    graph = Graph("g")
    graph.outputs = [build(*(graph.input(name, "float32", shape) for name, shape in shapes.items()))]
    return renorm.compile(graph, **options)


def standard(x: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    wide = x.astype(np.float64)
    return (wide - wide.mean(axis=axes, keepdims=True)) / np.sqrt(wide.var(axis=axes, keepdims=True) + 1e-5)


def half_and_half(x: Value, k: np.ndarray[Any, Any], b: np.ndarray[Any, Any], at: int, swapped: bool) -> Value:
    def part(begin: int, end: int) -> Value:
        return ops.slice(x, np.array([begin]), np.array([end]), np.array([1]))

    c = static(x.shape)[1]
    instance, batch = (part(at, c), part(0, at)) if swapped else (part(0, at), part(at, c))
    width = static(instance.shape)[1]
    a = ops.instance_norm(instance, k[:width], b[:width])
    along = (-1, *[1] * (x.rank - 2))
    d = ops.add(ops.mul(batch, k[width:].reshape(along)), b[width:].reshape(along))
    return ops.relu(ops.concat([d, a] if swapped else [a, d], axis=1))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("shape", "at"), [((2, 32, 5, 7), 16), ((1, 6, 9, 4), 2), ((3, 10, 33), 5), ((1, 64, 3, 3), 48)]
)
def test_channels_split_between_instance_and_batch_norm_are_one_kernel(shape: Any, at: int, swapped: bool):
    rng = np.random.default_rng(at)
    x = rng.normal(1e4, 1, shape).astype(np.float32)
    k, b = rng.normal(0, 1, (2, shape[1])).astype(np.float32)
    module = compiled({"x": shape}, lambda v: half_and_half(v, k, b, at, swapped))
    assert len(module.report.kernels) == 1
    c = shape[1]
    mine = np.r_[at:c] if swapped else np.r_[:at]
    others = np.setdiff1d(np.arange(c), mine)
    expected, along = np.empty(shape), (-1, *[1] * (len(shape) - 2))
    n = len(mine)
    normal = standard(x[:, mine], tuple(range(2, len(shape))))
    expected[:, mine] = normal * k[:n].reshape(along) + b[:n].reshape(along)
    expected[:, others] = x[:, others] * k[n:].reshape(along).astype(np.float64) + b[n:].reshape(along)
    np.testing.assert_allclose(module.run(x)[0], np.maximum(expected, 0), rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("perm", [(0, 3, 1, 2), (0, 2, 1, 3), (3, 0, 1, 2)], ids=str)
@pytest.mark.parametrize("shape", [(2, 5, 7, 12), (1, 4, 32, 96), (2, 3, 56, 40)], ids=str)
def test_a_layer_norm_writes_its_result_transposed(shape: Any, perm: tuple[int, ...]):
    rng = np.random.default_rng(1)
    x = rng.normal(1e3, 1, shape).astype(np.float32)
    k, b = rng.normal(0, 1, (2, shape[-1])).astype(np.float32)
    module = compiled({"x": shape}, lambda v: ops.transpose(ops.layer_norm(v, k, b), perm=perm))
    assert len(module.report.kernels) == 1
    expected = (standard(x, (3,)) * k + b).transpose(perm)
    np.testing.assert_allclose(module.run(x)[0], expected, rtol=1e-5, atol=1e-4)


def test_a_layer_norm_over_channels_between_two_transposes_is_one_kernel_with_vectors_of_pixels():
    rng = np.random.default_rng(2)
    x = rng.normal(-1e4, 1, (2, 24, 6, 20)).astype(np.float32)
    k = rng.normal(0, 1, 24).astype(np.float32)

    def build(v: Value) -> Value:
        last = ops.layer_norm(ops.transpose(v, perm=(0, 2, 3, 1)), k)
        return ops.transpose(last, perm=(0, 3, 1, 2))

    module = compiled({"x": x.shape}, build)
    (kernel,) = module.report.kernels
    assert "vectorized" in module.kernel(kernel.name).loops
    expected = standard(x, (1,)) * k[:, None, None]
    np.testing.assert_allclose(module.run(x)[0], expected, rtol=1e-5, atol=1e-4)


def test_what_another_kernel_computes_is_not_drawn_into_the_norm():
    rng = np.random.default_rng(3)
    w = rng.normal(0, 1, (8, 8, 3, 3)).astype(np.float32)
    one = np.ones(8, np.float32)

    def build(v: Value) -> Value:
        return ops.concat([ops.instance_norm(v, one, one), ops.relu(ops.conv(v, w, pads=(1, 1, 1, 1)))], axis=1)

    names = [k.name for k in compiled({"x": (1, 8, 6, 6)}, build).report.kernels]
    assert any("conv2d_relu" in n for n in names), names
    assert not any("conv" in n and "instance" in n for n in names), names
