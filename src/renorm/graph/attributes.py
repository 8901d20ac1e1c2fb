"""Attributes of ops: declared as class attributes of an OpDef, checked when an op is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidExpression, OperandError

_REQUIRED: Any = object()


class Attribute:
    """One attribute. Without a default it must be given. onnx: its name in ONNX where that differs."""

    kind = "value"

    def __init__(self, default: Any = _REQUIRED, *, onnx: str | None = None):
        self.default, self._onnx, self.name = default, onnx, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    if TYPE_CHECKING:  # on an op made of the class, the name holds the attribute's value

        def __get__(self, op: Any, owner: Any = None) -> Any: ...

    @property
    def onnx(self) -> str:
        return self._onnx or self.name

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED

    def check(self, value: Any, op: str) -> Any:
        """The value in canonical form (hashable); raises OperandError."""
        try:
            return self.convert(value)
        except (TypeError, ValueError, OverflowError, InvalidExpression) as error:
            raise OperandError(f"{op}: attribute {self.name} = {value!r} is not {self.kind}", [str(error)]) from None

    def convert(self, value: Any) -> Any:
        return value

    def left_out(self) -> None:
        """None is a value where it is the default; TypeError elsewhere."""
        if self.default is not None:
            raise TypeError("must be given")


class Float(Attribute):
    kind = "a number"

    def __init__(self, default: Any = _REQUIRED, *, at_least: float | None = None, onnx: str | None = None):
        super().__init__(default, onnx=onnx)
        self.at_least = at_least

    def convert(self, value: Any) -> float | None:
        if value is None:
            return self.left_out()
        number = float(value)
        if self.at_least is not None and not number >= self.at_least:
            raise ValueError(f"must be at least {self.at_least}")
        return number


class Int(Attribute):
    kind = "an integer"

    def __init__(self, default: Any = _REQUIRED, *, at_least: int | None = None, onnx: str | None = None):
        super().__init__(default, onnx=onnx)
        self.at_least = at_least

    def convert(self, value: Any) -> int | None:
        if value is None:
            return self.left_out()
        number = int(value)
        if number != value:
            raise ValueError("has a fraction")
        if self.at_least is not None and number < self.at_least:
            raise ValueError(f"must be at least {self.at_least}")
        return number


class Bool(Attribute):
    kind = "true or false"

    def convert(self, value: Any) -> bool:
        if value not in (0, 1):
            raise ValueError("must be 0 or 1")
        return bool(value)


class Ints(Attribute):
    """A tuple of integers. A default of None stands for `as many as the operands ask for`, settled by the op."""

    kind = "a list of integers"

    def convert(self, value: Any) -> tuple[int, ...] | None:
        if value is None:
            return self.left_out()
        if isinstance(value, (int, np.integer)):
            raise TypeError("must be a list")
        return tuple(int(v) for v in value)


class Floats(Attribute):
    kind = "a list of numbers"

    def convert(self, value: Any) -> tuple[float, ...] | None:
        if value is None:
            return self.left_out()
        return tuple(float(v) for v in value)


class String(Attribute):
    kind = "one of its words"

    def __init__(self, default: Any = _REQUIRED, *, among: Sequence[str] = (), onnx: str | None = None):
        super().__init__(default, onnx=onnx)
        self.among = tuple(among)

    def convert(self, value: Any) -> str | None:
        if value is None:
            return self.left_out()
        text = value.decode() if isinstance(value, bytes) else str(value)
        if self.among and text not in self.among:
            raise ValueError(f"known: {', '.join(self.among)}")
        return text


class Type(Attribute):
    """A dtype, by renorm's name."""

    kind = "a dtype"

    def convert(self, value: Any) -> str | None:
        if value is None:
            return self.left_out()
        return dtypes.lookup(str(value)).name
