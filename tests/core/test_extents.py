"""Open extents: reckoned many at once, written and read."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from renorm.core.dims import Dim, Sym, maximum, minimum, substitute, symbols_of
from renorm.core.extents import LONGEST, Evaluation, plain, read
from renorm.errors import InvalidInput, OperandError

N, H, W = Sym("n"), Sym("h"), Sym("w")


def grow(extents: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    by_number = st.builds(lambda a, k: [a // k, a % k][k % 2], extents, st.integers(1, 12))
    by_extent = st.builds(lambda a, b: a // (b * b + 1), extents, extents)
    return (
        st.builds(
            lambda a, b, k: [a + b, a - b, a * b, minimum(a, b), maximum(a, b)][k], extents, extents, st.integers(0, 4)
        )
        | by_number
        | by_extent
    )


DIMS = st.recursive(st.sampled_from([N, H, W]) | st.integers(-9, 9), grow, max_leaves=8)


@given(st.lists(DIMS, max_size=5), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_many_are_reckoned_at_once(dims: list[Dim], n: int, h: int, w: int) -> None:
    values = {"n": n, "h": h, "w": w}
    evaluation = Evaluation(values, dims)
    found = evaluation.at(values)
    for d in dims:
        assert substitute(d, values) == (found[evaluation.index[d]] if isinstance(d, Sym) else d)


def test_what_cannot_be_reckoned_is_said() -> None:
    values = {"n": 1 << 30, "h": 3, "w": 0}
    for dim, said in ((N * N, "at most"), (H // W, "3 // 0"), (H % W, "3 % 0"), (-N * N * N, "at most")):
        with pytest.raises(InvalidInput, match=f"(?s)there is nothing of that size: .*n is 1073741824.*{said}"):
            Evaluation(values, [dim]).at(values)


@given(DIMS)
def test_what_is_written_is_read(dim: Dim) -> None:
    assert read(json.loads(json.dumps(plain(dim)))) == dim


def test_what_is_known_of_symbols_is_kept() -> None:
    for least, most in ((0, inf), (3, inf), (0, 64), (2, 5)):
        dim = read(json.loads(json.dumps(plain(16 * Sym("h", least, most) + N // 2))))
        assert {(str(s), s.least, s.most) for s in symbols_of(dim)} == {("h", least, most), ("n", 0, inf)}


@pytest.mark.parametrize("n", [-1, LONGEST + 1, 1 << 60])
def test_values_are_extents(n: int) -> None:
    with pytest.raises(InvalidInput, match="an extent is at most"):
        Evaluation(["n"], [N + 1]).at({"n": n})


@pytest.mark.parametrize(
    "data",
    [
        *(None, 1.0, True, "n", [], {}, [[]], [[0, "n"]], [[1]], [[1, ""]], [[1, 1]], [[1, "n"], [2, "n"]], [["n"]]),
        *(
            [[1, ["+", 1, 2]]],
            [[1, ["//", 1]]],
            [[1, ["//", [[1, "n"]], None]]],
            [[1 << 63, "n"]],
            [[1, "\ud800"]],
            [[1, ["n", [2, 1]]]],
            [[1, ["n", [-1, None]]]],
            [[1, ["n", [0, 1.0]]]],
        ),
        *(1 << 63, [[1, "n", "h"], [2, "h", "n"]], [[1, *["n"] * 5000]], [[1, "n"]] * 300),
    ],
)
def test_what_is_no_extent_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"extent|surrogate|64 bits"):
        read(data)


def test_depth_is_bounded() -> None:
    data: Any = [[1, "n"]]
    for _ in range(8):
        data = [[1, ["//", data, 3]]]
    with pytest.raises(ValueError, match="is not an extent"):
        read(data)
    for _ in range(100_000):
        data = [[1, ["//", data, 3]]]
    with pytest.raises(ValueError, match="is not an extent"):
        read(data)


def test_what_is_written_can_be_read() -> None:
    wide: Dim = sum((Sym(f"s{i}") * Sym(f"t{i}") for i in range(300)), Sym("n"))
    assert read(plain(wide)) == wide
    deep: Dim = Sym("n")
    for k in range(2, 8):
        deep = (deep * Sym(f"m{k}") + 1) // k
    assert read(plain(deep)) == deep
    for k in range(8, 20):
        deep = (deep * Sym(f"m{k}") + 1) // k
    with pytest.raises(OperandError, match="quotients in each other"):
        plain(deep)
    with pytest.raises(OperandError, match="more than 4096 factors"):
        plain(sum((Sym(f"s{i}") * Sym(f"t{i}") for i in range(2000)), Sym("n")))
