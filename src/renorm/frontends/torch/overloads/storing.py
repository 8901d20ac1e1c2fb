"""Overloads that store at computed places: elements along an axis, slices, or where several axes say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dtypes import is_float, numpy_dtype
from renorm.core.errors import UnsupportedOp
from renorm.core.shapes import normalize_axis
from renorm.frontends.torch.call import Call, Given, Number, Operand
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value
from renorm.ops.nonzero import counted

_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@reads("scatter.src")
def _scatter(c: Call, x: Value, dim: int, index: Value, src: Value) -> Any:
    return _stored(c, x, dim, index, src)


@reads("scatter.value")
def _scatter_number(c: Call, x: Value, dim: int, index: Value, value: Number) -> Any:
    return _stored(c, x, dim, index, c.filled(value, x.dtype, index.shape))


@reads("scatter.reduce")
def _scatter_combined(c: Call, x: Value, dim: int, index: Value, src: Value, *, reduce: str) -> Any:
    return _stored(c, x, dim, index, src, _REDUCTIONS[reduce])


@reads("scatter.value_reduce")
def _scatter_number_combined(c: Call, x: Value, dim: int, index: Value, value: Number, *, reduce: str) -> Any:
    return _stored(c, x, dim, index, c.filled(value, x.dtype, index.shape), _REDUCTIONS[reduce])


@reads("scatter_add")
def _scatter_add(c: Call, x: Value, dim: int, index: Value, src: Value) -> Any:
    return _stored(c, x, dim, index, src, "add")


@reads("scatter_reduce.two")
def _scatter_reduce(
    c: Call, x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True
) -> Any:
    if reduce == "mean" and not is_float(x.dtype):
        raise UnsupportedOp("a mean of whole numbers is rounded as it is added up")
    kind = "add" if reduce == "mean" else _REDUCTIONS[reduce]
    begun = x if include_self else _stored(c, x, dim, index, c.filled(_neutral(kind, x.dtype), x.dtype, index.shape))
    found = _stored(c, begun, dim, index, src, kind)
    if reduce != "mean":
        return found
    ones = c.filled(1, x.dtype, index.shape)
    count = _stored(c, c.filled(int(include_self), x.dtype, x.shape), dim, index, ones, "add")
    return ops.div(found, ops.max([count, c.number(1, x.dtype)]))


def _neutral(reduction: str, dtype: str) -> Any:
    """Return the number that a reduction leaves others as they are with."""
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    if dtype == "bool":
        return reduction == "min"
    if is_float(dtype):
        return math.inf if reduction == "min" else -math.inf
    limits = np.iinfo(numpy_dtype(dtype))
    return limits.max if reduction == "min" else limits.min


def _stored(c: Call, x: Value, dim: int, index: Value, src: Value, reduction: str = "none") -> Value:
    """Return x with elements of src in the places that indices along an axis say; src may be longer than the indices
    along others."""
    shape, index = x.shape, c.cast(index, "int64")
    if 0 in index.shape:
        return x
    if x.rank == 0:
        x, index, src = c.reshaped(x, (1,)), c.reshaped(index, (1,)), c.reshaped(src, (1,))
    index, src = (c.reshaped(v, (1,)) if v.rank == 0 else v for v in (index, src))
    for a, (n, most) in enumerate(zip(index.shape, src.shape, strict=True)):
        src = src if n == most else c.sliced(src, a, 0, n)
    held = "int64" if x.dtype == "bool" and reduction != "none" else x.dtype
    made = ops.scatter_elements(
        c.cast(x, held), index, c.cast(src, held), axis=normalize_axis(dim, x.rank), reduction=reduction
    )
    return c.reshaped(c.cast(made, x.dtype), shape)


@reads("index_add")
def _index_add(c: Call, x: Value, dim: int, index: Value, source: Value, *, alpha: Number = 1) -> Any:
    if x.dtype == "bool":
        return _along(c, x, dim, index, source, "add") if alpha else x
    scaled = source if alpha == 1 else ops.mul(source, c.number(alpha, x.dtype))
    return _along(c, x, dim, index, scaled, "add")


@reads("index_copy")
def _index_copy(c: Call, x: Value, dim: int, index: Value, source: Value) -> Any:
    return _along(c, x, dim, index, source)


@reads("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(c: Call, x: Value, dim: int, index: Value, value: Operand) -> Any:
    axis = normalize_axis(dim, max(x.rank, 1))
    count = index.shape[0] if index.rank else 1
    shape = tuple(count if a == axis else n for a, n in enumerate(x.shape or (1,)))
    number = c.operand(value, x.dtype)
    return _along(c, x, dim, index, ops.expand(c.reshaped(number, ()), c.integers(shape)))


def _along(c: Call, x: Value, dim: int, index: Value, source: Value, reduction: str = "none") -> Value:
    """Return x with slices of source along an axis in the places that a vector of indices says."""
    source = c.reshaped(source, (1,)) if source.rank == 0 else source
    return _stored(c, x, dim, _places(c, dim, index, source), source, reduction)


def _places(c: Call, dim: int, index: Value, source: Value) -> Value:
    """Return a vector of indices along an axis, one for each element of source."""
    axis = normalize_axis(dim, source.rank)
    beside = tuple(n if a == axis else 1 for a, n in enumerate(source.shape))
    return c.expanded(c.reshaped(index, beside), source.shape)


@reads("index_put", "_unsafe_index_put")
def _index_put(c: Call, x: Value, indices: Sequence[Given], values: Operand, accumulate: bool = False) -> Any:
    """Store where truth values say, or indices of one axis, or of several, which broadcast (as index.Tensor reads)."""
    if accumulate and x.dtype == "bool":
        raise UnsupportedOp("truth values are added where indices say")
    given = [(a, i) for a, i in enumerate(indices) if i is not None]
    if len(given) == 1 and given[0][1].dtype == "bool":
        return _masked(c, x, *given[0], values, accumulate)
    if any(i.dtype in ("bool", "uint8") for _, i in given):
        raise UnsupportedOp("elements are stored where several truth values say, whose number data decide")
    stored, reduction = c.operand(values, x.dtype), "add" if accumulate else "none"
    axes, spread = [a for a, _ in given], c.spread([c.cast(i, "int64") for _, i in given])
    shape, count = spread[0].shape, spread[0].rank
    if len(axes) == 1:
        (axis,), index = axes, c.reshaped(spread[0], (-1,)) if count != 1 else spread[0]
        whole = c.expanded(stored, (*x.shape[:axis], *shape, *x.shape[axis + 1 :]))
        length = index.shape[0]
        return _along(c, x, axis, index, c.reshaped(whole, (*x.shape[:axis], length, *x.shape[axis + 1 :])), reduction)
    others = [a for a in range(x.rank) if a not in axes]
    before = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    rest = [x.shape[a] for a in others]
    whole = c.expanded(stored, (*rest[:before], *shape, *rest[before:]))
    if before and count:
        front, behind = range(before, before + count), range(before + count, whole.rank)
        whole = ops.transpose(whole, perm=(*front, *range(before), *behind))
    perm = (*axes, *others)
    moved = ops.transpose(x, perm=perm) if perm != tuple(range(x.rank)) else x
    places = ops.concat([ops.unsqueeze(i, axes=(count,)) for i in spread], axis=count)
    made = ops.scatter_nd(moved, places, whole, reduction=reduction)
    return ops.transpose(made, perm=tuple(int(p) for p in np.argsort(perm))) if moved is not x else made


def _masked(c: Call, x: Value, axis: int, mask: Value, values: Operand, accumulate: bool) -> Value:
    """Store the k-th value where a mask, of axes from `axis` on, is true for the k-th time: one value for all places
    is chosen by element."""
    stored, rest = c.operand(values, x.dtype), x.rank - axis - mask.rank
    if stored.rank > rest and stored.shape[-rest - 1] != 1:
        return _scattered(c, x, axis, mask, stored, accumulate)
    if stored.rank > rest:
        lead = stored.rank - rest - 1
        stored = c.reshaped(stored, (*stored.shape[:lead], *[1] * mask.rank, *stored.shape[lead + 1 :]))
    kept = c.reshaped(mask, (*mask.shape, *[1] * rest))
    return ops.where(kept, ops.add(x, stored) if accumulate else stored, x)


def _scattered(c: Call, x: Value, axis: int, mask: Value, values: Value, accumulate: bool) -> Value:
    count, behind = counted(mask), axis + mask.rank
    places = ops.transpose(ops.nonzero(mask, count), perm=(1, 0))
    whole = ops.expand(values, c.integers([*x.shape[:axis], count, *x.shape[behind:]]))
    order = (*range(axis, behind), *range(axis), *range(behind, x.rank))  # what is indexed comes first
    moved = ops.transpose(x, perm=order) if axis else x
    if axis:
        whole = ops.transpose(whole, perm=(axis, *range(axis), *range(axis + 1, whole.rank)))
    made = ops.scatter_nd(moved, places, whole, reduction="add" if accumulate else "none")
    return ops.transpose(made, perm=tuple(int(p) for p in np.argsort(order))) if axis else made


@reads("masked_scatter")
def _masked_scatter(c: Call, x: Value, mask: Value, source: Value) -> Any:
    """Store as many elements of the source as there are places, in its order."""
    x, mask = (c.flat(v) for v in c.spread([x, mask]))
    first = ops.slice(c.flat(source), np.array([0]), counted(mask), np.array([0]))
    return c.reshaped(_scattered(c, x, 0, mask, first, False), c.shape)


@reads("index_reduce")
def _index_reduce(
    c: Call, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Any:
    held, source = (c.reshaped(v, v.shape or (1,)) for v in (x, source))
    places = _places(c, dim, index, source)
    return c.reshaped(_scatter_reduce(c, held, dim, places, source, reduce, include_self=include_self), x.shape)


# --- bags -------------------------------------------------------------------------------------------------------------


@reads("embedding_bag", "embedding_bag.padding_idx")
def _embedding_bag(
    c: Call,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Return sums, means or maxima of the rows of each bag, whose indices begin at its offset, but for those that say
    padding. Where the last offset is an end, what is behind it is a bag that nobody asks for."""
    (wanted, width), n, bags = c.shape, indices.shape[0], offsets.shape[0]
    dtype = "float64" if weight.dtype == "float64" else "float32"  # in which PyTorch adds up
    is_behind = ops.greater_or_equal(c.cast(c.reshaped(c.positions(n), (n, 1)), offsets.dtype), offsets)
    bag = ops.sub(ops.reduce_sum(c.cast(is_behind, "int64"), axes=(1,), keepdims=False), c.number(1, "int64"))
    rows = c.cast(ops.gather(weight, indices, axis=0), dtype)
    if per_sample_weights is not None:
        rows = ops.mul(rows, c.cast(c.reshaped(per_sample_weights, (n, 1)), dtype))
    kept = c.filled(True, "bool", (n, 1))
    if padding_idx is not None:
        padding = c.number(padding_idx + weight.shape[0] if padding_idx < 0 else padding_idx, indices.dtype)
        kept = ops.logical_not(ops.equal(c.reshaped(indices, (n, 1)), padding))
    counts = _along(c, c.filled(0, dtype, (bags, 1)), 0, bag, c.cast(kept, dtype), "add")
    kind, empty = ("max", -math.inf) if mode == 2 else ("add", 0)
    rows = ops.where(kept, rows, c.number(empty, dtype))
    found = _along(c, c.filled(empty, dtype, (bags, width)), 0, bag, rows, kind)
    if mode == 1:
        found = ops.div(found, ops.max([counts, c.number(1, dtype)]))
    if mode == 2:
        found = ops.where(ops.greater(counts, c.number(0, dtype)), found, c.number(0, dtype))
    return [c.cast(c.sliced(found, 0, 0, wanted), weight.dtype), None, None, None]
