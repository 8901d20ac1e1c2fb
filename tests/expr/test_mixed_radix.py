"""Bounds in digits hold every value, against trying them all, and are tight for the loops of convolutions."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.expr.expressions import BOUNDS, conditions, environments, indices, value

from renorm.expr.mixed_radix import digit_of, interval
from renorm.expr.nodes import Binary, Expr, Not, OpenVar, Var, const

f, i, k = (Var(name) for name in "fik")
radices = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 28, -3])
factors = st.sampled_from([1, 1, 2, 3, 7, 14, 28, -1, -2, -16])


def sums(of: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """k*x + k*x + ... + c"""
    terms = st.lists(st.tuples(of, factors), min_size=1, max_size=4)

    def total(terms: list[tuple[Expr, int]], constant: int) -> Expr:
        result: Expr = const(constant)
        for x, factor in terms:
            result = result + x * factor
        return result

    return st.builds(total, terms, st.integers(-30, 30))


def parts(of: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return (
        st.builds(lambda x, d: x // d, of, radices)
        | st.builds(lambda x, d: x % d, of, radices)
        | st.builds(lambda x, d, m: (x // d) % m, of, radices, radices)
        | st.builds(lambda x, d, m: (x % d) // m, of, radices, radices)
    )


numbers = st.sampled_from([f, f, f, i, k])
terms = numbers | parts(numbers) | parts(sums(numbers | parts(numbers)))
compared = st.builds(Binary, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), sums(terms), st.just(const(0)))
facts = st.lists(compared | compared.map(Not) | st.builds(Binary, st.just("&&"), compared, compared), max_size=4)
ranges = st.tuples(st.integers(-20, 20), st.integers(0, 40)).map(lambda r: (r[0], r[0] + r[1]))
few = st.tuples(st.integers(-3, 3), st.integers(0, 3)).map(lambda r: (r[0], r[0] + r[1]))


def reached(e: Expr, bounds: dict[Var, tuple[int, int]], known: list[Expr]) -> tuple[int, int] | None:
    """The least and the greatest value where the facts hold; None where they never do."""
    points = product(*(range(low, high + 1) for low, high in bounds.values()))
    found = [
        int(value(e, env)) for p in points if all(value(c, env := dict(zip(bounds, p, strict=True))) for c in known)
    ]
    return (min(found), max(found)) if found else None


@settings(max_examples=40, deadline=None)
@given(sums(terms), facts, ranges, few, few)
def test_no_value_is_outside(e: Expr, known: list[Expr], of_f: Any, of_i: Any, of_k: Any) -> None:
    bounds = {f: of_f, i: of_i, k: of_k}
    exact = reached(e, bounds, [const(True), *known])
    assume(exact is not None)
    assert exact is not None
    low, high = interval(e, bounds, known)
    assert low <= exact[0]
    assert high >= exact[1]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])  # two hold seldom
@given(indices, conditions, conditions, environments)
def test_any_expressions(e: Expr, a: Expr, b: Expr, env: dict[Var, int]) -> None:
    assume(value(a, env) and value(b, env))
    low, high = interval(e, BOUNDS, [a, b])
    assert low <= value(e, env)
    assert value(e, env) <= high


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.integers(1, 3)] * 3, st.integers(1, 5), *[st.integers(1, 5)] * 2),
    st.tuples(*[st.integers(1, 3)] * 4),
    st.booleans(),
)
def test_taps_inside_a_plane_are_reads_inside_memory(extents: Any, steps: Any, by_blocks: bool) -> None:
    """The loops over samples, planes, rows and tiles are one; a tap is read where its row and column are inside."""
    samples, blocks, tiles, tile, *taps = extents
    width, (sh, sw, dh, dw) = tiles * tile, steps
    rows = 4
    height = rows * sh
    before = [t * d // 2 for t, d in zip(taps, (dh, dw), strict=True)]
    fused, pixel, (kh, kw) = Var("fused"), Var("pixel"), (Var("kh"), Var("kw"))
    bounds = {fused: (0, samples * blocks * rows * tiles - 1), pixel: (0, tile - 1)}
    bounds |= {kh: (0, taps[0] - 1), kw: (0, taps[1] - 1)}
    row = (fused // tiles) % rows * sh + kh * dh - before[0]
    column = (fused % tiles * tile + pixel) * sw + kw * dw - before[1]
    plane = fused // (tiles * rows * blocks) if by_blocks else fused // (tiles * rows)
    inside = [row >= 0, row < height, column >= 0, column < width * sw]
    planes = samples if by_blocks else samples * blocks
    e = (plane * height + row) * (width * sw) + column
    low, high = interval(e, bounds, inside)
    assert low >= 0
    assert high < planes * height * width * sw


def test_quotients_of_what_facts_speak_of() -> None:
    """Rows that a window over dilated elements reaches, the loop over rows fused with another."""
    bounds = {f: (0, 143), k: (0, 2)}
    assert interval(f // 32 * 30 - k * 30, bounds, [f // 16 - k * 2 >= 0, f // 16 - k * 2 < 8]) == (0, 90)
    assert interval((f - k) // 2 * 30 - k * 30, bounds, [f - k * 3 >= 0, f - k * 3 < 7]) == (0, 90)
    assert interval((f // 5 - k) // 2 * 24, bounds, [f - k * 5 >= 0, f - k * 5 < 110]) == (0, 240)


@pytest.mark.parametrize(
    ("e", "known", "expected"),
    [
        (f % 28 * 4 + f // 28 * 112, [], (0, 167 * 4)),
        (f * 4, [(f // 7) % 4 >= 1], (28, 167 * 4)),
        (f * 4, [(f // 7) % 4 <= 2], (0, 160 * 4)),
        (f % 28, [(f // 7) % 4 <= 2, f % 7 <= 3], (0, 17)),
        (f // 5, [f * 3 + i * 15 <= 50], (0, 3)),
        (f + i, [(f + i) // 6 == 3], (18, 23)),
        (f // 14, [f // 4 <= 3], (0, 11)),  # places of which none divides the other: nothing is said
        (f % 56, [f // 2 % 4 < 2, f // 8 % 7 < 6], (0, 43)),
    ],
)
def test_known_intervals(e: Expr, known: list[Expr], expected: tuple[int, int]) -> None:
    assert interval(e, {f: (0, 167), i: (0, 3)}, known) == expected


@given(
    numbers | parts(numbers) | parts(parts(numbers)),
    st.fixed_dictionaries({x: st.integers(-60, 60) for x in (f, i, k)}),
)
def test_digits_are_what_they_are_read_off(e: Expr, env: dict[Var, int]) -> None:
    assert value(digit_of(e).expression(), env) == value(e, env)


n, m = OpenVar("n", "int32", 1), OpenVar("m", "int32", 1)
open_radices = st.sampled_from([const(2), const(3), n, m, n * 2, n * m, n * m * 6, m * 4])


def open_parts(of: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return (
        st.builds(lambda x, d: x // d, of, open_radices)
        | st.builds(lambda x, d: x % d, of, open_radices)
        | st.builds(lambda x, d, e: x // d % e, of, open_radices, open_radices)
        | st.builds(lambda x, d, e: x % d // e, of, open_radices, open_radices)
    )


open_terms = st.builds(lambda x, u: x * u, st.just(f) | open_parts(st.just(f)), st.sampled_from([const(1), n, n * m]))
open_facts = st.builds(
    Binary, st.sampled_from(["<", ">="]), open_parts(st.just(f)), st.sampled_from([const(2), n, m * 2, n * m * 4])
)


@settings(max_examples=80, deadline=None)
@given(sums(open_terms | st.just(k)), st.lists(open_facts, max_size=2), st.sampled_from([n * m * 6, n * 4, n * m]))
def test_no_value_is_outside_at_any_extent(e: Expr, known: list[Expr], extent: Expr) -> None:
    low, high = interval(e, {f: (const(0), extent - 1), k: (0, 2)}, known)
    for of_n, of_m in product((1, 2, 3, 5), repeat=2):
        at: dict[Var, Any] = {n: of_n, m: of_m}
        for of_f, of_k in product(range(int(value(extent, at))), (0, 2)):
            env = {**at, f: of_f, k: of_k}
            if all(value(c, env) for c in known):
                assert low <= value(e, env) <= high


@pytest.mark.parametrize(
    ("end", "e", "size", "known"),
    [
        # the first half of planes, which are twice as high and wide as what is read
        (
            n * m * 8,
            f // (n * m * 8) * (n * m) * 16 + f // 2 % m * 16 + f // (m * 4) % (n * 2) * m * 16 + i,
            n * m * 16,
            [f % (n * m * 8) < n * m * 4],
        ),
        # the third of three tensors one after the other
        (
            n * m * 63,
            f % (n * m * 63) // (n * m * 4) - 12,
            const(3),
            [f % (n * m * 63) >= n * m * 48, f % (n * m * 63) < n * m * 60],
        ),
        # the columns of a plane, each third one of another plane: a remainder of f*16 + i, written as one of f + i
        (
            (n * 3 + 15) // 16,
            (f + i) % 3 * n * 2 + (f * 16 + i) // 3 + k * n * 6,
            n * 18,
            [f * 16 + i < n * 3],
        ),
        # where each tap of a dilated window meets an element
        (n, f * 6 + (i - k * 3) // 2, n * 6, [i - k * 3 >= 0, i - k * 3 < 12, ((k + i) % 2).equal(0)]),
        # planes of what is regrouped, where only all elements are known
        (const(448), f // (n * m), n * 8, [(n * n * m * 8).equal(448)]),
        # rows of a plane under a window of three
        (n * m * 6, (f // m * 2 + k - 1) * m + f % m, n * m * 12, [f // m % (n * 2) * 2 + k >= 1]),
    ],
)
def test_open_places(end: Expr, e: Expr, size: Expr, known: list[Expr]) -> None:
    bounds = {f: (const(0), end - 1), i: (0, 15), k: (0, 2)}
    assert interval(e, bounds, known)[0] >= 0
    assert interval(e - size, bounds, known)[1] < 0


def test_numbers_that_differ_by_a_multiple_have_the_same_remainders() -> None:
    """An image row by row in one loop over blocks of threads: columns were told by 96*b + t, which is x modulo 160."""
    b, t, dy, dx = (Var(name) for name in ("b", "t", "dy", "dx"))
    x, bounds = b * 256 + t, {b: (0, 1199), t: (0, 255), dy: (0, 2), dx: (0, 2)}
    row, column = (x // 160) % 120 + dy, (b * 96 + t) % 160 + dx
    inside = [row >= 1, row < 121, column >= 1, column < 161]
    assert interval(x + dy * 160 + dx - 161, bounds, inside) == (0, 307199)


def test_a_bound_on_a_half_bounds_the_number() -> None:
    b, t = Var("b"), Var("t")
    x, bounds = b * 16 + t, {b: (0, 8), t: (0, 15)}
    assert interval(x // 132, bounds, [b * 8 + t // 2 < 66]) == (0, 0)
