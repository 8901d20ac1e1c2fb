"""Ranges that meet a range: the same as by looking at all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from renorm.core.intervals import Spans

RANGES = st.tuples(st.integers(-50, 1 << 40), st.integers(1, 200) | st.integers(1, 1 << 40)).map(
    lambda r: (r[0], r[0] + r[1])
)
NEAR = st.tuples(st.integers(-50, 200), st.integers(1, 200)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(RANGES | NEAR), RANGES | NEAR)
def test_what_meets_a_range_is_found(held: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    spans = Spans[int]()
    for i, (begin, end) in enumerate(held):
        spans.add(begin, end, i)
    expected = [i for i, (begin, end) in enumerate(held) if begin < asked[1] and asked[0] < end]
    assert sorted(spans.meeting(*asked)) == expected
