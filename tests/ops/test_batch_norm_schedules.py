"""Batch norm in training on shapes that are scheduled differently: many channels or few, long or short, along memory or
across it, ragged ones; against float64, with the same bits on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import renorm
from renorm.graph.ir import Graph
from renorm.graph.op import OpDef
from renorm.ops.batch_norm_gradient import BatchNormGradient
from renorm.ops.batch_norm_training import TORCH, BatchNormTraining

Array = np.ndarray[Any, Any]
Run = Callable[[OpDef, dict[str, Array]], list[Array]]

SHAPES = [
    (4, 20, 9, 13),  # slices of several planes
    (3, 17, 5),  # short and ragged
    (2, 1, 300, 1001),  # one channel: pieces of each plane
    (5, 3, 200, 300),  # few channels
    (700, 64),  # memory runs across slices, which a cache holds
    (9000, 48),  # it does not: pieces of rows
    (9001, 32),  # the last piece is shorter
    (5003, 3),  # fewer channels than a vector has lanes, a prime number of rows
    (2600, 201),  # vectors are ragged
    (1030, 384),  # several tiles of columns: blocks of rows
    (2, 3),
]


def module(op: OpDef, operands: dict[str, Array]) -> Any:
    graph = Graph(op.name)
    given = [
        graph.input(p.name, operands[p.name].dtype.name, operands[p.name].shape) if p.name in operands else None
        for p in op.parsed.operands
    ]
    graph.apply(op, given, outputs=[])
    graph.outputs = list(graph.nodes[0].outputs)
    return renorm.compile(graph, threads=1)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Gives results, which are the same on any number of threads."""

    def run(op: OpDef, operands: dict[str, Any]) -> list[Array]:
        path = tmp_path / f"{op.name}.renorm"
        module(op, operands).save(path)
        first, *others = [renorm.load(path, threads=n).run(**operands) for n in (1, 2, 3)]
        for other in others:
            for a, b in zip(first, other, strict=True):
                assert a.tobytes() == b.tobytes()
        return first

    return run


def along(v: Array, x: Array) -> Array:
    return v.reshape(-1, *[1] * (x.ndim - 2))


def others(x: Array) -> tuple[int, ...]:
    return tuple(a for a in range(x.ndim) if a != 1)


def data(shape: tuple[int, ...], offset: float = 0.0, dtype: Any = np.float32) -> dict[str, Array]:
    rng = np.random.default_rng(sum(shape))
    channels = shape[1]
    return {
        "x": (rng.standard_normal(shape) + offset).astype(dtype),
        "dy": rng.standard_normal(shape).astype(dtype),
        "residual": rng.standard_normal(shape).astype(dtype),
        "scale": rng.uniform(-2, 2, channels).astype(np.float32),
        "bias": rng.standard_normal(channels).astype(np.float32),
        "running_mean": rng.standard_normal(channels).astype(np.float32),
        "running_var": rng.uniform(0.5, 2, channels).astype(np.float32),
        "momentum": np.array([0.25]),
        "mask": rng.random((shape[0], *shape[2:])) < 0.7,
    }


def pick(d: dict[str, Array], *names: str) -> dict[str, Array]:
    return {n: d[n] for n in names}


