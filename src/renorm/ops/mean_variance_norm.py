"""Mean-variance normalization: over any axes, without scale and bias."""

from __future__ import annotations

from typing import Any

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.attributes import Ints
from renorm.graph.op import REDUCTION, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.shared.moments import ACCUMULATOR, moments
from renorm.te import tag
from renorm.topi.reduction import reduced_axes

# ONNX adds it to the standard deviation, not to the variance, and writes it into the definition of the op
EPSILON = 1e-9


class MeanVarianceNorm(OpDef):
    """y = (x - mean) / (sqrt(var) + 1e-9); mean and population variance over axes."""

    signature = "x: T[*S] -> y: T[*S]"
    types = {"T": FLOATS}
    onnx = {"MeanVarianceNormalization": 9}
    fusion = REDUCTION
    scheduled_as = "normalization"
    is_normalization = True
    axes = Ints((0, 2, 3))

    def infer(self, x: Operand) -> None:
        reduced_axes(self.axes, x.rank)

    def compute(self, x: te.Tensor) -> te.Tensor:
        gone = reduced_axes(self.axes, x.ndim)
        kept = [a for a in range(x.ndim) if a not in gone]

        def at(*index: Any) -> Any:
            places = dict(zip([*kept, *gone], index))
            return x[tuple(places[a] for a in range(x.ndim))]

        m = moments(at, [x.shape[a] for a in kept], [x.shape[a] for a in gone], x.dtype, x.name)

        def invstd(own: tuple[Any, ...]) -> Any:
            return te.const(1.0, ACCUMULATOR) / (te.sqrt(m.var[own]) + te.const(EPSILON, ACCUMULATOR))

        one, zero = te.const(1.0, m.dtype), te.const(0.0, m.dtype)
        standard = m.affine_by([x.shape[a] for a in kept], lambda *own: (own, one, zero), invstd)

        def element(*index: Any) -> Any:
            return standard(x[index], *(index[a] for a in kept))

        return te.compute(x.shape, element, name="mean_variance_norm", tag=tag.BROADCAST).astype(x.dtype)

    def reference(self, x: Any) -> Any:
        axes = tuple(a % x.ndim for a in self.axes)
        return (x - x.mean(axis=axes, keepdims=True)) / (x.std(axis=axes, keepdims=True) + EPSILON)

    samples = [
        Sample(f32[2, 3, 4, 5]),
        Sample(f32[2, 3, 4], axes=(-1,)),
        Sample(f32[2, 3, 4], axes=(0, 1)),
        Sample(f32[2, 3, 4], axes=(0, 1, 2)),
        Sample(f32[3, 5].between(9999.0, 10001.0), axes=(1,)),
        Sample(f32[0, 3, 4, 4], axes=(2, 3)),
        Sample(f64[2, 3], axes=(1,)),
        Sample(f16[2, 300].between(100, 101), axes=(1,)),
        Sample(bf16[2, 8], axes=(1,)),
    ]
    rejects = [Reject(f32[2, 3], because="axis 2 is outside")]
