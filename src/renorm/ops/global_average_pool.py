"""The mean of every channel of every sample."""

from __future__ import annotations

from math import prod
from typing import Any

from renorm import te
from renorm.core.dims import Dim
from renorm.core.dtypes import FLOATS
from renorm.graph.channels import Carry, every
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import REDUCTION, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.shared.precision import rounded, wide
from renorm.te import tag


class GlobalAveragePool(OpDef):
    """y[n, c, 0..] = mean of x[n, c, ..] over all spatial axes, which stay with extent 1."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    types = {"T": FLOATS}
    onnx = {"GlobalAveragePool": 1}
    fusion = REDUCTION
    scheduled_as = "reduction"

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        return (*x.shape[:2], *[1] * (x.rank - 2))

    def propagate_channels(self, node: Node, index: int, axis: int) -> Carry | None:
        return every(node.output.shape[1], 1) if axis == 1 else None

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.EITHER

    def compute(self, x: te.Tensor) -> te.Tensor:
        spatial = x.shape[2:]
        axes = [te.reduce_axis((0, extent), name=f"s{i}") for i, extent in enumerate(spatial)]
        shape = (*x.shape[:2], *[1] * len(spatial))
        total = te.compute(
            shape, lambda n, c, *_: te.sum(wide(x[(n, c, *axes)]), axis=axes), name="total", tag="reduce"
        )
        count = te.const(float(prod(spatial)), total.dtype)
        mean = te.compute(shape, lambda *i: total[i] / count, name="mean", tag=tag.ELEMWISE)
        return rounded(mean, x.dtype)

    def reference(self, x: Any) -> Any:
        return x.mean(axis=tuple(range(2, x.ndim)), keepdims=True)

    samples = [
        Sample(f32[2, 3, 5, 7]),
        Sample(f32[1, 2, 9]),
        Sample(f32[2, 3, 2, 3, 4]),
        Sample(f32[2, 3, 1, 1]),
        Sample(f32[0, 3, 4, 4]),
        Sample(f64[1, 2, 3, 4]),
        Sample(f16[1, 2, 40, 3].between(1000, 1001)),
        Sample(bf16[1, 2, 4, 4]),
    ]
    rejects = [Reject(f32[3], because="x has rank 1")]
