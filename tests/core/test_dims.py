"""Symbolic extents against the numbers that their symbols stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from renorm.core.dims import Dim, Sym, bounds, maximum, minimum, substitute
from renorm.core.shapes import regrouping, same_padding

N, H = Sym("N"), Sym("H")


def grow(extents: st.SearchStrategy[tuple[str, Dim]]) -> st.SearchStrategy[tuple[str, Dim]]:
    """Extents, and how they are reckoned, in Python."""
    numbers = st.integers(1, 12).map(lambda n: (str(n), n))

    def combined(op: str, a: tuple[str, Dim], b: tuple[str, Dim]) -> tuple[str, Dim]:
        x, y = a[1], b[1]
        made = {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "//": lambda: x // y, "%": lambda: x % y}
        return f"({a[0]} {op} {b[0]})", made[op]()

    return st.builds(combined, st.sampled_from("+-*"), extents, extents) | st.builds(
        combined, st.sampled_from(["//", "%"]), extents, numbers
    )


reckoned = st.recursive(
    st.sampled_from([("N", N), ("H", H)]) | st.integers(-9, 9).map(lambda n: (str(n), n)), grow, max_leaves=8
)


@given(reckoned, st.integers(0, 20), st.integers(0, 20))
def test_arithmetic_is_that_of_the_numbers(extent: tuple[str, Dim], n: int, h: int) -> None:
    text, dim = extent
    assert substitute(dim, {"N": n, "H": h}) == eval(text, {"N": n, "H": h})


def test_equal_extents_have_one_form() -> None:
    assert (H - 1) // 2 + 1 == (H + 1) // 2
    assert H // 2 // 3 == H // 6
    assert (4 * N * H + 2) // 4 == N * H
    assert (N * 6 + 5) % 3 == 2
    assert N % 12 % 4 == N % 4
    assert (N + H % 12) % 4 == (N + H) % 4
    assert -(-H // 4) == (H + 3) // 4
    assert H + (4 - H % 4) % 4 == (H + 3) // 4 * 4  # padded up to a multiple, as windows are
    assert (N * H) // H == N


@pytest.mark.parametrize("divisor", [-2, -3])
def test_negative_divisors_round_down(divisor: int) -> None:
    assert substitute((N * 2 + 3) // divisor, {"N": 5}) == 13 // divisor
    assert substitute((N * 2 + 3) % divisor, {"N": 5}) == 13 % divisor


def test_bounds_of_products_are_open() -> None:
    assert bounds(N * H + 3) == (3, float("inf"))
    assert bounds(2 - N) == (-float("inf"), 2)
    assert bounds(7) == (7, 7)


bounded = st.sampled_from([("a", Sym("a", 2, 5), 2, 5), ("b", Sym("b", 0, 3), 0, 3), ("c", Sym("c", 7), 7, 20)])


@st.composite
def over_bounded(draw: st.DrawFn) -> Dim:
    """An extent of symbols that lie in ranges, with quotients, remainders, least and greatest ones."""
    found: list[Dim] = [draw(bounded)[1] for _ in range(3)]
    for _ in range(draw(st.integers(1, 5))):
        a, b, k = draw(st.sampled_from(found)), draw(st.sampled_from(found)), draw(st.integers(1, 9))
        made = (a + b, a - b, a * b, a - k, a // k, a % k, minimum(a, b), maximum(a, b))
        found.append(made[draw(st.integers(0, len(made) - 1))])
    return found[-1]


@given(over_bounded(), st.integers(2, 5), st.integers(0, 3), st.integers(7, 20))
def test_bounds_hold(extent: Dim, a: int, b: int, c: int) -> None:
    least, most = bounds(extent)
    value = substitute(extent, {"a": a, "b": b, "c": c})
    assert isinstance(value, int)
    assert least <= value <= most


def test_least_and_greatest_extents() -> None:
    assert minimum(N, H) == minimum(H, N)
    assert minimum(N, N + 3) == N
    assert maximum(N, 0) == N
    assert str(minimum(N, 5)) == "min(5, N)"
    assert substitute(maximum(N - 2, 1), {"N": 9}) == 7
    assert minimum(Sym("B", 1, 4), 4) == Sym("B")


def test_symbols_stand_for_extents() -> None:
    assert substitute(H // 2 + N, {"H": 16 * Sym("h")}) == 8 * Sym("h") + N
    assert bounds(substitute(H, {"H": 16 * Sym("h", 1, 4)})) == (16, 64)


def test_what_divides_an_open_extent_is_a_part_of_it() -> None:
    n, h, w = Sym("n"), Sym("h"), Sym("w")
    assert regrouping((n, h, 2, w, 2), (n, 2 * h, 2 * w)) == [
        (range(1), range(1)), (range(1, 3), range(1, 2)), (range(3, 5), range(2, 3))
    ]  # fmt: skip
    assert regrouping((n, 3, 4 * h, w, 8), (n, 12 * h * w, 8)) == [
        (range(1), range(1)), (range(1, 4), range(1, 2)), (range(4, 5), range(2, 3))
    ]  # fmt: skip
    assert regrouping((n, h, w), (n * h, w)) == [(range(2), range(1)), (range(2, 3), range(1, 2))]
    assert regrouping((h, w), (w, h)) == [(range(2), range(2))]
    assert regrouping((n, 2 * h + 4, w), (n, h + 2, 2, w)) == [
        (range(1), range(1)), (range(1, 2), range(1, 3)), (range(2, 3), range(3, 4))
    ]  # fmt: skip


def test_sums_are_divided_by_sums() -> None:
    assert (2 * N + 4) // (N + 2) == 2
    assert (N * N - 1) // (N - 1) == N + 1
    assert (3 * N * H + 6 * N + H + 2) // (H + 2) == 3 * N + 1
    assert (N * H + 2 * N) % (H + 2) == 0
    assert str((2 * N + 5) // (N + 2)) == "(5 + 2*N)//(2 + N)"
    assert str(N % (N * H)) == "(N)%(H*N)"


@given(*[st.integers(least, 9) for least in (0, 1, 1, 1)], st.booleans())
def test_automatic_padding_of_an_open_axis(extent: int, kernel: int, stride: int, dilation: int, lower: bool) -> None:
    positions = -(-extent // stride)
    whole = max(0, (positions - 1) * stride + dilation * (kernel - 1) + 1 - extent)
    expected = (whole - whole // 2, whole // 2) if lower else (whole // 2, whole - whole // 2)
    assert same_padding(extent, kernel, stride, dilation, lower) == expected
    of_open = same_padding(N, Sym("K", 1), stride, dilation, lower)
    assert tuple(substitute(d, {"N": extent, "K": kernel}) for d in of_open) == expected
    assert tuple(substitute(d, {"N": extent}) for d in same_padding(N, kernel, stride, dilation, lower)) == expected
