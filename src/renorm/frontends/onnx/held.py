"""Values of an ONNX file that are no tensors: sequences of them, and optionals that hold nothing.

They are values to who reads the file, and in no graph. An optional that holds something is what it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from renorm import ops
from renorm.core.errors import InvalidModel
from renorm.graph.ir import Value


class Held(Value):
    """Base of both. Who takes it for a tensor, and asks for its type, is told what it is."""

    what = ""

    def __init__(self, name: str):
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        raise self.mistaken()

    def mistaken(self) -> InvalidModel:
        return InvalidModel(f"{self.name!r} is {self.what}, where a tensor is expected")


class Items(Held):
    """A sequence of tensors. element: their dtype."""

    what = "a sequence"

    def __init__(self, name: str, items: Sequence[Value], element: str):
        super().__init__(name)
        self.items, self.element = tuple(items), element
        for v in self.items:
            if v.dtype != element:
                raise InvalidModel(f"{name!r} is a sequence of {element}: {v.name!r} is {v.type}")


class Absent(Held):
    """An optional that holds nothing."""

    what = "an optional without a value"


def described(value: Value) -> str:
    """Return the type of a value, as errors say it."""
    if isinstance(value, Items):
        return f"a sequence of {', '.join(str(v.type) for v in value.items) or 'nothing'}"
    return value.what if isinstance(value, Held) else str(value.type)


def chosen_by(condition: Value, one: Value, other: Value) -> Value:
    """Return one of two values that `described` calls the same, by a condition that data decide."""
    if isinstance(one, Items) and isinstance(other, Items):
        return Items(one.name, [ops.where(condition, a, b) for a, b in zip(one.items, other.items)], one.element)
    return one if isinstance(one, Held) else ops.where(condition, one, other)
