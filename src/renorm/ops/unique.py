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
from renorm.ops.shared.reshaping import reshaped

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
        return different(x, normalize_axis(self.axis or 0, x.rank), bool(self.sorted), f"{node.name}_count")


def different(x: Any, axis: int, is_sorted: bool = True, name: str = "") -> tuple[Any, Any, Any, Any]:
    """Return the different slices of x along an axis, where each stands first, which one each slice of x is, and how
    often each is there. name: a hint for that of their number. Raises OperandError where slices are long."""
    n, rows = extent(x, axis), as_rows(x, axis)
    order: Any = None
    for column in reversed(range(rows.shape[1])):  # sorted by the last one first: equal ones keep their order
        key = reshaped(_column(rows, column), -1)
        _, turned = apply("top_k", key if order is None else apply("gather", key, order), n, largest=False)
        order = turned if order is None else apply("gather", order, turned)
    places, group, counts, count = runs(apply("gather", rows, order), n, name)
    first, inverse = apply("gather", order, places), apply("scatter_elements", order, order, group)
    if not is_sorted:
        _, turned = apply("top_k", first, count, largest=False)
        _, number = apply("top_k", turned, count, largest=False)
        first, counts = apply("gather", first, turned), apply("gather", counts, turned)
        inverse = apply("gather", number, inverse)
    return apply("gather", x, first, axis=axis), first, inverse, counts


def runs(rows: Any, n: Any, name: str = "") -> tuple[Any, Any, Any, Any]:
    """Return where runs of equal rows begin, which run each of the n rows is of, how long each run is, and how many
    there are."""
    place = apply("range", np.array(0), reshaped(n, *()), np.array(1))
    before = apply("gather", rows, apply("max", [apply("sub", place, np.array(1)), np.array(0)]))
    differs = apply("cast", apply("logical_not", apply("equal", rows, before)), to="int32")
    other = apply("cast", apply("reduce_max", differs, axes=(1,), keepdims=False), to="bool")
    is_first = apply("logical_or", apply("equal", place, np.array(0)), other)
    count = counted(is_first, name)
    begins = reshaped(apply("nonzero", is_first, count), -1)
    one = apply("cast", is_first, to="int64")
    group = apply("sub", apply("cum_sum", one, np.array(0)), np.array([1]))
    none = apply("expand", np.array(0), count)
    lengths = apply("scatter_elements", none, group, apply("expand", np.array(1), n), reduction="add")
    return begins, group, lengths, count


def extent(x: Any, axis: int) -> Any:
    """Return how long an axis is, as a vector of one number."""
    if is_static(x.shape[axis : axis + 1]):
        return x.graph.constant(np.array(x.shape[axis : axis + 1]), "extent")
    return apply("slice", apply("shape", x), np.array([axis]), np.array([axis + 1]))


def as_rows(x: Any, axis: int) -> Any:
    """Return slices along an axis as rows of a matrix. Raises OperandError where they are long."""
    others = size(d for a, d in enumerate(x.shape) if a != axis)
    if not isinstance(others, int) or not 0 < others <= _MOST:
        raise OperandError(
            f"Unique({x.type}): slices along axis {axis} are of 1 to {_MOST} elements, which are known, at most"
        )
    order = [axis, *(a for a in range(x.rank) if a != axis)]
    return apply("reshape", apply("transpose", x, perm=order), np.array([-1, others]))


def _column(rows: Any, k: int) -> Any:
    return apply("slice", rows, np.array([k]), np.array([k + 1]), np.array([1]))
