"""Statistics of all ranks from those of each: (count, mean, M2) by Chan et al., sums for the backward pass.

M2 is the sum of squared distances from the mean, so that variance = M2 / count. Two parts are merged in one step:

    n = n_a + n_b      d = mean_b - mean_a      mean = mean_a + d n_b / n      M2 = M2_a + M2_b + d^2 n_a n_b / n

No second pass over the data is needed once the mean of the whole is known, and no square of a mean is subtracted from a
mean of squares. Everything is float64 and in rank order, on every rank alike: all have the same bits.
Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from renorm.core.errors import SynchronizationError
from renorm.training.communicators import Communicator

Float64 = NDArray[np.float64]


class Statistics(NamedTuple):
    """Statistics per channel: `count` values in each, their mean and M2, float64 of one shape."""

    count: int
    mean: Float64
    m2: Float64

    @property
    def var(self) -> Float64:
        """The variance of the population; 0 of no values."""
        return self.m2 / max(self.count, 1)


def merge(parts: Sequence[Statistics]) -> Statistics:
    """Return the statistics of what all parts hold together. Parts without values (count 0) are passed over.

    All parts empty: count 0, mean 0 and M2 0.
    """
    count = 0
    mean = np.zeros_like(np.asarray(parts[0].mean, np.float64))
    m2 = mean.copy()
    with np.errstate(over="ignore", invalid="ignore"):  # infinities propagate as in NumPy
        for part in parts:
            if part.count == 0:
                continue
            total = count + part.count
            apart = part.mean - mean
            # by the distance, so that equal means stay what they are; an infinite mean has none
            mean = np.where(np.isfinite(apart), mean + apart * (part.count / total), mean + part.mean)
            m2 = m2 + part.m2 + (apart * apart * (count * part.count / total) if count else 0.0)
            count = total
    return Statistics(count, mean, m2)


def merged(comm: Communicator, label: str, count: int, mean: ArrayLike, m2: ArrayLike) -> Statistics:
    """Return `merge` of one layer over all ranks, in one collective: each gives count, mean and M2 of its part of the
    batch.

    label: names layer, direction and channels (`Communicator.gather`). Raises SynchronizationError.
    """
    return merged_all(comm, [(label, count, mean, m2)])[0]


def merged_all(comm: Communicator, layers: Sequence[tuple[str, int, ArrayLike, ArrayLike]]) -> list[Statistics]:
    """Return `merged` of several layers that do not need each other, (label, count, mean, M2) each, in one message."""
    own = [Statistics(int(count), _float64(mean), _float64(m2)) for _, count, mean, m2 in layers]
    for (label, *_), part in zip(layers, own, strict=True):
        if part.mean.shape != part.m2.shape or part.count < 0:
            raise SynchronizationError(
                f"{label}: not the statistics of a batch",
                [f"count {part.count}, mean {list(part.mean.shape)}, M2 {list(part.m2.shape)}"],
                "give a count of at least 0, and a mean and an M2 for each channel",
            )
    if comm.size == 1:
        return own
    sent = [(label, _packed(part)) for (label, *_), part in zip(layers, own, strict=True)]
    gathered = comm.gather_all(sent)
    return [
        merge([_unpacked(array, part.mean.shape) for array in arrays])
        for arrays, part in zip(gathered, own, strict=True)
    ]


def summed(comm: Communicator, label: str, *sums: ArrayLike) -> list[Float64]:
    """Return each of `sums` (by channel: of dy, and of dy * xhat) over all ranks, added in rank order, in one
    collective."""
    own = [_float64(one) for one in sums]
    if comm.size == 1:
        return own
    flat = np.concatenate([one.ravel() for one in own])
    total = np.zeros_like(flat)
    with np.errstate(over="ignore", invalid="ignore"):
        for array in comm.gather(label, flat):
            total = total + array
    ends = np.cumsum([one.size for one in own])[:-1]
    return [part.reshape(one.shape) for part, one in zip(np.split(total, ends), own, strict=True)]


def _float64(array: ArrayLike) -> Float64:
    return np.asarray(array, np.float64)


def _packed(part: Statistics) -> Float64:
    """Return [count, mean..., M2...]; a count is exact in float64 up to 2^53."""
    return np.concatenate([[float(part.count)], part.mean.ravel(), part.m2.ravel()])


def _unpacked(array: Float64, shape: tuple[int, ...]) -> Statistics:
    mean, m2 = array[1:].reshape(2, *shape)
    return Statistics(int(array[0]), mean, m2)
