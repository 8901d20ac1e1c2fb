"""Mean and variance of slices, and the formula that normalizes with them, for all ops whose statistics come from
their data.

One pass over each slice sums d and d*d in float64, where d = x/2 - pivot and the pivot is half of its first element:

    mean = 2 * (pivot + sum(d) / n),   var = 4 * (sum(d*d) - sum(d) * sum(d) / n) / n

Halves change no digit, and d is one multiply-add: on Zen 4 and 5 additions wait for conversions to float64, which
multiply-adds do not (AVX2, 16 elements: 1.0 ns, 1.43 with x - pivot). This is not E[x*x] - E[x]*E[x]: twice the pivot
is in the slice, so n * var is at least (n - 1) / n of the square of its distance from the mean, and both sums are at
most n times that plus n * var; what cancels leaves a relative error of about n * 1e-16, whatever the data. (A pivot
that is not finite is 0, so that infinities have their mean.) A constant slice has exactly its value as mean and 0 as
variance, 90,000 values of float16 lose nothing, squares of 1e30 stay finite, and data whose mean is 10,000 times its
deviation keeps all digits. Elements themselves stay narrow:

    y = (x - centre) * factor + shift,   factor = scale / sqrt(var + epsilon),   shift = bias - (mean - centre) * factor

centre is the mean rounded to the dtype of arithmetic; what that rounding lost is part of shift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import compute_dtype
from renorm.expr.extents import same_extent
from renorm.expr.nodes import as_expr, cast
from renorm.ops.shared.tags import STATISTIC
from renorm.te import tag

ACCUMULATOR = "float64"

At = Callable[..., Any]
"""An element of a tensor seen as slices: indices of the slice, then indices inside the slice."""

Of = Callable[..., tuple[Sequence[Any], Any, Any]]
"""A part of a slice: the index of the slice, and scale and bias there."""


@dataclass(frozen=True)
class Moments:
    """mean, var: one float64 per slice, as tensors over the slices. dtype: of element arithmetic."""

    mean: te.Tensor
    var: te.Tensor
    dtype: str

    def affine(self, shape: Sequence[int], of: Of, epsilon: float) -> Affine:
        """The formula of this file for parts of slices over which scale and bias are constant.

        shape: extents over which parts are counted; of(part): (index of the slice, scale, bias).
        """
        return self.affine_by(shape, of, lambda at: inverse_root(self.var[at], epsilon))

    def affine_by(self, shape: Sequence[int], of: Of, invstd: Callable[[tuple[Any, ...]], Any]) -> Affine:
        """`affine` with another formula for the inverse deviation of a slice."""

        def factor(*part: Any) -> Any:
            at, scale, _ = of(*part)
            return (scale.astype(ACCUMULATOR) * invstd(tuple(at))).astype(self.dtype)

        factors = statistic(shape, factor, "factor")

        def shift(*part: Any) -> Any:
            at, _, bias = of(*part)
            mean = self.mean[tuple(at)]
            lost = mean - mean.astype(self.dtype).astype(ACCUMULATOR)
            return (bias.astype(ACCUMULATOR) - lost * factors[part].astype(ACCUMULATOR)).astype(self.dtype)

        return Affine(self, of, factors, statistic(shape, shift, "shift"))


@dataclass(frozen=True)
class Affine:
    """A normalization as elements see it: (x - centre) * factor + shift; factor and shift per part of a slice."""

    moments: Moments
    of: Of
    factor: te.Tensor
    shift: te.Tensor

    def __call__(self, x: Any, *part: Any) -> Any:
        """One element x of a part."""
        at, dtype = tuple(self.of(*part)[0]), self.moments.dtype
        return (x.astype(dtype) - self.moments.mean[at].astype(dtype)) * self.factor[part] + self.shift[part]


def statistic(shape: Sequence[int], f: Callable[..., Any], name: str) -> te.Tensor:
    """A stage with few elements that many read: a schedule computes it once per slice, and does not inline it."""
    return te.compute(tuple(shape), f, name=name, tag=STATISTIC)


def summed(
    shape: Sequence[int],
    extents: Sequence[int],
    term: Callable[[Sequence[Any], Sequence[Any]], Any],
    name: str,
    attrs: Mapping[str, Any] | None = None,
) -> te.Tensor:
    """The stage of sums of term(index of the result, indices summed over), the latter over axes of these extents."""
    axes = [te.reduce_axis((0, extent), name=f"r{i}") for i, extent in enumerate(extents)]

    def element(*index: Any) -> Any:
        value = term(index, axes)
        return te.sum(value, axis=axes) if axes else value

    return te.compute(tuple(shape), element, name=name, tag="reduce" if axes else tag.ELEMWISE, attrs=attrs)


def inverse_root(square: Any, epsilon: float) -> Any:
    return te.const(1.0, square.dtype) / te.sqrt(square + te.const(epsilon, square.dtype))


def moments(at: At, slices: Sequence[int], inside: Sequence[int], dtype: str, name: str = "x") -> Moments:
    """Moments of every slice. at: the data; slices, inside: extents of slices and of what is inside one; dtype: of
    the data."""
    if same_extent(prod(inside), 0):
        nothing = average(at, slices, inside, name)
        return Moments(nothing, nothing, compute_dtype(dtype))
    first = [0] * len(inside)
    half = te.const(0.5, ACCUMULATOR)

    def near(*i: Any) -> Any:
        e, zero = at(*i, *first).astype(ACCUMULATOR) * half, te.const(0.0, ACCUMULATOR)
        return te.select(te.abs(e) <= te.const(float(np.finfo(np.float64).max), ACCUMULATOR), e, zero)

    pivot = statistic(slices, near, f"{name}_pivot")

    def power(index: Sequence[Any], axes: Sequence[Any]) -> Any:
        d = at(*index[1:], *axes).astype(ACCUMULATOR) * half - pivot[tuple(index[1:])]
        return te.select(index[0] < 1, d, d * d)

    sums = summed((2, *slices), inside, power, f"{name}_sums")
    count = cast(ACCUMULATOR, as_expr(prod(inside)))

    def variance(*i: Any) -> Any:
        quarter = (sums[(1, *i)] - sums[(0, *i)] * sums[(0, *i)] / count) / count
        return te.maximum(quarter, te.const(0.0, ACCUMULATOR)) * te.const(4.0, ACCUMULATOR)

    mean = statistic(slices, lambda *i: (pivot[i] + sums[(0, *i)] / count) * te.const(2.0, ACCUMULATOR), f"{name}_mean")
    return Moments(mean, statistic(slices, variance, f"{name}_var"), compute_dtype(dtype))


def average(at: At, slices: Sequence[int], inside: Sequence[int], name: str) -> te.Tensor:
    """The mean of `at` over each slice, in float64. The quotient of no elements is NaN."""
    sums = summed(slices, inside, lambda i, axes: at(*i, *axes).astype(ACCUMULATOR), f"{name}_sum")
    count = cast(ACCUMULATOR, as_expr(prod(inside)))
    return statistic(slices, lambda *i: sums[i] / count, name)
