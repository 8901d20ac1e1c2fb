"""Python's operators as builders of expressions: an expression, an axis and a tensor have all of them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from renorm.core.errors import InvalidExpression


class Operators:
    """`x + y`, `2 // x`, `x < y`, ... all are `_infix(op, x, y)`. What `==` means is left to each class."""

    __slots__ = ()
    __array_ufunc__ = None  # NumPy must not take over `np.float32(2) * x`

    @abstractmethod
    def _infix(self, op: str, a: Any, b: Any, /) -> Any:
        """Return a op b, one of which is this object; NotImplemented where the other one's class decides."""

    def __add__(self, other: Any) -> Any:
        return self._infix("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._infix("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._infix("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._infix("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._infix("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._infix("*", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._infix("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._infix("/", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._infix("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._infix("//", other, self)

    def __mod__(self, other: Any) -> Any:
        return self._infix("%", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._infix("%", other, self)

    def __pow__(self, other: Any) -> Any:
        return self._infix("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return self._infix("pow", other, self)

    def __lt__(self, other: Any) -> Any:
        return self._infix("<", self, other)

    def __le__(self, other: Any) -> Any:
        return self._infix("<=", self, other)

    def __gt__(self, other: Any) -> Any:
        return self._infix(">", self, other)

    def __ge__(self, other: Any) -> Any:
        return self._infix(">=", self, other)

    def _bitwise(self, *_: Any) -> Any:
        raise InvalidExpression(
            f"operators on bits are absent: {getattr(self, 'name', self)} cannot be one of their operands",
            do="te.all and te.any combine conditions; multiply, //, % by powers of two move and mask bits",
        )

    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _bitwise
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __invert__ = _bitwise
