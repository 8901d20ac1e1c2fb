"""A weight whose axes lie in another order in memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from renorm.graph.deferred import Array, Deferred, cut, largest, source_key


class TurnedWeight(Deferred):
    """numpy.transpose(w, order), not computed yet."""

    def __init__(self, w: Array | Deferred, order: Sequence[int]):
        self.w, self.order = w, tuple(order)
        self.shape = tuple(w.shape[a] for a in self.order)

    def part(self, axis: int, begin: int, end: int) -> Array:
        return np.transpose(cut(self.w, self.order[axis], begin, end), self.order).astype(np.float64)

    def bound(self) -> float:
        return largest(self.w)

    def key(self) -> Hashable:
        return (TurnedWeight, self.order, source_key(self.w))
