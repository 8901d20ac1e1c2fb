"""Tensors of formats that keep channels last, as values of a graph, each in up to two orders of axes.

Convolutions of a graph want channels first. A tensor is held as it was made (`stored`: as in the format; `first`:
channels first) and made in the other order when somebody asks; a transpose that nobody reads goes with dead code. Up to
two axes there is no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from renorm import ops
from renorm.core.shapes import normalize_axis
from renorm.graph.ir import Graph, Value


def to_first(rank: int) -> tuple[int, ...]:
    """Return the axes of a tensor of the format, in the order channels first."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 2 else tuple(range(rank))


def to_stored(rank: int) -> tuple[int, ...]:
    """Return the axes of a tensor with channels first, in the order of the format."""
    return (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))


@dataclass(frozen=True)
class First:
    """A result with channels first."""

    value: Value


class Ordered:
    """One tensor of the format."""

    def __init__(self, graph: Graph, name: str):
        self.graph, self.name = graph, name
        self._stored: Value | None = None
        self._first: Value | None = None

    @property
    def is_made(self) -> bool:
        return self._stored is not None or self._first is not None

    @property
    def is_first(self) -> bool:
        """Return whether only the form with channels first exists, so that asking for the other costs a transpose."""
        return self._stored is None and self._first is not None

    @property
    def value(self) -> Value:
        """In whichever form it is."""
        found = self._stored if self._stored is not None else self._first
        assert found is not None
        return found

    def forms(self) -> list[tuple[Value, bool]]:
        """Return the values that it is, and whether each has channels first."""
        both = [(self._stored, False), (self._first, True)]
        return [(v, is_first) for v, is_first in both if v is not None]

    def make(self, result: Value | First) -> None:
        """The result of what makes this tensor."""
        if isinstance(result, First) and result.value.rank > 2:
            self._first = result.value
        else:
            self._stored = result.value if isinstance(result, First) else result

    def stored(self) -> Value:
        if self._stored is None:
            assert self._first is not None
            self._stored = self._turned(self._first, to_stored(self._first.rank))
        return self._stored

    def first(self) -> Value:
        if self._first is None:
            assert self._stored is not None
            if self._stored.rank <= 2:
                return self._stored
            self._first = self._turned(self._stored, to_first(self._stored.rank))
        return self._first

    def _turned(self, value: Value, perm: Sequence[int]) -> Value:
        if value.data is not None:
            return self.graph.constant(np.ascontiguousarray(value.data.transpose(perm)), value.name, value.source)
        turned = ops.transpose(value, perm=perm, name=f"{self.name}.order")
        if value is self._first and value.name == self.name:  # what is in the format's order has the format's name
            self.graph.swap_names(turned, value)
        return turned


@dataclass(frozen=True)
class View:
    """Operands in one order of axes: that of the format, or channels first."""

    values: Sequence[Value]
    is_first: bool = False

    @property
    def order(self) -> tuple[int, ...]:
        """Return the axes of the format."""
        rank = self.values[0].rank
        return to_first(rank) if self.is_first else tuple(range(rank))

    def place(self, axis: int) -> int:
        """Return where an axis of the format is."""
        return self.order.index(normalize_axis(axis, len(self.order)))

    def result(self, value: Value) -> Value | First:
        return First(value) if self.is_first else value


def aligned(tensors: Sequence[Ordered]) -> View:
    """Return operands that broadcast against each other in one order: with channels first where one of them is so
    already, and constants are all that has fewer axes."""
    rank = max(t.value.rank for t in tensors)
    is_first = any(t.is_first for t in tensors) and all(
        t.value.rank in (0, rank) or t.value.data is not None for t in tensors
    )
    if not is_first:
        return View([t.stored() for t in tensors])
    return View([t.first() if t.value.rank in (0, rank) else _spread(t, rank) for t in tensors], True)


def _spread(tensor: Ordered, rank: int) -> Value:
    """Return a constant of fewer axes, which stand under the last of `rank`, with channels first."""
    held = tensor.stored()
    assert held.data is not None
    whole = held.data.reshape([1] * (rank - held.rank) + list(held.data.shape))
    return tensor.graph.constant(np.ascontiguousarray(whole.transpose(to_first(rank))), held.name, held.source)
