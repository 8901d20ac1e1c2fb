"""Matrix product with NumPy's rules: batches broadcast, vectors are rows or columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core.dims import Dim, take
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.core.shapes import broadcast
from renorm.graph import registry
from renorm.graph.channels import ChannelMap
from renorm.graph.deferred import times
from renorm.graph.ir import Node
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, OpDef, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f16, f32, f64, i64, u64
from renorm.ops.shared.folding import ALONG, in_float64, is_known
from renorm.topi.linear import product


class Matmul(OpDef):
    """y[.., m, n] = sum over k of a[.., m, k] * b[.., k, n]; leading axes broadcast. A vector a has no m, a vector b
    no n."""

    signature = "a: T[...], b: T[...] -> y: T[...]"
    types = {"T": (*FLOATS, "int32", "int64", "uint32", "uint64")}
    onnx = {"MatMul": 1}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "gemm"
    is_product = True

    def infer(self, a: Operand, b: Operand) -> tuple[Dim, ...]:
        if not a.rank or not b.rank:
            raise OperandError(f"matmul({a}, {b}): a scalar has no rows or columns", do="use mul")
        inner, other = a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0]
        if inner != other and isinstance(inner, int) and isinstance(other, int):
            raise OperandError(f"matmul({a}, {b}): a has {inner} columns but b has {other} rows")
        take(inner, "==", other)
        return (*broadcast(a.shape[:-2], b.shape[:-2]), *a.shape[-2:-1], *(b.shape[-1:] if b.rank > 1 else ()))

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        weight = operands[1]
        return 1 if index == 1 and weight and weight.rank == 2 else None

    def rows_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        data, weight = operands
        return 0 if index == 1 and weight and weight.rank == 2 and data and data.rank > 1 else None

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        a, b = operands
        ranks = [x.ndim if is_known(x) else x.rank for x in operands]
        if shift is not None and ranks != [2, 2]:
            return "matmul has no bias, and gemm, which has one, takes matrices only"
        rank = max(*ranks, 2) - (ranks[0] == 1) - (ranks[1] == 1)
        is_column, is_row = ranks[1] > 1 and axis == rank - 1, ranks[0] > 1 and axis == rank - 1 - (ranks[1] > 1)
        if not is_column and not is_row:
            return f"axis {axis} of the result of matmul is neither its rows nor its columns"
        if k is not None and not is_known(b if is_column else a):
            side = "right" if is_column else "left"
            return f"the {side} operand of matmul, which the factors fall upon, is not a constant"
        if k is not None:
            a, b = (a, times(b, k)) if is_column else (times(a, k[:, None]), b)
        if shift is None:
            return self, [a, b]
        return registry.find("gemm")(), [a, b, shift if is_column else shift[:, None]]

    def fold_before(self, node: Node, operands: Sequence[Any], index: int, m: ChannelMap) -> Any:
        """The other matrix times k along what is summed; what the shift adds is the same for every row of y, or for
        every column."""
        x, other = operands[index], operands[1 - index]
        rank = len(x.shape)
        if m.axis != (rank - 1 if index == 0 else max(0, rank - 2)):
            return ALONG.format(m.axis)
        if not is_known(other) or other.ndim < 2:
            return f"operand {'ab'[1 - index]} of matmul is not a constant matrix"
        rest = None
        if m.shift is not None and m.shift.any():
            held = in_float64(other)
            rest = m.shift @ held if index == 0 else held @ m.shift
            rest = rest if rank == 1 else rest[..., None, :] if index == 0 else rest[..., None]
        if m.k is not None:
            other = times(other, m.k[:, None] if index == 0 else m.k)
        return self, [x, other] if index == 0 else [other, x], rest

    def compute(self, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        rows = a if a.ndim > 1 else topi.unsqueeze(a, [0])
        columns = b if b.ndim > 1 else topi.unsqueeze(b, [1])
        y = product(rows, columns)
        alone = [axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1]
        return (topi.squeeze(y, alone) if alone else y).astype(a.dtype)

    def reference(self, a: Any, b: Any) -> Any:
        return np.matmul(a, b)

    samples = [
        Sample(f32[5, 7], f32[7, 3]),
        Sample(f32[2, 5, 7], f32[7, 3]),
        Sample(f32[2, 1, 5, 4], f32[3, 4, 6]),
        Sample(f32[4], f32[4]),
        Sample(f32[4], f32[2, 4, 3]),
        Sample(f32[2, 3, 4], f32[4]),
        Sample(f32[3, 0], f32[0, 2]),
        Sample(f32[0, 3], f32[3, 2]),
        Sample(f64[3, 4], f64[4, 2]),
        Sample(f16[3, 40], f16[40, 2]),
        Sample(bf16[3, 4], bf16[4, 2]),
        Sample(i64[3, 4], i64[4, 2]),
        Sample(u64[3, 4], u64[4, 2]),
    ]
    rejects = [
        Reject(f32[5, 7], f32[6, 3], because="a has 7 columns but b has 6 rows"),
        Reject(f32[()], f32[3], because="a scalar has no rows"),
        Reject(f32[2, 5, 7], f32[3, 7, 3], because="do not broadcast"),
        Reject(f32[5, 7], f64[7, 3], because="b is float64 but a is float32"),
    ]
