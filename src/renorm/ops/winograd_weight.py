"""What Winograd's algorithm makes of a weight: U = G w G^T (see ops.winograd), whole or in parts."""

from __future__ import annotations

import numpy as np

from renorm.ops.filtering import Array, Filter
from renorm.ops.winograd import products


def transformed_weight(w: Array, filters: tuple[Filter, Filter]) -> Array:
    """U[P, C, K] = G w G^T of w[K, C, *taps], in float64."""
    down, across = filters
    taps = np.ascontiguousarray(w.transpose(2, 3, 1, 0), np.float64)
    rows = np.stack(products(down.g, list(taps)))
    return np.stack(products(across.g, list(rows.swapaxes(0, 1))), axis=1).reshape(-1, *taps.shape[2:])


def largest_transformed(w: Array, filters: tuple[Filter, Filter]) -> float:
    """No element of G w G^T has a larger magnitude; not finite where an element of w is not."""
    sums = [float(np.abs(f.g).sum(axis=1).max()) for f in filters]
    return sums[0] * sums[1] * float(np.abs(w).max(initial=0.0))
