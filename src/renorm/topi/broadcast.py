"""Binary operators with NumPy broadcasting, of tensors beside tensors, expressions and numbers; without a tensor they
give an expression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from renorm import te
from renorm.te.arguments import checked
from renorm.te.math import combined


def _binary(op: str, name: str, meaning: str) -> Callable[[Any, Any], Any]:
    def apply(lhs: Any, rhs: Any) -> Any:
        return combined(op, lhs, rhs)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{meaning}, broadcast."
    return checked("topi.")(apply)


add = _binary("+", "add", "lhs + rhs")
subtract = _binary("-", "subtract", "lhs - rhs")
multiply = _binary("*", "multiply", "lhs * rhs")
divide = _binary("/", "divide", "lhs / rhs; of integers truncated toward zero")
floor_divide = _binary("//", "floor_divide", "floor(lhs / rhs)")
floor_mod = _binary("%", "floor_mod", "lhs - rhs * floor(lhs / rhs), with the sign of rhs")
power = _binary("pow", "power", "lhs to the power of rhs")
maximum = _binary("max", "maximum", "The greater of lhs and rhs")
minimum = _binary("min", "minimum", "The smaller of lhs and rhs")
equal = _binary("==", "equal", "Whether lhs equals rhs")
not_equal = _binary("!=", "not_equal", "Whether lhs differs from rhs")
less = _binary("<", "less", "Whether lhs < rhs")
less_equal = _binary("<=", "less_equal", "Whether lhs <= rhs")
greater = _binary(">", "greater", "Whether lhs > rhs")
greater_equal = _binary(">=", "greater_equal", "Whether lhs >= rhs")
logical_and = _binary("&&", "logical_and", "lhs and rhs, of bool")
logical_or = _binary("||", "logical_or", "lhs or rhs, of bool")


@checked("topi.")
def mod(lhs: Any, rhs: Any) -> Any:
    """lhs - rhs * trunc(lhs / rhs), with the sign of lhs, broadcast."""
    return te.truncmod(lhs, rhs)
