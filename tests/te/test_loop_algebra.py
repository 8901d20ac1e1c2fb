"""The algebra of indices against brute force: every rule keeps the value at every point, every bound holds there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm import te
from renorm.errors import InvalidSchedule
from renorm.expr.bounds import Intervals, interval
from renorm.expr.linear import ONES, Linear, Place
from renorm.expr.mixed_radix import Digit
from renorm.expr.nodes import Binary, Const, Expr, OpenVar, Var, binary, const, integer_limits, maximum, minimum
from renorm.te.loop_algebra import LoopAlgebra, OpaqueValue, are_separate, is_cut_whole

EXTENTS = {"i": 7, "j": 4, "k": 3}
NAMES = list(EXTENTS)


def value(e: Expr, at: dict[Var, int]) -> int:
    """An integer expression by Python's arithmetic, which floors."""
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, OpenVar) and e.definition is not None:
        return value(e.definition, at)
    if isinstance(e, Var):
        return at[e]
    assert isinstance(e, Binary)
    a, b = value(e.a, at), value(e.b, at)
    return {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b, "%": lambda: a % b,
        "min": lambda: min(a, b), "max": lambda: max(a, b),
    }[e.op]()  # fmt: skip


VARS = {n: Var(n) for n in NAMES}


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.one_of(st.sampled_from([VARS[n] for n in NAMES]), st.integers(-9, 9).map(const))

    def grow(e: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.builds(lambda op, a, b: binary(op, a, b), st.sampled_from("+-"), e, e),
            st.builds(lambda a, n: a * n, e, st.integers(-6, 6)),
            st.builds(lambda op, a, n: binary(op, a, const(n)), st.sampled_from(["//", "%"]), e, st.integers(1, 12)),
            st.builds(lambda f, a, b: f(a, b), st.sampled_from([minimum, maximum]), e, e),
        )

    return st.recursive(leaves, grow, max_leaves=8)


def points() -> list[dict[Var, int]]:
    return [
        {VARS[n]: x for n, x in zip(NAMES, values)}
        for values in itertools.product(*(range(EXTENTS[n]) for n in NAMES))
    ]  # fmt: skip


def algebra() -> tuple[LoopAlgebra, dict[Var, Linear]]:
    a = LoopAlgebra()
    return a, {VARS[n]: a.declare(VARS[n], number(EXTENTS[n]), depth) for depth, n in enumerate(NAMES)}


def number(n: int) -> Linear:
    return Linear({}, n)


def no_opaque(e: Expr) -> Linear:
    raise AssertionError(f"{e} should be linear")


@settings(max_examples=300, deadline=None)
@given(e=expressions())
def test_forms_keep_values_and_bounds_hold(e: Expr) -> None:
    a, env = algebra()
    form = a.linear(e, env, no_opaque)
    again = a.value(form)
    joined = a.value(a.rejoined(form))
    low, high = a.form_span(form)
    for at in points():
        want = value(e, at)
        assert value(again, at) == want
        assert value(joined, at) == want
        assert low <= want <= high


@settings(max_examples=300, deadline=None)
@given(e=expressions(), moving=st.sets(st.sampled_from(NAMES)))
def test_relaxed_ranges_hold(e: Expr, moving: set[str]) -> None:
    a, env = algebra()
    form = a.linear(e, env, no_opaque)
    low, span = a.relax(form, {VARS[n] for n in moving})
    assert not a.free(low) & {VARS[n] for n in moving}
    start = a.value(low)
    for at in points():
        assert 0 <= value(e, at) - value(start, at) <= span.constant


@settings(max_examples=200, deadline=None)
@given(e=expressions(), bound=st.integers(-20, 40))
def test_conditions_without_division_are_equivalent(e: Expr, bound: int) -> None:
    a, env = algebra()
    form, limit = a.without_division(a.linear(e, env, no_opaque), number(bound))
    other = a.value(form)
    assert all((value(e, at) < bound) == (value(other, at) < limit.constant) for at in points())


def linear_of(text: str) -> tuple[LoopAlgebra, Linear]:
    a, env = algebra()
    names: dict[str, Any] = dict(VARS)
    return a, a.linear(eval(text, {}, names), env, no_opaque)


