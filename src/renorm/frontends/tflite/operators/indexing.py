"""Operators that read or write by indices, and that find them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.core.shapes import normalize_axis
from renorm.frontends.building import one_hot
from renorm.frontends.orders import First
from renorm.frontends.tflite.call import OperatorCall, long
from renorm.frontends.tflite.emission import Emission
from renorm.frontends.tflite.operator import Operator, Reader
from renorm.graph.ir import Value

# --- read -------------------------------------------------------------------------------------------------------------


def _gather(call: OperatorCall) -> Value:
    """With batch_dims: the first axes of indices are those of x, and indices count in their own part of it."""
    x, indices = call.stored(0), call.stored(1)
    axis = normalize_axis(int(call.option("axis", 0)), x.rank)
    batch = int(call.option("batch_dims", 0))
    batch += indices.rank if batch < 0 else 0
    if not batch:
        return ops.gather(x, indices, axis=axis)
    if not 0 <= batch <= min(axis, indices.rank):
        raise InvalidModel(f"batch_dims {batch} do not lie before axis {axis}, and in indices of {indices.rank} axes")
    order = [*range(batch), axis, *(a for a in range(batch, x.rank) if a != axis)]
    y = ops.gather_nd(ops.transpose(x, perm=order), ops.unsqueeze(long(indices), axes=[-1]), batch_dims=batch)
    rows, before = indices.rank - batch, axis - batch  # y: batch, rows, axes before the axis, axes after it
    found = [*range(batch + rows, batch + rows + before), *range(batch, batch + rows)]
    return ops.transpose(y, perm=[*range(batch), *found, *range(batch + rows + before, y.rank)])


def _gather_nd(call: OperatorCall) -> Value:
    return ops.gather_nd(call.stored(0), long(call.stored(1)))


def _one_hot(call: OperatorCall) -> Value:
    on, off = call.array(2, "its value"), call.array(3, "its other value")
    (depth,) = call.integers(1, "its depth")
    values = np.concatenate([off.reshape(1), on.reshape(1)])
    return one_hot(call.stored(0), depth, values, int(call.option("axis", -1)))


def _filled(call: OperatorCall, shape: Sequence[Dim], value: Any, dtype: str) -> Value:
    return ops.expand(call.graph.constant(np.asarray(value, numpy_dtype(dtype)), "filled"), shape=call.shape_of(shape))


def _scatter_nd(call: OperatorCall) -> Value:
    """Rows of equal indices are added up."""
    indices, updates = long(call.stored(0)), call.stored(1)
    zeros = _filled(call, call.extents(2, "its shape"), 0, updates.dtype)
    return ops.scatter_nd(zeros, indices, updates, reduction="none" if updates.dtype == "bool" else "add")


def _sparse_to_dense(call: OperatorCall) -> Value:
    """Indices: a scalar, [n] of a vector, or [n, rank]; one value, or one for each."""
    indices, shape = long(call.stored(0)), call.extents(1, "its shape")
    values = call.stored(2)
    flat = ops.reshape(indices, shape=np.asarray([-1, len(shape) if indices.rank == 2 else 1], np.int64))
    rows = ops.slice(ops.shape(flat), *(np.asarray([i], np.int64) for i in (0, 1)))
    whole = ops.expand(ops.reshape(call.stored(3), shape=np.zeros(0, np.int64)), shape=call.shape_of(shape))
    return ops.scatter_nd(whole, flat, ops.expand(values, shape=rows))


def _embedding_lookup(call: OperatorCall) -> Value:
    return ops.gather(call.stored(1), call.stored(0), axis=0)


def _top_k(call: OperatorCall) -> list[Value]:
    (k,) = call.extents(1, "the number of results")
    values, indices = ops.top_k(call.stored(0), call.shape_of([k]), axis=-1)
    return [values, ops.cast(indices, to=call.outputs[1].dtype)]


def _places(call: OperatorCall) -> Value:
    """Indices of what is not zero, as rows."""
    found = call.onnx("NonZero", call.stored(0))
    return ops.transpose(found, perm=(1, 0))


def _unique(call: OperatorCall) -> list[Value]:
    """Different elements as they come first, and which of them each element is."""
    values, _, inverse, _ = call.onnx("Unique", call.stored(0), outs=4, sorted=0)
    return [values, ops.cast(inverse, to=call.outputs[1].dtype)]


def _segment_sum(call: OperatorCall) -> Value:
    ids = call.array(1, "its segments")
    return _segments(call, "add", [int(ids.max(initial=-1)) + 1])


def _unsorted(reduction: str) -> Reader:
    return lambda call: _segments(call, reduction, call.extents(2, "the number of segments"))


def _segments(call: OperatorCall, reduction: str, count: Sequence[Dim]) -> Value:
    """Rows of data with the same id together; of an empty segment what changes nothing. Negative ids are no segment:
    their rows go to one behind the last, which is cut off."""
    data, ids = call.stored(0), long(call.stored(1))
    kept = data.shape[ids.rank :]
    rows = ops.reshape(data, shape=call.shape_of([-1, *kept]))
    (number,) = count
    last = call.shape_of([number])
    flat = ops.reshape(ids, shape=np.asarray([-1, 1], np.int64))
    flat = ops.where(ops.less(flat, np.asarray(0, np.int64)), last, flat)
    limits = np.finfo if data.dtype.startswith("float") else np.iinfo
    held = limits(numpy_dtype(data.dtype))
    start = {"add": 0, "mul": 1, "max": held.min, "min": held.max}[reduction]
    whole = ops.scatter_nd(_filled(call, [number + 1, *kept], start, data.dtype), flat, rows, reduction=reduction)
    return ops.slice(whole, np.asarray([0], np.int64), last, np.asarray([0], np.int64))


def _dynamic_update_slice(call: OperatorCall) -> Value:
    return updated(call, call.stored(0), call.stored(1), long(call.stored(2)))


def updated(call: OperatorCall, x: Value, update: Value, starts: Value) -> Value:
    """Return x with an update where it begins, moved so that it lies inside."""
    wide = [a for a, (n, m) in enumerate(zip(x.shape, update.shape, strict=True)) if n != m]
    if not wide:
        return update
    parts = {a: ops.slice(starts, *(np.asarray([i], np.int64) for i in (a, a + 1))) for a in wide}
    if len(wide) > 1:
        return _chosen(call, x, update, parts)
    (axis,) = wide
    at = inside(call, parts[axis], x.shape[axis], update.shape[axis])
    first = np.asarray([0], np.int64)  # the op has an axis of batches in front
    made = ops.tensor_scatter(ops.unsqueeze(x, axes=first), ops.unsqueeze(update, axes=first), at, axis=axis + 1)
    return ops.squeeze(made, axes=first)


def inside(call: OperatorCall, at: Value, extent: Dim, size: Dim) -> Value:
    """Return where an update begins along an axis, so that it ends in it."""
    most = call.shape_of([extent - size])
    return ops.min(ops.max(at, np.asarray([0], np.int64)), most)


def _chosen(call: OperatorCall, x: Value, update: Value, at: dict[int, Value]) -> Value:
    """Return x with an update that is smaller along several axes: chosen by place."""
    is_new = None
    for a, begin in at.items():
        extent, size = x.shape[a], update.shape[a]
        if not isinstance(extent, int) or not isinstance(size, int):
            raise UnsupportedOp("an update along several axes of open extents is not read", do="give shapes")
        call.allow(extent)
        place = ops.sub(np.arange(extent), inside(call, begin, extent, size))
        is_in = ops.logical_and(
            ops.greater_or_equal(place, np.asarray(0, np.int64)), ops.less(place, np.asarray(size, np.int64))
        )
        is_in = ops.reshape(is_in, shape=np.asarray([-1] + [1] * (x.rank - 1 - a), np.int64))
        is_new = is_in if is_new is None else ops.logical_and(is_new, is_in)
        held = ops.clip(place, np.asarray(0, np.int64), np.asarray(size - 1, np.int64))
        update = ops.gather(update, held, axis=a)
    return ops.where(is_new, update, x)


def _diagonal(size: int, columns: int | None = None) -> Any:
    return np.eye(size, columns, dtype=bool)


def _matrix_diag(call: OperatorCall) -> Value:
    x = call.stored(0)
    size = x.shape[-1]
    if not isinstance(size, int):
        raise UnsupportedOp("MATRIX_DIAG of an open extent is not read", do="give shapes")
    call.allow(size * size)
    return ops.where(_diagonal(size), ops.unsqueeze(x, axes=[-2]), np.asarray(0, numpy_dtype(x.dtype)))


def _matrix_set_diag(call: OperatorCall) -> Value:
    x, diagonal = call.stored(0), call.stored(1)
    rows, columns = x.shape[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise UnsupportedOp("MATRIX_SET_DIAG of open extents is not read", do="give shapes")
    call.allow(rows * columns)
    pads = np.zeros(2 * diagonal.rank, np.int64)
    pads[-1] = max(columns - rows, 0)
    whole = ops.pad(diagonal, pads) if pads.any() else diagonal
    return ops.where(_diagonal(rows, columns), ops.unsqueeze(whole, axes=[-2]), x)


def _bucketize(call: OperatorCall) -> Value:
    """Return how many boundaries are at x or below."""
    x, edges = call.stored(0), np.asarray([] if call.options is None else call.options.items("boundaries"), np.float32)
    real = ops.unsqueeze(x if x.dtype == "float32" else ops.cast(x, to="float32"), axes=[-1])
    above = ops.cast(ops.greater_or_equal(real, edges), to=call.outputs[0].dtype)
    return ops.reduce_sum(above, axes=(-1,), keepdims=False)


def _reverse_sequence(call: OperatorCall) -> Value:
    x, lengths = call.stored(0), long(call.stored(1))
    time, batch = (normalize_axis(int(call.option(f"{o}_dim", 0)), x.rank) for o in ("seq", "batch"))
    order = [batch, time, *(a for a in range(x.rank) if a not in (batch, time))]
    y = ops.reverse_sequence(ops.transpose(x, perm=order), lengths, batch_axis=0, time_axis=1)
    return ops.transpose(y, perm=[int(a) for a in np.argsort(order)])


def _broadcast_args(call: OperatorCall) -> Value:
    """The shape of what two shapes broadcast to."""
    both = [call.extents(i, "a shape") for i in (0, 1)]
    rank = max(map(len, both))
    pairs = zip(*([1] * (rank - len(shape)) + shape for shape in both))
    found = np.empty(rank, object)
    for axis, (a, b) in enumerate(pairs):
        if 1 not in (a, b) and a != b:
            raise InvalidModel(f"shapes {both[0]} and {both[1]} do not broadcast")
        found[axis] = b if a == 1 else a
    return call.graph.open_constant(found, call.name, call.outputs[0].dtype)


def _select(call: OperatorCall) -> Value | First:
    """By element; a condition of one axis chooses whole rows."""
    condition, x = call.stored(0), call.tensor(1).value
    if condition.rank == 1 and x.rank > 1:
        rows = ops.reshape(condition, shape=np.asarray([-1] + [1] * (x.rank - 1), np.int64))
        return ops.where(rows, call.stored(1), call.stored(2))
    view = call.aligned()
    return view.result(ops.where(*view.values))


# --- written ----------------------------------------------------------------------------------------------------------


def _gather_written(e: Emission) -> None:
    x, indices = e.operand(0), e.operand(1)
    axis = normalize_axis(e.attribute("axis"), x.rank)
    if indices.data is not None and indices.data.size and indices.data.min() < 0:
        raise UnsupportedOp("negative indices are not written")
    e.operator([e.subgraph.plain(x), e.subgraph.plain(indices)], axis=axis)


# --- both -------------------------------------------------------------------------------------------------------------

OPERATORS = [
    Operator("BROADCAST_ARGS", read=_broadcast_args),
    Operator("BUCKETIZE", read=_bucketize),
    Operator("DYNAMIC_UPDATE_SLICE", read=_dynamic_update_slice, picks=[0, 1]),
    Operator("EMBEDDING_LOOKUP", read=_embedding_lookup, picks=[1]),
    Operator("GATHER", "gather", _gather, _gather_written, picks=[0]),
    Operator("GATHER_ND", read=_gather_nd, picks=[0]),
    Operator("MATRIX_DIAG", read=_matrix_diag),
    Operator("MATRIX_SET_DIAG", read=_matrix_set_diag, picks=[0, 1]),
    Operator("ONE_HOT", read=_one_hot),
    Operator("REVERSE_SEQUENCE", read=_reverse_sequence, picks=[0]),
    Operator("SCATTER_ND", read=_scatter_nd),
    Operator("SEGMENT_SUM", read=_segment_sum),
    Operator("SELECT", read=_select, picks=[1, 2]),
    Operator("SPARSE_TO_DENSE", read=_sparse_to_dense, picks=[2, 3]),
    Operator("TOPK_V2", read=_top_k, picks=[0]),
    Operator("UNIQUE", read=_unique, picks=[0]),
    *(
        Operator(f"UNSORTED_SEGMENT_{kind}", read=_unsorted(reduction))
        for kind, reduction in (("MAX", "max"), ("MIN", "min"), ("PROD", "mul"), ("SUM", "add"))
    ),
    Operator("WHERE", read=_places),
]
