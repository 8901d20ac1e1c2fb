"""Binary operators with NumPy broadcasting. Operands are tensors or Python numbers, at least one a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from renorm.te.tensor import Tensor, arithmetic


def _binary(op: str, name: str, meaning: str) -> Callable[[Any, Any], Tensor]:
    def apply(a: Any, b: Any) -> Tensor:
        return arithmetic(op, a, b)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{meaning}, broadcast."
    return apply


add = _binary("+", "add", "a + b")
subtract = _binary("-", "subtract", "a - b")
multiply = _binary("*", "multiply", "a * b")
divide = _binary("/", "divide", "a / b; integers truncate toward zero")
floor_divide = _binary("//", "floor_divide", "floor(a / b)")
mod = _binary("%", "mod", "a - b * floor(a / b)")
power = _binary("pow", "power", "a to the power of b")
maximum = _binary("max", "maximum", "The greater of a and b")
minimum = _binary("min", "minimum", "The smaller of a and b")
equal = _binary("==", "equal", "Whether a equals b")
not_equal = _binary("!=", "not_equal", "Whether a differs from b")
less = _binary("<", "less", "Whether a < b")
less_equal = _binary("<=", "less_equal", "Whether a <= b")
greater = _binary(">", "greater", "Whether a > b")
greater_equal = _binary(">=", "greater_equal", "Whether a >= b")
logical_and = _binary("&&", "logical_and", "a and b, of bool")
logical_or = _binary("||", "logical_or", "a or b, of bool")