PLAIN = ("x", "scale", "bias", "running_mean", "running_var", "momentum")


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(run: Run, shape: tuple[int, ...], offset: float) -> None:
    d = data(shape, offset)
    y, new_mean, new_var, mean, var, invstd, count = run(BatchNormTraining(**TORCH), pick(d, *PLAIN))
    x = d["x"].astype(np.float64)
    m, v, n = x.mean(axis=others(x)), x.var(axis=others(x)), x.size // shape[1]
    standard = (x - along(m, x)) / np.sqrt(along(v, x) + 1e-5)
    np.testing.assert_allclose(y, standard * along(d["scale"], x) + along(d["bias"], x), atol=3e-6)
    np.testing.assert_allclose(mean, m, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(var, v, rtol=1e-6)
    np.testing.assert_allclose(invstd, 1 / np.sqrt(v + 1e-5), rtol=1e-6)
    np.testing.assert_allclose(new_mean, 0.75 * d["running_mean"] + 0.25 * m, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(new_var, 0.75 * d["running_var"] + 0.25 * v * n / (n - 1), rtol=1e-6)
    assert count == [n]


@pytest.mark.parametrize("shape", SHAPES[:-1], ids=str)
def test_forward_with_mask_residual_and_relu(run: Run, shape: tuple[int, ...]) -> None:
    d = data(shape, 3.0)
    y, *_, mean, var, _, count = run(BatchNormTraining(**TORCH, relu=True), pick(d, *PLAIN, "mask", "residual"))
    x = d["x"].astype(np.float64)
    chosen = np.moveaxis(x, 1, -1)[d["mask"]]
    m, v = chosen.mean(axis=0), chosen.var(axis=0)
    standard = (x - along(m, x)) / np.sqrt(along(v, x) + 1e-5)
    expected = np.maximum(standard * along(d["scale"], x) + along(d["bias"], x) + d["residual"], 0)
    np.testing.assert_allclose(y, expected, atol=5e-6)
    np.testing.assert_allclose(mean, m, rtol=1e-6)
    np.testing.assert_allclose(var, v, rtol=1e-6)
    assert count == [len(chosen)]


def gradient(d: dict[str, Array], g: Array, mask: Array | None = None) -> tuple[list[Array], dict[str, Array]]:
    """Expected dx, dscale, dbias in float64, and the statistics that were saved."""
    x = d["x"].astype(np.float64)
    chosen = np.moveaxis(x, 1, -1)[np.ones((x.shape[0], *x.shape[2:]), bool) if mask is None else mask]
    m, v = chosen.mean(axis=0), chosen.var(axis=0)
    invstd = 1 / np.sqrt(v + 1e-5)
    standard = (x - along(m, x)) * along(invstd, x)
    dscale, dbias = (g * standard).sum(axis=others(x)), g.sum(axis=others(x))
    mean_parts = (along(dbias, x) + standard * along(dscale, x)) / len(chosen)
    here = 1.0 if mask is None else np.expand_dims(mask, 1)
    dx = along(d["scale"] * invstd, x) * (g - here * mean_parts)
    return [dx, dscale, dbias], {"mean": m.astype(np.float32), "invstd": invstd.astype(np.float32)}


def close(found: Array, expected: Array, share: float) -> None:
    np.testing.assert_allclose(found, expected, atol=share * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backward(run: Run, shape: tuple[int, ...], offset: float) -> None:
    d = data(shape, offset)
    expected, saved = gradient(d, d["dy"].astype(np.float64))
    found = run(BatchNormGradient(), pick(d, "dy", "x", "scale") | saved)
    for a, b in zip(found, expected, strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("shape", SHAPES[:-1], ids=str)
def test_backward_behind_relu_and_residual_with_a_mask(run: Run, shape: tuple[int, ...]) -> None:
    d = data(shape)
    d["y"] = np.maximum(d["residual"], 0)
    g = np.where(d["y"] > 0, d["dy"], 0).astype(np.float64)
    expected, saved = gradient(d, g, d["mask"])
    *found, rest = run(BatchNormGradient(residual=True), pick(d, "dy", "x", "scale", "mask", "y") | saved)
    for a, b in zip(found, expected, strict=True):
        close(a, b, 1e-5)
    np.testing.assert_array_equal(rest, g.astype(np.float32))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_residual", [False, True])
def test_frozen_backward(run: Run, shape: tuple[int, ...], has_residual: bool) -> None:
    d = data(shape)
    d["y"] = np.maximum(d["residual"], 0)
    g = np.where(d["y"] > 0, d["dy"], 0).astype(np.float64) if has_residual else d["dy"].astype(np.float64)
    d["mean"], d["invstd"] = d["running_mean"], d["running_var"]
    standard = (d["x"] - along(d["mean"].astype(np.float64), g)) * along(d["invstd"], g)
    expected = [along(d["scale"].astype(np.float64) * d["invstd"], g) * g]
    expected += [(g * standard).sum(axis=others(g)), g.sum(axis=others(g))]
    names = "dy", "x", "scale", "mean", "invstd", *["y"] * has_residual
    found = run(BatchNormGradient(frozen=True, residual=has_residual), pick(d, *names))
    for a, b in zip(found, expected, strict=False):
        close(a, b, 1e-5)
    if has_residual:
        np.testing.assert_array_equal(found[3], g.astype(np.float32))


@pytest.mark.parametrize("shape", [(4, 20, 130), (1030, 384), (9001, 32)], ids=str)
@pytest.mark.parametrize("is_frozen", [False, True])
def test_no_pass_is_for_one_result(shape: tuple[int, ...], is_frozen: bool) -> None:
    """dy is read once: elements behind the sums, which no cache keeps of tall columns, read the residual's gradient."""
    d = data(shape)
    names = "dy", "x", "scale", "y", "mean", "invstd"
    d["y"], d["mean"], d["invstd"] = d["x"], d["running_mean"], d["running_var"]
    m = module(BatchNormGradient(frozen=is_frozen, residual=True), pick(d, *names))
    (kernel,) = m.report.kernels
    assert sum("dy[" in p for p in m.kernel(kernel.name).loops.split("parallel")[1:]) == 1


@pytest.mark.parametrize("shape", [(90000, 1), (2, 3, 300, 150), (1, 16, 90000)], ids=str)
def test_half_precision_of_many_values(run: Run, shape: tuple[int, ...]) -> None:
    d = data(shape, 200.0, np.float16)
    x = d["x"].astype(np.float64)
    y, *_, mean, var, _, _ = run(BatchNormTraining(**TORCH), pick(d, *PLAIN))
    np.testing.assert_allclose(mean, x.mean(axis=others(x)), rtol=1e-6)
    np.testing.assert_allclose(var, x.var(axis=others(x)), rtol=1e-6)
    assert np.isfinite(y).all()


@pytest.mark.parametrize("shape", [(6, 20, 30), (9000, 16), (2, 1, 300, 500)], ids=str)
def test_hard_values(run: Run, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    d = data(shape)
    d["x"] = rng.integers(80000, 80004, shape).astype(np.float32)
    x = d["x"].astype(np.float64)
    y, *_, mean, var, _, _ = run(BatchNormTraining(**TORCH), pick(d, *PLAIN))
    np.testing.assert_allclose(var, x.var(axis=others(x)), rtol=1e-6)
    standard = (x - along(x.mean(axis=others(x)), x)) / np.sqrt(along(x.var(axis=others(x)), x) + 1e-5)
    np.testing.assert_allclose(y, standard * along(d["scale"], x) + along(d["bias"], x), atol=1e-5)
    d["x"] = np.full(shape, 0.7, np.float32)
    y, *_, mean, var, _, _ = run(BatchNormTraining(**TORCH), pick(d, *PLAIN))
    np.testing.assert_array_equal(y, np.broadcast_to(along(d["bias"], x), shape))
    np.testing.assert_array_equal(mean, np.float32(0.7))
    np.testing.assert_array_equal(var, np.float32(0))
    d["x"] = (rng.uniform(-1, 1, shape) * 1e30).astype(np.float32)
    x = d["x"].astype(np.float64)
    y, *_ = run(BatchNormTraining(**TORCH), pick(d, "x", "scale", "bias"))
    standard = (x - along(x.mean(axis=others(x)), x)) / np.sqrt(along(x.var(axis=others(x)), x) + 1e-5)
    np.testing.assert_allclose(y, standard * along(d["scale"], x) + along(d["bias"], x), atol=1e-5)


@pytest.mark.parametrize("at", [0, 5])
def test_an_infinity_has_the_mean_that_it_should(run: Run, at: int) -> None:
    d = data((6, 20, 30))
    d["x"].reshape(-1)[at] = np.inf
    y, *_, mean, var, _, _ = run(BatchNormTraining(**TORCH), pick(d, "x", "scale", "bias"))
    assert np.isposinf(mean[0])
    assert np.isnan(var[0])
    assert np.isnan(y[:, 0]).all()
    assert np.isfinite(y[:, 1:]).all()


def test_memory_is_read_once_for_statistics_and_once_for_elements() -> None:
    """All of a channel's statistics are computed in the loop that normalizes it."""
    m = module(BatchNormTraining(**TORCH), pick(data((4, 32, 9, 13)), *PLAIN))
    (kernel,) = m.report.kernels
    loops = m.kernel(kernel).loops
    assert loops.count("parallel") == 1
    assert loops.index("produce x_sums") > loops.index("parallel")
    assert loops.index("for (r0") < loops.index("unrolled (i0, 0, 2)")  # both sums in one pass
