"""What Tandem must compute, from its number format alone: no instructions, no tiles; exact fractions where numbers are
rounded to integers, int64 sums, and each operation of the per-channel engine in float64 before it rounds to float32 (of
one operation on float32 numbers float64 holds enough digits for that to round once)."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def exponent(largest: float) -> int:
    """The least e with largest < 2^(e + 15)."""
    if largest == 0:
        return 0
    value, e = Fraction(largest), -200
    while value >= Fraction(2) ** (e + 15):
        e += 1
    return e


def integers(x: Array, e: int) -> Array:
    """x / 2^e to nearest, ties to even (as Python rounds), saturated."""
    scale = Fraction(2) ** e
    found = [max(-32767, min(32767, round(Fraction(float(v)) / scale))) for v in x.reshape(-1)]
    return np.array(found, np.int64).reshape(x.shape)


def convolve(x: Array, w: Array, strides: Any, dilations: Any, pads: Any, groups: int) -> Array:
    """Integers; pads as in ONNX."""
    (top, left, bottom, right), (sh, sw), (dh, dw) = pads, strides, dilations
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    m, c, kh, kw = w.shape
    rows = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
    columns = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
    y = np.zeros((x.shape[0], m, rows, columns), np.int64)
    for o in range(m):
        first = o // (m // groups) * c
        for i in range(c):
            for a in range(kh):
                for b in range(kw):
                    part = x[:, first + i, a * dh : a * dh + sh * rows : sh, b * dw : b * dw + sw * columns : sw]
                    y[:, o] += part[:, :rows, :columns] * w[o, i, a, b]
    return y


def launch(
    x: Array, w: Array, b: Array | None, norm: Any, relu: bool, strides: Any, dilations: Any, pads: Any, groups: int
) -> Array:
    """norm: scale, bias, mean, var, epsilon; or None."""
    m = len(w)
    e = exponent(float(np.abs(x).max()))
    exponents = [exponent(float(np.abs(w[o]).max())) for o in range(m)]
    q = np.stack([integers(w[o], exponents[o]) for o in range(m)])
    sums = convolve(integers(x, e), q, strides, dilations, pads, groups)
    assert np.abs(sums).max() < 2**47
    k, t = np.ones(m), np.zeros(m) if b is None else b.astype(np.float64)
    if norm is not None:
        scale, beta, mean, var = (a.astype(np.float64) for a in norm[:4])
        k = scale / np.sqrt(var + norm[4])
        t = (t - mean) * k + beta
    y = np.empty(sums.shape, np.float32)
    for o in range(m):
        factor, shift = np.float32(k[o] * 2.0 ** exponents[o]), np.float32(t[o])
        value = np.float32(sums[:, o].astype(np.float64))
        value = np.float32(value.astype(np.float64) * np.float64(factor))
        value = np.float32(value.astype(np.float64) * 2.0**e)
        y[:, o] = np.float32(value.astype(np.float64) + np.float64(shift))
    assert prod(y.shape)
    return np.where(y > 0, y, np.float32(0)) if relu else y
