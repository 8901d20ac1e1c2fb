"""Maps per channel, and how they go through ops.

    ChannelMap: x * k + shift along one axis of x, for all of its channels or for some
    carry ::= result, axis, pairs of channels (of the result, of the operand), and what the op asks of the map

An op that leaves channels apart commutes with such maps: f(x * k + shift) = f(x) * k' + shift', where k' has for each
channel of the result what k has for the channels of x that it comes from. `pushed` goes from operand to result,
`pulled` from result to operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MOST = 1 << 20  # channels of one axis that maps go through: a map has numbers for each, and a batch may be any size


@dataclass(frozen=True, eq=False)
class ChannelMap:
    """x * k + shift along one axis of x; None for a factor of 1 and a shift of 0.

    of: the channels of which this is known, where others may have any map; None for all of them.
    """

    axis: int
    k: Array | None
    shift: Array | None
    of: Array | None = None

    def objection(self) -> str | None:
        """Return why constants cannot take the map: a sentence; None where they can."""
        for values in (self.k, self.shift):
            if values is not None and not np.isfinite(values).all():
                return f"its scale or shift is not finite in channel {int(np.flatnonzero(~np.isfinite(values))[0])}"
        return None

    def plain(self) -> ChannelMap:
        """The same map without factors that are all 1 and shifts that are all 0."""
        k = None if self.k is None or (self.k == 1).all() else self.k
        return ChannelMap(self.axis, k, None if self.shift is None or not self.shift.any() else self.shift, self.of)

    @property
    def is_identity(self) -> bool:
        return self.k is None and self.shift is None

    def along(self, shape: Sequence[Any]) -> list[ChannelMap]:
        """The same map of a value of this shape: along other axes too where all channels have the same factor and
        shift."""
        for v in (self.k, self.shift):
            if v is not None and (not v.size or not np.array_equal(v, np.broadcast_to(v[:1], v.shape))):
                return [self]
        others = [a for a, extent in enumerate(shape) if a != self.axis and isinstance(extent, int) and extent <= MOST]
        return [self] + [
            ChannelMap(a, *(None if v is None else np.repeat(v[:1], shape[a]) for v in (self.k, self.shift)))
            for a in others
        ]

    def then(self, other: ChannelMap) -> ChannelMap:
        """This map, and after it another one along the same axis."""
        k = other.k if self.k is None else self.k if other.k is None else self.k * other.k
        moved = self.shift if self.shift is None or other.k is None else self.shift * other.k
        shift = other.shift if moved is None else moved if other.shift is None else moved + other.shift
        return ChannelMap(self.axis, k, shift)

    def joined(self, other: ChannelMap) -> ChannelMap | None:
        """Return one map for two of the same value; None where they differ in a channel of both."""
        if self.axis != other.axis:
            if not other.is_identity:
                return other.joined(self) if self.is_identity else None
            somewhere = other.of is None or other.of.any()
            other = ChannelMap(self.axis, None, None, None if somewhere else np.zeros(self.count, bool))
        both = ChannelMap(self.axis, None, None)
        if self.is_identity and other.is_identity and (self.of is None or other.of is None):
            return both
        count, found = max(self.count, other.count), list[Array]()
        mine, its = (np.ones(count, bool) if m.of is None else m.of for m in (self, other))
        for own, others, neutral in ((self.k, other.k, 1.0), (self.shift, other.shift, 0.0)):
            a, b = (np.full(count, neutral) if v is None else v for v in (own, others))
            if not np.array_equal(a[mine & its], b[mine & its]):
                return None
            found.append(np.where(its, b, a))
        return ChannelMap(self.axis, found[0], found[1], mine | its).plain()

    @property
    def count(self) -> int:
        """Return the number of channels; 1 where nothing says it."""
        return next((v.size for v in (self.k, self.shift, self.of) if v is not None), 1)


@dataclass(frozen=True, eq=False)
class Carry:
    """Where an op leaves the channels of an operand.

    pairs: [P, 2], channels of the result and of the operand that have elements in common. positive: the op commutes
    with factors above zero only; joined: operands add up, and a shift goes to one of them. fixed: the op commutes only
    with maps that leave this number as it is: 0 where f(x * k) = f(x) * k alone holds, or what is put beside elements
    of the operand. None where it commutes with any.
    """

    axis: int
    pairs: Array
    result: int = 0
    positive: bool = False
    joined: bool = False
    negated: bool = False
    fixed: float | None = None

    def objection(self, m: ChannelMap) -> str | None:
        """Return why the op does not commute with a map, after "it"."""
        if self.positive and m.k is not None and not (m.k > 0).all():
            return f"does not commute with factors that are not above zero: {_first(~(m.k > 0), m.k)}"
        if self.fixed is not None:
            moved, stays = self._image(self.fixed, m)
            if not stays.all():
                return f"does not commute with maps that change {self.fixed:g}: it becomes {_first(~stays, moved)}"
        return None

    @staticmethod
    def _image(number: float, m: ChannelMap) -> tuple[Array, Array]:
        """Return what a map makes of a number in each channel, and whether it is the same but for the roundings of two
        operations."""
        k = np.asarray(_or(m.k, 1.0))
        with np.errstate(invalid="ignore"):
            moved = np.atleast_1d(number * k + _or(m.shift, 0.0))
            rounding = 4e-16 * abs(number) * (1 + np.abs(k)) if np.isfinite(number) else 0.0
            return moved, (moved == number) | (np.abs(moved - number) <= rounding)

    def parted(self, m: ChannelMap) -> tuple[ChannelMap, Array | None]:
        """A map that the op may commute with, and the shift that then comes after it: x * k + shift is the two, one
        after the other. None where nothing would be left behind, or nothing but a shift would go."""
        if self.fixed is None or m.k is None or (m.k == 1).all():
            return m, None
        own = self.fixed * (1 - m.k)
        rest = _or(m.shift, 0.0) - own
        if not rest.any() or not np.isfinite(rest).all():
            return m, None
        return ChannelMap(m.axis, m.k, own if self.fixed else None), rest


def _first(is_one: Array, values: Array) -> str:
    """Return the value of the first of some channels, and how many others there are."""
    channels = np.flatnonzero(is_one)
    others = f", and {channels.size - 1} more" if channels.size > 1 else ""
    return f"{values[channels[0]]:.3g} in channel {channels[0]}{others}"


def cancellation(scale: Array, bias: Array, mean: Array, var: Array, epsilon: float) -> float:
    """Return how many times the rounding of one number x * k + shift may round, k = scale / sqrt(var + epsilon),
    relative to the largest result of a batch norm, which is about bias +- scale: k * x and shift cancel where k * mean
    is large."""
    with np.errstate(all="ignore"):
        results = np.abs(scale) + np.abs(bias)
        terms = np.abs(scale * mean) / np.sqrt(var + epsilon) + results
        largest = float(results.max(initial=0.0))
        return float(terms.max(initial=0.0)) / largest if largest else 1.0


def _or(values: Array | None, neutral: float) -> Any:
    return neutral if values is None else values


def every(extent: Any, axis: int, **asked: Any) -> Carry | None:
    """Each channel stays what it is, on that axis of the result; None where their number is not known, or so large that
    they are no channels."""
    if not isinstance(extent, int) or extent > MOST:
        return None
    return Carry(axis, np.repeat(np.arange(extent)[:, None], 2, axis=1), **asked)


def pushed(carry: Carry, m: ChannelMap, extent: int) -> ChannelMap | str:
    """Return the map on a result of `extent` channels, known for those that come from the operand."""
    return carry.objection(m) or _moved(carry.pairs[:, 0], carry.pairs[:, 1], m, carry.axis, extent)


def pulled(carry: Carry, m: ChannelMap, axis: int, extent: int) -> ChannelMap | str:
    """Return the map on an operand of `extent` channels along `axis`, known for those that are in the result."""
    if carry.negated and m.shift is not None:
        m = ChannelMap(m.axis, m.k, -m.shift)
    return carry.objection(m) or _moved(carry.pairs[:, 1], carry.pairs[:, 0], m, axis, extent)


def _moved(to: Array, of: Array, m: ChannelMap, axis: int, extent: int) -> ChannelMap | str:
    if extent > MOST:
        return f"has {extent} channels, and maps go through {MOST} at most"
    found, known = list[Array | None](), np.zeros(extent, bool)
    known[to] = True
    for values, neutral in ((m.k, 1.0), (m.shift, 0.0)):
        if values is None:
            found.append(None)
            continue
        made = np.full(extent, neutral)
        made[to] = values[of]
        if not np.array_equal(made[to], values[of], equal_nan=True):
            return "brings channels together whose factors differ"
        found.append(made)
    return ChannelMap(axis, found[0], found[1], known)
