"""Plans are valid, aligned, never below the bound, and reach it where they can."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm.core.dims import Dim, Sym, integer, substitute
from renorm.passes import memory
from renorm.passes.memory import Lifetime, OpenLifetime, OpenPlan, plan, plan_open
from renorm.runtime.program import align, place

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


N, H = Sym("n"), Sym("h")
FACTORS = st.tuples(st.sampled_from([0, 0, 4, 64, 1000]), st.sampled_from([0, 0, 4, 640]), st.sampled_from([0, 8]))
DIMS = st.builds(lambda k, rest: k[0] * N * H + k[1] * N + k[2] * (H // 2) + rest, FACTORS, st.integers(0, 500))


@st.composite
def open_buffers(draw: st.DrawFn) -> list[list[OpenLifetime]]:
    found = list[list[OpenLifetime]]()
    for _ in range(draw(st.integers(0, 20))):
        parts = list[OpenLifetime]()
        at: Dim = 0
        for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
            size, (first, last) = draw(DIMS), draw(STEPS)
            parts.append(OpenLifetime(size, first, last, at))
            at = at + size
        found.append(parts)
    return found


def whole(parts: Sequence[OpenLifetime]) -> Dim:
    return parts[-1].offset + parts[-1].bytes if parts else 0


def placed_at(p: OpenPlan, values: dict[str, int]) -> tuple[list[int], int]:
    """Offsets of the buffers as they were given, and the size of the arena."""
    gaps = [integer(substitute(a.end - a.begin, values)) for b in p.buffers for a in b.above]
    sizes = [integer(substitute(b.size, values)) for b in p.buffers]
    offsets, size = place(sizes, [[a.buffer for a in b.above] for b in p.buffers], gaps)
    return [offsets[i] for i in p.places], size


@pytest.mark.parametrize("is_long", [False, True])
@settings(deadline=None, max_examples=150)
@given(given=open_buffers(), sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=5))
def test_an_open_plan_is_valid_for_all_sizes(
    is_long: bool, given: list[list[OpenLifetime]], sizes: list[tuple[int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if is_long:
            patch.setattr(memory, "_PAIRS", -1)
        p = plan_open(given, [whole(b) for b in given], {"n": 4, "h": 10})
    assert sorted(p.places) == list(range(len(given)))
    assert all(a.buffer < i for i, b in enumerate(p.buffers) for a in b.above)
    for n, h in [(4, 10), *sizes]:
        values = {"n": n, "h": h}
        offsets, size = placed_at(p, values)
        assert size == p.size or (n, h) != (4, 10)
        fixed = [[part.at(values) for part in parts] for parts in given]
        placed = [(at + q.offset, q.bytes, q) for at, parts in zip(offsets, fixed) for q in parts]
        assert all(at % 64 == 0 for at in offsets)
        assert all(at + count <= size for at, count, _ in placed)
        for (at, a, one), (to, b, other) in combinations(placed, 2):
            if a and b and one.first <= other.last and other.first <= one.last:
                assert at + a <= to or to + b <= at


def test_an_open_plan_is_near_one_for_these_sizes() -> None:
    """Blocks of a residual network with a batch and a plane that are open: planned for 4 x 32, used for others."""
    given = list[list[OpenLifetime]]()
    plane = N * H * H
    for i in range(30):
        given += [
            [OpenLifetime(64 * plane, 4 * i, 4 * i + 3)],
            [OpenLifetime((16 + i % 3) * plane, 4 * i + 1, 4 * i + 2)],
        ]
        given += [[OpenLifetime(80 * plane, 4 * i + 3, 4 * i + 6)], [OpenLifetime(10_000 * N, 4 * i, 4 * i + 1)]]
    p = plan_open(given, [whole(b) for b in given], {"n": 4, "h": 32})
    for n, h in ((1, 8), (1, 32), (4, 32), (16, 32), (3, 7), (7, 100)):
        values = {"n": n, "h": h}
        fixed = plan([[part.at(values) for part in parts] for parts in given])
        assert placed_at(p, values)[1] <= 1.1 * fixed.size
        assert fixed.lower_bound <= placed_at(p, values)[1]


def test_what_follows_from_the_rest_is_left_out() -> None:
    """A chain of buffers that all live at once: each is above the one below it, and nothing more is said."""
    p = plan_open([[OpenLifetime(64 * N, 0, 9)] for _ in range(30)], [64 * N] * 30, {"n": 3})
    assert [len(b.above) for b in p.buffers] == [0] + [1] * 29
    assert placed_at(p, {"n": 5})[1] == 30 * 320


def test_open_parts_lie_in_each_other() -> None:
    concat = [OpenLifetime(640 * N, 0, 4), OpenLifetime(640 * N, 3, 4, 640 * N)]
    p = plan_open([concat, [OpenLifetime(640 * N, 1, 2)]], [1280 * N, 640 * N], {"n": 1})
    assert [placed_at(p, {"n": n})[1] for n in (0, 1, 5)] == [0, 1280, 6400]
    concat = [OpenLifetime(640 * N, 3, 4), OpenLifetime(640 * N, 0, 4, 640 * N)]
    p = plan_open([concat, [OpenLifetime(640 * N, 1, 2)]], [1280 * N, 640 * N], {"n": 1})
    assert [placed_at(p, {"n": n})[1] for n in (0, 1, 5)] == [0, 1280, 6400]
