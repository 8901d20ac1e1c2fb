"""The algebra of indices against brute force: every rule keeps the value at every point, every bound holds there."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm import te
from renorm.expr.linear import Linear
from renorm.expr.mixed_radix import Digit
from renorm.expr.nodes import Binary, Const, Expr, Var, binary, const, integer_limits, maximum, minimum
from renorm.te.loop_algebra import LoopAlgebra, OpaqueValue, are_separate

EXTENTS = {"i": 7, "j": 4, "k": 3}
NAMES = list(EXTENTS)


def value(e: Expr, at: dict[Var, int]) -> int:
    """An integer expression by Python's arithmetic, which floors."""
    if isinstance(e, Const):
        return int(e.value)
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
    return a, {VARS[n]: a.declare(VARS[n], EXTENTS[n], depth) for depth, n in enumerate(NAMES)}


def no_opaque(e: Expr) -> Linear:
    raise AssertionError(f"{e} should be linear")


@settings(max_examples=300, deadline=None)
@given(e=expressions())
def test_forms_keep_values_and_bounds_hold(e: Expr) -> None:
    a, env = algebra()
    form = a.linear(e, env, no_opaque)
    again = a.value(form)
    joined = a.value(a.rejoined(form))
    low, high = a.bounds(form)
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
        assert 0 <= value(e, at) - value(start, at) <= span


@settings(max_examples=200, deadline=None)
@given(e=expressions(), bound=st.integers(-20, 40))
def test_conditions_without_division_are_equivalent(e: Expr, bound: int) -> None:
    a, env = algebra()
    form, limit = a.without_division(a.linear(e, env, no_opaque), bound)
    other = a.value(form)
    assert all((value(e, at) < bound) == (value(other, at) < limit) for at in points())


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
    assert span == 2 * 3 + 2


def test_parts_that_cover_an_axis() -> None:
    a, env = algebra()
    i, j = env[VARS["i"]], env[VARS["j"]]
    loops = [(VARS[n], EXTENTS[n]) for n in NAMES]
    tiles = i * 16 + j * 4
    whole = {Digit(VARS[n], 1, EXTENTS[n]) for n in "ij"}
    assert a.covers(tiles, 3, 7 * 16, loops) == (True, whole)
    assert a.covers(tiles, 2, 7 * 16, loops)[0] is False  # gaps
    assert a.covers(tiles, 4, 7 * 16, loops)[0] is False  # overlaps
    assert a.covers(tiles.offset(1), 3, 7 * 16, loops)[0] is False  # misses the start


@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4), st.data())
@settings(max_examples=60)
def test_digits_of_a_fused_loop_cut_axes_into_parts(factors: list[int], data: st.DataObject) -> None:
    """What is said to cover and to be separate does: each element is in one part, each part of one round."""
    a, var, extent = LoopAlgebra(), Var("f"), math.prod(factors)
    f = a.declare(var, extent, 0)
    units = [math.prod(factors[i + 1 :]) for i in range(len(factors))]
    digits = [a.floor_modulo(a.floor_divide(f, u), c) for u, c in zip(units, factors)]
    used = data.draw(st.lists(st.sampled_from(range(len(factors))), min_size=1, max_size=4))
    sizes = [data.draw(st.integers(1, 3)) for _ in used]
    axes = [(digits[i] * (size + data.draw(st.sampled_from([0, 0, 0, 1]))), size) for i, size in zip(used, sizes)]
    extents = [a.bounds(low)[1] + size - data.draw(st.integers(0, size - 1)) for low, size in axes]
    said = [a.covers(low, size - 1, e, [(var, extent)]) for (low, size), e in zip(axes, extents)]
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


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "uint64"])
def test_what_is_read_counts_by_its_bounds(dtype: str) -> None:
    """Elements that are read are variables to the algebra, and themselves in what it gives."""
    a, env = algebra()
    row = te.placeholder((9,), dtype, name="row")[VARS["i"]]
    read = a.opaque(row, OpaqueValue(lambda: row, None), integer_limits(dtype), "row")
    i, j = env[VARS["i"]], env[VARS["j"]]
    clamped = a.extreme("min", a.extreme("max", read, Linear({})), i * 4 + j)
    assert a.bounds(clamped) == (0, 27)
    assert a.reads_memory(clamped)
    assert not a.reads_memory(i)
    assert a.free(clamped) == {VARS["i"], VARS["j"]}
    low, span = a.relax(a.floor_divide(clamped, 4) + j, {VARS["j"]})
    assert a.bounds(low)[0] == 0
    assert a.bounds(low)[1] + span == 9
    assert "row[i]" in str(a.value(clamped))
    assert a.value(clamped) is a.value(clamped)
