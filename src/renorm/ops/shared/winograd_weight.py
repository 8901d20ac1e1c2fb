"""The weight as Winograd's algorithm transforms it: U = G w G^T (see winograd.py), whole or in parts."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from renorm.graph.deferred import Array, Deferred, cut, largest, parts, source_key
from renorm.ops.shared.filtering import Filter


def transformed_weight(w: Array, filters: tuple[Filter, Filter], out: Array | None = None) -> Array:
    """U[P, C, K] = G w G^T of w[K, C, *taps], in float64. out: where it is put, with the two axes of P apart and those
    of C and K joined."""
    (down, across), (k, c) = filters, w.shape[:2]
    taps = np.ascontiguousarray(w.transpose(2, 3, 1, 0), np.float64)
    rows = (down.g @ taps.reshape(len(taps), taps.shape[1] * c * k)).reshape(down.products, taps.shape[1], c * k)
    return np.matmul(across.g, rows, out=out).reshape(down.products * across.products, c, k)


class TransformedWeight(Deferred):
    """transformed_weight(w, filters), not computed yet. result_axis: axis of K in w, 0 or 1; C is the other one."""

    def __init__(self, w: Array | Deferred, filters: tuple[Filter, Filter], result_axis: int = 0):
        self.w, self.filters, self.result_axis = w, filters, result_axis
        planes = filters[0].products * filters[1].products
        self.shape = (planes, w.shape[1 - result_axis], w.shape[result_axis])

    def part(self, axis: int, begin: int, end: int) -> Array:
        if axis == 0:  # a part of the planes
            return self.part(1, 0, self.shape[1])[begin:end]
        w = cut(self.w, self.result_axis if axis == 2 else 1 - self.result_axis, begin, end)
        w = w.swapaxes(0, self.result_axis)
        k, c = w.shape[:2]
        made = np.empty((*(f.products for f in self.filters), c * k))
        for first, last in parts((self.shape[0], c, k), 1):
            transformed_weight(w[:, first:last], self.filters, made[..., first * k : last * k])
        return made.reshape(self.shape[0], c, k)

    def bound(self) -> float:
        down, across = (float(np.abs(f.g).sum(axis=1).max()) for f in self.filters)
        return float(down * across * (1 + 1e-9) * largest(self.w))  # sums are rounded

    def key(self) -> Hashable:
        return (TransformedWeight, self.filters, self.result_axis, source_key(self.w))
