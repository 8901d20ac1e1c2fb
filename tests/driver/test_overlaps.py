"""Regions that share bytes with a region: the same as by looking at all of them, and few more are looked at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from renorm.driver.overlaps import RegionIndex
from renorm.graph.strided_region import StridedRegion


@st.composite
def regions(draw: st.DrawFn) -> StridedRegion:
    pitch = draw(st.sampled_from([8, 8, 8, 12, 32]))
    offset = draw(st.integers(0, 64))
    if draw(st.booleans()):
        return StridedRegion(offset, draw(st.integers(1, 40)))
    return StridedRegion.of(offset, draw(st.integers(1, pitch - 1)), draw(st.integers(1, 5)), pitch)


@given(st.lists(regions(), unique=True), regions())
def test_places_that_share_bytes_are_found(held: list[StridedRegion], asked: StridedRegion) -> None:
    index = RegionIndex()
    for region in held:
        index.add(region)
    found = [*index.overlapping(asked)]
    assert len(found) == len(set(found))
    assert {*found} == {p for p in held if p.overlaps(asked)}


def test_parts_side_by_side_in_rows_do_not_meet_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    index, compared, overlaps = RegionIndex(), list[int](), StridedRegion.overlaps
    monkeypatch.setattr(StridedRegion, "overlaps", lambda a, b: compared.append(1) or overlaps(a, b))
    for i in range(1000):
        part = StridedRegion(4 * i, 4, 16, 4000)
        assert not [*index.overlapping(part)]
        index.add(part)
    assert len(compared) < 5000
