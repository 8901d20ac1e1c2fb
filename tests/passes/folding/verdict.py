"""Which norms of a chain have to be folded: the theory that the passes are held against.

A chain is a list of links, in the order of the data. Each says what a map per channel can do there: going backwards
from a norm behind it (`back`), and forwards from a norm in front of it (`front`):

    takes     its constants hold the map
    carries   the map goes through
    rising    it goes through where all factors are above zero
    scaled    the same, and a shift stays behind as an addition (back), or where there is no shift (front)
    beside    factors go through, and a shift stays behind as an addition (back), or where there is no shift (front)
    fills     factors go through, and an addition stays behind, whatever the map is
    joins     it goes through where a convolution that pads comes next: the two become one
    blocks    it does not

A link may stand for ways that part and join again (`fork`): what all of them do together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Map:
    """What a norm does to each channel along an axis (1, or -1 for the last of more than two)."""

    k: np.ndarray
    shift: np.ndarray
    axis: int = 1

    def then(self, other: Map) -> Map:
        return Map(self.k * other.k, self.shift * other.k + other.shift, self.axis)


@dataclass(frozen=True)
class Link:
    """One step. norm: its map, where it is one; axis: along which it takes or carries one, None for any; adds, scales:
    additions and multiplications that stand there and stay; image: additions that a map from the front leaves that it
    takes, remainder: the same for a map from behind. inner: norms of parts of the channels, between what does `back`
    and what does `front`; local: norms inside that have to be folded there."""

    name: str
    back: str = "blocks"
    front: str = "blocks"
    axis: int | None = 1
    norm: Map | None = None
    adds: int = 0
    scales: int = 0
    image: int = 0
    remainder: int = 0
    inner: tuple[Map, ...] = ()
    local: int = 0


def fork(ways: Sequence[str]) -> str:
    """What ways beside each other do with a map that goes into all of them; at most one of them is `scaled`."""
    for does in ("blocks", "scaled", "carries"):
        if does in ways:
            return does
    return "takes"


@dataclass(frozen=True)
class Bound:
    """The most that may remain: multiplications (norms, Mul, Div) and additions (Add, Sub); norms: how many there are,
    due: how many of them must be folded."""

    scales: int
    adds: int
    norms: int
    due: int


def bound(links: Sequence[Link]) -> Bound:
    """The most that may remain of the norms of a chain."""
    scales, adds = sum(v.scales for v in links), sum(v.adds for v in links)
    norms = due = 0
    at = 0
    while at < len(links):
        unit = links[at].norm
        if unit is None:
            for one in links[at].inner:
                left = left_behind(links[:at], links[at + 1 :], one)
                scales, adds, due = (scales + 2, adds + 2, due) if left is None else (scales, adds + left, due + 1)
            norms, due = norms + len(links[at].inner) + links[at].local, due + links[at].local
            at += 1
            continue
        end = at + 1
        while end < len(links) and (following := links[end].norm) is not None and following.axis == unit.axis:
            unit, end = unit.then(following), end + 1
        norms += end - at
        left = left_behind(links[:at], links[end:], unit)
        if left is None:
            scales, adds = scales + 2, adds + 2  # a norm alone may be spelled out, or be two nodes from the start
        else:
            due, adds = due + end - at, adds + left
        at = end
    return Bound(scales, adds, norms, due)


def left_behind(before: Sequence[Link], behind: Sequence[Link], unit: Map) -> int | None:
    """How many additions a norm leaves that is folded; None where it need not be folded."""
    found = [walk(list(reversed(before)), unit, "back"), walk(behind, unit, "front")]
    known = [f for f in found if f is not None]
    return max(known) if known else None


def walk(links: Sequence[Link], unit: Map, way: str) -> int | None:
    left = 0
    rises, moves = bool((unit.k > 0).all()), bool(unit.shift.any())
    for at, link in enumerate(links):
        if link.norm is not None:
            if way == "back" and link.norm.axis == unit.axis:
                return left + 1  # it goes where that one goes, or joins it
            return None
        does = getattr(link, way)
        if does == "blocks" or (link.axis is not None and link.axis != unit.axis):
            return None
        if does in ("rising", "scaled") and not rises:
            return None
        if does == "joins" and [v.name for v in links[at + 1 : at + 2]] != ["conv"]:
            does = "beside"
        left += does == "fills"
        moves = moves or does == "fills"  # what goes on leaves the number that is filled in as it is
        if does in ("scaled", "beside") and moves:
            if way == "front":
                return None
            left += 1
        if does == "takes":
            return left + (moves and (link.remainder if way == "back" else link.image))
    return None
