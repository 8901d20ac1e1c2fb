"""Group norm and its gradient where memory runs along channels: slices are short runs of it, again and again; against
float64, with the same bits on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from renorm.ops.group_norm_gradient import GroupNormGradient
from renorm.ops.group_norm_training import GroupNormTraining
from renorm.training import kernels

Array = np.ndarray[Any, Any]

# shape [N, S, C], groups
CASES = [
    ((3, 130, 24), 3),  # rows enough for pieces
    ((2, 257, 15), 3),  # a prime number of rows, groups of five
    ((4, 9, 40), 20),  # few rows of each sample
    ((1, 700, 96), 1),  # the whole sample is one group
    ((2, 150, 17), 17),  # a group for each channel
    ((2, 3, 6), 2),
    ((2, 5, 7, 12), 4),  # of rank 4
]


def run(op: Any, attributes: dict[str, Any], *operands: Array | None) -> list[Array]:
    results = list[list[Array]]()
    for threads in (1, 2, 3):
        with kernels.threads(threads):
            results.append(kernels.run(op, tuple(attributes.items()), operands, None))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.tobytes() == b.tobytes()
    return results[0]


def grouped(x: Array, groups: int) -> Array:
    """[N, G, elements of a slice] in float64."""
    n, channels = x.shape[0], x.shape[-1]
    wide = np.moveaxis(x.astype(np.float64).reshape(n, -1, groups, channels // groups), 2, 1)
    return wide.reshape(n, groups, -1)


def ungrouped(slices: Array, shape: tuple[int, ...]) -> Array:
    n, groups, _ = slices.shape
    return np.moveaxis(slices.reshape(n, groups, -1, shape[-1] // groups), 1, 2).reshape(shape)


def close(found: Array, expected: Array, share: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, atol=share * max(1.0, float(np.abs(expected).max())))


def whole(offset: float, deviation: float, shape: tuple[int, ...], dtype: Any = np.float32) -> tuple[Array, ...]:
    rng = np.random.default_rng(sum(shape))
    x = (rng.standard_normal(shape) * deviation + offset).astype(dtype)
    scale, bias = rng.uniform(-2, 2, (2, shape[-1])).astype(np.float32)
    return x, rng.standard_normal(shape).astype(dtype), scale, bias


@pytest.mark.parametrize(("offset", "deviation"), [(0.0, 1.0), (1e4, 1.0), (0.0, 1e30)])
@pytest.mark.parametrize(("shape", "groups"), CASES, ids=str)
def test_forward_and_backward(shape: tuple[int, ...], groups: int, offset: float, deviation: float) -> None:
    x, dy, scale, bias = whole(offset, deviation, shape)
    form = {"num_groups": groups, "axis": -1}
    y, mean, invstd = run(GroupNormTraining, {**form, "epsilon": 1e-5}, x, scale, bias)
    slices = grouped(x, groups)
    m, v = slices.mean(axis=2), slices.var(axis=2)
    np.testing.assert_allclose(mean, m, rtol=1e-12, atol=1e-12 * deviation)
    np.testing.assert_allclose(invstd, 1 / np.sqrt(v + 1e-5), rtol=1e-9)
    standard = (slices - m[..., None]) * invstd[..., None]
    close(y, ungrouped(standard, shape) * scale + bias)
    dx, sums = run(GroupNormGradient, form, dy, x, mean, invstd, scale)
    g = grouped(dy * scale.astype(np.float64), groups)
    means = [t.mean(axis=2, keepdims=True) for t in (g, g * standard)]
    inner = ungrouped((g - means[0] - standard * means[1]) * invstd[..., None], shape)
    np.testing.assert_allclose(dx, inner, rtol=1e-4, atol=1e-5 * np.abs(inner).max())
    others = tuple(range(1, len(shape) - 1))
    close(sums[:, 0], dy.sum(axis=others, dtype=np.float64))
    close(sums[:, 1], (dy * ungrouped(standard, shape)).sum(axis=others))


def test_hard_values() -> None:
    shape, form = (2, 200, 12), {"num_groups": 3, "axis": -1}
    x, dy, scale, bias = whole(0.0, 1.0, shape)
    for given in (np.random.default_rng(0).integers(80000, 80004, shape).astype(np.float32), np.full_like(x, 0.7)):
        y, mean, invstd = run(GroupNormTraining, {**form, "epsilon": 1e-5}, given, scale, bias)
        slices = grouped(given, 3)
        standard = (slices - slices.mean(axis=2, keepdims=True)) / np.sqrt(slices.var(axis=2, keepdims=True) + 1e-5)
        close(y, ungrouped(standard, shape) * scale + bias)
        dx, _ = run(GroupNormGradient, form, dy, given, mean, invstd, scale)
        assert np.isfinite(dx).all()
    np.testing.assert_array_equal(y, np.broadcast_to(bias, shape))  # of constant slices


@pytest.mark.parametrize("shape", [(0, 5, 6), (2, 0, 6)], ids=str)
def test_nothing(shape: tuple[int, ...]) -> None:
    x, dy, scale, bias = whole(0.0, 1.0, shape)
    form = {"num_groups": 3, "axis": -1}
    y, mean, invstd = run(GroupNormTraining, {**form, "epsilon": 1e-5}, x, scale, bias)
    dx, sums = run(GroupNormGradient, form, dy, x, mean, invstd, scale)
    assert y.shape == dx.shape == shape
    np.testing.assert_array_equal(sums, np.zeros((shape[0], 2, 6)))
