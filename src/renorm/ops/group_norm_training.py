"""Norms whose statistics belong to slices of one sample, as training needs them: channels at any axis, and the
statistics as results, which the gradient reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.graph.attributes import Float
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.shared.groups import GroupedNorm, moments_of_slices
from renorm.ops.shared.moments import ACCUMULATOR, inverse_root, statistic
from renorm.ops.shared.precision import wide
from renorm.te import tag


class GroupNormTraining(GroupedNorm):
    """y = scale * (x - mean) / sqrt(var + epsilon) + bias; mean and population variance per sample and group of
    neighbouring channels; invstd = 1 / sqrt(var + epsilon).

    Channels are `axis`, scale and bias (1 and 0 where left out) are per channel. Layer norm is the norm of rows
    [N, C] with one group, instance norm that with a group for each channel, RMS norm layer norm that is not centered.
    """

    signature = "x: T[*S], scale?: U[C], bias?: U[C] -> y: T[*S], mean: float64[...], invstd: float64[...]"
    epsilon = Float(1e-5, at_least=0.0)

    def infer(self, x: Operand, scale: Operand | None, bias: Operand | None) -> list[Any]:
        self.check(x, scale, bias)
        return [None, (x.shape[0], self.num_groups), (x.shape[0], self.num_groups)]

    def compute(self, x: te.Tensor, scale: te.Tensor | None, bias: te.Tensor | None) -> list[te.Tensor]:
        groups = self.groups(x)
        m = moments_of_slices(x, groups, self.centered)
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
        return [y.astype(x.dtype), m.mean, invstd]

    def reference(self, x: Any, scale: Any, bias: Any) -> Any:
        groups = self.groups(x)
        slices = groups.split(x)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean, var = (
                (np.sum(slices, 2) / groups.size, np.var(slices, 2))
                if slices.size and self.centered
                else (np.zeros(groups.slices), np.square(slices).mean(2))
                if not self.centered
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
        Sample(f32[5, 40].between(2, 9), f32[40], None, num_groups=1, centered=False),
        Sample(f32[2, 4, 9].between(-1e30, 1e30), f32[4], f32[4], num_groups=2, centered=False),
        Sample(f32[2, 9, 4], f32[4], None, num_groups=2, axis=2, centered=False),
        Sample(f16[2, 300].between(100, 101), f32[300], None, num_groups=1, centered=False),
    ]
    rejects = [
        Reject(f32[2, 6, 5], num_groups=4, because="num_groups 4 does not divide 6 channels"),
        Reject(f32[2, 6, 5], f32[5], num_groups=3, because="scale has 5 elements for 6 channels"),
        Reject(f32[2, 6], num_groups=1, axis=0, because="axis 0 is that of samples"),
        Reject(f32[2, 6], num_groups=1, axis=2, because="axis 2 is outside"),
    ]
