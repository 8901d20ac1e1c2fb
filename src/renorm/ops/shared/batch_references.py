"""The ops of batch norm in training, computed by NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np


def along_channels(v: Any, x: Any) -> Any:
    """One number per channel, as it broadcasts with x[N, C, *S]."""
    return np.reshape(v, (-1, *[1] * (x.ndim - 2)))


def selected(x: Any, mask: Any) -> Any:
    """The elements of x[N, C, *S] where the mask is true (all without one), as [C, count]."""
    last = np.moveaxis(x, 1, -1)
    return (last.reshape(-1, x.shape[1]) if mask is None else last[np.asarray(mask, bool)]).T


def moments_reference(x: Any, mask: Any) -> tuple[int, Any, Any]:
    """Count, means, and sums of squared distances from them."""
    values = selected(x, mask)
    if not values.shape[1]:
        return 0, np.zeros(len(values)), np.zeros(len(values))
    mean = values.mean(axis=1)
    return values.shape[1], mean, ((values - mean[:, None]) ** 2).sum(axis=1)


def normalized_reference(x: Any, mean: Any, var: Any, epsilon: float, scale: Any, bias: Any) -> Any:
    y = (x - along_channels(mean, x)) / np.sqrt(along_channels(var, x) + epsilon)
    y = y if scale is None else y * along_channels(scale, x)
    return y if bias is None else y + along_channels(bias, x)


def passed_reference(dy: Any, y: Any) -> Any:
    """dy where the ReLU lets it pass."""
    return dy if y is None else np.where(y <= 0, 0.0, dy)


def sums_reference(g: Any, x: Any, mean: Any, mask: Any, frozen: bool) -> Any:
    d = x - along_channels(mean, x)
    axes = tuple(a for a in range(x.ndim) if a != 1)
    own = np.zeros(x.shape[1]) if frozen else selected(d, mask).sum(axis=1)
    return np.stack([g.sum(axis=axes), (g * d).sum(axis=axes), own])


def moved_reference(old: Any, new: Any, count: Any, momentum: Any, momentum_multiplies: str, corrected: bool) -> Any:
    """A running statistic after a batch."""
    if not count:
        return old
    new = new * (count / max(count - 1, 1)) if corrected else new
    of_old = momentum if momentum_multiplies == "old" else 1 - momentum
    return (of_old * old if of_old else 0.0) + (1 - of_old) * new
