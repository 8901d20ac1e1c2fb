"""Half-open ranges of integers, and which of them meet another one: found without looking at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Spans(Generic[T]):
    """Items, each with a range [begin, end), which is not empty.

    Those of lengths up to the same power of two stand together, in the order in which they begin: what meets a range
    begins in front of its end, and not further in front of it than that power.
    """

    def __init__(self) -> None:
        self._by_length: dict[int, list[tuple[int, int, int, T]]] = {}  # begin, what tells equal ones apart, end, item
        self._count = 0

    def add(self, begin: int, end: int, item: T) -> None:
        self._count += 1
        insort(self._by_length.setdefault((end - begin).bit_length(), []), (begin, self._count, end, item))

    def meeting(self, begin: int, end: int) -> Iterator[T]:
        """Items whose ranges share a number with [begin, end)."""
        for length, held in self._by_length.items():
            for i in range(bisect_left(held, (begin - (1 << length) + 1,)), len(held)):
                first, _, last, item = held[i]
                if first >= end:
                    break
                if last > begin:
                    yield item
