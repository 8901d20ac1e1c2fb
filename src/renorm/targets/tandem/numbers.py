"""Tandem's numbers: 16-bit integers with an exponent that many of them share."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BITS = 15  # of the magnitude
LARGEST = (1 << BITS) - 1


def exponent(largest: Any) -> Any:
    """e of numbers of at most this magnitude (elementwise): below 2^(e + BITS), and 0 where all are zero."""
    fraction, exponents = np.frexp(np.asarray(largest, np.float64))
    return np.where(fraction == 0, 0, exponents - BITS)


def integers(x: Array, e: Any) -> Array:
    """x / 2^e, rounded to nearest, ties to even, saturated; as int16."""
    scaled = np.rint(np.ldexp(x.astype(np.float64), -e))
    return np.clip(scaled, -LARGEST, LARGEST).astype(np.int16)


def weights(w: Array) -> tuple[Array, Array]:
    """Weights [M, ...] as integers, and the exponent of each channel of the result."""
    largest = np.abs(w).max(axis=tuple(range(1, w.ndim)), initial=0)
    e = exponent(largest)
    return integers(w, e.reshape(-1, *[1] * (w.ndim - 1))), e


def per_channel(sums: Array, k: Array, t: Array, e: int, relu: bool) -> Array:
    """Return what the per-channel engine makes of sums [M, ...]: each operation rounds to float32."""
    shape = (-1, *[1] * (sums.ndim - 1))
    with np.errstate(over="ignore", under="ignore"):
        y = np.ldexp(sums.astype(np.float32) * k.reshape(shape), np.int32(e)) + t.reshape(shape)
    return np.maximum(y, np.float32(0)) if relu else y
