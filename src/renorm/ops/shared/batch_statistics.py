"""Formulas over the channels of a batch: what batch norm in training, its parts and its gradient have in common.

Statistics of a channel are in float64 whatever the data, and stable (moments.py). Elements stay in the dtype of
arithmetic: distances are taken from `centre`, the mean rounded to it, and what that rounding lost is added where it
does not overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import compute_dtype
from renorm.expr.extents import same_extent
from renorm.expr.nodes import as_expr
from renorm.ops.shared.moments import ACCUMULATOR, inverse_root, moments, statistic, summed
from renorm.ops.shared.precision import wide
from renorm.te import tag

PerChannel = Callable[[Any], Any]
"""A float64 for channel number c."""


def statistics_dtype(data: str) -> str:
    """Return the dtype in which statistics and parameters of data of a dtype are kept."""
    return compute_dtype(data)


def number(value: float) -> Any:
    return te.const(value, ACCUMULATOR)


def double(e: Any) -> Any:
    return e.astype(ACCUMULATOR)


@dataclass(frozen=True)
class BatchMoments:
    """count: how many values a channel has, an expression; mean, squares: of each channel, the second the sum of
    squared distances from the first. All float64."""

    count: Any
    mean: te.Tensor
    squares: te.Tensor

    def variance(self, c: Any) -> Any:
        """The population variance; 0 of no values."""
        return self.squares[c] / te.maximum(self.count, number(1.0))


def batch_moments(x: te.Tensor, mask: te.Tensor | None) -> BatchMoments:
    """Moments of each channel of x[N, C, *S] over the elements where mask[N, *S] is true."""
    count, inside = counted(x, mask), (x.shape[0], *x.shape[2:])
    if same_extent(prod(inside), 0):
        nothing = statistic(x.shape[1:2], lambda _: number(0.0), "nothing")
        return BatchMoments(count, nothing, nothing)
    if mask is None:
        m = moments(lambda c, n, *at: x[(n, c, *at)], x.shape[1:2], inside, x.dtype, x.name)
        return BatchMoments(count, m.mean, statistic(m.var.shape, lambda c: m.var[c] * count, "squares"))
    return _masked_moments(x, mask, count)


def _masked_moments(x: te.Tensor, mask: te.Tensor, count: Any) -> BatchMoments:
    """In two passes, as no element of a channel need be one that counts: a mean, then sums of d and d*d with d = x -
    that mean, which mend what its rounding lost:

    mean = mean0 + sum(d) / n,   squares = sum(d*d) - sum(d) * sum(d) / n
    """
    divisor = te.maximum(count, number(1.0))

    def value(c: Any, inside: Sequence[Any]) -> Any:
        n, *at = inside
        return double(x[(n, c, *at)])

    def chosen(value: Any, inside: Sequence[Any]) -> Any:
        return te.select(mask[tuple(inside)], value, number(0.0))

    total = summed(x.shape[1:2], mask.shape, lambda i, r: chosen(value(i[0], r), r), "batch_sum")
    first = statistic(total.shape, lambda c: total[c] / divisor, "batch_mean0")

    def power(index: Sequence[Any], inside: Sequence[Any]) -> Any:
        k, c = index
        d = value(c, inside) - first[c]
        return chosen(te.select(k < 1, d, d * d), inside)

    sums = summed((2, x.shape[1]), mask.shape, power, "batch_squares")

    def mean(c: Any) -> Any:
        lost = sums[0, c] / divisor  # NaN where x has an infinity
        return first[c] + te.select(te.abs(lost) <= number(float(np.finfo(np.float64).max)), lost, number(0.0))

    def squares(c: Any) -> Any:
        return te.maximum(sums[1, c] - sums[0, c] * sums[0, c] / divisor, number(0.0))

    return BatchMoments(count, statistic(total.shape, mean, "mean"), statistic(total.shape, squares, "squares"))


def counted(x: te.Tensor, mask: te.Tensor | None) -> Any:
    """Return how many values a channel of x has, as a float64."""
    if mask is None:
        return double(as_expr(x.shape[0] * prod(x.shape[2:])))
    return summed((1,), mask.shape, lambda _, r: double(mask[tuple(r)]), "count")[0]


def normalized(
    x: te.Tensor,
    mean: PerChannel,
    var: PerChannel,
    epsilon: float,
    scale: te.Tensor | None,
    bias: te.Tensor | None,
    residual: te.Tensor | None = None,
    relu: bool = False,
) -> te.Tensor:
    """(x - mean) / sqrt(var + epsilon) * scale + bias + residual, and max(that, 0) with relu."""
    dtype, channels = compute_dtype(x.dtype), (x.shape[1],)

    def gain(c: Any) -> Any:
        invstd = inverse_root(var(c), epsilon)
        return (invstd if scale is None else double(scale[c]) * invstd).astype(dtype)

    factor = statistic(channels, gain, "factor")
    centre = statistic(channels, lambda c: mean(c).astype(dtype), "centre")

    def offset(c: Any) -> Any:
        apart = double(centre[c]) - mean(c)
        lost = te.select(apart.equal(number(0.0)), apart, apart * double(factor[c]))  # 0 * inf is none of it
        return (lost if bias is None else double(bias[c]) + lost).astype(dtype)

    shift = statistic(channels, offset, "shift")

    def element(n: Any, c: Any, *at: Any) -> Any:
        y = (wide(x[(n, c, *at)]) - centre[c]) * factor[c] + shift[c]
        y = y if residual is None else y + wide(residual[(n, c, *at)])
        return te.select(y < te.const(0.0, dtype), te.const(0.0, dtype), y) if relu else y  # NaN stays

    return te.compute(x.shape, element, name="normalized", tag=tag.BROADCAST).astype(x.dtype)


def moved(old: Any, new: Any, count: Any, momentum: Any, momentum_multiplies: str, corrected: bool) -> Any:
    """A running statistic after a batch: the part of it that momentum says replaced by `new`, which is first multiplied
    by count / (count - 1) if `corrected`; `old` itself where the batch is empty."""
    one = number(1.0)
    new = new * (count / te.maximum(count - one, one)) if corrected else new
    of_old, of_new = (momentum, one - momentum) if momentum_multiplies == "old" else (one - momentum, momentum)
    mixed = te.select(of_old.equal(number(0.0)), of_new * new, of_old * old + of_new * new)  # 0 * inf is none of it
    return te.select(count > number(0.0), mixed, old)
