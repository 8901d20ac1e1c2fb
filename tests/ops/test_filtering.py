"""Minimal filtering along one axis against sums as they are defined."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.random_numbers import RNG

from renorm.ops.shared.filtering import POINTS, Filter, convolution, has_points, minimal, points, transposed

CASES = [case for case in product((1, 2, 3, 4), (1, 2, 3, 4, 5, 7), (1, 2, 3), (0, 1, 2, 5)) if has_points(*case[:3])]


def computed(f: Filter, x: dict[int, int], taps: np.ndarray, tile: int) -> np.ndarray:
    """Results of one tile of an x that is zero where it has no elements."""
    d = np.array([x.get(tile * f.step + f.start + k, 0) for k in range(f.elements)], float)
    return f.a @ ((f.g @ taps) * (f.b @ d))


@pytest.mark.parametrize("tile", [0, 2])
def test_convolutions(tile: int) -> None:
    for m, r, stride, before in CASES:
        f = convolution(m, r, stride, before)
        x, taps = dict(enumerate(RNG.integers(-9, 9, 40).tolist())), RNG.integers(-9, 9, r).astype(float)
        expected = [
            sum(x.get(o * stride + k - before, 0) * taps[k] for k in range(r)) for o in range(tile * m, (tile + 1) * m)
        ]
        np.testing.assert_allclose(computed(f, x, taps, tile), expected, atol=1e-9, err_msg=f"{m, r, stride, before}")


@pytest.mark.parametrize("tile", [0, 2])
def test_transposed_convolutions(tile: int) -> None:
    for m, r, stride, before in CASES:
        f = transposed(m, r, stride, before)
        x, taps = dict(enumerate(RNG.integers(-9, 9, 40).tolist())), RNG.integers(-9, 9, r).astype(float)
        expected = np.zeros(40 * stride + r)
        for i, k in product(x, range(r)):
            expected[i * stride + k] += x[i] * taps[k]
        count, first = m * stride, tile * m * stride + before
        got = computed(f, x, taps, tile)
        np.testing.assert_allclose(got, expected[first : first + count], atol=1e-9, err_msg=f"{m, r, stride, before}")


@pytest.mark.parametrize(("m", "r"), [(2, 2), (3, 2), (2, 3), (4, 3), (2, 5), (2, 7)])
def test_products_are_as_few_as_can_be(m: int, r: int) -> None:
    a, g, b = minimal(m, r)
    assert a.shape == (m, m + r - 1)
    assert g.shape == (m + r - 1, r)
    assert b.shape == (m + r - 1, m + r - 1)


def test_products_of_phases() -> None:
    assert convolution(4, 3, 2, 1).products == 5 + 4  # F(4, 2) of even elements, one tap of odd ones
    assert transposed(2, 4, 2, 1).products == 3 + 3


def test_what_has_points() -> None:
    assert not has_points(4, 3, 4)  # a phase without taps
    assert not has_points(0, 3, 1)
    assert not has_points(4, 9, 1)
    assert has_points(100, 1, 1)
    assert [points(*case) for case in [(4, 3, 1), (4, 3, 2), (1, 9, 1), (7, 1, 1), (2, 4, 2)]] == [5, 4, 0, 0, 2]
    assert sorted(POINTS) == list(range(1, max(POINTS) + 1))
    assert all(len(own) == n == len(set(own)) for n, own in POINTS.items())
