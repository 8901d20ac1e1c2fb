"""Formulas of the gradient of batch norm, which its ops have in common: sums over channels, then elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS, compute_dtype, unit_roundoff
from renorm.graph.attributes import Bool
from renorm.graph.op import AFTER_SLICES, OpDef
from renorm.graph.types import Operand, TensorType
from renorm.ops.shared.batch_references import along_channels
from renorm.ops.shared.batch_statistics import double, number, statistics_dtype
from renorm.ops.shared.moments import ACCUMULATOR, statistic, summed
from renorm.ops.shared.precision import wide
from renorm.te import tag


@dataclass(frozen=True)
class Gradient:
    """Operands of the gradient of a batch norm, as tensors of te. invstd: 1 / sqrt(var + epsilon); y: the
    result of a ReLU after the norm, which lets dy pass where it is above 0; frozen: mean and invstd are constants, not
    functions of x; plus: a part of dy that nobody has added to it yet."""

    dy: te.Tensor
    x: te.Tensor
    mean: te.Tensor
    invstd: te.Tensor
    mask: te.Tensor | None = None
    y: te.Tensor | None = None
    frozen: bool = False
    plus: te.Tensor | None = None

    def passed(self, index: Sequence[Any]) -> Any:
        """dy where the ReLU lets it pass, widened."""
        g = wide(self.dy[tuple(index)])
        g = g if self.plus is None else g + wide(self.plus[tuple(index)])
        return g if self.y is None else te.select(wide(self.y[tuple(index)]) <= te.const(0.0, g.dtype), _zero(g), g)

    def sums(self) -> te.Tensor:
        """[3, C] in float64: sums over each channel of g, of g * d, and, where the mask is true, of d; d = x - mean."""
        extents = (self.x.shape[0], *self.x.shape[2:])

        def term(result: Sequence[Any], inside: Sequence[Any]) -> Any:
            (k, c), (n, *at) = result, inside
            index = (n, c, *at)
            g, d = double(self.passed(index)), double(self.x[index]) - double(self.mean[c])
            own = number(0.0) if self.frozen else self._where_true(n, at, d)
            return te.select(k < 1, g, te.select(k < 2, g * d, own))

        return summed((3, self.x.shape[1]), extents, term, "gradient_sums")

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

        def product(c: Any) -> Any:
            along = sums[1, c] - lost(c) * sums[0, c]
            whole = along * double(self.invstd[c])  # of no values it is 0, where invstd is infinite too
            return te.select(count > number(0.0), whole, te.select(along.equal(number(0.0)), along, whole))

        products = statistic(channels, product, "dscale")
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

        rest = te.compute(
            self.x.shape, lambda *i: self.passed(i).astype(self.x.dtype), name="dresidual", tag=tag.ELEMWISE
        )
        # elements read what sums leave, less of memory; not where that is rounded, or elements wait for no sums
        is_g = with_residual and self.x.dtype == dtype and not self.frozen

        def element(n: Any, c: Any, *at: Any) -> Any:
            g = rest[(n, c, *at)] if is_g else self.passed((n, c, *at))
            if self.frozen:
                return factor[c] * g
            standard = (wide(self.x[(n, c, *at)]) - centre[c]) * self.invstd[c].astype(dtype)
            return factor[c] * (g - self._where_true(n, at, standard * along[c] + base[c]))

        dx = te.compute(self.x.shape, element, name="dx", tag=tag.BROADCAST).astype(self.x.dtype)
        return [dx, dscale, dbias, *[rest] * with_residual]


class BatchGradient(OpDef):
    """Base of the gradient of a batch norm, whole or from sums that are known. frozen: mean and invstd are constants,
    not statistics of x; residual: g is a result too, the gradient of what was added after the norm."""

    types = {"T": FLOATS, "U": FLOATS, "V": FLOATS}
    fusion = AFTER_SLICES
    frozen = Bool(False)
    residual = Bool(False)

    def infer(self, dy: Operand, x: Operand, *others: Any) -> list[TensorType | None]:
        of_channels = TensorType(statistics_dtype(x.dtype), (x.shape[1],))
        return [None, of_channels, of_channels, *[x.type] * self.residual]

    def results_reference(
        self, g: Any, x: Any, mean: Any, invstd: Any, sums: Any, count: int, scale: Any, mask: Any
    ) -> list[Any]:
        """dx, dscale, dbias by the textbook, and g."""
        k = along_channels(invstd if scale is None else invstd * scale, x)
        dscale, dbias = sums[1] * invstd, sums[0]
        rest: Any = 0.0
        if not self.frozen:
            standard = (x - along_channels(mean, x)) * along_channels(invstd, x)
            rest = (along_channels(dbias, x) + standard * along_channels(dscale, x)) / max(count, 1)
        here = 1.0 if mask is None else np.expand_dims(np.asarray(mask, np.float64), 1)
        return [k * (g - here * rest), dscale, dbias, *[g] * self.residual]


def _zero(e: Any) -> Any:
    return te.const(0.0, e.dtype)


def lost_mean(sums: Any, count: Any, mean: Any) -> Any:
    """Return what `mean` lost when it was rounded, by the sums of `Gradient`; 0 where it is off by more than that, and
    for float64."""
    if mean.dtype == np.float64:
        return np.zeros(mean.shape)
    off = sums[2] / np.maximum(count, 1)
    return np.where(np.abs(off) <= 2 * unit_roundoff(mean.dtype.name) * np.abs(mean.astype(np.float64)), off, 0.0)
