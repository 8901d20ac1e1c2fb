"""Overloads that put elements in order, or find those of a rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from renorm import ops
from renorm.core.dims import Dim, size
from renorm.core.dtypes import is_float
from renorm.core.shapes import normalize_axis
from renorm.frontends.torch.call import Call
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value


@reads("topk")
def _topk(c: Call, x: Value, k: Dim, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if x.rank == 0:
        return [x, c.filled(0, "int64", ())]
    return list(ops.top_k(x, c.integers([k]), axis=normalize_axis(dim, x.rank), largest=largest, sorted=sorted))


def _in_order(c: Call, x: Value, dim: int, descending: bool) -> list[Value]:
    if x.rank == 0:
        return [x, c.filled(0, "int64", ())]
    axis = normalize_axis(dim, x.rank)
    held = c.cast(x, "uint8") if x.dtype == "bool" else x
    values, places = ops.top_k(held, c.integers([x.shape[axis]]), axis=axis, largest=descending, sorted=True)
    return [c.cast(values, x.dtype), places]


@reads("sort")
def _sort(c: Call, x: Value, dim: int = -1, descending: bool = False) -> Any:
    return _in_order(c, x, dim, descending)


@reads("sort.stable")
def _sort_stable(c: Call, x: Value, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    return _in_order(c, x, dim, descending)


@reads("argsort")
def _argsort(c: Call, x: Value, dim: int = -1, descending: bool = False) -> Any:
    return _in_order(c, x, dim, descending)[1]


@reads("argsort.stable")
def _argsort_stable(c: Call, x: Value, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    return _in_order(c, x, dim, descending)[1]


# --- ranks ------------------------------------------------------------------------------------------------------------


def _of_rank(c: Call, x: Value, rank: Dim | Value, axis: int) -> list[Value]:
    """Return the element of a rank along an axis, counted from the least one, and where it stands; the axis stays."""
    values, found = _in_order(c, x, axis, descending=False)
    if isinstance(rank, Value):  # of each slice one
        return [ops.gather_elements(v, rank, axis=axis) for v in (values, found)]
    return [c.sliced(v, axis, rank, rank + 1) for v in (values, found)]


def _ranked(c: Call, x: Value, dim: int | None, choose: Callable[[Value, int], list[Value]]) -> list[Value]:
    """Return what is chosen of each slice along an axis, in the shape of the result; of all elements where there is
    none, or the one there is."""
    held = x if dim is not None and x.rank else c.reshaped(x, (size(x.shape),))
    axis = normalize_axis(dim, x.rank) if dim is not None and x.rank else 0
    return [c.reshaped(v, c.type(i)[1]) for i, v in enumerate(choose(held, axis)[: len(c.results)])]


@reads("kthvalue")
def _kthvalue(c: Call, x: Value, k: Dim, dim: int = -1, keepdim: bool = False) -> Any:
    return _ranked(c, x, dim, lambda v, axis: _of_rank(c, v, k - 1, axis))


def _median(c: Call, x: Value, axis: int) -> list[Value]:
    """The lower one of two in the middle; the first NaN where there is one."""
    found, place = _of_rank(c, x, (x.shape[axis] - 1) // 2, axis)
    if not is_float(x.dtype):
        return [found, place]
    lacking = c.cast(ops.isnan(x), "int32")
    is_lacking = ops.greater(ops.reduce_max(lacking, axes=(axis,), keepdims=True), c.number(0, "int32"))
    first = ops.arg_max(lacking, axis=axis, keepdims=True)
    return [ops.where(is_lacking, c.number(math.nan, x.dtype), found), ops.where(is_lacking, first, place)]


def _nanmedian(c: Call, x: Value, axis: int) -> list[Value]:
    """That of the elements that are numbers, which stand in front in order; NaN where there is none."""
    if not is_float(x.dtype):
        return _median(c, x, axis)
    there = ops.reduce_sum(c.cast(ops.logical_not(ops.isnan(x)), "int64"), axes=(axis,), keepdims=True)
    one, two = c.number(1, "int64"), c.number(2, "int64")
    rank = ops.div(ops.max([ops.sub(there, one), c.number(0, "int64")]), two)
    return _of_rank(c, x, rank, axis)


@reads("median")
def _median_of_all(c: Call, x: Value) -> Any:
    return _ranked(c, x, None, lambda v, axis: _median(c, v, axis))[0]


@reads("nanmedian")
def _nanmedian_of_all(c: Call, x: Value) -> Any:
    return _ranked(c, x, None, lambda v, axis: _nanmedian(c, v, axis))[0]


@reads("median.dim")
def _median_dim(c: Call, x: Value, dim: int, keepdim: bool = False) -> Any:
    return _ranked(c, x, dim, lambda v, axis: _median(c, v, axis))


@reads("nanmedian.dim")
def _nanmedian_dim(c: Call, x: Value, dim: int, keepdim: bool = False) -> Any:
    return _ranked(c, x, dim, lambda v, axis: _nanmedian(c, v, axis))
