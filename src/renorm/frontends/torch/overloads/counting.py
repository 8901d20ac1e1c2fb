"""Overloads whose results are as long as data decide: places of truth values, different elements, indices as often as
numbers say, boxes that are kept; and those that make an extent of an element."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim
from renorm.core.dtypes import is_int
from renorm.core.errors import UnsupportedOp
from renorm.core.shapes import normalize_axis
from renorm.frontends.torch.call import Call, Given
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value
from renorm.ops.nonzero import counted
from renorm.ops.unique import as_rows, different, extent, runs

_END = np.array([np.iinfo(np.int64).max])


@reads("_local_scalar_dense", "item")
def _item(c: Call, x: Value) -> Any:
    one = c.reshaped(x, ())
    return c.cast(one, "int64") if is_int(x.dtype) else one


@reads("nonzero")
def _nonzero(c: Call, x: Value) -> Any:
    return ops.transpose(ops.nonzero(x, counted(x)), perm=(1, 0))


@reads("nonzero_numpy")
def _nonzero_numpy(c: Call, x: Value) -> Any:
    return places(c.reshaped(x, (1,)) if x.rank == 0 else x)


def places(mask: Value) -> list[Value]:
    """Return where elements are true: for each axis a vector of indices."""
    if mask.rank == 0:
        raise UnsupportedOp("one truth value, of no axis, says whether all elements are there")
    rows = ops.nonzero(mask, counted(mask))
    parts = [rows] if mask.rank == 1 else ops.split(rows, np.ones(mask.rank, np.int64), axis=0)
    return [ops.squeeze(p, axes=(0,)) for p in parts]


@reads("masked_select")
def _masked_select(c: Call, x: Value, mask: Value) -> Any:
    flat, kept = (c.flat(v) for v in c.spread([x, mask]))
    return ops.gather(flat, *places(kept), axis=0)


@reads("_unique2")
def _unique(c: Call, x: Value, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """PyTorch sorts elements of a CPU whatever `sorted` says."""
    made, _, inverse, counts = different(_ordered(c, c.flat(x)), 0)
    return _asked(c, x, made, c.reshaped(inverse, x.shape), counts, return_inverse, return_counts)


@reads("unique_dim")
def _unique_slices(
    c: Call, x: Value, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    made, _, inverse, counts = different(_ordered(c, x), normalize_axis(dim, x.rank))
    return _asked(c, x, made, inverse, counts, return_inverse, return_counts)


@reads("unique_consecutive")
def _unique_consecutive(
    c: Call, x: Value, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    axis, held = (0, c.flat(x)) if dim is None else (normalize_axis(dim, x.rank), x)
    begins, group, lengths, _ = runs(as_rows(_ordered(c, held), axis), extent(held, axis))
    inverse = c.reshaped(group, x.shape) if dim is None else group
    return _asked(c, x, ops.gather(held, begins, axis=axis), inverse, lengths, return_inverse, return_counts)


def _asked(c: Call, x: Value, made: Value, inverse: Value, counts: Value, *is_wanted: bool) -> list[Given]:
    """Return three results, of which the last two may not be asked for: PyTorch says that these are empty."""
    return [c.cast(made, x.dtype), *(v if wanted else None for v, wanted in zip((inverse, counts), is_wanted))]


def _ordered(c: Call, x: Value) -> Value:
    """Return elements of a dtype that is sorted."""
    return c.cast(x, "uint8") if x.dtype == "bool" else x


@reads("repeat_interleave.Tensor")
def _repeats(c: Call, repeats: Value, *, output_size: Any = None) -> Any:
    """Return index i as often as repeats[i] says: as many parts end at or before its places."""
    n = repeats.shape[0]
    ends = ops.cum_sum(c.cast(repeats, "int64"), np.array(0))
    total = ops.slice(ops.concat([np.array([0]), ends], axis=0), np.array([-1]), _END, np.array([0]))
    zeros = ops.expand(np.array(0), ops.add(total, np.array([1])))
    marks = ops.scatter_elements(zeros, ends, c.filled(1, "int64", (n,)), reduction="add")
    return c.cast(ops.slice(ops.cum_sum(marks, np.array(0)), np.array([0]), total, np.array([0])), c.dtype)


@reads("bincount")
def _bincount(c: Call, x: Value, weights: Given = None, minlength: Dim = 0) -> Any:
    index = c.cast(x, "int64")
    beyond = ops.concat([ops.add(index, np.array([1])), c.integers([minlength])], axis=0)
    zeros = ops.expand(c.number(0, c.dtype), ops.reduce_max(beyond, axes=(0,), keepdims=True))
    given = c.filled(1, c.dtype, x.shape) if weights is None else c.cast(weights, c.dtype)
    return ops.scatter_elements(zeros, index, given, reduction="add")


@reads("histc")
def _histc(c: Call, x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Count the elements in each of equal parts from min to max, which is in the last one; where these are the same,
    from the least element to the greatest, and if these are the same from one less to one more."""
    flat = c.flat(x)
    if min != max:
        low, high = c.number(min, x.dtype), c.number(max, x.dtype)
    else:
        low, high = (op(flat, axes=(0,), keepdims=False) for op in (ops.reduce_min, ops.reduce_max))
        more = c.cast(ops.equal(low, high), x.dtype)
        low, high = ops.sub(low, more), ops.add(high, more)
    part = ops.mul(ops.sub(flat, low), ops.div(c.number(bins, x.dtype), ops.sub(high, low)))
    is_inside = ops.logical_and(ops.greater_or_equal(flat, low), ops.less_or_equal(flat, high))
    place = ops.where(is_inside, ops.min([c.cast(part, "int64"), c.number(bins - 1, "int64")]), c.number(0, "int64"))
    return ops.scatter_elements(c.filled(0, x.dtype, (bins,)), place, c.cast(is_inside, x.dtype), reduction="add")


@reads("torchvision.nms.default")
def _nms(c: Call, boxes: Value, scores: Value, iou_threshold: float) -> Any:
    n = boxes.shape[0]
    if boxes.dtype != "float32":
        raise UnsupportedOp(f"boxes are {boxes.dtype}, not float32")
    threshold = np.array([iou_threshold], np.float32)
    kept = ops.non_max_suppression(
        c.reshaped(boxes, (1, n, 4)), c.reshaped(scores, (1, 1, n)), extent(boxes, 0), threshold, None
    )
    rows = ops.kept_rows(kept, counted(ops.greater_or_equal(kept, np.array(0))))  # of batch, class and box
    return ops.gather(rows, np.array(2), axis=1)
