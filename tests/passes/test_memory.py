"""Plans are valid, aligned, never below the bound, and reach it where they can."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm.passes import memory
from renorm.passes.memory import Lifetime, plan
from renorm.runtime.program import align

STEPS = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)


@st.composite
def buffers(draw: st.DrawFn) -> list[list[Lifetime]]:
    found = list[list[Lifetime]]()
    for _ in range(draw(st.integers(0, 20))):
        parts, at = list[Lifetime](), 0
        for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
            size, (first, last) = draw(st.integers(0, 5000)), draw(STEPS)
            parts.append(Lifetime(size, first, last, at))
            at += size
        found.append(parts)
    return found


@pytest.mark.parametrize("is_long", [False, True])
@settings(deadline=None, max_examples=150)
@given(given=buffers())
def test_bytes_that_live_together_do_not_overlap(is_long: bool, given: list[list[Lifetime]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if is_long:
            patch.setattr(memory, "_PAIRS", -1)
        p = plan(given)
    assert len(p.offsets) == len(given)
    assert all(at % 64 == 0 for at in p.offsets)
    placed = [(at + part.offset, part) for at, parts in zip(p.offsets, given) for part in parts]
    assert all(at + part.bytes <= p.size for at, part in placed)
    for (at, a), (to, b) in combinations(placed, 2):
        if a.bytes and b.bytes and a.first <= b.last and b.first <= a.last:
            assert at + a.bytes <= to or to + b.bytes <= at
    least = max((sum(a.bytes for _, a in placed if a.first <= t <= a.last) for t in range(13)), default=0)
    assert least <= p.lower_bound <= p.size <= sum(align(sum(part.bytes for part in parts)) for parts in given)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=10))
def test_a_chain_needs_two_neighbours_only(sizes: list[int]) -> None:
    p = plan([[Lifetime(size, i, i + 1)] for i, size in enumerate(sizes)])
    pairs = [align(a) + align(b) for a, b in zip(sizes, [*sizes[1:], 0])]
    assert p.lower_bound == max(pairs)
    assert p.size <= max(pairs) + max(map(align, sizes))


def test_small_plans_by_hand() -> None:
    assert plan([]).size == 0
    p = plan([[Lifetime(100, 0, 1)], [Lifetime(300, 1, 2)], [Lifetime(100, 2, 3)]])
    assert (p.size, p.lower_bound) == (448, 448)
    assert p.offsets == (320, 0, 320)
    p = plan([[Lifetime(64, 0, 9)], [Lifetime(64, 0, 0)], [Lifetime(64, 1, 1)]])
    assert p.size == 128
    assert p.offsets[1] == p.offsets[2]


def test_others_lie_in_a_part_that_nothing_is_in_yet() -> None:
    # a concat of two values: one is written at step 0, the other at step 3, and all is read at step 4
    concat = [Lifetime(640, 0, 4), Lifetime(640, 3, 4, 640)]
    p = plan([concat, [Lifetime(320, 0, 1)], [Lifetime(640, 1, 2)]])
    assert (p.size, p.lower_bound) == (1600, 1600)
    p = plan([concat, [Lifetime(640, 1, 2)]])
    assert (p.size, p.lower_bound) == (1280, 1280)


@pytest.mark.parametrize("count", [8, 40])
def test_where_placing_by_size_is_not_enough(count: int) -> None:
    """Blocks of a residual network: a small value outlives two larger ones, over and over."""
    given = list[list[Lifetime]]()
    for i in range(count):
        given += [[Lifetime(800, 4 * i, 4 * i + 3)], [Lifetime(200 + 64 * (i % 3), 4 * i + 1, 4 * i + 2)]]
        given += [[Lifetime(1000 - 64 * (i % 5), 4 * i + 3, 4 * i + 6)]]
    p = plan(given)
    assert p.size <= 1.1 * p.lower_bound


@pytest.mark.parametrize("unit", [64, 6400])
def test_what_lives_long_goes_first_where_that_is_better(unit: int) -> None:
    """The end of a dense block: a concat that grew by a part at a time; a norm of what is there so far, the convolution
    that reads it, the last part; a norm of all."""
    concat = [Lifetime(2 * unit, 1, 20), *(Lifetime(unit, 3 * i + 1, 20, (i + 1) * unit) for i in range(1, 6))]
    others = [(7, 17, 18), (4, 18, 19), (1, 19, 20), (8, 20, 21)]
    p = plan([concat, *([Lifetime(size * unit, first, last)] for size, first, last in others)])
    assert p.size == p.lower_bound == 18 * unit


def test_one_buffer_whose_parts_live_apart() -> None:
    found = plan([[Lifetime(128, 0, 1, 0), Lifetime(128, 2, 3, 128)]])
    assert (found.offsets, found.size, found.lower_bound) == ((0,), 256, 128)


def test_very_many_that_live_together_are_not_compared_in_pairs() -> None:
    sizes = [64 * (1 + i % 7) for i in range(20_000)]
    p = plan([[Lifetime(size, i, 2 * len(sizes) - i % 3)] for i, size in enumerate(sizes)])
    assert p.size == p.lower_bound == sum(sizes)
    # waves: of each a third lives on to the end of the next one
    waves = [(w, i) for w in range(8) for i in range(1500)]
    p = plan([[Lifetime(64 * (1 + i % 5), w, w + (i % 3 == 0))] for w, i in waves])
    assert p.size <= 1.25 * p.lower_bound
