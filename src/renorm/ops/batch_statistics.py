"""Formulas over the channels of a batch: what batch norm in training, its parts and its gradient have in common.

Statistics of a channel are in float64 whatever the data, and stable (ops/moments.py). Elements stay in the dtype of
arithmetic: distances are taken from `centre`, the mean rounded to it, and what that rounding lost is added where it
does not overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dataclass import dataclass
from renorm.core.dtypes import compute_dtype, unit_roundoff
from renorm.ops.moments import ACCUMULATOR, inverse_root, moments, statistic
from renorm.ops.precision import rounded, wide
from renorm.te import tag

PerChannel = Callable[[Any], Any]
"""A float64 for channel number c."""


def statistics_dtype(data: str) -> str:
    """What statistics and parameters of data of a dtype are kept in."""
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
    if not prod(inside):
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

    def axes() -> list[Any]:
        return [te.reduce_axis((0, extent), name=f"r{i}") for i, extent in enumerate(mask.shape)]

    def chosen(value: Any, n: Any, at: Sequence[Any]) -> Any:
        return te.select(mask[(n, *at)], value, number(0.0))

    n, *at = axes()
    total = te.compute(
        (x.shape[1],),
        lambda c: te.sum(chosen(double(x[(n, c, *at)]), n, at), axis=[n, *at]),
        name="batch_sum",
        tag="reduce",
    )
    first = statistic(total.shape, lambda c: total[c] / divisor, "batch_mean0")
    m, *to = axes()

    def power(k: Any, c: Any) -> Any:
        d = double(x[(m, c, *to)]) - first[c]
        return te.sum(chosen(te.select(k < 1, d, d * d), m, to), axis=[m, *to])

    sums = te.compute((2, x.shape[1]), power, name="batch_squares", tag="reduce")

    def mean(c: Any) -> Any:
        lost = sums[0, c] / divisor  # NaN where x has an infinity
        return first[c] + te.select(te.abs(lost) <= number(float(np.finfo(np.float64).max)), lost, number(0.0))

    def squares(c: Any) -> Any:
        return te.maximum(sums[1, c] - sums[0, c] * sums[0, c] / divisor, number(0.0))

    return BatchMoments(count, statistic(total.shape, mean, "mean"), statistic(total.shape, squares, "squares"))


def counted(x: te.Tensor, mask: te.Tensor | None) -> Any:
    """How many values a channel of x has, as a float64."""
    if mask is None:
        return number(float(x.shape[0] * prod(x.shape[2:])))
    axes = [te.reduce_axis((0, extent), name=f"r{i}") for i, extent in enumerate(mask.shape)]
    count = te.compute((1,), lambda _: te.sum(double(mask[tuple(axes)]), axis=axes), name="count", tag="reduce")
    return count[0]


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
        lost = (double(centre[c]) - mean(c)) * double(factor[c])
        return (lost if bias is None else double(bias[c]) + lost).astype(dtype)

    shift = statistic(channels, offset, "shift")

    def element(n: Any, c: Any, *at: Any) -> Any:
        y = (wide(x[(n, c, *at)]) - centre[c]) * factor[c] + shift[c]
        y = y if residual is None else y + wide(residual[(n, c, *at)])
        return te.select(y < te.const(0.0, dtype), te.const(0.0, dtype), y) if relu else y  # NaN stays

    return rounded(te.compute(x.shape, element, name="normalized", tag=tag.BROADCAST), x.dtype)


def moved(old: Any, new: Any, count: Any, momentum: Any, momentum_multiplies: str, corrected: bool) -> Any:
    """A running statistic after a batch: the part of it that momentum says replaced by `new`, which is first multiplied
    by count / (count - 1) if `corrected`; `old` itself where the batch is empty."""
    one = number(1.0)
    new = new * (count / te.maximum(count - one, one)) if corrected else new
    of_old, of_new = (momentum, one - momentum) if momentum_multiplies == "old" else (one - momentum, momentum)
    mixed = te.select(of_old.equal(number(0.0)), of_new * new, of_old * old + of_new * new)  # 0 * inf is none of it
    return te.select(count > number(0.0), mixed, old)


def moved_reference(old: Any, new: Any, count: Any, momentum: Any, momentum_multiplies: str, corrected: bool) -> Any:
    """`moved` by NumPy."""
    if not count:
        return old
    new = new * (count / max(count - 1, 1)) if corrected else new
    of_old = momentum if momentum_multiplies == "old" else 1 - momentum
    return (of_old * old if of_old else 0.0) + (1 - of_old) * new


@dataclass(frozen=True)
class Gradient:
    """What the gradient of a batch norm is computed from, as tensors of te. invstd: 1 / sqrt(var + epsilon); y: the
    result of a ReLU behind the norm, which lets dy pass where it is above 0; frozen: mean and invstd are constants, not
    functions of x."""

    dy: te.Tensor
    x: te.Tensor
    mean: te.Tensor
    invstd: te.Tensor
    mask: te.Tensor | None = None
    y: te.Tensor | None = None
    frozen: bool = False

    def passed(self, index: Sequence[Any]) -> Any:
        """dy where the ReLU lets it pass, widened."""
        g = wide(self.dy[tuple(index)])
        return g if self.y is None else te.select(wide(self.y[tuple(index)]) <= te.const(0.0, g.dtype), _zero(g), g)

    def sums(self) -> te.Tensor:
        """[3, C] in float64: sums over each channel of g, of g * d, and, where the mask is true, of d; d = x - mean."""
        extents = (self.x.shape[0], *self.x.shape[2:])
        n, *at = (te.reduce_axis((0, e), name=f"r{i}") for i, e in enumerate(extents))

        def term(k: Any, c: Any) -> Any:
            index = (n, c, *at)
            g, d = double(self.passed(index)), double(self.x[index]) - double(self.mean[c])
            own = number(0.0) if self.frozen else self._where_true(n, at, d)
            return te.sum(te.select(k < 1, g, te.select(k < 2, g * d, own)), axis=[n, *at])

        return te.compute((3, self.x.shape[1]), term, name="gradient_sums", tag="reduce")

    def _where_true(self, n: Any, at: Sequence[Any], e: Any) -> Any:
        return e if self.mask is None else te.select(self.mask[(n, *at)], e, _zero(e))

    def results(
        self, sums: te.Tensor, count: Any, scale: te.Tensor | None, statistics: str, with_residual: bool
    ) -> list[te.Tensor]:
        """dx, dscale, dbias (in the dtype `statistics`), and the gradient of what was added before the ReLU.

        A mean that was rounded to float32 is mended by the sum of distances from it, if no more than its rounding: it
        would show where the mean is many deviations.
        """
        dtype, channels = compute_dtype(self.x.dtype), (self.x.shape[1],)
        divisor = te.maximum(count, number(1.0))
        rounding = number(0.0 if self.frozen or self.mean.dtype == ACCUMULATOR else 2 * unit_roundoff(self.mean.dtype))

        def lost(c: Any) -> Any:
            off, mean = sums[2, c] / divisor, double(self.mean[c])
            return te.select(te.abs(off) <= rounding * te.abs(mean), off, number(0.0))

        mended = statistic(channels, lambda c: double(self.mean[c]) + lost(c), "mean")
        products = statistic(channels, lambda c: (sums[1, c] - lost(c) * sums[0, c]) * double(self.invstd[c]), "dscale")
        dscale = te.compute(channels, lambda c: products[c].astype(statistics), name="dscale", tag=tag.ELEMWISE)
        dbias = te.compute(channels, lambda c: sums[0, c].astype(statistics), name="dbias", tag=tag.ELEMWISE)

        def gain(c: Any) -> Any:
            invstd = double(self.invstd[c])
            return (invstd if scale is None else double(scale[c]) * invstd).astype(dtype)

        factor = statistic(channels, gain, "factor")
        centre = statistic(channels, lambda c: mended[c].astype(dtype), "centre")
        along = statistic(channels, lambda c: (products[c] / divisor).astype(dtype), "along")

        def level(c: Any) -> Any:
            off = (double(centre[c]) - mended[c]) * double(self.invstd[c])
            return (sums[0, c] / divisor + off * double(along[c])).astype(dtype)

        base = statistic(channels, level, "base")

        def element(n: Any, c: Any, *at: Any) -> Any:
            g = self.passed((n, c, *at))
            if self.frozen:
                return factor[c] * g
            standard = (wide(self.x[(n, c, *at)]) - centre[c]) * self.invstd[c].astype(dtype)
            return factor[c] * (g - self._where_true(n, at, standard * along[c] + base[c]))

        dx = rounded(te.compute(self.x.shape, element, name="dx", tag=tag.BROADCAST), self.x.dtype)
        if not with_residual:
            return [dx, dscale, dbias]
        rest = te.compute(
            self.x.shape, lambda *i: self.passed(i).astype(self.x.dtype), name="dresidual", tag=tag.ELEMWISE
        )
        return [dx, dscale, dbias, rest]


def _zero(e: Any) -> Any:
    return te.const(0.0, e.dtype)


# --- by NumPy, in float64 ---------------------------------------------------------------------------------------------


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


def results_reference(
    g: Any, x: Any, mean: Any, invstd: Any, sums: Any, count: int, scale: Any, mask: Any, frozen: bool
) -> list[Any]:
    """dx, dscale, dbias by the textbook."""
    k = along_channels(invstd if scale is None else invstd * scale, x)
    dscale, dbias = sums[1] * invstd, sums[0]
    if frozen:
        return [k * g, dscale, dbias]
    standard = (x - along_channels(mean, x)) * along_channels(invstd, x)
    rest = (along_channels(dbias, x) + standard * along_channels(dscale, x)) / max(count, 1)
    here = 1.0 if mask is None else np.expand_dims(np.asarray(mask, np.float64), 1)
    return [k * (g - here * rest), dscale, dbias]


def lost_mean(sums: Any, count: Any, mean: Any) -> Any:
    """What `mean` lost when it was rounded, by the sums of `Gradient`; 0 where it is off by more than that, and for
    float64."""
    if mean.dtype == np.float64:
        return np.zeros(mean.shape)
    off = sums[2] / np.maximum(count, 1)
    return np.where(np.abs(off) <= 2 * unit_roundoff(mean.dtype.name) * np.abs(mean.astype(np.float64)), off, 0.0)
