"""Arrays come back to the last bit, and are small where another one predicts them."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from renorm.frontends.residual import decode, encode


def same_bits(a: np.ndarray, b: np.ndarray) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    np.testing.assert_array_equal(
        np.ascontiguousarray(a).reshape(-1).view(np.uint8), np.ascontiguousarray(b).reshape(-1).view(np.uint8)
    )


def folded(w: np.ndarray, rows: bool, columns: bool, groups: int, rng: np.random.Generator) -> np.ndarray:
    """w times a factor per row, per column of a group, or both, in float64 and rounded."""
    view = w.astype(np.float64).reshape(groups, w.shape[0] // groups, w.shape[1], -1)
    if rows:
        view = view * rng.uniform(-3, 3, (*view.shape[:2], 1, 1))
    if columns:
        view = view * rng.uniform(-3, 3, (groups, 1, view.shape[2], 1))
    return view.reshape(w.shape).astype(w.dtype)


@pytest.mark.parametrize(("rows", "columns"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", [(12, 5, 3, 3), (24, 40), (12, 1, 5, 5), (6, 7, 11)])
def test_weights_that_norms_were_folded_into(rows: bool, columns: bool, groups: int, shape: tuple[int, ...]):
    rng = np.random.default_rng(1)
    w = rng.standard_normal(shape).astype(np.float32)
    near = folded(w, rows, columns, groups, rng)
    code = encode(w, near, groups)
    same_bits(decode(code, near), w)
    assert code.way is not None
    factors = 8 * (w.shape[0] + groups * w.shape[1])
    assert code.size < w.nbytes / 8 + factors + 60


def test_columns_may_be_the_last_axis():
    """Weights as TensorFlow Lite has them, [1, H, W, C] and [O, H, W, I]."""
    rng = np.random.default_rng(2)
    for shape in ((1, 5, 5, 32), (16, 3, 3, 24)):
        w = rng.standard_normal(shape).astype(np.float32)
        rows, last = rng.uniform(0.5, 2, (shape[0], 1, 1, 1)), rng.uniform(-2, 2, shape[-1])
        near = (w.astype(np.float64) * rows * last).astype(np.float32)
        code = encode(w, near)
        same_bits(decode(code, near), w)
        assert code.size < w.nbytes / 8 + 8 * (shape[0] + shape[-1]) + 60


@pytest.mark.parametrize("shape", [(30, 50), (40, 40)])
def test_matrices_that_were_transposed(shape: tuple[int, int]):
    rng = np.random.default_rng(6)
    w = rng.standard_normal(shape).astype(np.float32)
    near = np.ascontiguousarray(folded(w, True, True, 1, rng).T)
    code = encode(w, near)
    same_bits(decode(code, near), w)
    assert code.size < w.nbytes / 8 + 8 * sum(shape) + 60


def test_scales_of_zero_and_what_is_no_number():
    """Channels that folding made zero come back, as do NaN, infinities, denormals and both zeros."""
    rng = np.random.default_rng(3)
    w = rng.standard_normal((8, 4, 3, 3)).astype(np.float32)
    w[1, 0, 0] = [np.nan, -np.nan, np.inf]
    w[2, 0, 0] = [0.0, -0.0, 1e-42]
    w[3] = 0
    k = rng.uniform(0.5, 2, (8, 1, 1, 1))
    k[4:6] = 0
    k[6] = 1e30
    k[7] = 1e-30
    near = (w.astype(np.float64) * k).astype(np.float32)
    same_bits(decode(encode(w, near), near), w)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.int64, np.bool_])
def test_other_types(dtype: type):
    rng = np.random.default_rng(4)
    w = (
        rng.integers(-3, 3, (6, 20)).astype(dtype)
        if np.dtype(dtype).kind in "ib"
        else rng.random((6, 20)).astype(dtype)
    )
    near = (w.astype(np.float64) * np.arange(1, 7)[:, None]).astype(dtype)
    same_bits(decode(encode(w, near), near), w)
    same_bits(decode(encode(w)), w)
    wide = w.astype(np.float32)
    same_bits(decode(encode(w, wide), wide), w)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 0, 3)])
def test_arrays_that_nothing_predicts(shape: tuple[int, ...]):
    w = np.ones(shape, np.float32)
    same_bits(decode(encode(w, w), w), w)
    same_bits(decode(encode(w, np.ones(7))), w)


def test_large_constants_of_few_bits_come_back():
    """What is compressed further than decoding trusts it to be is stored as it stands."""
    w = np.zeros((300, 1000), np.float32)
    same_bits(decode(encode(w)), w)
    small = encode(np.zeros(1000, np.float32))
    assert small.size < 100
    near = np.full_like(w, 2.0)
    code = encode(np.ones_like(w), near)
    same_bits(decode(code, near), np.ones_like(w))
    assert code.size < w.nbytes / 100
    for broken in (replace(code, parts=(code.parts[0], code.parts[1][:-3], code.parts[2])), replace(code, parts=())):
        with pytest.raises((ValueError, IndexError)):
            decode(broken, near)


def test_what_has_nothing_to_do_with_it_is_stored_whole():
    rng = np.random.default_rng(5)
    w, other = rng.standard_normal((2, 9, 64)).astype(np.float32)
    code = encode(w, other)
    same_bits(decode(code, other), w)
    assert code.size <= len(w.tobytes()) + 60
