"""A list that knows what is in it, however long it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
_CHANGES = ("append", "clear", "extend", "insert", "pop", "remove")
_OPERATORS = ("__delitem__", "__iadd__", "__imul__", "__setitem__")


class Listed(list[T]):
    """A list of hashable items. members: the set of them, made anew after a change."""

    def __init__(self, items: Iterable[T] = ()):
        super().__init__(items)
        self.known: set[T] | None = None

    @property
    def members(self) -> set[T]:
        if self.known is None:
            self.known = set(self)
        return self.known


def _noticed(change: Callable[..., Any]) -> Callable[..., Any]:
    def made(self: Listed[Any], *args: Any) -> Any:
        self.known = None
        return change(self, *args)

    return made


for _name in (*_CHANGES, *_OPERATORS):
    setattr(Listed, _name, _noticed(getattr(list, _name)))
