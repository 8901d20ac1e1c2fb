"""Batch norm of a batch that lies on several ranks, and what NumPy makes of the whole of it in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from renorm import training
from renorm.training.communicators import Communicator

EPSILON = 1e-5


class Batch(NamedTuple):
    """A batch, its gradient, and the parameters of its norm. Channels are axis 1."""

    x: Any
    dy: Any
    scale: Any
    bias: Any
    running_mean: Any
    running_var: Any
    mask: Any = None

    def part(self, start: int, stop: int) -> Batch:
        """The samples of one rank."""
        mask = None if self.mask is None else self.mask[start:stop]
        return self._replace(x=self.x[start:stop], dy=self.dy[start:stop], mask=mask)


def drawn(seed: int, shape: tuple[int, ...], ratio: float, dtype: Any = np.float32, masked: bool = False) -> Batch:
    """ratio: mean / standard deviation of each channel, up to a factor of 2."""
    rng = np.random.default_rng(seed)
    parameters = np.float64 if dtype == np.float64 else np.float32
    channel = (1, shape[1], *[1] * (len(shape) - 2))
    spread, centre = rng.uniform(0.5, 1, channel), ratio * rng.uniform(-1, 1, channel)
    x = (rng.standard_normal(shape) * spread + centre).astype(dtype)
    dy = rng.standard_normal(shape).astype(dtype)
    scale, bias, mean, var = (rng.uniform(0.5, 2, shape[1]).astype(parameters) for _ in range(4))
    mask = rng.random((shape[0], *shape[2:])) < 0.6 if masked else None
    if mask is not None:
        mask[: 1 if mask.ndim > 1 else 2] = True  # two values at least
    return Batch(x, dy, scale, bias, mean, var, mask)


def computed(b: Batch, comm: Communicator | None = None, convention: str = "torch", axis: int = 1) -> dict[str, Any]:
    """What one rank gets: forward and backward. axis: where the channels are when it is computed."""
    x, dy = (np.ascontiguousarray(np.moveaxis(a, 1, axis)) for a in (b.x, b.dy))
    mask = b.mask if b.mask is None else np.ascontiguousarray(b.mask)
    r = training.batch_norm(
        x, b.scale, b.bias, b.running_mean, b.running_var,
        convention=convention, momentum=0.3, epsilon=EPSILON, mask=mask, comm=comm, axis=axis,
    )  # fmt: skip
    dx, dscale, dbias = training.batch_norm_backward(
        dy, x, b.scale, r.saved_mean, r.saved_invstd, mask=mask, comm=comm, axis=axis
    )
    return {
        "y": np.moveaxis(r.y, axis, 1), "dx": np.moveaxis(dx, axis, 1), "dscale": dscale, "dbias": dbias,
        "running_mean": r.running_mean, "running_var": r.running_var,
        "batch_mean": r.batch_mean, "batch_var": r.batch_var,
        "saved_mean": r.saved_mean, "saved_invstd": r.saved_invstd, "count": np.array(r.count),
    }  # fmt: skip


PER_SAMPLE = ("y", "dx")


def expected(b: Batch, corrected: bool = True) -> dict[str, Any]:
    """The same by NumPy in float64, of the whole batch; momentum 0.3 counts for what is new."""
    x, dy = b.x.astype(np.float64), b.dy.astype(np.float64)
    axes = tuple(a for a in range(x.ndim) if a != 1)
    weight = np.ones_like(x) if b.mask is None else np.broadcast_to(b.mask[:, None], x.shape).astype(np.float64)

    def sums(values: Any) -> Any:
        return values.sum(axes)

    def wide(per_channel: Any) -> Any:
        return np.asarray(per_channel, np.float64).reshape(1, -1, *[1] * (x.ndim - 2))

    count = sums(weight)
    mean = sums(weight * x) / count
    var = sums(weight * (x - wide(mean)) ** 2) / count
    invstd = 1 / np.sqrt(var + EPSILON)
    xhat = (x - wide(mean)) * wide(invstd)
    dbias, dscale = sums(dy), sums(dy * xhat)
    running = var * count / (count - 1) if corrected else var
    return {
        "y": wide(b.scale) * xhat + wide(b.bias),
        "dx": wide(b.scale * invstd) * (dy - weight * (wide(dbias) + xhat * wide(dscale)) / wide(count)),
        "dscale": dscale, "dbias": dbias,
        "running_mean": 0.7 * b.running_mean + 0.3 * mean, "running_var": 0.7 * b.running_var + 0.3 * running,
        "batch_mean": mean, "batch_var": var, "saved_mean": mean, "saved_invstd": invstd,
        "count": np.array(count[0]),
    }  # fmt: skip


def compare(ranks: Sequence[dict[str, Any]], whole: dict[str, Any], most: float = 1e-5) -> None:
    """Ranks hold identical bits, and their parts together are the whole within `most` of its largest value."""
    for name, value in whole.items():
        if name in PER_SAMPLE:
            found = np.concatenate([rank[name] for rank in ranks])
        else:
            found = ranks[0][name]
            assert all(rank[name].tobytes() == found.tobytes() for rank in ranks), f"ranks have other bits of {name}"
        assert found.shape == value.shape, name
        error = np.abs(found.astype(np.float64) - value).max(initial=0.0)
        assert error <= most * np.abs(value).max(initial=1e-30), f"{name}: {error}"
