"""Maximum and p-norm of every channel of every sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.dtypes import FLOATS
from renorm.expr.nodes import cast
from renorm.graph.attributes import Float
from renorm.graph.channels import Carry, every
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import REDUCTION, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.lp_pool import powered, rooted
from renorm.te import tag
from renorm.topi.reduction import reduce


class GlobalPool(OpDef):
    """Base of pools over all spatial axes, which stay with extent 1."""

    types = {"T": FLOATS}
    fusion = REDUCTION
    scheduled_as = "reduction"

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        return (*x.shape[:2], *[1] * (x.rank - 2))

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.EITHER

    samples = [
        Sample(f32[2, 3, 5, 7]),
        Sample(f32[1, 2, 9].between(-3, -1)),
        Sample(f32[2, 3, 2, 3, 4]),
        Sample(f32[1, 1, 3].of([1, float("nan"), 2])),
        Sample(f32[0, 3, 4, 4]),
        Sample(f64[1, 2, 3, 4]),
        Sample(f16[1, 2, 4, 3]),
        Sample(bf16[1, 2, 4, 4]),
    ]
    rejects = [Reject(f32[3], because="x has rank 1")]


class GlobalMaxPool(GlobalPool):
    """y[n, c, 0..] = maximum of x[n, c, ..] over all spatial axes."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    onnx = {"GlobalMaxPool": 1}

    def propagate_channels(self, node: Node, index: int, axis: int) -> Carry | None:
        return every(node.output.shape[1], 1, positive=True) if axis == 1 else None

    def compute(self, x: te.Tensor) -> te.Tensor:
        most = reduce("max", x, range(2, x.ndim), True, name="most")
        return te.compute(most.shape, lambda *i: cast(x.dtype, most[i]), name="global_max_pool", tag=tag.ELEMWISE)

    def reference(self, x: Any) -> Any:
        return x.max(axis=tuple(range(2, x.ndim)), keepdims=True)


class GlobalLpPool(GlobalPool):
    """y[n, c, 0..] = (sum of |x[n, c, ..]| ** p over all spatial axes) ** (1/p)."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    onnx = {"GlobalLpPool": 1}
    p = Float(2.0)

    def compute(self, x: te.Tensor) -> te.Tensor:
        total = reduce("sum", x, range(2, x.ndim), True, formula=lambda e, _: powered(e, self.p), name="total")
        return te.compute(
            total.shape, lambda *i: cast(x.dtype, rooted(total[i], self.p)), name="global_lp_pool", tag=tag.ELEMWISE
        )

    def reference(self, x: Any) -> Any:
        return (np.abs(x) ** self.p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / self.p)

    samples = [*GlobalPool.samples, Sample(f32[2, 3, 4], p=1.0), Sample(f32[2, 3, 4].between(0.1, 2), p=2.5)]
