"""Places that share bytes with a place: the same as by looking at all of them, and few more are looked at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from renorm.driver.overlaps import Places
from renorm.graph.place import Place


@st.composite
def places(draw: st.DrawFn) -> Place:
    pitch = draw(st.sampled_from([8, 8, 8, 12, 32]))
    offset = draw(st.integers(0, 64))
    if draw(st.booleans()):
        return Place(offset, draw(st.integers(1, 40)))
    return Place.of(offset, draw(st.integers(1, pitch - 1)), draw(st.integers(1, 5)), pitch)


@given(st.lists(places(), unique=True), places())
def test_places_that_share_bytes_are_found(held: list[Place], asked: Place) -> None:
    index = Places()
    for place in held:
        index.add(place)
    found = [*index.overlapping(asked)]
    assert len(found) == len(set(found))
    assert {*found} == {p for p in held if p.overlaps(asked)}


def test_parts_side_by_side_in_rows_do_not_meet_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    index, compared, overlaps = Places(), list[int](), Place.overlaps
    monkeypatch.setattr(Place, "overlaps", lambda a, b: compared.append(1) or overlaps(a, b))
    for i in range(1000):
        part = Place(4 * i, 4, 16, 4000)
        assert not [*index.overlapping(part)]
        index.add(part)
    assert len(compared) < 5000
