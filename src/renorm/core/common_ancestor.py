"""A tree that grows by leaves, and where two of its members meet: found in as many steps as its depth has digits.

Each member knows, beside the one above it, one further up: as far as its depth has a digit in skew binary numbers
(Myers 1983), so that members of equal depth reach equally far.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Ancestry(Generic[T]):
    """above: of each member the one that it was added below; None for the root, which is there from the beginning."""

    def __init__(self) -> None:
        self.above: dict[T, T | None] = {}
        self._further: dict[T | None, T | None] = {None: None}
        self._depth: dict[T | None, int] = {None: 0}

    def add(self, member: T, above: T | None) -> None:
        """Add a new member below one that is there."""
        depth, further = self._depth, self._further
        near = further[above]
        is_even = depth[above] - depth[near] == depth[near] - depth[further[near]] > 0
        self.above[member], depth[member] = above, depth[above] + 1
        further[member] = further[near] if is_even else above

    def meet(self, a: T | None, b: T | None) -> T | None:
        """Return the lowest member that is above both, or one of the two."""
        if self._depth[a] < self._depth[b]:
            a, b = b, a
        a = self._raised(a, self._depth[b])
        while a != b:
            if self._further[a] != self._further[b]:
                a, b = self._further[a], self._further[b]
            else:
                a, b = self._parent(a), self._parent(b)
        return a

    def _raised(self, a: T | None, depth: int) -> T | None:
        while self._depth[a] > depth:
            further = self._further[a]
            a = further if self._depth[further] >= depth else self._parent(a)
        return a

    def _parent(self, a: T | None) -> T | None:
        return None if a is None else self.above[a]
