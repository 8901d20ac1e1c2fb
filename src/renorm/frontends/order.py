"""Nodes in an order in which they can be computed: files need not keep one, and no runtime asks for it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def topological(reads: Sequence[Iterable[Name]], makes: Sequence[Iterable[Name]]) -> tuple[list[int], list[int]]:
    """Return the places of nodes that read and make these names, each after those whose results it reads, and otherwise
    as they stand. Then those of nodes in a ring, each of which reads a result of the next one and the last of the
    first; nothing is in one as a rule. Nodes that read results of a ring are in neither."""
    maker: dict[Name, int] = {}
    for place, names in enumerate(makes):
        for name in names:
            if name:
                maker.setdefault(name, place)
    needed = [{maker[name] for name in names if name in maker} for names in reads]
    if all(p < place for place, before in enumerate(needed) for p in before):
        return list(range(len(reads))), []
    readers: list[list[int]] = [[] for _ in reads]
    for place, before in enumerate(needed):
        for p in before:
            readers[p].append(place)
    missing = [len(before) for before in needed]
    ready = [place for place, count in enumerate(missing) if not count]
    heapify(ready)
    found: list[int] = []
    while ready:
        place = heappop(ready)
        found.append(place)
        for reader in readers[place]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return found, _ring(needed, missing)


def _ring(needed: Sequence[set[int]], missing: Sequence[int]) -> list[int]:
    """Return a ring of nodes that wait for each other, of those that wait for others."""
    at = next((place for place, count in enumerate(missing) if count), None)
    path: dict[int, None] = {}
    while at is not None and at not in path:
        path[at] = None
        at = min(p for p in needed[at] if missing[p])
    passed = [*path]
    return [] if at is None else passed[passed.index(at) :]
