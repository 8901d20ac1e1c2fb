"""Expressions print as articles about loops print them, and constants lose no bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm.core import dtypes
from renorm.expr.nodes import Binary, Broadcast, Call, Cast, Const, Expr, Load, Not, Ramp, Var, const, select
from renorm.expr.text import constant_text
from renorm.tir.nodes import Buffer, Store
from renorm.tir.parse import parse

a, b = Var("ax0"), Var("ax1")
X = Buffer("X", "float32", 25088)


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        ((a * 784) + (b * 28), "((ax0*784) + (ax1*28))"),
        (Load(X, (a,)) / Load(X, (b,)), "(X[ax0]/X[ax1])"),
        (Load(X, (a,)) + 1e-05, "(X[ax0] + 1e-05f)"),
        (Call("sqrt", (Load(X, (a,)),)), "sqrt(X[ax0])"),
        (a // 3 + a % 3, "((ax0//3) + (ax0 % 3))"),
        (Not(a < b), "!(ax0 < ax1)"),
        (Cast("float32", a), "float32(ax0)"),
        (select(a < 3, a, b), "select((ax0 < 3), ax0, ax1)"),
        (Load(X, (a,), a < b), "X[ax0 if (ax0 < ax1)]"),
        (Ramp(a, const(1), 8), "ramp(ax0, 1, 8)"),
        (Broadcast(const(0.5), 8), "x8(0.5f)"),
        (Binary("max", a, b), "max(ax0, ax1)"),
        (const(True), "true"),
        (const(1.0), "1f"),
        (const(1.0, "float64"), "1.0"),
        (const(float("-inf")), "(float32)-inf"),
        (const(3, "int64"), "(int64)3"),
        (const(0.1, "float16"), "0.1h"),
        (const(0.1, "bfloat16"), "(bfloat16)0.100098"),
    ],
)
def test_text(e: Expr, expected: str) -> None:
    assert str(e) == expected


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(dtypes.FLOATS), st.floats(width=64))
def test_float_constants_come_back(dtype: str, number: float) -> None:
    narrow = dtypes.numpy_dtype(dtype).type
    with np.errstate(all="ignore"):
        rounded = narrow(number)
    kernel = parse(f"kernel k(Y: {dtype}[1]) -> (Y) {{ Y[0] = {constant_text(Const(float(rounded), dtype))} }}")
    assert isinstance(kernel.body, Store)
    assert isinstance(kernel.body.value, Const)
    with np.errstate(all="ignore"):
        back = narrow(kernel.body.value.value)
    assert back.tobytes() == rounded.tobytes() or (np.isnan(back) and np.isnan(rounded))
