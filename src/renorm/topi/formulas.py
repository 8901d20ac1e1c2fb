"""Scalar formulas that need care to be accurate, over floating expressions. NaN gives NaN."""

from __future__ import annotations

import math

from renorm.expr.nodes import Expr, call, const, maximum, select


def log1p(x: Expr) -> Expr:
    """ln(1 + x) for 0 <= x <= 1, to a few ulp also where x is far below 1: the error of rounding 1 + x is divided out.

    (W. Kahan's formula, known from the HP-15C handbook.)
    """
    u = 1.0 + x
    return select(u <= 1.0, x, call("log", u) * x / (u - 1.0))


def expm1(x: Expr) -> Expr:
    """e^x - 1 for x <= 0, without the cancellation near 0: 2t / (1 - t) with t = tanh(x / 2)."""
    t = call("tanh", x * 0.5)
    return 2.0 * t / (1.0 - t)


def softplus(x: Expr) -> Expr:
    """ln(1 + e^x) without overflow: max(x, 0) + log1p(e^-|x|)."""
    return maximum(x, 0.0) + log1p(call("exp", -call("abs", x)))


def mish(x: Expr) -> Expr:
    """x * tanh(softplus(x)) = x * n / (n + 2) with n = e^x * (e^x + 2); past x = 20 it is x to the last bit of float32.

    In float64 the exact quotient is used up to where e^(2x) would overflow.
    """
    bound = 20.0 if x.dtype == "float32" else 300.0
    e = call("exp", select(x > bound, const(bound, x.dtype), x))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


def gelu(x: Expr) -> Expr:
    """x * (1 + erf(x / sqrt 2)) / 2."""
    return 0.5 * x * (1.0 + call("erf", x * math.sqrt(0.5)))


def gelu_tanh(x: Expr) -> Expr:
    """The approximation x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2."""
    return 0.5 * x * (1.0 + call("tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