def test_simplification() -> None:
    cases = {
        "(i*4 + j) // 4": "i",
        "(i*4 + j) % 4": "j",
        "(i*8 + j*2) // 8": "i",
        "(i*3 + k) // 6": "(i//2)",
        "(i // 2) // 2": "(i//4)",
        "(i % 4) % 2": "(i % 2)",
        "(i // 2)*2 + i % 2": "i",
        "(i // 2 % 2)*2 + i % 2": "(i % 4)",
        "(i*8 + j + 1)//14*14 + (i*8 + j + 1) % 14": "(((i*8) + j) + 1)",
        "(i*4 + j)//14*14 + (i*2 + j//2) % 7*2 + j % 2": "((i*4) + j)",
        "(i*2 + j//2) % 7*2 + j % 2": "(((((i*2) + (j//2)) % 7)*2) + (j % 2))",
        "i - i + j": "j",
        "(i*28 + j*7 + 14) // 7": "(((i*4) + j) + 2)",
    }
    for text, want in cases.items():
        a, form = linear_of(text)
        assert str(a.value(a.rejoined(form))) == want, text


def test_relaxing_a_linear_form_is_exact() -> None:
    a, form = linear_of("i*3 + j*2 - k + 5")
    low, span = a.relax(form, {VARS["j"], VARS["k"]})
    assert str(a.value(low)) == "((i*3) + 3)"
    assert span.number == 2 * 3 + 2


def test_parts_that_cover_an_axis() -> None:
    a, env = algebra()
    i, j = env[VARS["i"]], env[VARS["j"]]
    loops = [(VARS[n], number(EXTENTS[n])) for n in NAMES]

    def covers(low: Linear, span: int) -> tuple[bool, set[Digit]]:
        return a.covers(low, number(span), number(7 * 16), loops)

    tiles = i * 16 + j * 4
    whole = {Digit(VARS[n], ONES, Place(EXTENTS[n])) for n in "ij"}
    assert covers(tiles, 3) == (True, whole)
    assert covers(tiles, 2)[0] is False  # gaps
    assert covers(tiles, 4)[0] is False  # overlaps
    assert covers(tiles.offset(1), 3)[0] is False  # misses the start


@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4), st.data())
@settings(max_examples=60)
def test_digits_of_a_fused_loop_cut_axes_into_parts(factors: list[int], data: st.DataObject) -> None:
    """What is said to cover and to be separate does: each element is in one part, each part of one round."""
    a, var, extent = LoopAlgebra(), Var("f"), math.prod(factors)
    f = a.declare(var, number(extent), 0)
    units = [math.prod(factors[i + 1 :]) for i in range(len(factors))]
    digits = [a.floor_modulo(a.floor_divide(f, number(u)), number(c)) for u, c in zip(units, factors)]
    used = data.draw(st.lists(st.sampled_from(range(len(factors))), min_size=1, max_size=4))
    sizes = [data.draw(st.integers(1, 3)) for _ in used]
    axes = [(digits[i] * (size + data.draw(st.sampled_from([0, 0, 0, 1]))), size) for i, size in zip(used, sizes)]
    extents = [int(a.form_span(low)[1]) + size - data.draw(st.integers(0, size - 1)) for low, size in axes]
    loops = [(var, number(extent))]
    said = [a.covers(low, number(size - 1), number(e), loops) for (low, size), e in zip(axes, extents)]
    taken = [d for _, found in said for d in found]
    if not all(covered for covered, _ in said) or not are_separate(taken):
        return
    seen: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for at in range(extent):
        starts = tuple(value(a.value(low), {var: at}) for low, _ in axes)
        for element in itertools.product(*(range(s, s + size) for s, (_, size) in zip(starts, axes))):
            seen.setdefault(element, set()).add(starts)
    assert all(len(parts) == 1 for parts in seen.values())
    assert set(itertools.product(*map(range, extents))) <= set(seen)


