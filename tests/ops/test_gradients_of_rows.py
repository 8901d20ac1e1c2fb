"""Gradients of norms of rows, where what is added up over rows is so in the loops that compute pieces of them; against
float64, with the same bits on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm.ops.group_norm_gradient import GroupNormGradient
from renorm.training import kernels

Array = np.ndarray[Any, Any]


def check(x: Array, dy: Array, scale: Array | None, centered: bool) -> None:
    wide = x.astype(np.float64)
    mean = wide.mean(axis=1, keepdims=True) * centered
    invstd = 1 / np.sqrt(((wide - mean) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    form = (("num_groups", 1), ("centered", centered))
    results = list[list[Array]]()
    for threads in (1, 3):
        with kernels.threads(threads):
            results.append(kernels.run(GroupNormGradient, form, (dy, x, mean, invstd, scale), None))
    assert [a.tobytes() for a in results[0]] == [a.tobytes() for a in results[1]]
    dx, sums = results[0]
    xhat = (wide - mean) * invstd
    g = dy.astype(np.float64) * (1 if scale is None else scale)
    inner = g - g.mean(axis=1, keepdims=True) * centered - xhat * (g * xhat).mean(axis=1, keepdims=True)
    largest = np.abs(g * invstd).max() * max(1.0, np.abs(xhat).max())  # of what cancels in rows of few elements
    np.testing.assert_allclose(dx, inner * invstd, rtol=0, atol=3e-6 * largest)
    for found, terms in zip(sums[0], (dy.astype(np.float64), dy * xhat), strict=True):
        np.testing.assert_allclose(found, terms.sum(axis=0), rtol=0, atol=1e-6 * np.abs(terms).sum(axis=0).max())


@settings(max_examples=12, deadline=None)
@given(st.integers(100, 700), st.integers(1, 70), st.booleans(), st.booleans(), st.integers(0, 99))
def test_any_matrix(rows: int, columns: int, centered: bool, is_scaled: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, rows, columns), dtype=np.float32)
    check(x + np.float32(3), dy, rng.uniform(-2, 2, columns).astype(np.float32) if is_scaled else None, centered)


@pytest.mark.parametrize("shape", [(640, 768), (1031, 100), (130, 2500)], ids=str)
def test_several_pieces(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, *shape), dtype=np.float32)
    check(x, dy, rng.uniform(-2, 2, shape[1]).astype(np.float32), True)


def test_a_nan_stays_in_its_row_and_in_the_sums_of_its_column() -> None:
    x, dy = np.random.default_rng(0).standard_normal((2, 300, 40), dtype=np.float32)
    dy[77, 5] = np.nan
    statistics = x.mean(axis=1, keepdims=True, dtype=np.float64), 1 / x.std(axis=1, keepdims=True, dtype=np.float64)
    dx, sums = kernels.run(GroupNormGradient, (("num_groups", 1),), (dy, x, *statistics, None), None)
    assert np.isnan(dx).any(axis=1).nonzero()[0].tolist() == [77]
    assert np.isnan(sums[0]).any(axis=0).nonzero()[0].tolist() == [5]


def test_rows_and_sums_over_them_share_their_loops() -> None:
    module = kernels.compiled(GroupNormGradient, (("num_groups", 1),), 1, _types((640, 768)))
    loops = module.kernel(module.report.kernels[0].name).loops
    sums, rows, total = (loops.index(f"produce {name} ") for name in ("sums.rf", "group_norm_gradient", "sums"))
    assert sums < loops.index("parallel") < rows < total


def _types(shape: tuple[int, int]) -> tuple[Any, ...]:
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    return ((shape, single), (shape, single), ((shape[0], 1), double), ((shape[0], 1), double), (shape[1:], single))
