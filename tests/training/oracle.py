"""Batch norm by NumPy in float64, on any axis, with a mask: what the tests of this room compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def by_channel(x: Array, axis: int) -> Array:
    """[values, channels] in float64."""
    return np.moveaxis(x.astype(np.float64), axis, -1).reshape(-1, x.shape[axis])


def chosen(x: Array, axis: int, mask: Array | None) -> Array:
    """The rows of `by_channel` that the mask lets through."""
    rows = by_channel(x, axis)
    if mask is None:
        return rows
    others = [e for i, e in enumerate(x.shape) if i != axis % x.ndim]
    return rows[np.broadcast_to(mask, others).reshape(-1)]


def back(rows: Array, like: Array, axis: int) -> Array:
    others = [e for i, e in enumerate(like.shape) if i != axis % like.ndim]
    return np.moveaxis(rows.reshape(*others, like.shape[axis]), -1, axis)


class Forward:
    """mean, var (population), y of a batch, and the distances that the gradient needs."""

    def __init__(self, x: Array, scale: Any, bias: Any, epsilon: float, axis: int = 1, mask: Array | None = None):
        values = chosen(x, axis, mask)
        self.count = len(values)
        self.mean, self.var = values.mean(axis=0), values.var(axis=0)
        self.invstd = 1 / np.sqrt(self.var + epsilon)
        self.scale = np.ones_like(self.mean) if scale is None else np.asarray(scale, np.float64)
        shift = 0.0 if bias is None else np.asarray(bias, np.float64)
        self.standard = (by_channel(x, axis) - self.mean) * self.invstd
        self.y = back(self.standard * self.scale + shift, x, axis)
        self._x, self._axis, self._mask = x, axis, mask

    def gradient(self, dy: Array) -> tuple[Array, Array, Array]:
        """dx, dscale, dbias by the textbook."""
        g = by_channel(dy, self._axis)
        dscale, dbias = (g * self.standard).sum(axis=0), g.sum(axis=0)
        rest = (dbias + self.standard * dscale) / self.count
        if self._mask is not None:
            others = [e for i, e in enumerate(dy.shape) if i != self._axis % dy.ndim]
            rest = rest * np.broadcast_to(self._mask, others).reshape(-1, 1)
        return back(self.scale * self.invstd * (g - rest), dy, self._axis), dscale, dbias


def near(got: Any, wanted: Any, tolerance: float) -> None:
    """Within `tolerance` of the largest finite value."""
    wanted = np.asarray(wanted, np.float64)
    largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
    np.testing.assert_allclose(
        np.asarray(got, np.float64), wanted, rtol=tolerance, atol=tolerance * max(largest, 1e-30)
    )
