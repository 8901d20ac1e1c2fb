"""The different elements of a tensor, or slices along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dims import is_static, size
from renorm.core.errors import OperandError
from renorm.core.shapes import normalize_axis
from renorm.graph.attributes import Bool, Int
from renorm.graph.op import OnnxNode
from renorm.ops.nonzero import counted
from renorm.ops.shared.composite import Composite, apply
from renorm.ops.shared.reshaping import extents_of, reshaped

_MOST = 64  # elements of a slice, by each of which all slices are sorted


class Unique(Composite):
    """The different elements of x in order, or (sorted = 0) as they come first in x; where each stands first; which one
    each element of x is; and how often each is there. With an axis the same of slices, which are ordered by their first
    elements first."""

    takes = "x"
    onnx = {"Unique": 11}
    axis = Int(None)
    sorted = Bool(True)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        (x,) = operands
        x = reshaped(x, -1) if self.axis is None else x
        axis = normalize_axis(self.axis or 0, x.rank)
        extent = (x.shape[axis],)
        told: Any = np.asarray(extent, np.int64) if is_static(extent) else extents_of(x.graph, extent)
        rows, n = self._rows(x, axis), apply("slice", apply("shape", x), np.array([axis]), np.array([axis + 1]))
        order: Any = None
        for column in reversed(range(rows.shape[1])):  # sorted by the last one first: equal ones keep their order
            key = reshaped(_cut(rows, column, column + 1, 1), -1)
            _, turned = apply("top_k", key if order is None else apply("gather", key, order), told, largest=False)
            order = turned if order is None else apply("gather", order, turned)
        rows = apply("gather", rows, order)
        same = apply("equal", _cut(rows, 1, None), _cut(rows, 0, -1))
        others = apply(
            "cast", apply("reduce_min", apply("cast", same, to="int32"), axes=(1,), keepdims=False), to="bool"
        )
        is_first = apply("concat", [np.array([True]), apply("logical_not", others)], axis=0)
        count = counted(is_first, f"{node.name}_count")
        places = reshaped(apply("nonzero", is_first, count), -1)
        group = apply("sub", apply("cum_sum", apply("cast", is_first, to="int64"), np.array(0)), np.array([1]))
        first, inverse = apply("gather", order, places), apply("scatter_elements", order, order, group)
        counts = apply("sub", apply("concat", [_cut(places, 1, None), n], axis=0), places)
        if not self.sorted:
            _, turned = apply("top_k", first, count, largest=False)
            _, number = apply("top_k", turned, count, largest=False)
            first, counts = apply("gather", first, turned), apply("gather", counts, turned)
            inverse = apply("gather", number, inverse)
        return apply("gather", x, first, axis=axis), first, inverse, counts

    def _rows(self, x: Any, axis: int) -> Any:
        """Return slices as rows of a matrix."""
        others = size(d for a, d in enumerate(x.shape) if a != axis)
        if not isinstance(others, int) or not 0 < others <= _MOST:
            raise OperandError(
                f"Unique({x.type}): slices along axis {axis} are of 1 to {_MOST} elements, which are known, at most"
            )
        order = [axis, *(a for a in range(x.rank) if a != axis)]
        return apply("reshape", apply("transpose", x, perm=order), np.array([-1, others]))


def _cut(x: Any, begin: int, end: int | None, axis: int = 0) -> Any:
    """Return the part of a tensor from one place to another."""
    last = np.iinfo(np.int64).max if end is None else end
    return apply("slice", x, np.array([begin]), np.array([last]), np.array([axis]))
