"""Norms whose statistics belong to slices of one sample, as training needs them: channels at any axis, and the
statistics as results, which the gradient reads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dataclass import dataclass
from renorm.core.dims import Dim, normalize_axis
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.core.target import Target
from renorm.graph.attributes import Float, Int
from renorm.graph.op import OPAQUE, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops import schedules
from renorm.ops.moments import ACCUMULATOR, Moments, inverse_root, moments, statistic
from renorm.ops.precision import rounded, wide
from renorm.te import tag


@dataclass(frozen=True)
class Groups:
    """x[N, ..] as slices: one for each sample and each of `count` groups of neighbours among the channels, which are
    `axis`. width: channels of a group; others: extents of a slice beside channels."""

    shape: tuple[int, ...]
    axis: int
    count: int

    @property
    def width(self) -> int:
        return max(1, self.shape[self.axis] // self.count)  # 1 where there are no channels at all

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
        """Whether memory runs along channels, across all others: what is read of a slice then are short runs, and of a
        channel nothing is; so that statistics are made, and read, for all channels of a sample side by side."""
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


def _moments(x: te.Tensor, groups: Groups) -> Moments:
    return moments(lambda *at: x[groups.index(*at)], groups.slices, groups.inside, x.dtype, x.name)


def _moments_by_channel(x: te.Tensor, groups: Groups) -> Moments:
    """Moments of channels, then of slices: the mean of means, and the mean of variances and of squared distances of
    means from that."""
    channels = moments(lambda n, c, *at: x[(n, *at, c)], groups.parts, groups.shape[1:-1], x.dtype, x.name)
    if groups.width == 1:
        return channels

    def over_channels(f: Any, name: str) -> te.Tensor:
        i = te.reduce_axis((0, groups.width), name="i")
        total = te.compute(
            groups.slices,
            lambda n, g: te.sum(f((n, g * groups.width + i), (n, g)), axis=i),
            name=f"{name}s",
            tag="reduce",
        )
        return statistic(groups.slices, lambda *at: total[at] / te.const(float(groups.width), ACCUMULATOR), name)

    mean = over_channels(lambda part, _: channels.mean[part], "group_mean")

    def spread(part: Any, at: Any) -> Any:
        d = channels.mean[part] - mean[at]
        return channels.var[part] + d * d

    return Moments(mean, over_channels(spread, "group_var"), channels.dtype)


class GroupedNorm(OpDef):
    """Base of a norm over groups of channels of a sample, and of its gradient."""

    types = {"T": FLOATS, "U": FLOATS}
    fusion = OPAQUE
    num_groups = Int(at_least=1)
    axis = Int(1)

    def groups(self, x: Any) -> Groups:
        return Groups(tuple(x.shape), normalize_axis(self.axis, len(x.shape)), self.num_groups)

    def check(self, x: Operand, *parameters: Operand | None) -> Dim:
        """The number of channels. Raises OperandError where groups or parameters do not fit it."""
        axis = normalize_axis(self.axis, x.rank)
        if not axis:
            raise OperandError(f"{self.name}({x}): axis 0 is that of samples")
        channels = x.shape[axis]
        if isinstance(channels, int) and channels % self.num_groups:
            raise OperandError(f"{self.name}({x}): num_groups {self.num_groups} does not divide {channels} channels")
        for p in parameters:
            if p is not None and isinstance(p.shape[0], int) and isinstance(channels, int) and p.shape[0] != channels:
                raise OperandError(f"{self.name}({x}): {p.name} has {p.shape[0]} elements for {channels} channels")
        return channels

    def schedule(self, s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
        schedules.normalization(s, outs, target)


class GroupNormTraining(GroupedNorm):
    """y = scale * (x - mean) / sqrt(var + epsilon) + bias; mean and population variance per sample and group of
    neighbouring channels; invstd = 1 / sqrt(var + epsilon).

    Channels are `axis`, scale and bias (1 and 0 where left out) are per channel. Layer norm is the norm of rows
    [N, C] with one group, instance norm that with a group for each channel.
    """

    signature = "x: T[*S], scale?: U[C], bias?: U[C] -> y: T[*S], mean: float64[...], invstd: float64[...]"
    epsilon = Float(1e-5, at_least=0.0)

    def infer(self, x: Operand, scale: Operand | None, bias: Operand | None) -> list[Any]:
        self.check(x, scale, bias)
        return [None, (x.shape[0], self.num_groups), (x.shape[0], self.num_groups)]

    def compute(self, x: te.Tensor, scale: te.Tensor | None, bias: te.Tensor | None) -> list[te.Tensor]:
        groups = self.groups(x)
        m = _moments_by_channel(x, groups) if groups.by_channel else _moments(x, groups)
        invstd = statistic(groups.slices, lambda *at: inverse_root(m.var[at], self.epsilon), "invstd")
        one, zero = te.const(1.0, ACCUMULATOR), te.const(0.0, ACCUMULATOR)

        def of(n: Any, c: Any) -> Any:
            """Of a part; of a slice, scale and bias are left to its elements."""
            own = groups.by_channel
            return (
                groups.around((n, c)),
                wide(scale[c]) if own and scale is not None else one,
                wide(bias[c]) if own and bias is not None else zero,
            )

        standard = m.affine_by(groups.parts, of, lambda at: invstd[at])

        def element(*index: Any) -> Any:
            y = standard(x[index], *groups.part_of(index))
            if groups.by_channel:
                return y
            y = y if scale is None else y * wide(scale[index[groups.axis]]).astype(m.dtype)
            return y if bias is None else y + wide(bias[index[groups.axis]]).astype(m.dtype)

        y = te.compute(x.shape, element, name="group_norm", tag=tag.BROADCAST)
        return [rounded(y, x.dtype), m.mean, invstd]

    def reference(self, x: Any, scale: Any, bias: Any) -> Any:
        groups = self.groups(x)
        slices = groups.split(x)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean, var = (
                (np.sum(slices, 2) / groups.size, np.var(slices, 2))
                if slices.size
                else (np.full(groups.slices, np.nan),) * 2
            )
        invstd = 1 / np.sqrt(var + self.epsilon)
        y = groups.join((slices - mean[..., None]) * invstd[..., None])
        y = y if scale is None else y * groups.along(scale)
        return [y if bias is None else y + groups.along(bias), mean, invstd]

    samples = [
        Sample(f32[2, 6, 35], f32[6], f32[6], num_groups=3),
        Sample(f32[2, 35, 6], f32[6], f32[6], num_groups=3, axis=-1),
        Sample(f32[2, 3, 5, 7], f32[3], f32[3], num_groups=3, epsilon=0.1),
        Sample(f32[2, 9, 4], f32[4], f32[4], num_groups=4, axis=2),
        Sample(f32[5, 40], f32[40], f32[40], num_groups=1),
        Sample(f32[5, 7], None, None, num_groups=1),
        Sample(f32[2, 4, 9], f32[4], None, num_groups=2),
        Sample(f32[3, 5].between(79999.0, 80003.0), f32[5], f32[5], num_groups=1),
        Sample(f32[1, 2, 16].between(-1e30, 1e30), f32[2], f32[2], num_groups=2),
        Sample(f32[0, 3, 4], f32[3], f32[3], num_groups=3),
        Sample(f64[2, 4, 5], f64[4], f64[4], num_groups=2),
        Sample(f16[2, 300].between(100, 101), f32[300], f32[300], num_groups=1),
        Sample(bf16[1, 2, 16], bf16[2], bf16[2], num_groups=2),
    ]
    rejects = [
        Reject(f32[2, 6, 5], num_groups=4, because="num_groups 4 does not divide 6 channels"),
        Reject(f32[2, 6, 5], f32[5], num_groups=3, because="scale has 5 elements for 6 channels"),
        Reject(f32[2, 6], num_groups=1, axis=0, because="axis 0 is that of samples"),
        Reject(f32[2, 6], num_groups=1, axis=2, because="axis 2 is outside"),
    ]
