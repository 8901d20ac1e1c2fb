"""What Winograd's algorithm makes of a weight: U = G w G^T (see ops.winograd), whole or in parts."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from renorm.graph.deferred import Array, Deferred, cut, largest, parts, source_key
from renorm.ops.winograd import TAPS, matrices


def transformed_weight(w: Array, m: int) -> Array:
    """U[n * n, C, K] = G w G^T of w[K, C, 3, 3], in float64."""
    g, (k, c) = matrices(m)[1], w.shape[:2]
    taps = np.ascontiguousarray(w.transpose(2, 3, 1, 0), np.float64)
    rows = (g @ taps.reshape(TAPS, TAPS * c * k)).reshape(len(g), TAPS, c * k)
    return (g @ rows).reshape(len(g) ** 2, c, k)


class TransformedWeight(Deferred):
    """transformed_weight(w, m), not computed yet."""

    def __init__(self, w: Array | Deferred, m: int):
        self.w, self.m = w, m
        self.shape = ((m + TAPS - 1) ** 2, w.shape[1], w.shape[0])

    def part(self, axis: int, begin: int, end: int) -> Array:
        if axis == 0:  # a part of the planes
            return self.part(1, 0, self.shape[1])[begin:end]
        w = cut(self.w, 2 - axis, begin, end)
        made = np.empty((self.shape[0], w.shape[1], w.shape[0]))
        for first, last in parts(made.shape, 1):
            made[:, first:last] = transformed_weight(w[:, first:last], self.m)
        return made

    def bound(self) -> float:
        sums = np.abs(matrices(self.m)[1]).sum(axis=1).max()
        return float(sums * sums * (1 + 1e-9) * largest(self.w))  # sums are rounded

    def key(self) -> Hashable:
        return (TransformedWeight, self.m, source_key(self.w))
