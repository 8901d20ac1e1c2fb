"""Products of matrices with those of a stack that indices choose: layers of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core.dims import Dim
from renorm.core.dtypes import FLOATS
from renorm.graph.ir import Node
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, Demand, OpDef, Reject, Sample
from renorm.graph.types import Operand, TensorType, f16, f32, f64, i32, i64
from renorm.ops.gather import INDICES, check_indices, within
from renorm.ops.shared.composite import apply
from renorm.topi.linear import product


class GatherMatmul(OpDef):
    """y[b, m, n] = sum over k of x[b, m, k] * w[indices[b], k, n]. The chosen matrices are read where they lie."""

    signature = "x: T[B, M, K], w: T[E, K, N], indices: I[B] -> y: T[B, M, N]"
    types = {"T": FLOATS, "I": INDICES}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "gemm"
    is_product = True

    def infer(self, x: Operand, w: Operand, indices: Operand) -> tuple[Dim, ...]:
        check_indices(w, 0, indices)
        return (x.shape[0], x.shape[1], w.shape[2])

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return 2 if index == 1 else None

    def rows_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return 1 if index == 1 else None

    def in_onnx(self, node: Node) -> Any:
        x, w, indices = node.operands
        return apply("matmul", x, apply("gather", w, indices))

    def compute(self, x: te.Tensor, w: te.Tensor, indices: te.Tensor) -> te.Tensor:
        return product(x, topi.take(w, indices, 0, "from_end")).astype(x.dtype)

    def reference(self, x: Any, w: Any, indices: Any) -> Any:
        return np.matmul(x, np.take(w, within(indices, np.shape(w)[0]), 0))

    def demands(self, node: Node) -> list[Demand]:
        _, w, indices = node.operands
        return [] if indices.is_constant else [Demand(indices, (0,), w.shape[:1])]

    samples = [
        Sample(f32[3, 2, 7], f32[4, 7, 5], i64[3].of([3, 0, 3])),
        Sample(f32[5, 9, 40], f32[3, 40, 33], i32[5].of([0, 2, -1, 1, 1])),
        Sample(f64[1, 1, 3], f64[2, 3, 4], i64[1].of([1])),
        Sample(f16[2, 5, 3], f16[2, 3, 4], i64[2].of([1, 0])),
        Sample(f32[2, 5, 0], f32[2, 0, 4], i64[2].of([1, 0])),
        Sample(f32[0, 5, 3], f32[2, 3, 4], i64[0].of([])),
    ]
    rejects = [
        Reject(f32[3, 2, 7], f32[4, 7, 5], f32[3], because="indices is float32"),
        Reject(f32[3, 2, 6], f32[4, 7, 5], i64[3].of([3, 0, 3]), because="K"),
    ]
