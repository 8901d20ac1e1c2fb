"""Scale and shift of each channel in a normalization, from the moments of tiles."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim, Shape, take
from renorm.core.dtypes import FLOATS, compute_dtype
from renorm.core.errors import OperandError
from renorm.expr.extents import same_extent
from renorm.expr.nodes import as_expr, cast
from renorm.graph.attributes import Float, Int, Ints
from renorm.graph.op import OPAQUE, OpDef, Reject, Sample
from renorm.graph.types import Operand, f16, f32, f64
from renorm.ops.shared.moments import ACCUMULATOR, Moments, statistic, summed
from renorm.ops.shared.tile_statistics import counts, elements


class NormTerms(OpDef):
    """centre, factor, shift with norm(x) = (x - centre) * factor + shift, per sample and channel.

    m: mean and sum of squared distances of tiles (TileMoments). Each num_groups-th part of the channels has one mean
    and one population variance, over all of its extents: centre = mean, rounded; factor = scale / sqrt(var + epsilon);
    shift = bias - (mean - centre) * factor. Where only the first `channels` are normalized so, groups are parts of
    these, and the others keep scale as factor and bias as shift. channels: 0 for all of them.

    tile, extents: of the tiles, and of all that they cut.
    """

    signature = "m: float64[...], scale: T[C], bias: T[C] -> centre: T[...], factor: T[...], shift: T[...]"
    types = {"T": FLOATS}
    fusion = OPAQUE
    scheduled_as = "reduction"
    tile = Ints()
    extents = Ints()
    num_groups = Int(at_least=1)
    channels = Int(0, at_least=0)
    epsilon = Float(1e-5, at_least=0.0)

    def infer(self, m: Operand, scale: Operand, bias: Operand) -> list[tuple[Dim, ...]]:
        rank, channels = len(self.extents), m.shape[-1]
        if len(self.tile) != rank or m.rank != rank + 3 or not self._are_tiles(m.shape[1:-1]):
            raise OperandError(f"{self.name}: {m} does not hold moments of tiles {self.tile} of {self.extents}")
        if isinstance(channels, int) and isinstance(scale.shape[0], int):
            if channels != scale.shape[0] or self.channels > channels:
                raise OperandError(f"{self.name}: m has {channels} channels, scale {scale}, channels={self.channels}")
            if (self.channels or channels) % self.num_groups:
                raise OperandError(
                    f"{self.name}: num_groups {self.num_groups} does not divide {self.channels or channels} channels"
                )
        take(channels, "==", scale.shape[0])
        take(self.channels, "<=", channels)
        take((self.channels or channels) % self.num_groups, "==", 0)
        return [(m.shape[0], scale.shape[0], *[1] * rank)] * 3

    def _are_tiles(self, shape: Shape) -> bool:
        """Return whether there may be moments of so many tiles, as `tile` and `extents` say."""
        expected = (*counts(self.extents, self.tile), 2)
        for d, n in zip(shape, expected):
            take(d, "==", n)
        return all(d == n or not isinstance(d, int) for d, n in zip(shape, expected))

    def compute(self, m: te.Tensor, scale: te.Tensor, bias: te.Tensor) -> list[te.Tensor]:
        (batch, *tiles, _, whole), dtype = m.shape, compute_dtype(scale.dtype)
        channels = self.channels or whole
        width = channels // self.num_groups
        total = cast(ACCUMULATOR, as_expr(prod(self.extents) * width))
        is_wide = not same_extent(width, 1)
        groups = (batch, self.num_groups)

        def over_tiles(value: Any, name: str) -> te.Tensor:
            def term(at: Any, inside: Any) -> Any:
                (n, g), tile = at, inside[: len(tiles)]
                channel = g * width + inside[-1] if is_wide else g
                count = elements(self.extents, self.tile, tile, ACCUMULATOR)
                return value(*(m[(n, *tile, k, channel)] for k in (0, 1)), count, (n, g))

            return summed(groups, [*tiles, *([width] if is_wide else [])], term, f"{name}_sum")

        means = over_tiles(lambda mean, _, count, at: mean * count, "mean")
        mean = statistic(groups, lambda *i: means[i] / total, "mean")

        def spread(part: Any, squares: Any, count: Any, at: Any) -> Any:
            d = part - mean[at]
            return squares + count * (d * d)

        squares = over_tiles(spread, "var")
        moments = Moments(mean, statistic(groups, lambda *i: squares[i] / total, "var"), dtype)
        shape = (batch, channels)
        terms = moments.affine(shape, lambda n, c: ((n, c // width), scale[c], bias[c]), self.epsilon)
        results = (
            (lambda n, c: mean[n, c // width].astype(dtype), lambda c: te.const(0.0, dtype), "centre"),
            (lambda n, c: terms.factor[n, c], lambda c: scale[c].astype(dtype), "factor"),
            (lambda n, c: terms.shift[n, c], lambda c: bias[c].astype(dtype), "shift"),
        )

        def placed(inside: Any, outside: Any, n: Any, c: Any) -> Any:
            return (
                inside(n, c)
                if same_extent(channels, whole)
                else te.if_then_else(c < channels, inside(n, c), outside(c))
            )

        full = (batch, whole, *[1] * len(tiles))
        return [
            te.compute(full, lambda n, c, *_, f=f, g=g: placed(f, g, n, c), name=name, tag="elemwise").astype(
                scale.dtype
            )
            for f, g, name in results
        ]

    def reference(self, m: Any, scale: Any, bias: Any) -> Any:
        rank, batch, channels = len(self.extents), m.shape[0], self.channels or m.shape[-1]
        width = channels // self.num_groups
        size = [np.minimum(t, e - np.arange(n) * t) for e, t, n in zip(self.extents, self.tile, m.shape[1:-2])]
        count = np.ones(())
        for along in size:
            count = np.multiply.outer(count, along)
        parts = np.moveaxis(m[..., :channels], -1, 1).reshape(batch, self.num_groups, width, *m.shape[1:-1])
        means, squares = parts[..., 0], parts[..., 1]
        axes, total = tuple(range(2, 3 + rank)), prod(self.extents) * width
        mean = (means * count).sum(axis=axes, keepdims=True) / total
        var = (squares + count * (means - mean) ** 2).sum(axis=axes) / total
        spread = [np.repeat(v.reshape(batch, self.num_groups), width, axis=1) for v in (mean, var)]
        centre = np.zeros((batch, scale.shape[0]))
        factor, shift = (np.broadcast_to(v, centre.shape).copy() for v in (scale, bias))
        centre[:, :channels] = spread[0]
        factor[:, :channels] = scale[:channels] / np.sqrt(spread[1] + self.epsilon)
        return [v.reshape(*v.shape, *[1] * rank) for v in (centre, factor, shift)]

    samples = [
        Sample(f64[2, 3, 2, 4].between(0.1, 2), f32[4], f32[4], extents=(5,), tile=(2,), num_groups=4),
        Sample(
            f64[1, 2, 3, 2, 6].between(0.1, 2), f32[6], f32[6], extents=(5, 9), tile=(4, 3), num_groups=2, epsilon=0.1
        ),
        Sample(
            f64[2, 1, 2, 2, 8].between(0.1, 2), f32[8], f32[8], extents=(3, 4), tile=(7, 2), num_groups=3, channels=6
        ),
        Sample(f64[0, 2, 1, 2, 3].between(0.1, 2), f32[3], f32[3], extents=(6, 2), tile=(3, 2), num_groups=3),
        Sample(f64[1, 2, 1, 2, 3].between(0.1, 2), f16[3], f16[3], extents=(6, 2), tile=(3, 2), num_groups=1),
    ]
    rejects = [
        Reject(f64[2, 3, 2, 4], f32[4], f32[4], extents=(9,), tile=(2,), num_groups=4, because="does not hold moments"),
        Reject(f64[2, 3, 2, 4], f32[4], f32[4], extents=(5,), tile=(2,), num_groups=3, because="does not divide 4"),
        Reject(f64[2, 3, 2, 4], f32[5], f32[5], extents=(5,), tile=(2,), num_groups=1, because="m has 4 channels"),
        Reject(
            f64[2, 3, 2, 4], f32[4], f32[4], extents=(5,), tile=(2,), num_groups=1, channels=5, because="channels=5"
        ),
        Reject(f64[2, 3, 2, 4], f32[4], f32[5], extents=(5,), tile=(2,), num_groups=1, because="bias has C = 5"),
        Reject(f64[2, 3, 2, 4], f32[4], f32[4], extents=(5,), tile=(2,), num_groups=0, because="at least 1"),
    ]
