"""Indices as rows of zeros with a one."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core import shapes
from renorm.core.dims import Dim
from renorm.core.dtypes import NUMBERS
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, as_expr, cast, select
from renorm.graph.attributes import Int
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, f32, i32, i64
from renorm.ops.shared.family import Injective


class OneHot(Injective):
    """y = values[1] where the index along the new `axis` is indices (or depth + indices, if negative), values[0]
    elsewhere."""

    signature = "indices: I[...], depth!: D[...], values: T[2] -> y: T[...]"
    types = {"I": NUMBERS, "D": NUMBERS}
    axis = Int(-1)
    onnx = {"OneHot": 9}

    def infer(self, indices: Operand, depth: Operand, values: Operand) -> tuple[Dim | None, ...]:
        if depth.shape not in ((), (1,)):
            raise OperandError(f"one_hot: {depth} is not a scalar")
        axis = shapes.normalize_axis(self.axis, indices.rank + 1)
        extent = None if depth.known is None else depth.known.reshape(-1)[0]
        extent = int(extent) if isinstance(extent, (float, np.generic)) else extent
        return (*indices.shape[:axis], extent, *indices.shape[axis:])

    def compute(self, indices: te.Tensor, depth: np.ndarray[Any, Any], values: te.Tensor) -> te.Tensor:
        axis, extent = shapes.normalize_axis(self.axis, indices.ndim + 1), depth.reshape(-1)[0]
        extent = extent if isinstance(extent, Expr) else int(extent)  # an open one counts as a number

        def element(*i: Expr) -> Expr:
            index = cast("int64", indices[(*i[:axis], *i[axis + 1 :])])
            here = cast("int64", i[axis])
            hit = here.equal(select(index < 0, index + cast("int64", as_expr(extent)), index))
            return select(hit, values[1], values[0])

        shape = (*indices.shape[:axis], extent, *indices.shape[axis:])
        return te.compute(shape, element, name="one_hot", tag=te.tag.INJECTIVE)

    def reference(self, indices: Any, depth: Any, values: Any) -> Any:
        extent = int(np.reshape(depth, ()))
        index = np.trunc(indices)
        index = np.where(index < 0, index + extent, index)
        hits = np.expand_dims(index, -1) == np.arange(extent)
        return np.moveaxis(np.where(hits, values[1], values[0]), -1, self.axis)

    samples = [
        Sample(i64[4].of([0, 2, -1, 5]), i64[()].of(3), f32[2].of([0, 1])),
        Sample(i64[2, 2].of([[1, 0], [2, 1]]), i64[1].of([3]), i32[2].of([5, -5]), axis=1),
        Sample(f32[3].of([0, 1, 2]), f32[()].of(4), f32[2].of([-1, 1]), axis=0),
    ]
    rejects = [
        Reject(i64[2], i64[2].of([1, 2]), f32[2], because="is not a scalar"),
        Reject(i64[2], i64[()].of(3), f32[3], because="values has 3 where 2 is expected"),
        Reject(i64[2], i64[()].of(3), f32[2], axis=2, because="axis 2 is outside"),
    ]
