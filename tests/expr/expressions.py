"""Random expressions, and what they are worth: an evaluator of its own, in Python numbers and NumPy scalars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from renorm.expr.nodes import Binary, Call, Cast, Const, Expr, Load, Not, Select, Var

VARIABLES = [Var(name) for name in "ijkm"]
BOUNDS = {VARIABLES[0]: (0, 31), VARIABLES[1]: (0, 7), VARIABLES[2]: (-5, 12), VARIABLES[3]: (3, 3)}
FLOATS = [Var(name, "float32") for name in "xyz"]


def value(e: Expr, env: Mapping[Any, Any]) -> Any:
    """Integers exactly, floats rounded to float32 after each operation."""
    match e:
        case Var():
            return env[e]
        case Const():
            return np.float32(e.value) if e.dtype == "float32" else e.value
        case Not(a=a):
            return not value(a, env)
        case Select() | Call(name="if_then_else"):
            c, a, b = (e.condition, e.then, e.otherwise) if isinstance(e, Select) else e.args
            return value(a, env) if value(c, env) else value(b, env)
        case Call(name="likely"):
            return value(e.args[0], env)
        case Cast(a=a):
            return value(a, env)
        case Load(source=source, indices=(Const(value=at),)):
            return env[source][at]
        case Call(name="fmod", args=(a, b)):
            x, y = value(a, env), value(b, env)
            return int(np.fmod(x, y)) if y else 0
        case Call(name=name):
            return np.float32({"sqrt": np.sqrt, "abs": np.abs, "floor": np.floor}[name](value(e.args[0], env)))
        case Binary(op=op):
            return _apply(op, value(e.a, env), value(e.b, env))
        case _:
            raise NotImplementedError(type(e).__name__)


def _apply(op: str, a: Any, b: Any) -> Any:
    if isinstance(a, np.floating):
        return {
            "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b,
            "min": lambda: np.minimum(a, b), "max": lambda: np.maximum(a, b),
            "//": lambda: np.floor_divide(a, b), "%": lambda: np.remainder(a, b),
            "<": lambda: bool(a < b), ">=": lambda: bool(a >= b),
            "==": lambda: bool(a == b), "!=": lambda: bool(a != b),
        }[op]()  # fmt: skip
    return {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b,
        "//": lambda: a // b if b else 0, "%": lambda: a % b if b else 0,
        "/": lambda: int(np.trunc(np.float64(a) / b)) if b else 0,
        "min": lambda: min(a, b), "max": lambda: max(a, b),
        "<": lambda: a < b, "<=": lambda: a <= b, ">": lambda: a > b, ">=": lambda: a >= b,
        "==": lambda: a == b, "!=": lambda: a != b, "&&": lambda: a and b, "||": lambda: a or b,
    }[op]()  # fmt: skip


def _const(v: int) -> Const:
    return Const(v, "int32")


small = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 28, 32, -1, -2, -8]).map(_const)
divisors = st.sampled_from([1, 2, 3, 4, 7, 8, 16, 28, 32, -3]).map(_const)
leaves = st.sampled_from(VARIABLES) | small


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(Binary, st.sampled_from(["+", "-", "+"]), inner, inner),
        st.builds(Binary, st.just("*"), inner, small),
        st.builds(Binary, st.sampled_from(["min", "max", "*"]), inner, inner),
        st.builds(Binary, st.sampled_from(["//", "%", "/", "//", "%"]), inner, divisors),
        st.builds(Binary, st.sampled_from(["//", "%"]), inner, inner),
        st.builds(lambda a, b: Call("fmod", (a, b)), inner, divisors | inner),
        st.builds(Select, comparisons(inner), inner, inner),
    )


def comparisons(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.builds(Binary, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), inner, inner)


indices = st.recursive(leaves, _grow, max_leaves=10)
conditions = st.recursive(
    comparisons(indices),
    lambda inner: st.one_of(
        st.builds(Binary, st.sampled_from(["&&", "||"]), inner, inner),
        st.builds(Not, inner),
        st.builds(lambda c: Call("likely", (c,)), inner),
    ),
    max_leaves=4,
)
environments = st.fixed_dictionaries({v: st.integers(*BOUNDS[v]) for v in VARIABLES})

_specials = [0.0, -0.0, 1.0, -1.0, 2.5, float("inf"), float("-inf"), float("nan"), 1e-40, 3e38, 1e-5]
_float_leaves = st.sampled_from(FLOATS) | st.sampled_from(_specials).map(lambda v: Const(v, "float32"))


def _grow_float(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    condition = st.builds(Binary, st.sampled_from(["<", "==", "!=", ">="]), inner, inner)
    return st.one_of(
        st.builds(Binary, st.sampled_from(["+", "-", "*", "/", "min", "max", "//", "%"]), inner, inner),
        st.builds(lambda name, a: Call(name, (a,)), st.sampled_from(["sqrt", "abs", "floor"]), inner),
        st.builds(Select, condition | condition.map(Not), inner, inner),
    )


floats = st.recursive(_float_leaves, _grow_float, max_leaves=8)
float_environments = st.fixed_dictionaries({v: st.sampled_from(_specials).map(np.float32) for v in FLOATS})
