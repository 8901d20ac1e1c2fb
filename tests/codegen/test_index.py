"""Index arithmetic of generated code against exact evaluation at every point: values, lanes of vectors, and spans."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import program, run_native
from tests.expr.expressions import VARIABLES, indices, value

from renorm.codegen.llvm import compiler
from renorm.codegen.llvm.expressions import Expressions
from renorm.codegen.llvm.ssa import I64, Function, constant
from renorm.expr.nodes import Broadcast, Cast, Const, Expr, Ramp, Select, Var, const
from renorm.expr.rewrite import transform
from renorm.tir.nodes import Buffer, For, Stmt, Store, seq

RANGES = dict(zip(VARIABLES, [(0, 6), (0, 7), (-5, 3), (3, 3)]))
POINTS = [
    dict(zip(VARIABLES, at)) for at in itertools.product(*(range(low, high + 1) for low, high in RANGES.values()))
]
LANES = 8  # of the second variable, where it stands for all its values at once


def in_lanes(e: Expr) -> Expr:
    """`e` for all values of the second variable."""

    def spread(x: Expr) -> Expr | None:
        if x is VARIABLES[1]:
            return Ramp(const(0), const(1), LANES)
        if isinstance(x, Select) and x.condition.lanes == 1:
            return Select(Broadcast(x.condition, LANES), x.then, x.otherwise)
        return Broadcast(x, LANES) if isinstance(x, (Var, Const)) else None

    return transform(e, spread)


def evaluated(e: Expr) -> list[int]:
    return [int(value(e, at)) for at in POINTS]


@settings(max_examples=40, deadline=None)
@given(e=st.lists(indices, min_size=1, max_size=3))
def test_values_are_exact(e: list[Expr]) -> None:
    scalars, vectors = (
        Buffer("scalars", "int64", len(POINTS) * len(e)),
        Buffer("vectors", "int32", len(POINTS) * len(e)),
    )
    position: Expr = const(0)
    for var, (low, high) in RANGES.items():
        position = position * (high - low + 1) + (var - low)
    stores: list[Stmt] = []
    for n, one in enumerate(e):
        at = position + n * len(POINTS)
        stores += [Store(scalars, at, Cast("int64", one)), Store(vectors, in_lanes(at), in_lanes(one))]
    body = seq(stores)
    for var, (low, high) in reversed(RANGES.items()):
        body = For(var, const(low), const(high - low + 1), "serial", body)
    arrays = [np.zeros(b.size, b.dtype) for b in (scalars, vectors)]
    with patch.object(compiler, "prepare", lambda kernel: kernel):  # which would simplify first
        run_native(program("indices", [scalars, vectors], body), arrays)
    expected = np.array([evaluated(one) for one in e]).reshape(-1)
    np.testing.assert_array_equal(arrays[0], expected)
    np.testing.assert_array_equal(arrays[1], expected.astype(np.int32))


@settings(max_examples=200, deadline=None)
@given(e=indices)
def test_spans_hold(e: Expr) -> None:
    f = Function("spans", [], "")
    x = Expressions(f, propagates=False)
    with ExitStack() as loops:
        for var, (low, high) in RANGES.items():
            i = loops.enter_context(f.loop(constant(I64, low), constant(I64, high + 1), at_least_once=True))
            x.indices.bindings[var] = x.indices.form_of(i, (low, high))
        low, high = x.indices.form_span(x.indices.linear(e))
    found = evaluated(e)
    assert low <= min(found)
    assert max(found) <= high
