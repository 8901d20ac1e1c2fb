"""A list that knows what is in it, however long it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Listed(list[T]):
    """A list of hashable items, and the set of them, which is made anew after a change."""

    _members: frozenset[T] | None = None

    @property
    def members(self) -> frozenset[T]:
        if self._members is None:
            self._members = frozenset(self)
        return self._members


def _noticed(change: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self: Listed[Any], *args: Any) -> Any:
        self._members = None
        return change(self, *args)

    return changed


for _name in ("append", "clear", "extend", "insert", "pop", "remove"):
    setattr(Listed, _name, _noticed(getattr(list, _name)))
for _name in ("__delitem__", "__iadd__", "__imul__", "__setitem__"):
    setattr(Listed, _name, _noticed(getattr(list, _name)))
