"""Interval bounds hold every value, and are tight where loops need them to be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.expr.expressions import BOUNDS, conditions, environments, indices, value

from renorm import te
from renorm.expr import bounds
from renorm.expr.bounds import Intervals, interval, is_exact, open_truth, taken
from renorm.expr.nodes import (
    Binary,
    Broadcast,
    Cast,
    Const,
    Expr,
    Load,
    OpenVar,
    Ramp,
    Select,
    Var,
    cast,
    const,
    maximum,
    minimum,
    select,
)
from renorm.expr.rewrite import children
from renorm.expr.simplify import Simplifier
from renorm.tir.interpret import run
from renorm.tir.nodes import Buffer, Kernel, Store

quick = settings(max_examples=300, deadline=None)


def check(e: Expr, found: tuple[float, float], env: dict[Var, int]) -> None:
    low, high = found
    v = int(value(e, env))
    assert low <= v
    assert v <= high


@quick
@given(indices | conditions, environments)
def test_bounds_hold(e: Expr, env: dict[Var, int]) -> None:
    check(e, interval(e, BOUNDS), env)


@quick
@given(indices | conditions, conditions, environments)
def test_bounds_hold_where_facts_do(e: Expr, fact: Expr, env: dict[Var, int]) -> None:
    assume(value(fact, env))
    check(e, interval(e, BOUNDS, [fact]), env)


@quick
@given(indices, environments)
def test_half_known_variables(e: Expr, env: dict[Var, int]) -> None:
    known = dict(list(BOUNDS.items())[:2])
    check(e, interval(e, known), env)


held = {dtype: Buffer(f"{dtype}s", dtype, 3) for dtype in ("int32", "int64")}
_numbers = st.sampled_from([-1000, -7, -1, 0, 1, 9, 1000])  # of which index arithmetic fits its type
_elements = st.sampled_from([Load(b, (const(i),)) for b in held.values() for i in range(3)])
_wide = st.one_of(_elements.map(lambda e: cast("int64", e)), _numbers.map(lambda v: Const(v, "int64")))


def _grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    condition = st.builds(Binary, st.sampled_from(["<", ">="]), inner, inner)
    ops = st.sampled_from(["+", "-", "*", "min", "max"])
    return st.one_of(
        st.builds(Binary, ops, inner, inner),
        st.builds(Select, condition, inner, inner),
        inner.map(lambda e: cast("int64", cast("int32", e))),
    )


@settings(max_examples=400, deadline=None)
@given(st.recursive(_wide, _grown, max_leaves=6), st.integers(0, 2**32 - 1))
def test_what_is_exact_does_not_wrap(e: Expr, seed: int) -> None:
    rng, out = np.random.default_rng(seed), Buffer("out", "int64", 1)
    arrays = dict[Buffer, np.ndarray]()
    for b in held.values():
        limits = np.iinfo(b.dtype)
        arrays[b] = rng.integers(limits.min, limits.max, 3, b.dtype, endpoint=True)
        arrays[b][: rng.integers(0, 4)] //= rng.choice([1, 2**20, 2**31 - 1])
    assume(is_exact(e))
    stored = np.zeros(1, "int64")
    kernel = Kernel("k", (*held.values(), out), Store(out, const(0), e), frozenset({"out"}))
    run(kernel, [*arrays.values(), stored])
    assert stored[0] == value(e, {b: [int(x) for x in a] for b, a in arrays.items()})


def test_a_clamped_index_is_exact() -> None:
    given, size = cast("int64", Load(held["int32"], (const(0),))), const(10, "int64")
    for index in (given, Load(held["int64"], (const(0),))):
        wrapped = select(index < const(0, "int64"), index + size, index)
        assert is_exact(cast("int32", maximum(minimum(wrapped, size - 1), const(0, "int64"))))
        assert is_exact(cast("int32", minimum(wrapped, size - 1))) == (index is given)
    assert not is_exact(index + size)
    assert is_exact(given + size)
    assert is_exact(index % 37)
    assert is_exact(index // 8)
    assert interval(index % 37, {}, [index % 37 < const(30, "int64")]) == (0, 29)


i, j, io, ii = (Var(name) for name in ("i", "j", "io", "ii"))
B = {i: (0, 27), j: (-3, 4), io: (0, 3), ii: (0, 7)}
bytes_read = Buffer("b", "uint8", 9)
ints_read = Buffer("n", "int64", 9)


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (i * 28 + i, (0, 783)),
        (i - i, (0, 0)),
        (j // 2, (-2, 2)),
        (j % 3, (0, 2)),
        (i % 100, (0, 27)),
        (Binary("/", j, const(2)), (-1, 2)),
        (Var("unknown") % 7, (0, 6)),
        (Var("unknown") + 1, (-inf, inf)),
        (minimum(Var("unknown"), 5), (-inf, 5)),
        (maximum(minimum(Load(ints_read, (i,)), const(9, "int64")), const(0, "int64")), (0, 9)),
        (Cast("int32", Load(bytes_read, (i,))), (0, 255)),
        (Cast("int32", Load(bytes_read, (i,))) + 1, (1, 256)),
        (Load(bytes_read, (i,)) + Const(1, "uint8"), (0, 255)),
        (Cast("uint8", i - 1), (0, 255)),
        (Ramp(i, const(2), 8), (0, 41)),
        (Broadcast(i, 4), (0, 27)),
        (i < 28, (1, 1)),
        (i > 27, (0, 0)),
        (Ramp(i, const(1), 4) < Broadcast(const(31), 4), (1, 1)),
    ],
)
def test_known_intervals(e: Expr, expected: tuple[float, float]) -> None:
    assert interval(e, B) == expected


def test_facts_bound_sums() -> None:
    inside = io * 8 + ii < 28
    assert interval((io * 8 + ii) * 28 + j, B, [inside]) == (-3, 27 * 28 + 4)
    assert interval(io, B, [io * 8 < 20]) == (0, 2)
    assert interval((io * 8 + ii) // 4, B, [inside]) == (0, 6)
    two = [inside, i * 4 + j <= 50, i * 4 + j >= 2]
    assert interval((io * 8 + ii) * 64 + i * 4 + j, B, two) == (2, 27 * 64 + 50)


def test_facts_of_remainders_bound_what_they_are_taken_of() -> None:
    """A window over padded rows whose loop over rows is fused with the one over planes: the guard speaks of the row."""
    plane_and_row, k = Var("fused"), Var("k")
    bounds = {plane_and_row: (0, 24 * 40 - 1), k: (0, 2)}
    index = plane_and_row * 160 + k * 80 - 80
    row = plane_and_row % 40
    assert interval(index, bounds) == (-80, 24 * 6400 - 80)
    assert interval(index, bounds, [row * 2 + k >= 1]) == (0, 24 * 6400 - 80)
    assert interval(index, bounds, [row * 2 + k < 80]) == (-80, 24 * 6400 - 160)


def test_facts_on_multiples_bound_the_quotient() -> None:
    """A transposed window whose dilation is a multiple of its stride: o//3 - k, guarded by 0 <= o - 3k < 21."""
    o, k = Var("o"), Var("k")
    bounds, x = {o: (0, 77), k: (0, 2)}, o % 26
    inside = [x - k * 3 >= 0, x - k * 3 < 20, x % 3 >= 1]
    assert interval(x // 3 - k, bounds, inside) == (0, 6)
    assert interval(x // 3 - k, bounds, inside[2:]) == (-2, 8)
    for o_, k_ in itertools.product(range(78), range(3)):
        if 0 <= o_ % 26 - 3 * k_ < 20:
            assert 0 <= o_ % 26 // 3 - k_ <= 6


def test_facts_bound_digits_within_the_remainder_that_they_speak_of() -> None:
    """A window over padded volumes whose loops over planes, rows and columns are one: (f//30) % 10 is (f % 300)//30."""
    f = Var("f")
    row = (f // 30) % 10
    assert interval(row, {f: (0, 599)}, [f % 300 >= 30, f % 300 < 270]) == (1, 8)
    assert interval(row * 5 - 5, {f: (0, 599)}, [f % 300 >= 30]) == (0, 40)
    assert interval(row, {f: (0, 599)}, [f % 200 >= 30]) == (0, 9)  # of no digit of f


def test_the_lesser_of_two_is_at_most_their_mean() -> None:
    """A row that is reflected at the edge."""
    row = (i + 189) % 190
    assert interval(minimum(row, 190 - row), {i: (0, 97)}) == (0, 95)
    assert interval(maximum(row, 190 - row), {i: (0, 97)}) == (95, 190)


def test_wrapping_data_is_no_fact() -> None:
    # int64 data + 1 may wrap to the least integer, so a condition on the sum says nothing about the element
    element = Load(ints_read, (i,))
    assert interval(element, B, [element + 1 < 10])[1] == inf
    assert interval(element, B, [element < 10])[1] == 9


def test_facts_that_never_hold_together_bound_a_divisor() -> None:
    i, j = Var("i"), Var("j")
    low, high = interval(i, {i: (0, 0), j: (0, 3)}, [j < i, i < i // j])
    assert -inf in (low, -high) or low > high or (low, high) == (0, 0)


def padding(kernel: Expr, stride: int) -> tuple[OpenVar, OpenVar]:
    """Return what a window reaches beyond a stride, and the half of it, as extents of a kernel."""
    beyond = OpenVar("beyond", low=0, definition=maximum(kernel - stride, const(0)))
    return beyond, OpenVar("half", low=0, definition=beyond // 2)


def test_what_facts_say_of_extents_holds_at_their_place_alone() -> None:
    beyond, half = padding(n := OpenVar("n", low=1), 4)
    rest = beyond - half + 1
    within = Simplifier(None, [n <= 4])
    assert within.form_span(within.form(rest))[0] == 1
    assert interval(rest) == (1, inf)


def test_an_extent_that_others_define_is_taken_apart_where_it_has_no_end() -> None:
    beyond, half = padding(n := OpenVar("n", low=1), 4)
    lead = OpenVar("lead", low=0, definition=(beyond - half) // 3)
    taps = OpenVar("taps", low=1, definition=(n + 2) // 3)
    last = OpenVar("last", low=0, definition=(beyond - half + 2) // 3)
    rows = OpenVar("rows", low=4, definition=taps - lead + last + 3)
    phase, tap, q, channel = (Var(name, "int32") for name in ("phase", "tap", "q", "channel"))
    bounds = {phase: (0, 2), tap: (0, taps - 1), q: (0, 3), channel: (0, 1)}
    read = (beyond - half - phase + 2) // 3 + channel * rows + tap + q - lead
    assert Intervals(bounds).is_within(read, rows * 2)


def test_an_extent_that_is_a_sum_of_many_is_as_much_as_they_are() -> None:
    """Ways to take each of the parts, which are the lesser of two themselves, are more than are looked at."""
    counts = [OpenVar(f"c{i}", "int32", 0, None) for i in range(6)]
    parts = [OpenVar(f"e{i}", "int32", 0, 20, minimum(c, 20)) for i, c in enumerate(counts)]
    total = OpenVar("total", "int32", 1, 120, sum(parts[1:], parts[0]))
    k = Var("k", "int32")
    bound = Intervals({k: (0, 4 * total)}, [k < sum((4 * e for e in parts[1:]), 4 * parts[0])])
    assert bound.span(k - 4 * total)[1] == -1


def test_facts_of_extents_count_where_those_of_loops_are_used_up() -> None:
    rows, columns = OpenVar("rows", low=1), OpenVar("columns", low=1)
    plane, outer, inner = Var("plane", "int32"), Var("outer", "int32"), Var("inner", "int32")
    bounds = {plane: (0, 5), outer: (0, 12), inner: (0, 15)}
    facts = [outer * 16 + inner < 195, (rows * columns).equal(195)]
    read = plane * (rows * columns) + outer * 16 + inner
    assert Intervals(bounds, facts).is_within(read, rows * columns * 6)
    assert not Intervals(bounds, facts[1:]).is_within(read, rows * columns * 6)


def test_facts_that_are_taken_decide_extents() -> None:
    rows, columns = OpenVar("rows", low=1), OpenVar("columns", low=1)
    with taken([(rows * columns * 3).equal(147)]):
        assert open_truth((rows * columns).equal(49)) is True
    assert open_truth((rows * columns).equal(49)) is None


def wrapped(levels: int) -> Expr:
    """An element that is taken from the end where it is below zero, again and again: what is inside is there thrice at
    each level."""
    x: Expr = te.placeholder((5,), "int64", name="A")[(Var("i", "int32"),)]
    for _ in range(levels):
        x = select(x < 0, x + 5, x)
    return x


def doubled(levels: int) -> Expr:
    x: Expr = te.placeholder((5,), "int32", name="A")[(Var("i", "int32"),)]
    for _ in range(levels):
        x = maximum(x, 0) + minimum(x, 7)
    return x


def chosen(levels: int) -> Expr:
    """Each choice is by the same element, and knows another fact."""
    read = te.placeholder((5,), "int32", name="A")[(Var("i", "int32"),)]
    x = y = cast("int64", read)
    for k in range(levels):
        x = select(y < k, x + 1, x)
    return x


def cut(levels: int) -> Expr:
    """Index arithmetic, narrowed at each level."""
    x: Expr = Var("i", "int32")
    for _ in range(levels):
        x = cast("int32", cast("int64", x) + 1) % 7 + cast("int32", x) % 5
    return x


@pytest.mark.parametrize("made", [wrapped, doubled, chosen, cut])
def test_what_many_ways_lead_to_is_looked_at_a_number_of_times_that_is_polynomial(
    made: Callable[[int], Expr], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0

    def counted(e: Expr) -> tuple[Expr, ...]:
        nonlocal seen
        seen += 1
        return children(e)

    monkeypatch.setattr(bounds, "children", counted)
    found: list[int] = []
    for levels in (6, 12, 24):
        seen, e = 0, made(levels)
        is_exact(e)
        interval(e, facts=[e < 3])
        found.append(seen)
    assert found[2] <= 16 * found[1] + 100  # 4096 times as many where each level doubles them
    assert found[2] < 200_000


def test_elements_taken_from_the_end_are_exact() -> None:
    assert is_exact(wrapped(1))
    assert not is_exact(te.placeholder((5,), "int64", name="A")[(const(0, "int32"),)] + 1)


@pytest.mark.parametrize("most", [0, 29])
def test_a_row_that_is_cut_at_an_extent_or_by_its_own_range(most: int) -> None:
    """Rows of a product behind the last one read the last one: the range of the row is no bound, the extent is."""
    rows, i, k = OpenVar("rows", low=1, high=most + 1), Var("i"), Var("k")
    known = Intervals({i: (0, most), k: (0, 1023)})
    assert known.is_within(minimum(i, rows - 1) * 1024 + k, rows * 1024)
    assert known.is_within(minimum(rows - 1, i) * 1024 + k, rows * 1024)
    assert known.is_within(minimum(i, rows) * 1024 + k, rows * 1024) == (most == 0)
    assert known.is_within(maximum(rows - 1 - i, const(0)) * 1024 + k, rows * 1024)
