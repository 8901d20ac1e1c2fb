"""Constants that are computed in parts: each part is what the whole array is there, within float64's rounding."""

from math import prod
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

from renorm.graph import deferred
from renorm.graph.deferred import LARGE, Deferred, Product, largest, parts, times
from renorm.graph.ir import Graph
from renorm.ops.shared.filtering import Filter, convolution
from renorm.ops.shared.winograd_weight import TransformedWeight


def product(*shape: int, along: int = 0) -> Product:
    factor = RNG.standard_normal([e if a == along else 1 for a, e in enumerate(shape)])
    return times(RNG.standard_normal(shape).astype(np.float32), factor)


def filters(m: int) -> tuple[Filter, Filter]:
    """Of tiles of m by m results of 3 by 3 taps."""
    return convolution(m, 3, 1, 0), convolution(m, 3, 1, 0)


EXPECTED = {
    "product": lambda p: p.data.astype(np.float64) * p.factor,
    "transformed": lambda t: np.einsum("ia,kcab,jb->ijck", *(t.filters[0].g, t.w.exact(), t.filters[1].g)).reshape(
        t.shape
    ),
}
CASES: list[tuple[str, Any]] = [
    ("product", lambda: product(37, 5, 3, 2)),
    ("product", lambda: product(7, 41, 2, along=1)),
    ("product", lambda: times(product(7, 41), RNG.standard_normal(41))),
    ("transformed", lambda: TransformedWeight(product(35, 6, 3, 3), filters(4))),
    ("transformed", lambda: TransformedWeight(product(5, 33, 3, 3), filters(2))),
]


@pytest.mark.parametrize(("kind", "make"), CASES)
def test_parts_are_the_whole(kind: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: Deferred = make()
    whole = EXPECTED[kind](given)
    np.testing.assert_allclose(given.exact(), whole, rtol=1e-13, atol=1e-13)
    whole = given.exact()
    monkeypatch.setattr(deferred, "PART", 512)
    for axis, extent in enumerate(given.shape):
        for begin, end in parts(given.shape, axis, 4):
            cut = (slice(None),) * axis + (slice(begin, end),)
            np.testing.assert_allclose(given.part(axis, begin, end), whole[cut], rtol=1e-13, atol=1e-13)
        begin, end = sorted(RNG.integers(0, extent + 1, 2))
        expected = np.take(whole, range(begin, end), axis)
        np.testing.assert_allclose(given.part(axis, begin, end), expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(given.rounded("float32"), whole, rtol=2.0**-23, atol=1e-13)
    assert given.bound() >= np.abs(whole).max()


def test_parts_cover_the_axis_once() -> None:
    for shape, axis, unit in (((70, 3000, 9), 0, 16), ((3, 5), 1, 1), ((0, 4), 0, 8), ((1 << 20, 16), 1, 16)):
        found = list(parts(shape, axis, unit))
        assert [b for b, _ in found] == ([0, *(e for _, e in found)][:-1] if found else [])
        assert (found[-1][1] if found else 0) == shape[axis]
        assert all(begin % unit == 0 for begin, _ in found)
        assert all(8 * prod(shape) // shape[axis] * (e - b) <= max(deferred.PART, 8 * unit << 20) for b, e in found)


def test_a_product_is_rounded_once() -> None:
    """Two factors in float64, and one rounding: rounding in between would show in many elements."""
    data, first, second = (RNG.standard_normal(s) for s in ((400, 90), (400, 1), (400, 1)))
    data = data.astype(np.float32)
    got = times(times(data, first), second).rounded("float32")
    long = data.astype(np.longdouble) * first * second
    assert np.abs(got - long).max() <= np.abs(long).max() * 2.0**-24
    assert (got == long.astype(np.float32)).mean() > 0.999


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(bad: float) -> None:
    data = np.ones((300, 400), np.float32)
    data[RNG.integers(300), RNG.integers(400)] = bad
    assert not np.isfinite(largest(data))
    given = times(data, np.full((300, 1), 2.0))
    assert not np.isfinite(given.bound())
    assert not given.is_finite("float32")


def test_a_bound_that_is_too_high_is_looked_into() -> None:
    """The largest weight and the largest factor are in different channels."""
    data = np.ones((2, LARGE), np.float32)
    data[1] = 1e30
    assert times(data, np.array([[1e30], [1.0]])).is_finite("float32")
    assert not times(data, np.array([[1.0], [1e30]])).is_finite("float32")
    assert not times(data, np.array([[1.0], [1.0]])).is_finite("float16")


def test_a_large_constant_waits() -> None:
    g = Graph()
    given = product(LARGE // 16, 16)
    v = g.constant(given, "w", dtype="float32")
    assert v.is_constant
    assert v._data is None
    assert np.array_equal(v.part(0, 3, 9), given.exact()[3:9])
    copy = g.copy().constants["w"]
    assert copy.elements is v.elements
    assert v._data is None
    np.testing.assert_array_equal(np.asarray(v.data), given.rounded("float32"))
    np.testing.assert_array_equal(np.asarray(v.exact), given.exact())
    small = g.constant(product(3, 4), "s", dtype="float16")
    assert small.deferred is None
    assert np.asarray(small.data).dtype == np.float16
    assert np.asarray(small.exact).dtype == np.float64


def test_a_product_of_numbers() -> None:
    """As gemm's beta and a c without axes give it."""
    given = times(np.float32(3.0) * np.ones((), np.float32), np.asarray(0.5))
    assert given.exact() == given.bound() == 1.5
    assert Graph().constant(given, "c", dtype="float32").data == np.float32(1.5)


def test_keys_tell_constants_apart() -> None:
    w, k = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32), RNG.standard_normal((4, 1, 1, 1))
    same = [TransformedWeight(times(w, k), filters(4)), TransformedWeight(times(w, k.copy()), filters(4))]
    others = [
        TransformedWeight(times(w, k), filters(2)),
        TransformedWeight(times(w.copy(), k), filters(4)),
        TransformedWeight(times(w, k * 2), filters(4)),
        TransformedWeight(w, filters(4)),
        times(w, k),
    ]
    assert same[0].key() == same[1].key()
    assert len({d.key() for d in (*same, *others)}) == 1 + len(others)