def test_parts_that_cover_an_open_axis() -> None:
    """Rows of a fused loop over samples, rows and tiles of 8 of an axis of m elements, of which the last hangs over."""
    a, f, n, m = LoopAlgebra(), Var("f"), OpenVar("n", low=1), OpenVar("m", low=1)
    tiles = a.extent((m + 7) // 8)
    extent = a.scaled(a.scaled(a.extent(n), number(3)), tiles)
    loop = a.declare(f, extent, 0)
    tile, rest = a.applied("%", loop, tiles), a.applied("//", loop, tiles)
    assert tile is not None
    assert rest is not None
    row, sample = a.floor_modulo(rest, number(3)), a.floor_divide(rest, number(3))
    loops = [(f, extent)]
    along, of_rows, of_samples = (
        a.covers(tile * 8, number(7), a.extent(m), loops),
        a.covers(row, number(0), number(3), loops),
        a.covers(sample, number(0), a.extent(n), loops),
    )
    assert along[0]
    assert of_rows[0]
    assert of_samples[0]
    digits = [*along[1], *of_rows[1], *of_samples[1]]
    assert are_separate(digits)
    assert is_cut_whole(f, extent, digits)
    assert not is_cut_whole(f, extent, digits[1:])  # rounds that differ in a tile alone compute the same
    assert not are_separate([*digits, digits[0]])
    assert not a.covers(tile * 8, number(6), a.extent(m), loops)[0]  # gaps
    assert not a.covers(tile * 8, number(7), a.extent(m + 1), loops)[0]  # misses the end
    assert not a.covers(rest, number(0), a.extent(n * 4), loops)[0]
    whole = a.covers(rest, number(0), a.extent(n * 3), loops)
    assert whole[0]
    assert not are_separate([*whole[1], *of_rows[1]])  # one digit is a part of the other


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "uint64"])
def test_what_is_read_counts_by_its_bounds(dtype: str) -> None:
    """Elements that are read are variables to the algebra, and themselves in what it gives."""
    a, env = algebra()
    row = te.placeholder((9,), dtype, name="row")[VARS["i"]]
    read = a.opaque(row, OpaqueValue(lambda: row, None), integer_limits(dtype), "row")
    i, j = env[VARS["i"]], env[VARS["j"]]
    clamped = a.extreme("min", a.extreme("max", read, Linear({})), i * 4 + j)
    assert a.form_span(clamped) == (0, 27)
    assert a.reads_memory(clamped)
    assert not a.reads_memory(i)
    assert a.free(clamped) == {VARS["i"], VARS["j"]}
    low, span = a.relax(a.floor_divide(clamped, number(4)) + j, {VARS["j"]})
    assert a.form_span(low)[0] == 0
    assert a.form_span(low)[1] + span.constant == 9
    assert "row[i]" in str(a.value(clamped))
    assert a.value(clamped) is a.value(clamped)


SIZES = {"n": OpenVar("n", low=1), "m": OpenVar("m", low=1, high=6), "p": OpenVar("p", low=2)}
TRIED = [(1, 1, 2), (1, 6, 3), (2, 3, 2), (5, 2, 4), (3, 4, 7)]


def open_expressions() -> st.SearchStrategy[Expr]:
    """Over i < n, j < m, k < n*m and f < n*m*p: sums, multiples, and quotients by numbers and by extents."""
    leaves = st.one_of(st.sampled_from([*OPEN_VARS, *SIZES.values()]), st.integers(-9, 9).map(const))
    products = [SIZES["m"] * SIZES["p"], SIZES["p"] * 4, SIZES["p"] - 1, SIZES["m"] * SIZES["p"] - SIZES["m"]]
    divisors = st.one_of(st.integers(1, 12).map(const), st.sampled_from([*SIZES.values(), *products]))

    def grow(e: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.builds(lambda op, a, b: binary(op, a, b), st.sampled_from("+-"), e, e),
            st.builds(
                lambda a, n: a * n, e, st.one_of(st.integers(-6, 6), st.sampled_from([*SIZES.values(), *products]))
            ),
            st.builds(lambda op, a, n: binary(op, a, n), st.sampled_from(["//", "%"]), e, divisors),
            st.builds(lambda f, a, b: f(a, b), st.sampled_from([minimum, maximum]), e, e),
        )

    return st.recursive(leaves, grow, max_leaves=8)


OPEN_VARS = [Var("i"), Var("j"), Var("k"), Var("f")]


def open_algebra() -> tuple[LoopAlgebra, dict[Var, Linear]]:
    a = LoopAlgebra()
    n, m, p = (Linear({v: 1}) for v in SIZES.values())
    extents = [n, m, a.scaled(n, m), a.size([n, m, p])]
    return a, {v: a.declare(v, extent, depth) for depth, (v, extent) in enumerate(zip(OPEN_VARS, extents))}


