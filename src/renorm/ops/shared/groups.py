"""Groups of neighbouring channels of a sample: slices of a tensor, their statistics, and what norms of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim, take
from renorm.core.dtypes import FLOATS, compute_dtype
from renorm.core.errors import OperandError
from renorm.core.shapes import normalize_axis
from renorm.expr.extents import same_extent
from renorm.expr.nodes import as_expr, cast
from renorm.graph.attributes import Bool, Int
from renorm.graph.op import AFTER_SLICES, REDUCTION, OpDef
from renorm.graph.types import Operand
from renorm.ops.shared.folding import scaled_affine
from renorm.ops.shared.moments import ACCUMULATOR, Moments, average, moments, statistic, summed
from renorm.te import tag
from renorm.te.open_dims import larger


@dataclass(frozen=True)
class Groups:
    """x[N, ..] as slices: one for each sample and each of `count` groups of neighbours among the channels, which are
    `axis`. width: channels of a group; others: extents of a slice beside channels."""

    shape: tuple[int, ...]
    axis: int
    count: int

    @property
    def width(self) -> int:
        return larger(1, self.shape[self.axis] // self.count)  # 1 where there are no channels at all

    @property
    def slices(self) -> tuple[int, int]:
        return self.shape[0], self.shape[self.axis] // self.width

    @property
    def inside(self) -> tuple[int, ...]:
        """Extents inside a slice, in the order in which they lie in memory."""
        return tuple(self.width if a == self.axis else d for a, d in enumerate(self.shape) if a)

    @property
    def size(self) -> int:
        return prod(self.inside)

    def index(self, n: Any, g: Any, *inside: Any) -> tuple[Any, ...]:
        """Of an element of x, from its place in a slice."""
        return (n, *(g * self.width + i if a == self.axis else i for a, i in enumerate(inside, 1)))

    def slice_of(self, index: Sequence[Any]) -> tuple[Any, Any]:
        return index[0], index[self.axis] // self.width

    @property
    def by_channel(self) -> bool:
        """Return whether memory runs along channels, across all others: what is read of a slice then are short runs,
        and of a channel nothing is; so that statistics are made, and read, for all channels of a sample side by
        side."""
        return self.axis == len(self.shape) - 1 > 1 and self.size > 0

    @property
    def parts(self) -> tuple[int, int]:
        """Extents of what is computed once for elements that have it in common: channels, or slices."""
        return (self.shape[0], self.shape[self.axis]) if self.by_channel else self.slices

    def part_of(self, index: Sequence[Any]) -> tuple[Any, Any]:
        return (index[0], index[self.axis]) if self.by_channel else self.slice_of(index)

    def around(self, part: Sequence[Any]) -> tuple[Any, Any]:
        """The slice of a part."""
        return (part[0], part[1] // self.width) if self.by_channel else (part[0], part[1])

    def split(self, x: Any) -> Any:
        """A NumPy array as [N, groups, elements of a slice]."""
        return np.moveaxis(x, self.axis, 1).reshape(*self.slices, self.size)

    def join(self, slices: Any) -> Any:
        """The inverse of `split`."""
        moved = [
            self.shape[0],
            self.shape[self.axis],
            *(d for a, d in enumerate(self.shape) if a not in (0, self.axis)),
        ]
        return np.moveaxis(slices.reshape(moved), 1, self.axis)

    def along(self, parameter: Any) -> Any:
        """A NumPy array [C] so that it broadcasts to x."""
        return parameter.reshape([-1 if a == self.axis else 1 for a in range(len(self.shape))])


def moments_of_slices(x: te.Tensor, groups: Groups, centered: bool = True) -> Moments:
    """Mean and variance of each slice, in the order that memory is read in best; if not `centered` 0 is the mean."""
    if not centered:
        zero = statistic(groups.slices, lambda *_: te.const(0.0, ACCUMULATOR), f"{x.name}_mean")

        def square(*at: Any) -> Any:
            e = x[groups.index(*at)].astype(ACCUMULATOR)
            return e * e

        return Moments(zero, average(square, groups.slices, groups.inside, f"{x.name}_square"), compute_dtype(x.dtype))
    if groups.by_channel:
        return _moments_by_channel(x, groups)
    return moments(lambda *at: x[groups.index(*at)], groups.slices, groups.inside, x.dtype, x.name)


def _moments_by_channel(x: te.Tensor, groups: Groups) -> Moments:
    """Moments of channels, then of slices: the mean of means, and the mean of variances and of squared distances of
    means from that."""
    channels = moments(lambda n, c, *at: x[(n, *at, c)], groups.parts, groups.shape[1:-1], x.dtype, x.name)
    if same_extent(groups.width, 1):
        return channels

    def over_channels(f: Any, name: str) -> te.Tensor:
        def term(at: Any, i: Any) -> Any:
            return f((at[0], at[1] * groups.width + i[0]), at)

        total = summed(groups.slices, [groups.width], term, f"{name}s")
        return statistic(groups.slices, lambda *at: total[at] / cast(ACCUMULATOR, as_expr(groups.width)), name)

    mean = over_channels(lambda part, _: channels.mean[part], "group_mean")

    def spread(part: Any, at: Any) -> Any:
        d = channels.mean[part] - mean[at]
        return channels.var[part] + d * d

    return Moments(mean, over_channels(spread, "group_var"), channels.dtype)


class GroupedNorm(OpDef):
    """Base of a norm over groups of channels of a sample, and of its gradient. If it is not `centered`, an RMS norm, 0
    takes the place of the mean."""

    types = {"T": FLOATS, "U": FLOATS}
    fusion = AFTER_SLICES
    scheduled_as = "normalization"
    num_groups = Int(at_least=1)
    axis = Int(1)
    centered = Bool(True)

    def groups(self, x: Any) -> Groups:
        return Groups(tuple(x.shape), normalize_axis(self.axis, len(x.shape)), self.num_groups)

    def check(self, x: Operand, *parameters: Operand | None) -> Dim:
        """The number of channels. Raises OperandError where groups or parameters do not fit it."""
        axis = normalize_axis(self.axis, x.rank)
        if not axis:
            raise OperandError(f"{self.name}({x}): axis 0 is that of samples")
        channels = x.shape[axis]
        if channels == 0:
            raise OperandError(f"{self.name}({x}): axis {axis} has no channels, hence no groups")
        take(1, "<=", channels)
        if isinstance(channels, int) and channels % self.num_groups:
            raise OperandError(f"{self.name}({x}): num_groups {self.num_groups} does not divide {channels} channels")
        for p in parameters:
            if p is not None and isinstance(p.shape[0], int) and isinstance(channels, int) and p.shape[0] != channels:
                raise OperandError(f"{self.name}({x}): {p.name} has {p.shape[0]} elements for {channels} channels")
            if p is not None:
                take(p.shape[0], "==", channels)
        take(channels % self.num_groups, "==", 0)
        return channels


class AffineGroupNorm(OpDef):
    """Base of norms of groups of neighbouring channels of a sample at inference; scale and bias per channel."""

    types = {"T": FLOATS}
    fusion = REDUCTION
    scheduled_as = "normalization"
    is_normalization = True
    epsilon: Any  # an attribute of each

    def group_count(self, channels: int) -> int:
        """Return how many groups so many channels make."""
        raise NotImplementedError(f"{self.name} has no group_count")

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        return scaled_affine(self, operands, axis, 1, k, shift)

    def compute(self, x: te.Tensor, scale: te.Tensor, bias: te.Tensor) -> te.Tensor:
        groups = Groups(tuple(x.shape), 1, self.group_count(x.shape[1]))
        m = moments_of_slices(x, groups)
        standard = m.affine(x.shape[:2], lambda n, c: (groups.slice_of((n, c)), scale[c], bias[c]), self.epsilon)
        y = te.compute(x.shape, lambda n, c, *at: standard(x[(n, c, *at)], n, c), name=self.name, tag=tag.BROADCAST)
        return y.astype(x.dtype)

    def reference(self, x: Any, scale: Any, bias: Any) -> Any:
        groups = Groups(x.shape, 1, self.group_count(x.shape[1]))
        slices = groups.split(x)
        mean, var = slices.mean(axis=2, keepdims=True), slices.var(axis=2, keepdims=True)
        return groups.join((slices - mean) / np.sqrt(var + self.epsilon)) * groups.along(scale) + groups.along(bias)
