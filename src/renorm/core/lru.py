"""Things that are made when they are first asked for, and the latest few kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from renorm.core.locks import Lock, Rank

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Latest(Generic[K, V]):
    """Things that were made, by key; of more than `most` that which was asked for longest ago goes. name: how errors
    call one.

    Each is made once, by who asks first; who asks for the same meanwhile waits. What is there is had without waiting,
    also by a signal handler.
    """

    def __init__(self, name: str, most: int):
        self._name, self._most = name, most
        self._made = OrderedDict[K, V]()
        self._locks = dict[K, Lock]()

    def get(self, key: K) -> V | None:
        """Return what is there under `key`, which then is the latest; None where nothing is."""
        try:
            self._made.move_to_end(key)
            return self._made[key]
        except KeyError:  # never there, or just gone
            return None

    def made(self, key: K, make: Callable[[], V]) -> V:
        """Return what is there under `key`, or else what `make` returns, which must not be None. Raises what it raises,
        and ReentrancyError inside of a `make` of the same key."""
        if (found := self.get(key)) is not None:
            return found
        with self._locks.setdefault(key, Lock(self._name, Rank.MAKING)):
            if (found := self.get(key)) is None:
                self._made[key] = found = make()
                while len(self._made) > self._most:
                    self._locks.pop(self._made.popitem(last=False)[0], None)
            return found

    def last(self) -> V | None:
        """Return what was asked for last; None where nothing is there."""
        while self._made:
            if (found := self.get(next(reversed(self._made)))) is not None:
                return found
        return None

    def all(self) -> list[V]:
        """Everything that is there."""
        return list(self._made.values())

    def __len__(self) -> int:
        return len(self._made)
