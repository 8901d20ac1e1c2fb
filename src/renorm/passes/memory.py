"""Memory plan: where in one arena each buffer lies, given when it is alive.

    plan : [Lifetime] -> offsets, such that buffers alive at the same step do not overlap

Greedy by size: the largest buffer first, each at the lowest offset where no buffer that lives with it is in the way.
The lower bound is the most bytes alive at one step, which no plan can go below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from renorm.runtime.program import align


@dataclass(frozen=True)
class Lifetime:
    """A buffer of so many bytes, alive from the launch `first`, which writes it, to the launch `last`, which reads it
    last."""

    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """offsets: bytes from the start of the arena, one for each lifetime. size: bytes of the arena. lower_bound: bytes
    any plan needs."""

    offsets: tuple[int, ...]
    size: int
    lower_bound: int


def plan(lifetimes: Sequence[Lifetime]) -> Plan:
    """Aligned offsets for all buffers; one of no bytes lies at 0."""
    offsets = [0] * len(lifetimes)
    placed: list[tuple[int, int, Lifetime]] = []  # (begin, end, buffer)
    by_size = sorted(enumerate(lifetimes), key=lambda e: (-align(e[1].bytes), e[1].first, e[1].last, e[0]))
    for index, own in by_size:
        size, at = align(own.bytes), 0
        if not size:
            continue
        rivals = [p for p in placed if p[2].first <= own.last and own.first <= p[2].last]
        for begin, end, _ in sorted(rivals, key=lambda p: p[:2]):
            if at + size <= begin:
                break
            at = max(at, end)
        placed.append((at, at + size, own))
        offsets[index] = at
    return Plan(tuple(offsets), max((end for _, end, _ in placed), default=0), _most_alive(lifetimes))


def _most_alive(lifetimes: Sequence[Lifetime]) -> int:
    """Bytes, counting each buffer with its alignment."""
    change: dict[int, int] = {}
    for b in lifetimes:
        change[b.first] = change.get(b.first, 0) + align(b.bytes)
        change[b.last + 1] = change.get(b.last + 1, 0) - align(b.bytes)
    alive = most = 0
    for step in sorted(change):
        alive += change[step]
        most = max(most, alive)
    return most