def open_points() -> Iterator[dict[Var, int]]:
    """Both ends of each loop, and something between them, at a few sizes."""
    for n, m, p in TRIED:
        sizes: dict[Var, int] = dict(zip(SIZES.values(), (n, m, p)))
        ranges = [sorted({0, e // 3, e - 1}) for e in (n, m, n * m, n * m * p)]
        for values in itertools.product(*ranges):
            yield sizes | dict(zip(OPEN_VARS, values))


@settings(max_examples=300, deadline=None)
@given(e=open_expressions(), moving=st.sets(st.sampled_from(OPEN_VARS)))
def test_forms_over_open_extents_keep_values_and_bounds_hold(e: Expr, moving: set[Var]) -> None:
    a, env = open_algebra()
    opaque = 0

    def hidden(x: Expr) -> Linear:
        nonlocal opaque
        opaque += 1
        return a.opaque(x, OpaqueValue(lambda: x, frozenset(OPEN_VARS)), (-math.inf, math.inf), id(x))

    form = a.linear(e, env, hidden)
    again, joined = a.value(form), a.value(a.rejoined(form))
    low, high = a.form_span(form)
    try:
        relaxed = None if opaque else a.relax(form, moving)
    except InvalidSchedule:  # of some no ends are known
        relaxed = None
    ends = relaxed and tuple(map(a.value, relaxed))
    if relaxed:
        assert not a.free(relaxed[0]) & moving
    for at in open_points():
        want = value(e, at)
        assert value(again, at) == want
        assert value(joined, at) == want
        assert low <= want <= high
        if ends:
            assert 0 <= want - value(ends[0], at) <= value(ends[1], at)


@settings(max_examples=300, deadline=None)
@given(e=open_expressions(), sides=st.lists(st.tuples(open_expressions(), open_expressions()), min_size=1, max_size=2))
def test_bounds_over_open_extents_hold_where_facts_do(e: Expr, sides: list[tuple[Expr, Expr]]) -> None:
    a, _ = open_algebra()
    facts = [Binary("<", x, y) for x, y in sides]
    low, high = interval(e, a.ranges, facts)
    for at in open_points():
        if all(value(x, at) < value(y, at) for x, y in sides):
            assert low <= value(e, at) <= high


ROUNDED = [
    # where a quotient is less than an extent, by rounding, a row less is read
    (SIZES["n"] * 3 // 4 * 20 + 19, SIZES["n"] * 20),
    (((SIZES["n"] * 3 // 5 - 1) * 5 + 1) // 3 * SIZES["m"] + SIZES["m"] * 2 - 1, SIZES["n"] * SIZES["m"]),
    (maximum((SIZES["n"] * 9 + 5) // 10 - 1, 0) * 12 + 11, SIZES["n"] * 12),
    (maximum(minimum(OPEN_VARS[0] * 2, SIZES["n"]) - 1, 0) * SIZES["p"] + SIZES["p"] - 1, SIZES["n"] * SIZES["p"]),
    # the same extent, rounded up in two ways
    (-(SIZES["n"] * -1 // 16), (SIZES["n"] + 15) // 16 + 1),
    ((SIZES["n"] + 5) // 2 - 3, (SIZES["n"] + 1) // 2),
]


@pytest.mark.parametrize(("index", "size"), ROUNDED)
def test_indices_are_bounded_as_integers(index: Expr, size: Expr) -> None:
    a, env = open_algebra()
    assert interval(index - size, a.ranges)[1] < 0
    form = a.linear(index, env, no_opaque) - a.linear(size, env, no_opaque)
    assert a.form_span(form)[1] < 0


def test_quotients_of_extents_that_are_sums_are_tied() -> None:
    """Rows of a result of n + 4 rows, in pairs, and taps of a window of n rows, in pairs, are 2 more and as many."""
    a, n = LoopAlgebra(), OpenVar("n", low=1)
    rows, taps = a.extent(a.expression(a.extent(n + 4)) + 1 - 1), a.extent((n + 1) // 2)
    pairs = a.unit(a.floor_divide(rows.offset(1), number(2)))
    assert a.form_span(pairs - taps) == (2, 2)


def test_one_extent_has_one_variable_however_it_is_told() -> None:
    a, n, m, (i, j) = LoopAlgebra(), OpenVar("n", low=2), OpenVar("m", low=1), (Var("i"), Var("j"))
    assert (a.extent((n + 3) // 6) - a.extent((a.value(a.extent(n // 3)) + 1) // 2)).number == 0
    rows = a.extent(n - 1)
    tiles = a.extent((a.value(rows) + 1) // 2), a.extent(n // 2)
    assert (tiles[0] - tiles[1]).number == 0
    assert len(a.defined) == len({v.name for v in a.defined})
    assert (a.extent(n * m - m) - a.scaled(rows, a.extent(m))).number == 0
    env = {i: a.declare(i, rows, 0), j: a.declare(j, a.extent(m), 1)}
    assert (a.linear(i * (n - 1) // (n - 1), env, no_opaque) - env[i]).number == 0
    whole = a.linear(i * m + j, env, no_opaque) - a.extent(n * m - m)
    assert a.form_span(whole)[1] < 0


def test_multiples_of_sums_of_products_are_multiples_of_their_variables() -> None:
    """Twice a row was a variable of its own, and nobody saw that rows of both sizes are rows."""
    a, n, m, i = LoopAlgebra(), OpenVar("n", low=1), OpenVar("m", low=1), Var("i")
    e = a.extent(4 * n * m + 2 * n + 4 * m + 2)
    assert a.extent(8 * n * m + 4 * n + 8 * m + 4).key() == (e * 2).key()
    assert a.extent(n * 3 + 9).key() == (a.extent(n + 3) * 3).key()
    f = a.declare(i, a.scaled(e, number(6)), 0)
    rows = a.floor_divide(f, e * 2), a.floor_modulo(f, e * 2)
    assert a.rejoined(a.scaled(rows[0], e * 2) + rows[1]).key() == f.key()


def test_a_sum_may_have_quotients_of_numbers() -> None:
    """18 // n rows are no product of extents, of which another sum could be a multiple."""
    a, (n, m, k) = LoopAlgebra(), (OpenVar(name, low=1) for name in "nmk")
    rows, others = a.extent(binary("//", const(18), n) * m + k), a.extent(n + k * 2 + 3)
    at: dict[Var, int] = {n: 4, m: 5, k: 6}
    assert value(a.expression(rows), at) == 18 // 4 * 5 + 6
    assert value(a.expression(others), at) == 4 + 6 * 2 + 3


def test_products_of_sums_are_products_of_their_variables() -> None:
    """Planes of 3*n + 1 rows and m + 1 columns: what is multiplied out divides as 34 planes, facts are of planes."""
    a, n, m, p = LoopAlgebra(), *SIZES.values()
    rows, columns = a.extent(n * 3 + 1), a.extent(m + 1)
    plane = a.size([rows, columns])
    divisor = n * m * 102 + m * 34 + n * 102 + 34
    assert (a.extent(divisor) - plane * 34).number == 0
    fact = a.fact((n * m * p * 6 + m * p * 2 + n * p * 6 + p * 2).equal(448))
    assert isinstance(fact, Binary)
    assert (a.form(fact.a) - a.size([plane, a.extent(p)]) * 2).number == -448
    x = a.declare(Var("x"), a.size([plane, number(34)]), 0)
    assert a.linear(OPEN_VARS[0] // divisor, {OPEN_VARS[0]: x}, no_opaque).number == 0


def test_facts_of_extents_bound_indices() -> None:
    """Facts that callers see to bound rows of a larger tensor, and parts of a size that is a number."""
    n, m, p, (i, j, *_) = *SIZES.values(), OPEN_VARS
    ranges = {i: (const(0), n - 1), j: (const(0), m - 1)}
    assert interval(i * p + j - n * p, ranges, [m <= p])[1] < 0
    assert interval(i * p + j - n * p, ranges, [m - 1 <= p])[1] == 0
    assert interval(i * m + j - n * m * p, ranges, [(n * m * p).equal(24)])[1] < 0
    assert interval(const(23) - n * m * p, ranges, [(n * m * p).equal(24)]) == (-1, -1)


def test_guards_bound_quotients_of_indices() -> None:
    """A row of a plane that is twice as large, in tiles of 25, less a tap: guards speak of what is divided."""
    a, (i, j), n, k = LoopAlgebra(), OPEN_VARS[:2], SIZES["n"], Var("k")
    ranges = {i: (const(0), (n * 2 + 24) // 25 - 1), j: (0, 24), k: (0, 1)}
    guards = [i * 25 - k * 2 + j + 1 >= 0, i * 25 - k * 2 + j + 1 < n * 2, ((i + j + 1) % 2).equal(0)]
    row = (i * 25 + j + 1) // 2 - k
    assert Intervals(ranges, tuple(guards), a.intern).is_within(row, n)
    assert not Intervals(ranges, tuple(guards), a.intern).is_within(row, n - 1)
    assert not Intervals(ranges, tuple(guards[1:]), a.intern).is_within(row, n)


def test_facts_bound_digits_of_open_radix() -> None:
    """One loop over planes of 16 channels and their rows: f//p % 16 is f % (p*16) // p, of which a fact speaks."""
    a, _ = open_algebra()
    f, p = OPEN_VARS[3], SIZES["p"]
    channel = f // p % 16
    assert interval(channel, a.ranges, [f % (p * 16) < p * 8]) == (0, 7)
    assert interval(channel, a.ranges, [f % (p * 16) >= p * 8]) == (8, 15)
    assert interval(channel * p - p * 8, a.ranges, [f % (p * 16) >= p * 8])[0] == 0
    assert interval(channel, a.ranges, [f % (p * 8) >= p * 8 - 1]) == (0, 15)  # of another digit


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("(i*m + j) // m", "i"),
        ("(i*m + j) % m", "j"),
        ("(i*m*p + j*p + 1) // p", "((i*m) + j)"),
        ("f // (m*p)*(m*p) + f % (m*p)", "f"),
        ("f // p // m", "(f//(m*p))"),
        ("f // p % m * p + f % p", "(f % (m*p))"),
        ("f // p // 8", "(f//(p*8))"),
        ("(f // p + 3) // 8", "(((p*3) + f)//(p*8))"),
        ("f // p // 8 * 8 + f // p % 8", "(f//p)"),
        ("f % (p*8) // 8", "((f//8) % p)"),
        ("f % (p*8) % 8", "(f % 8)"),
        ("f//p//8 * p*8 + f//p % 8 * p + f % p", "f"),
        ("(i*4*m + j) // (4*m)", "i"),
        ("(n*m + 3*n - n) // n", "(m + 2)"),
        ("min(i*m + j, n*m)", "((i*m) + j)"),
        ("(n + 7) // 8 - (n - 1) // 8", "1"),
    ],
)
def test_simplification_over_open_extents(text: str, want: str) -> None:
    a, env = open_algebra()
    names: dict[str, Any] = {v.name: v for v in (*OPEN_VARS, *SIZES.values())} | {"min": minimum}
    form = a.linear(eval(text, {}, names), env, no_opaque)
    assert str(a.value(a.rejoined(form))) == want


def test_what_an_extent_is_taken_to_be_holds_for_it_alone() -> None:
    """-(-n // 4) tiles: one at least, which says nothing of -n // 4 being so."""
    a, _ = open_algebra()
    tiles = a.extent(0 - ((0 - SIZES["n"]) // 4))
    (v,) = tiles.terms
    assert tiles.coefficients == [1]
    assert isinstance(v, OpenVar)
    assert v.low == 1
    for n in (1, 4, 5, 8):
        assert value(v, {SIZES["n"]: n}) == -(-n // 4)
    inner = a.linear((0 - SIZES["n"]) // 4, {}, no_opaque)
    assert a.form_span(inner)[1] < 1


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("i*m + j - n*m", -1),
        ("f - n*m*p", -1),
        ("i // 8 * 8 + 7 - n", 6),
        ("(n + 7) // 8 * 8 - n", 7),
        ("j", 5),
        ("i - f", math.inf),
        ("(i - n + 1)*m + m - 6", 0),
    ],
)
def test_bounds_over_open_extents_are_tight(text: str, most: float) -> None:
    a, env = open_algebra()
    names: dict[str, Any] = {v.name: v for v in (*OPEN_VARS, *SIZES.values())}
    assert a.form_span(a.linear(eval(text, {}, names), env, no_opaque))[1] == most
