"""One tolerance per dtype, and what it sees: a wrong channel however small, NaN in the wrong place, integers off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from renorm.core import dtypes
from renorm.core.difference import judge
from renorm.core.tolerance import tolerance

SEMANTICS = Path(__file__).parents[2] / "docs/semantics.md"


def image() -> np.ndarray:
    y = np.random.default_rng(1).standard_normal((2, 64, 5, 6))
    y[:, 3] *= 1e-5
    return y


@pytest.mark.parametrize("dtype", dtypes.FLOATS)
def test_the_documentation_has_the_numbers_of_the_code(dtype: str) -> None:
    assert f"| {dtype} | {tolerance(dtype):.1e} |".replace("e-0", "e-") in SEMANTICS.read_text()


def test_a_narrow_dtype_is_summed_in_a_wider_one() -> None:
    assert tolerance("float64") < tolerance("float32") < tolerance("float16") < tolerance("bfloat16") < 0.1
    assert tolerance("int32") == tolerance("bool") == 0.0


@pytest.mark.parametrize("dtype", dtypes.FLOATS)
@pytest.mark.parametrize("factor", [0.0, -1.0, 1.2])
def test_a_channel_that_is_small_beside_others_is_seen(dtype: str, factor: float) -> None:
    expected, found = image(), image()
    found[1, 3] *= factor
    judged = judge(found, expected, tolerance(dtype))
    assert judged.error < 1e-4
    assert judged.worst[:2] == (1, 3)
    assert judge(np.moveaxis(found, 1, 3), np.moveaxis(expected, 1, 3), tolerance(dtype)).differing == judged.differing
    assert judge(expected * (1 + tolerance(dtype) / 3), expected, tolerance(dtype)).agrees


def test_not_a_number_and_infinities_stand_where_they_are_expected() -> None:
    expected = np.array([[1.0, np.nan, np.inf, -np.inf, 2.0]])
    assert judge(expected.copy(), expected, 1e-4).agrees
    for i in range(5):
        for wrong in (np.nan, np.inf, -np.inf, 7.0):
            found = expected.copy()
            found[0, i] = wrong
            assert judge(found, expected, 1e-4).agrees == np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("found", [-1.7e308, 0.0, 1e200])
def test_numbers_near_the_largest_are_compared_without_warnings(found: float) -> None:
    expected = np.array([[1.7e308, 1.0]])
    moved = [np.array([[1e300, 1e-9]])] * 16
    assert judge(np.array([[found, 1.0]]), expected, 1e-4, lambda n: moved[:n]).differing == 1


def test_an_integer_off_by_one_differs() -> None:
    expected = np.array([2**60, 5, -3])
    assert judge(expected.copy(), expected, 0.0).agrees
    assert judge(expected + np.array([1, 0, 0]), expected, 0.0).differing == 1


def test_what_roundings_decide_is_counted_and_not_compared() -> None:
    """Integers within what was measured, and nothing else of them; a channel within its deviation."""
    expected, moved = np.array([3, 4, 5]), [np.array([0.0, 1.0, 0.0])] * 16
    judged = judge(expected + np.array([0, 1, 0]), expected, 0.0, lambda n: moved[:n])
    assert (judged.agrees, judged.undecided) == (True, 1)
    assert "1 elements are decided by rounding" in judged.unchecked
    assert not judge(expected + np.array([0, 2, 0]), expected, 0.0, lambda n: moved[:n]).agrees
    assert not judge(expected + np.array([1, 0, 0]), expected, 0.0, lambda n: moved[:n]).agrees
    floats = image()
    deviation = [np.where(np.arange(64)[:, None, None] == 3, 1e-6, 0.0) * np.ones(floats.shape)] * 16
    assert judge(floats + 3 * deviation[0], floats, 1e-8, lambda n: deviation[:n]).agrees
    assert not judge(floats + 5 * deviation[0], floats, 1e-8, lambda n: deviation[:n]).agrees
    assert not judge(floats + 1e-6, floats, 1e-8, lambda n: deviation[:n]).agrees


def test_what_roundings_decide_in_few_measurements_is_counted_with_what_they_decide_in_many() -> None:
    moved = [np.array([1.0, 0.0])] * 4 + [np.array([0.0, 1.0])] * 12
    judged = judge(np.array([4, 5]), np.array([3, 4]), 0.0, lambda n: moved[:n])
    assert (judged.agrees, judged.undecided) == (True, 2)


@pytest.mark.parametrize(("found", "expected"), [((2, 3), (0, 3)), ((3, 0), (0, 3)), ((3,), (1, 3))])
def test_shapes_that_differ_are_a_difference_also_of_empty_arrays(
    found: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    judged = judge(np.zeros(found), np.zeros(expected), 1.0)
    assert not judged.agrees
    assert "shapes differ" in judged.sentence("'y'", "float64")


def test_channels_in_which_nothing_can_be_seen_are_counted() -> None:
    expected = image()
    moved = [np.where(np.arange(64)[:, None, None] == 3, 1.0, 0.0) * np.ones(expected.shape)] * 16
    judged = judge(np.where(moved[0] > 0, 0.0, expected), expected, 1e-4, lambda n: moved[:n])
    assert (judged.agrees, judged.blind) == (True, 1)
