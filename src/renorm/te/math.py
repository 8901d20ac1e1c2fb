"""Mathematical functions: of a scalar expression (or number) a scalar expression, of a Tensor a Tensor.

Python numbers beside an expression or a tensor take its dtype. Integers given to a transcendental function become
float32.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from renorm.core import dtypes
from renorm.core.errors import InvalidExpression
from renorm.expr import nodes
from renorm.expr.nodes import Expr, as_expr, const
from renorm.te.tensor import NAMES, Tensor, arithmetic, broadcast, elementwise, scalar_arithmetic

__all__ = [
    "abs", "acos", "acosh", "all", "any", "asin", "asinh", "atan", "atanh", "cast", "ceil", "cos", "cosh", "div",
    "erf", "exp", "floor", "floordiv", "floormod", "fma", "fmod", "if_then_else", "indexdiv", "indexmod", "isfinite",
    "isinf", "isnan", "likely", "log", "logical_not", "maximum", "minimum", "popcount", "pow", "power", "round",
    "rsqrt", "select", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "truncdiv", "truncmod",
]  # fmt: skip


def _unary(name: str, meaning: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        if isinstance(x, Tensor) and x.shape:
            return elementwise(lambda e: nodes.call(name, e), x)
        return nodes.call(name, as_expr(x))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = meaning
    return function


exp = _unary("exp", "e to the power x.")
log = _unary("log", "Natural logarithm.")
sqrt = _unary("sqrt", "Square root; NaN below 0.")
rsqrt = _unary("rsqrt", "1 / sqrt(x).")
tanh = _unary("tanh", "Hyperbolic tangent.")
sigmoid = _unary("sigmoid", "1 / (1 + exp(-x)).")
erf = _unary("erf", "Error function.")
abs = _unary("abs", "Absolute value; keeps integers.")
sign = _unary("sign", "-1, 0 or 1 in the dtype of x.")
sin = _unary("sin", "Sine of x in radians.")
cos = _unary("cos", "Cosine of x in radians.")
tan = _unary("tan", "Tangent of x in radians.")
asin = _unary("asin", "Inverse sine, in radians.")
acos = _unary("acos", "Inverse cosine, in radians.")
atan = _unary("atan", "Inverse tangent, in radians.")
sinh = _unary("sinh", "Hyperbolic sine.")
cosh = _unary("cosh", "Hyperbolic cosine.")
asinh = _unary("asinh", "Inverse hyperbolic sine.")
acosh = _unary("acosh", "Inverse hyperbolic cosine.")
atanh = _unary("atanh", "Inverse hyperbolic tangent.")
floor = _unary("floor", "Greatest whole number that is not above x.")
ceil = _unary("ceil", "Least whole number that is not below x.")
trunc = _unary("trunc", "Whole part, toward zero.")
round = _unary("round", "Nearest whole number, halves to even, as NumPy and ONNX round.")
isnan = _unary("isnan", "Whether x is NaN, as bool.")
isinf = _unary("isinf", "Whether x is an infinity, as bool.")
likely = _unary("likely", "x itself; marks a condition that is mostly true.")
popcount = _unary("popcount", "Number of one bits of an integer.")


def isfinite(x: Any) -> Any:
    """Return whether x is neither NaN nor an infinity, as bool."""
    if isinstance(x, Tensor) and x.shape:
        return elementwise(isfinite, x)
    e = as_expr(x)
    return nodes.all_of(nodes.Not(nodes.call("isnan", e)), nodes.Not(nodes.call("isinf", e)))


def combined(op: str, a: Any, b: Any) -> Any:
    """a op b: a tensor where one of them is, else an expression."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return arithmetic(op, a, b)
    if isinstance(a, Expr) or hasattr(a, "as_expr"):
        x = as_expr(a)
        return scalar_arithmetic(op, x, as_expr(b, like=x))
    y = as_expr(b)
    return scalar_arithmetic(op, as_expr(a, like=y), y)


def power(x: Any, y: Any) -> Any:
    """x to the power of y. A constant integer y multiplies, so that negative x are exact."""
    return combined("pow", x, y)


pow = power


def minimum(a: Any, b: Any) -> Any:
    """The lesser of two; tensors broadcast."""
    return combined("min", a, b)


def maximum(a: Any, b: Any) -> Any:
    """The greater of two; tensors broadcast."""
    return combined("max", a, b)


def div(a: Any, b: Any) -> Any:
    """a / b; of integers truncated toward zero."""
    return combined("/", a, b)


truncdiv = div


def floordiv(a: Any, b: Any) -> Any:
    """a // b, rounded down."""
    return combined("//", a, b)


indexdiv = floordiv


def floormod(a: Any, b: Any) -> Any:
    """a % b with the sign of b, as Python's."""
    return combined("%", a, b)


indexmod = floormod


def fmod(x: Any, y: Any) -> Any:
    """Remainder of x / y with the sign of x, as C's."""
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        return broadcast(fmod, x, y, name=NAMES["%"])
    a = as_expr(x, like=y if isinstance(y, Expr) else None)
    return nodes.call("fmod", *nodes.promote(a, as_expr(y, like=a)))


truncmod = fmod


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, of floats rounded once."""
    if builtins.any(isinstance(x, Tensor) for x in (a, b, c)):
        return broadcast(fma, a, b, c, name="T_fma")
    given = [x for x in (a, b, c) if isinstance(x, Expr)]
    exprs = [as_expr(x, like=given[0] if given else None) for x in (a, b, c)]
    if len({e.dtype for e in exprs}) != 1:
        raise InvalidExpression(f"fma takes one dtype, not {', '.join(e.dtype for e in exprs)}")
    a, b, c = exprs
    return a * b + c if dtypes.is_int(a.dtype) else nodes.call("fma", a, b, c)


def if_then_else(cond: Any, t: Any, f: Any) -> Expr:
    """`t` where the condition holds, else `f`; the side not taken is not evaluated: it may read outside."""
    return nodes.if_then_else(_scalar(cond), _scalar(t), _scalar(f))


def select(condition: Any, true_value: Any, false_value: Any) -> Expr:
    """`true_value` where the condition holds, else `false_value`; both may be evaluated."""
    return nodes.select(_scalar(condition), _scalar(true_value), _scalar(false_value))


def _scalar(x: Any) -> Any:
    return x.as_expr() if hasattr(x, "as_expr") else x


def all(*conditions: Any) -> Expr:
    """Return whether all conditions hold, as numbers other than 0 do; true when there are none."""
    return nodes.all_of(*_flat(conditions))


def any(*conditions: Any) -> Expr:
    """Return whether some condition holds, as numbers other than 0 do; false when there are none."""
    return nodes.any_of(*_flat(conditions))


def logical_not(condition: Any) -> Any:
    """Return whether the condition does not hold."""
    if isinstance(condition, Tensor) and condition.shape:
        return elementwise(logical_not, condition)
    e = as_expr(condition)
    return const(not e.value) if isinstance(e, nodes.Const) else nodes.Not(nodes.cast("bool", e))


def _flat(conditions: Any) -> list[Any]:
    if len(conditions) == 1 and isinstance(conditions[0], (list, tuple)):
        conditions = conditions[0]
    return [_scalar(c) for c in conditions]


def cast(dtype: Any, x: Any) -> Any:
    """x as dtype. Takes cast(dtype, x) and cast(x, dtype)."""
    if not isinstance(dtype, str):
        dtype, x = x, dtype
    dtypes.lookup(dtype)
    return x.astype(dtype) if isinstance(x, Tensor) and x.shape else nodes.cast(dtype, as_expr(x))
