"""Elementary functions as LLVM IR, for any number of lanes, without calls.

Each is written once, over Lanes. exp, log, sigmoid, tanh and erf have float32 and float64 coefficients. The others
compute in float64, where float32 operands lose nothing and are rounded once: their error in float32 is 0.5 to 0.51 ulp.
The docstrings state errors in units of the last place of the result; tests/codegen/test_math.py measures them.
NaN gives NaN, except for pow as C has it; results below the normal range are denormal, not flushed.
"""

from __future__ import annotations

from collections.abc import Callable

from renorm.codegen.llvm.lanes import Lanes, where
from renorm.codegen.llvm.math import error_function, exponential, remainder, trigonometric
from renorm.codegen.llvm.math import power as powers
from renorm.codegen.llvm.math.power import constant_power
from renorm.codegen.llvm.ssa import Function, Value
from renorm.core.errors import InternalError

__all__ = ["call", "constant_power", "floor_divide", "floor_mod", "power"]

Unary = Callable[[Lanes], Lanes]


def _rsqrt(x: Lanes) -> Lanes:
    """1 / sqrt(x), two roundings."""
    return 1.0 / x.intrinsic("sqrt")


def _sign(x: Lanes) -> Lanes:
    """-1, 0 or 1; NaN for NaN."""
    return where(x > 0.0, x.like(1.0), where(x < 0.0, x.like(-1.0), x + 0.0))


def _isinf(x: Lanes) -> Lanes:
    return x.intrinsic("fabs").equals(float("inf"))


# machine instructions; "round" takes halves to the even neighbour
_INSTRUCTIONS = {
    "sqrt": "sqrt",
    "abs": "fabs",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "roundeven",
}
_EITHER: dict[str, Unary] = {
    "exp": exponential.exp,
    "log": exponential.log,
    "sigmoid": exponential.sigmoid,
    "tanh": exponential.tanh,
    "erf": error_function.erf,
    "rsqrt": _rsqrt,
    "sign": _sign,
    "isnan": lambda x: x.is_nan,
    "isinf": _isinf,
}
_IN_DOUBLE: dict[str, Unary] = {
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "asinh": exponential.asinh,
    "acosh": exponential.acosh,
    "atanh": exponential.atanh,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": trigonometric.asin,
    "acos": trigonometric.acos,
    "atan": trigonometric.atan,
}


def call(f: Function, name: str, args: list[Value]) -> Value:
    """The intrinsic `name` (see expr.nodes.INTRINSICS) of float32 or float64 operands of equal type."""
    x = Lanes(f, args[0])
    if name in _INSTRUCTIONS:
        return x.intrinsic(_INSTRUCTIONS[name]).value
    if name in _EITHER:
        return _EITHER[name](x).value
    if name in _IN_DOUBLE:
        if x.type.element == "double":
            return _IN_DOUBLE[name](x).value
        return _IN_DOUBLE[name](x.convert("fpext", "double")).convert("fptrunc", "float").value
    if name == "fma":
        return f.intrinsic("fma", *args)
    if name == "fmod":
        return remainder.fmod(x, Lanes(f, args[1])).value
    raise InternalError(f"no code for {name} of floats")


def power(f: Function, base: Value, exponent: Value) -> Value:
    return powers.power(Lanes(f, base), Lanes(f, exponent)).value


def floor_divide(f: Function, a: Value, b: Value) -> Value:
    return remainder.floor_divide(Lanes(f, a), Lanes(f, b)).value


def floor_mod(f: Function, a: Value, b: Value) -> Value:
    return remainder.floor_mod(Lanes(f, a), Lanes(f, b)).value
