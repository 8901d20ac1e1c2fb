"""Maps per channel by themselves: what they leave out, where uniform ones run, and how an op parts one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.random_numbers import RNG

from renorm import ops
from renorm.graph import interpret
from renorm.graph.channels import Carry, ChannelMap, every, pulled
from renorm.graph.ir import Graph


def image(m: ChannelMap, x: np.ndarray) -> np.ndarray:
    spread = [-1 if a == m.axis else 1 for a in range(x.ndim)]
    y = x if m.k is None else x * m.k.reshape(spread)
    return y if m.shift is None else y + m.shift.reshape(spread)


def test_a_map_that_changes_nothing_is_plain() -> None:
    assert ChannelMap(1, np.ones(3), np.zeros(3)).plain().is_identity
    m = ChannelMap(1, np.array([1.0, 2.0]), np.zeros(2)).plain()
    assert m.shift is None
    assert m.k is not None


def test_uniform_maps_run_along_every_axis() -> None:
    x = RNG.standard_normal((2, 3, 4))
    m = ChannelMap(1, np.full(3, 0.5), np.full(3, 2.0))
    found = m.along(("N", 3, 4))
    assert [f.axis for f in found] == [1, 2]
    for f in found:
        np.testing.assert_array_equal(image(f, x), image(m, x))
    assert len(ChannelMap(1, np.array([1.0, 2.0, 1.0]), None).along((2, 3, 4))) == 1


@pytest.mark.parametrize("number", [0.0, 0.5, -3.0])
def test_a_map_is_parted_into_what_goes_and_what_stays(number: float) -> None:
    """Beside what the map falls upon stands a number, which stays what it is."""
    m = ChannelMap(1, RNG.uniform(-2, 2, 3), RNG.standard_normal(3))
    carry = every(3, 1, fixed=number)
    assert carry is not None
    assert carry.objection(m)
    going, staying = carry.parted(m)
    assert carry.objection(going) is None
    assert staying is not None
    x = RNG.standard_normal((2, 3, 4))
    np.testing.assert_allclose(image(ChannelMap(1, None, staying), image(going, x)), image(m, x), atol=1e-14)
    only_a_shift = ChannelMap(1, None, np.ones(3))
    assert carry.parted(only_a_shift) == (only_a_shift, None)


def test_pieces_and_what_is_subtracted() -> None:
    m = ChannelMap(1, np.array([2.0, 3.0]), np.array([4.0, 5.0]))
    piece = pulled(Carry(1, np.array([[0, 1], [1, 2]]), result=1), m, 1, 4)
    assert isinstance(piece, ChannelMap)
    assert (piece.k == [1, 2, 3, 1]).all()
    assert (piece.shift == [0, 4, 5, 0]).all()
    subtracted = pulled(Carry(1, np.array([[0, 0], [1, 1]]), joined=True, negated=True), m, 1, 2)
    assert isinstance(subtracted, ChannelMap)
    assert (subtracted.shift == [-4, -5]).all()


def test_sorting_puts_readers_behind_and_leaves_the_rest() -> None:
    g = Graph()
    x = g.input("x", "float32", (2, 3))
    a = ops.relu(x)
    b = ops.exp(x)
    c = ops.tanh(a)
    g.outputs = [ops.add(b, c)]
    order = list(g.nodes)
    g.nodes = [order[2], order[1], order[3], order[0]]
    g.sort()
    assert g.nodes == [order[0], order[2], order[1], order[3]]
    interpret.run(g, [np.ones((2, 3), np.float32)])
    g.sort()
    assert g.nodes == [order[0], order[2], order[1], order[3]]
    g.nodes = [order[1], order[2], order[0], order[3]]
    g.sort(1, 3)
    assert g.nodes == [order[1], order[0], order[2], order[3]]
    assert [g.position_of(n) for n in g.nodes] == [0, 1, 2, 3]


def asked(draw: st.DrawFn, axes: tuple[int, ...]) -> ChannelMap:
    """A map of 3 channels with few different numbers, of all of them or of some."""
    numbers = st.lists(st.sampled_from([1.0, 2.0]), min_size=3, max_size=3).map(np.array)
    of = st.lists(st.booleans(), min_size=3, max_size=3).map(np.array)
    k, shift, known = (draw(st.none() | s) for s in (numbers, numbers, of))
    return ChannelMap(draw(st.sampled_from(axes)), k, shift, known)


def by_channel(m: ChannelMap) -> list[tuple[float, float] | None]:
    parts = [(1.0 if m.k is None else m.k[c], 0.0 if m.shift is None else m.shift[c]) for c in range(3)]
    return [p if m.of is None or m.of[c] else None for c, p in enumerate(parts)]


@given(st.data())
def test_two_maps_of_one_value_join_where_they_agree(data: st.DataObject) -> None:
    a, b = (data.draw(st.composite(asked)((1,))) for _ in range(2))
    pairs = list(zip(by_channel(a), by_channel(b)))
    joined = a.joined(b)
    if any(p and q and p != q for p, q in pairs):
        assert joined is None
    else:
        assert joined is not None
        assert by_channel(joined) == [p or q for p, q in pairs]


@given(st.data())
def test_maps_along_different_axes_join_where_one_changes_nothing(data: st.DataObject) -> None:
    a, b = (data.draw(st.composite(asked)((axis,))).plain() for axis in (1, 2))
    joined, other = a.joined(b), b.joined(a)
    if not a.is_identity and not b.is_identity:
        assert joined is other is None
        return
    moved, still = (b, a) if a.is_identity else (a, b)
    is_asked = still.of is None or still.of.any()
    fits = moved.is_identity or not is_asked or all(p in (None, (1.0, 0.0)) for p in by_channel(moved))
    assert (joined is not None) == (other is not None) == fits
