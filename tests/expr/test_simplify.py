"""Simplification keeps every value, and gives the forms that readers and code generators rely on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.expr.expressions import (
    BOUNDS,
    conditions,
    environments,
    float_environments,
    floats,
    indices,
    value,
)

from renorm.expr.bounds import reads
from renorm.expr.nodes import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    OpenVar,
    Ramp,
    Var,
    const,
    if_then_else,
    select,
)
from renorm.expr.rewrite import same
from renorm.expr.rules import RULES
from renorm.expr.simplify import Simplifier, simplify
from renorm.tir.interpret import run
from renorm.tir.nodes import Buffer, Kernel, Store

quick = settings(max_examples=300, deadline=None)


@quick
@given(indices | conditions, environments)
def test_integers_keep_their_value(e: Expr, env: dict[Var, int]) -> None:
    assert value(simplify(e, BOUNDS), env) == value(e, env)


@quick
@given(indices | conditions, conditions, environments)
def test_integers_keep_their_value_where_facts_hold(e: Expr, fact: Expr, env: dict[Var, int]) -> None:
    assume(value(fact, env))
    assert value(simplify(e, BOUNDS, [fact]), env) == value(e, env)


@quick
@given(indices | conditions)
def test_simple_expressions_stay(e: Expr) -> None:
    once = simplify(e, BOUNDS)
    assert same(simplify(once, BOUNDS), once)


@quick
@given(floats, float_environments)
def test_floats_keep_every_bit(e: Expr, env: dict[Var, Any]) -> None:
    with np.errstate(all="ignore"):
        before, after = value(e, env), value(simplify(e), env)
    assert np.isnan(before) == np.isnan(after)
    assert np.isnan(before) or before.tobytes() == after.tobytes()


data = {dtype: Buffer(f"{dtype}s", dtype, 4) for dtype in ("uint8", "int8", "int32", "int64", "uint32")}


@st.composite
def sums_of_data(draw: st.DrawFn) -> Expr:
    """Integer arithmetic over elements of memory, which wraps."""
    dtype = draw(st.sampled_from(sorted(data)))
    edges = [0, 1, 2, 100, 2**31 - 1] if dtype in ("int32", "int64", "uint32") else [0, 1, 2, 100, 127]
    leaf = st.one_of(
        st.integers(0, 3).map(lambda i: Load(data[dtype], (const(i),))),
        st.sampled_from(edges).map(lambda v: Const(v, dtype)),
    )
    ops = st.sampled_from(["+", "-", "*", "+", "min", "max", "//", "%", "/"])
    return draw(st.recursive(leaf, lambda e: st.builds(Binary, ops, e, e), max_leaves=6))


def _element(dtype: str) -> Expr:
    return Load(data[dtype], (const(0),))


@settings(max_examples=150, deadline=None)
@given(sums_of_data(), st.integers(0, 2**32 - 1))
# what is read cancels, and the rest still wraps: in sums, in products, and where a quotient does not fit
@example(Binary("+", const(1), const(2**31 - 1)) + (_element("int32") - _element("int32")), 0)
@example(_element("int64") * 0 + Const(2**63 - 1, "int64") + 1, 0)
@example((_element("int32") * 0 + (2**31 - 1)) * (_element("int32") * 0 + 2), 0)
@example((_element("int32") * 0 + -(2**31)) // (_element("int32") * 0 - 1), 0)
def test_integers_from_memory_wrap_as_before(e: Expr, seed: int) -> None:
    results = []
    rng = np.random.default_rng(seed)
    array = rng.integers(np.iinfo(e.dtype).min, np.iinfo(e.dtype).max, 4, e.dtype, endpoint=True)
    for x in (e, simplify(e), simplify(Binary("<", e, Load(data[e.dtype], (const(0),))))):
        out = Buffer("out", x.dtype, 1)
        result = np.zeros(1, x.dtype)
        run(Kernel("k", (data[e.dtype], out), Store(out, const(0), x), frozenset({"out"})), [array, result])
        results.append(result[0])
    assert results[0] == results[1]
    assert results[2] == (results[0] < array[0]) or not reads(e)  # arithmetic of constants is index arithmetic


def test_what_cancels_beside_a_variable_wraps_where_it_may_not_fit() -> None:
    i, read = Var("i"), _element("int32")
    kept = i + (read - read) + (2**31 - 1)
    assert simplify(kept, {i: (0, 3)}) is kept
    assert same(simplify(kept, {i: (-3, 0)}), i + (2**31 - 1))


i, j, k, f, n = (Var(name) for name in ("i", "j", "k", "f", "n"))
io, ii = Var("i.outer"), Var("i.inner")
x = Var("x", "float32")
split = {io: (0, 3), ii: (0, 7)}


@pytest.mark.parametrize(
    ("e", "bounds", "expected"),
    [
        ((i * 28 + j) * 28 + k, {}, "(((i*784) + (j*28)) + k)"),
        (((i * 28 + j) * 28 + k) // 784, {i: (0, 31), j: (0, 27), k: (0, 27)}, "i"),
        (((i * 28 + j) * 28 + k) // 28 % 28, {i: (0, 31), j: (0, 27), k: (0, 27)}, "j"),
        ((f // 784) * 784 + ((f % 784) // 28) * 28 + f % 28, {}, "f"),
        ((f // 784) * 784 + ((f // 28) % 28) * 28 + f % 28, {}, "f"),
        (f // 4 // 7, {}, "(f//28)"),
        (f % 784 // 28, {}, "((f//28) % 28)"),
        (f % 56 % 28, {}, "(f % 28)"),
        ((f // 4 + 1) // 2, {}, "((f + 4)//8)"),
        (((f // 4) % 3) * 4 + f % 4, {}, "(f % 12)"),
        ((f // 5) * 5 - (f * 6) % 5 + (f % 5) * 2, {}, "f"),
        ((i * 10 + j * 4) % 8, {j: (0, 0)}, "((i % 4)*2)"),
        ((io * 8 + ii) // 8, split, "i.outer"),
        ((io * 8 + ii) % 8, split, "i.inner"),
        ((io * 8 + ii) // 4, split, "((i.outer*2) + (i.inner//4))"),
        ((io * 16 + ii) // 32, split, "(i.outer//2)"),
        (io * 8 + ii < 28, split, "(((i.outer*8) + i.inner) < 28)"),
        (io * 8 + ii < 24, split, "(i.outer < 3)"),
        (io * 8 + ii < 32, split, "true"),
        (io * 8 + ii - 3 >= 0, split, "(((i.outer*8) + i.inner) >= 3)"),
        (i * 8 + 3 < 28, {}, "(i < 4)"),
        (i - j < i, {j: (1, 3)}, "true"),
        (i * 2 == j * 2 + 1, {}, "false"),
        (i - i, {}, "0"),
        (5 - i, {}, "(5 - i)"),
        (j - i * 3 - 2, {}, "((j - (i*3)) - 2)"),
        (Binary("min", i, j), {i: (0, 3), j: (3, 9)}, "i"),
        (Binary("max", i * 2, i * 2 - 1), {}, "(i*2)"),
        (i * j + j * i, {}, "((i*j) + (j*i))"),
        ((i * 2) * (j * 3), {}, "((i*j)*6)"),
        (Binary("/", i * 8 + j, const(8)), {i: (0, 9), j: (0, 7)}, "i"),
        (Binary("/", i, const(8)), {}, "(i/8)"),
        (if_then_else(i < 4, i, j), {i: (0, 3)}, "i"),
        (select(i < 4, i, i), {}, "i"),
        (x * 1.0, {}, "x"),
        (x + 0.0, {}, "(x + 0f)"),
        (x - 0.0, {}, "x"),
        (x * x + 0.0, {}, "(x*x)"),
        (x**2, {}, "(x*x)"),
        (x**0.5, {}, "pow(x, 0.5f)"),
        (Call("sqrt", (const(2.0),)), {}, "1.4142135f"),
        (Binary("+", Ramp(i, const(1), 8), Broadcast(j, 8)), {}, "ramp((i + j), 1, 8)"),
        (Binary("*", Broadcast(x, 8), Broadcast(x, 8)), {}, "x8((x*x))"),
        (Binary("<", Ramp(i, const(1), 8), Broadcast(const(28), 8)), {i: (0, 20)}, "x8(true)"),
        (Binary("<", Ramp(i, const(1), 8), Broadcast(const(28), 8)), {i: (0, 21)}, "(ramp(i, 1, 8) < x8(28))"),
        (Binary("min", Ramp(i, const(1), 8), Broadcast(const(28), 8)), {i: (0, 21)}, "ramp(i, 1, 8)"),
        (Var("lanes", "int32", 4) + Broadcast(i, 4), {i: (3, 3)}, "(lanes + x4(3))"),
        (Cast("int32", Cast("int64", i)), {}, "i"),
        (Cast("int64", Cast("int32", Var("w", "int64"))), {}, "int64(int32(w))"),
    ],
)
def test_forms(e: Expr, bounds: dict[Var, tuple[int, int]], expected: str) -> None:
    assert str(simplify(e, bounds)) == expected


def test_facts_decide_what_bounds_do_not() -> None:
    inside = io * 8 + ii < 28
    assert str(simplify((io * 8 + ii) * 28 + k < 784, {**split, k: (0, 27)}, [inside])) == "true"
    assert str(simplify((io * 8 + ii) * 28 + k < 784, {**split, k: (0, 27)})) != "true"
    flag = Load(data["uint8"], (i,))
    known = Binary("==", flag, Const(1, "uint8"))
    assert str(simplify(select(known, i, j), {}, [known])) == "i"


def test_equal_expressions_become_one_object() -> None:
    simple = Simplifier({io: (0, 3)})
    assert simple(io * 8 + ii + 1) is simple(1 + ii - ii + io * 8 + ii)


def test_every_rule_states_its_algebra() -> None:
    for kind, rules in RULES.items():
        for rule in rules:
            first = (rule.__doc__ or "").splitlines()[0]
            assert "->" in first or "Simplifier." in first, f"{rule.__name__} (of {kind}) does not state its algebra"


def test_a_fact_that_holds_what_is_asked_for_ends() -> None:
    """The bounds of a min ask for those of its operands, which here lead through the fact to the same min."""
    i, k = (next(v for v in BOUNDS if v.name == n) for n in "ik")
    inner = Binary("min", i, const(5))
    nothing = Binary("*", k, const(0))
    outer = Binary("min", Binary("*", k, const(7)), Binary("%", nothing, inner))
    fact = Not(Binary(">", Binary("+", outer, Binary("*", Binary("+", const(4), i), const(-1))), const(0)))
    asked = Binary("!=", Binary("//", i, const(8)), Binary("*", inner, const(0)))
    env = dict.fromkeys(BOUNDS, 3)
    assert value(simplify(asked, BOUNDS, [fact]), env) == value(asked, env)


def test_a_fact_about_sums_of_which_it_holds_the_remainder_ends() -> None:
    """Where terms of a sum are joined, bounds are sought; the fact's lead to the same sum."""
    i = next(iter(BOUNDS))
    doubled = i * 2 % 12
    fact = Binary(">=", Binary("min", doubled % 7, i), i - 3)
    for asked in (doubled, i // 7, i % 7):
        for at in range(32):
            env = dict.fromkeys(BOUNDS, 3) | {i: at}
            assert not value(fact, env) or value(simplify(asked, BOUNDS, [fact]), env) == value(asked, env)


def test_quotients_by_open_extents_are_simplified_under_facts() -> None:
    """A part of a plane: its elements are below the size of the plane where a condition says so."""
    h, w, tile, i, c = OpenVar("h", "int32", 1), OpenVar("w", "int32", 1), Var("tile"), Var("i"), Var("c")
    at = tile * 2024 + i
    bounds: Any = {tile: (const(0), h * w), i: (0, 2023), c: (0, 31)}
    simplified = Simplifier(bounds, [at < h * w])
    assert str(simplified(at // (h * w))) == "0"
    assert str(simplified((at // (h * w) + c) // 16)) == "(c//16)"
    assert same(simplified(at % (h * w)), simplified(at))
    assert str(Simplifier(bounds)(at // (h * w))) == "(((tile*2024) + i)//(h*w))"


@pytest.mark.parametrize("op", ["%", "//"])
def test_a_number_by_an_extent_has_its_type(op: str) -> None:
    n = OpenVar("n", low=1, high=64)
    e = Binary(op, const(-5), n)
    assert value(simplify(e), {n: 7}) == value(e, {n: 7})
