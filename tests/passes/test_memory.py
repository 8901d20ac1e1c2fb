"""Plans are valid, aligned, never below the bound, and reach it where they can."""

from hypothesis import given, settings
from hypothesis import strategies as st

from renorm.passes.memory import Lifetime, plan
from renorm.runtime.program import align

LIFETIMES = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 12), st.integers(0, 12)).map(
        lambda t: Lifetime(t[0], min(t[1:]), max(t[1:]))
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=200)
@given(LIFETIMES)
def test_buffers_that_live_together_do_not_overlap(lifetimes: list[Lifetime]) -> None:
    p = plan(lifetimes)
    assert len(p.offsets) == len(lifetimes)
    placed = list(zip(p.offsets, lifetimes))
    for i, (at, a) in enumerate(placed):
        assert at % 64 == 0
        assert at + a.bytes <= p.size
        for to, b in placed[i + 1 :]:
            if a.bytes and b.bytes and a.first <= b.last and b.first <= a.last:
                assert at + a.bytes <= to or to + b.bytes <= at
    most = max((sum(align(a.bytes) for a in lifetimes if a.first <= t <= a.last) for t in range(13)), default=0)
    assert p.lower_bound == most
    assert most <= p.size <= sum(align(a.bytes) for a in lifetimes)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=10))
def test_a_chain_needs_two_neighbours_at_most(sizes: list[int]) -> None:
    p = plan([Lifetime(size, i, i + 1) for i, size in enumerate(sizes)])
    pairs = [align(a) + align(b) for a, b in zip(sizes, [*sizes[1:], 0])]
    assert p.lower_bound == max(pairs)
    assert p.size <= max(pairs) + max(map(align, sizes))


def test_small_plans_by_hand() -> None:
    assert plan([]).size == 0
    p = plan([Lifetime(100, 0, 1), Lifetime(300, 1, 2), Lifetime(100, 2, 3)])
    assert (p.size, p.lower_bound) == (448, 448)
    assert p.offsets == (320, 0, 320)
    p = plan([Lifetime(64, 0, 9), Lifetime(64, 0, 0), Lifetime(64, 1, 1)])
    assert p.size == 128
    assert p.offsets[1] == p.offsets[2]
