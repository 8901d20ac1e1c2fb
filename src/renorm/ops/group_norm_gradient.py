"""The gradient of norms whose statistics belong to slices of one sample."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import take
from renorm.core.dtypes import FLOATS, compute_dtype
from renorm.expr.extents import same_extent
from renorm.expr.nodes import as_expr
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f16, f32, f64
from renorm.ops.shared.batch_statistics import statistics_dtype
from renorm.ops.shared.groups import GroupedNorm, Groups
from renorm.ops.shared.moments import ACCUMULATOR, statistic, summed
from renorm.ops.shared.precision import wide
from renorm.te import tag


class GroupNormGradient(GroupedNorm):
    """dx = invstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * scale, xhat = (x - mean) * invstd; means over
    the slice; without mean(g) if it is not centered.

    sums[p, 0, c] = sum of dy, sums[p, 1, c] = sum of dy * xhat over a part p of the batch: added up over p they are the
    gradients of bias and of scale, in the dtype of statistics. A part is a sample, or the whole batch where x is
    [N, C]. mean, invstd: what GroupNormTraining gave.
    """

    signature = (
        "dy: T[*S], x: T[*S], mean: float64[N, G], invstd: float64[N, G], scale?: U[C] -> dx: T[*S], sums: V[...]"
    )
    types = {"T": FLOATS, "U": FLOATS, "V": FLOATS}

    def infer(self, dy: Operand, x: Operand, mean: Operand, invstd: Operand, scale: Operand | None) -> list[Any]:
        channels = self.check(x, scale)
        for statistics in (mean, invstd):
            for d, e in zip(statistics.shape, (x.shape[0], self.num_groups)):
                take(d, "==", e)
        return [None, TensorType(statistics_dtype(x.dtype), (1 if x.rank == 2 else x.shape[0], 2, channels))]

    def compute(
        self, dy: te.Tensor, x: te.Tensor, mean: te.Tensor, invstd: te.Tensor, scale: te.Tensor | None
    ) -> list[te.Tensor]:
        groups, dtype = self.groups(x), compute_dtype(x.dtype)

        def narrow(name: str, f: Any) -> te.Tensor:
            return statistic(groups.parts, lambda *part: f(groups.around(part)).astype(dtype), name)

        centre = narrow("centre", lambda at: mean[at])
        inverse = narrow("inverse", lambda at: invstd[at])

        def rounding(at: Any) -> Any:
            """Return what the gradient of the mean adds to xhat."""
            return (mean[at] - mean[at].astype(dtype).astype(ACCUMULATOR)) * invstd[at]

        lost = narrow("lost", rounding)

        def scaled(e: Any, c: Any) -> Any:
            return e if scale is None else e * wide(scale[c]).astype(e.dtype)

        def terms(index: Any, k: Any, d: Any) -> Any:
            """d, or d * xhat: rounded like an element, and added up in float64."""
            part = groups.part_of(index)
            xhat = (x[index].astype(dtype) - centre[part]) * inverse[part] - lost[part]
            return te.select(k < 1, d, d * xhat).astype(ACCUMULATOR)

        def passed(index: Any) -> Any:
            return dy[index].astype(dtype)

        if x.ndim == 2:
            sums = _over_rows(x.shape, lambda index, k: terms(index, k, passed(index)))
            totals = _over_slices(groups, lambda index, k: terms(index, k, scaled(passed(index), index[1])))
        else:
            sums = _over_samples(groups, lambda index, k: terms(index, k, passed(index)))
            totals = _over_channels(groups, lambda n, c, k: scaled(sums[n, k, c], c))
        size = as_expr(groups.size).astype(ACCUMULATOR)

        def level_of(at: Any) -> Any:
            if not self.centered:
                return te.const(0.0, ACCUMULATOR)
            return (totals[(*at, 0)] - rounding(at) * totals[(*at, 1)]) / size

        slope = narrow("slope", lambda at: totals[(*at, 1)] / size)
        level = narrow("level", level_of)

        def element(*index: Any) -> Any:
            part, c = groups.part_of(index), index[groups.axis]
            near = (x[index].astype(dtype) - centre[part]) * inverse[part]
            return (scaled(passed(index), c) - level[part] - near * slope[part]) * inverse[part]

        return [
            te.compute(x.shape, element, name="group_norm_gradient", tag=tag.BROADCAST).astype(x.dtype),
            sums.astype(statistics_dtype(x.dtype)),
        ]

    def reference(self, dy: Any, x: Any, mean: Any, invstd: Any, scale: Any) -> Any:
        groups = self.groups(x)
        xhat = groups.join((groups.split(x) - mean[..., None]) * invstd[..., None])
        g = groups.split(dy if scale is None else dy * groups.along(scale))
        normal = groups.split(xhat)
        if g.size:
            level = g.mean(2, keepdims=True) if self.centered else 0.0
            g = g - level - normal * (g * normal).mean(2, keepdims=True)
        terms = np.stack([np.moveaxis(t, groups.axis, 1) for t in (dy, dy * xhat)], 1)
        sums = terms.sum(axis=tuple(range(3, x.ndim + 1)))
        if x.ndim == 2:
            sums = sums.sum(axis=0, keepdims=True)
        return [groups.join(g * invstd[..., None]), sums]

    samples = [
        Sample(f32[2, 6, 35], f32[2, 6, 35], f64[2, 3], f64[2, 3].between(0.5, 2), f32[6], num_groups=3),
        Sample(f32[2, 35, 6], f32[2, 35, 6], f64[2, 3], f64[2, 3].between(0.5, 2), f32[6], num_groups=3, axis=-1),
        Sample(f32[2, 3, 5, 7], f32[2, 3, 5, 7], f64[2, 3], f64[2, 3].between(0.5, 2), f32[3], num_groups=3),
        Sample(f32[2, 9, 4], f32[2, 9, 4], f64[2, 4], f64[2, 4].between(0.5, 2), f32[4], num_groups=4, axis=2),
        Sample(f32[2, 4, 9], f32[2, 4, 9], f64[2, 1], f64[2, 1].between(0.5, 2), num_groups=1),
        Sample(f32[5, 40], f32[5, 40], f64[5, 1], f64[5, 1].between(0.5, 2), f32[40], num_groups=1),
        Sample(f32[67, 6], f32[67, 6], f64[67, 2], f64[67, 2].between(0.5, 2), f32[6], num_groups=2),
        Sample(f32[200, 24], f32[200, 24], f64[200, 1], f64[200, 1].between(0.5, 2), f32[24], num_groups=1),
        Sample(f32[128, 3], f32[128, 3], f64[128, 1], f64[128, 1].between(0.5, 2), num_groups=1),
        Sample(
            f32[3, 5], f32[3, 5].between(79999, 80003), f64[3, 1].between(80000, 80002), f64[3, 1], f32[5], num_groups=1
        ),
        Sample(f32[0, 3, 4], f32[0, 3, 4], f64[0, 3], f64[0, 3], f32[3], num_groups=3),
        Sample(f32[0, 3], f32[0, 3], f64[0, 1], f64[0, 1], f32[3], num_groups=1),
        Sample(f64[2, 4, 5], f64[2, 4, 5], f64[2, 2], f64[2, 2].between(0.5, 2), f64[4], num_groups=2),
        Sample(f16[2, 300], f16[2, 300], f64[2, 1], f64[2, 1].between(0.5, 2), f32[300], num_groups=1),
        Sample(bf16[1, 2, 16], bf16[1, 2, 16], f64[1, 2], f64[1, 2].between(0.5, 2), bf16[2], num_groups=2),
        Sample(
            f32[5, 40],
            f32[5, 40],
            f64[5, 1].between(0, 0),
            f64[5, 1].between(0.5, 2),
            f32[40],
            num_groups=1,
            centered=False,
        ),
    ]
    rejects = [
        Reject(f32[2, 6, 5], f32[2, 6, 5], f64[2, 4], f64[2, 4], num_groups=4, because="does not divide 6 channels"),
        Reject(f32[2, 6, 5], f32[2, 6, 4], f64[2, 3], f64[2, 3], num_groups=3, because="x"),
        Reject(f32[2, 6], f32[2, 6], f64[2, 1], f64[2, 2], num_groups=1, because="invstd has G = 2"),
        Reject(f32[2, 6], f32[2, 6], f64[2, 1], f64[2, 1], f32[5], num_groups=1, because="scale has 5 elements"),
    ]


def _sum(shape: tuple[int, ...], extents: list[int], term: Any, name: str) -> te.Tensor:
    """Sums over axes of these extents: term(index of the result, indices summed over)."""
    if same_extent(prod(extents), 0):
        return te.compute(shape, lambda *i: te.const(0.0, ACCUMULATOR), name=name)
    return summed(shape, extents, term, name)


def _over_rows(shape: tuple[int, ...], terms: Any) -> te.Tensor:
    return _sum((1, 2, shape[1]), [shape[0]], lambda i, r: terms((r[0], i[2]), i[1]), "sums")


def _over_samples(groups: Groups, terms: Any) -> te.Tensor:
    shape, axis = groups.shape, groups.axis
    others = [d for a, d in enumerate(shape) if a not in (0, axis)]

    def term(i: Any, r: Any) -> Any:
        inside = [*r[: axis - 1], i[2], *r[axis - 1 :]]
        return terms((i[0], *inside), i[1])

    return _sum((shape[0], 2, shape[axis]), others, term, "sums")


def _over_slices(groups: Groups, terms: Any) -> te.Tensor:
    return _sum(
        (*groups.slices, 2), list(groups.inside), lambda i, r: terms(groups.index(i[0], i[1], *r), i[2]), "totals"
    )


def _over_channels(groups: Groups, value: Any) -> te.Tensor:
    """value(n, c, k) added up over the channels of each group."""
    if same_extent(groups.width, 1):
        return statistic((*groups.slices, 2), value, "totals")
    return _sum(
        (*groups.slices, 2), [groups.width], lambda i, r: value(i[0], i[1] * groups.width + r[0], i[2]), "totals"
    )
