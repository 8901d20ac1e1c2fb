"""Elements by whole indices, each of several axes, as ops/gather.py has those of one axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dims
from renorm.core.dims import Dim, is_static
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr
from renorm.graph.attributes import Int
from renorm.graph.ir import Node
from renorm.graph.op import Demand, Reject, Sample
from renorm.graph.types import Operand, boolean, f32, i64
from renorm.ops.gather import indexed, within
from renorm.ops.shared.family import Injective


class GatherNd(Injective):
    """y[b.., j.., k..] = x[b.., *indices[b.., j..], k..]: the last axis of indices holds whole indices."""

    signature = "x: T[...], indices: i64[...] -> y: T[...]"
    batch_dims = Int(0, at_least=0)
    onnx = {"GatherND": 11}

    def infer(self, x: Operand, indices: Operand) -> tuple[Dim, ...]:
        if min(x.rank, indices.rank) < 1 + self.batch_dims:
            raise OperandError(f"gather_nd: {x} and {indices} need more than batch_dims = {self.batch_dims} axes")
        depth = dims.static(indices.shape[-1:], "the last axis of indices")[0]  # which decides the rank of y
        if depth > x.rank - self.batch_dims:
            raise OperandError(f"gather_nd: {indices} names {depth} axes, more than {x} has")
        for own, wanted in zip(x.shape[: self.batch_dims], indices.shape):
            if isinstance(own, int) and isinstance(wanted, int) and own != wanted:
                raise OperandError(f"gather_nd: the first {self.batch_dims} extents of {x} and {indices} differ")
            dims.take(wanted, "==", own)
        named = x.shape[self.batch_dims : self.batch_dims + depth]
        if 0 in named and is_static(indices.shape) and 0 not in indices.shape:
            raise OperandError(f"gather_nd: an axis of {x} has no elements, {indices} asks for some")
        for extent in named:
            dims.take(dims.minimum(1, dims.size(indices.shape)), "<=", extent)
        return (*indices.shape[:-1], *x.shape[self.batch_dims + depth :])

    def compute(self, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        batch, depth, rows = self.batch_dims, indices.shape[-1], indices.ndim - 1

        def element(*i: Expr) -> Expr:
            chosen = (topi.within(indices[(*i[:rows], k)], x.shape[batch + k]) for k in range(depth))
            return x[(*i[:batch], *chosen, *i[rows:])]

        shape = (*indices.shape[:-1], *x.shape[batch + depth :])
        return te.compute(shape, element, name="gather_nd", tag=te.tag.INJECTIVE)

    def reference(self, x: Any, indices: Any) -> Any:
        x, indices, batch = np.asarray(x), np.asarray(indices), self.batch_dims
        lead = np.shape(indices)[:-1]
        result = np.empty((*lead, *x.shape[batch + indices.shape[-1] :]), x.dtype)
        extents = x.shape[batch : batch + indices.shape[-1]]
        for at in np.ndindex(*lead):
            result[at] = x[(*at[:batch], *(within(i, n) for i, n in zip(indices[at], extents)))]
        return result

    def demands(self, node: Node) -> list[Demand]:
        return indexed(node, self.batch_dims, is_whole=True)

    samples = [
        Sample(f32[3, 4], i64[2, 2].of([[0, 1], [-1, 3]])),
        Sample(f32[3, 4, 2], i64[2, 1].of([[2], [0]])),
        Sample(f32[2, 3, 4], i64[2, 1].of([[2], [-3]]), batch_dims=1),
        Sample(boolean[2, 2], i64[1, 3, 2].of([[[0, 0], [1, 0], [1, 1]]])),
    ]
    rejects = [
        Reject(f32[3], i64[2, 2], because="more than x"),
        Reject(f32[3], i64[2, 1], batch_dims=1, because="batch_dims = 1"),
        Reject(f32[0, 3], i64[2, 1], because="has no elements"),
        Reject(f32[2, 3], i64[3, 1], batch_dims=1, because="the first 1 extents of"),
    ]
