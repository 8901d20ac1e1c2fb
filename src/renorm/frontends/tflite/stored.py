"""Elements that a file stores: of constants, which may be quantized, packed or sparse."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.core.limits import Limits
from renorm.frontends.tflite.flatbuffer import Table
from renorm.frontends.tflite.model import Section
from renorm.frontends.tflite.tensors import DTYPES, PACKED, Array, Scale, scale_of


def elements(section: Section, i: int, limits: Limits) -> tuple[Array, Scale | None] | None:
    """Return the elements of a tensor that has a buffer, and how they are to be read; None for one without."""
    table, raw = section.tensors[i], section.elements(i)
    if raw is None:
        return None
    label, what = section.model.label, section.called(i)
    kind = table.schema.names("TensorType").get(table["type"], str(table["type"]))
    shape, sparsity = [int(d) for d in table.items("shape")], table["sparsity"]
    bits, dtype = PACKED[kind] if kind in PACKED else (0, DTYPES.get(kind))
    if dtype is None:
        raise UnsupportedOp(f"{label}: {what} is of type {kind}")
    count = int(np.prod(shape, dtype=object))
    places = None
    if sparsity is not None and min(shape, default=0) >= 0:
        limits.check(label, [("elements", count, what), ("bytes", count * dtypes.itemsize(dtype), what)])
        places = _places(sparsity, shape, f"{label}: {what}")
    stored = count if places is None else places.size
    held = _unpacked(raw, stored, bits, dtype) if bits else raw
    if min(shape, default=0) < 0 or held.nbytes != stored * dtypes.itemsize(dtype):
        raise InvalidModel(f"{label}: {what} is {dtype}{shape}, but its buffer has {raw.nbytes} bytes")
    array = held.view(dtypes.numpy_dtype(dtype))
    if places is not None:
        whole = np.zeros(count, array.dtype)
        whole[places] = array
        array = whole
    try:
        array = array.reshape(shape)
    except ValueError as error:  # of no elements, and extents that no array has
        raise InvalidModel(f"{label}: {what} is {dtype}{shape}", [str(error)]) from error
    scale = scale_of(table, dtype, what)
    return array.astype(np.float32) if dtype in ("float16", "bfloat16") else array, scale


def _unpacked(raw: Array, count: int, bits: int, dtype: str) -> Array:
    """Return integers of 4 or 2 bits, the first in the lowest bits of a byte, as bytes."""
    if raw.nbytes != -(-count * bits // 8):
        return raw[:0] if count else raw
    parts = (raw[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)).reshape(-1)[:count] & ((1 << bits) - 1)
    if dtype == "uint8":
        return parts
    half = 1 << (bits - 1)
    return ((parts.astype(np.int16) ^ half) - half).astype(np.int8).view(np.uint8)


def _places(sparsity: Table, shape: Sequence[int], what: str) -> Array:
    """Return where the stored elements of a sparse tensor are in it, flat.

    Levels are axes in the order of traversal, then blocks, each of an axis (block_map). A dense level has all its
    indices, a sparse one those of array_indices between two numbers of array_segments, which it has for each element of
    the level before.
    """
    order, of_axis = ([int(i) for i in sparsity.items(name)] for name in ("traversal_order", "block_map"))
    levels, rank = sparsity.items("dim_metadata"), len(shape)
    axes, blocks = order[:rank], [i - rank for i in order[rank:]]
    fits = sorted(axes) == [*range(rank)] and sorted(blocks) == [*range(len(of_axis))] and len(levels) == len(order)
    if not fits or any(not 0 <= a < rank for a in of_axis):
        raise InvalidModel(f"{what}: levels {order} of blocks along {of_axis} are none of a tensor of {rank} axes")
    at, indices, most = np.zeros(1, np.int64), list[Array](), int(np.prod(shape, dtype=object))
    for level in levels:
        if not level["format"]:
            size = int(level["dense_size"])
            if not 0 <= at.size * size <= most:
                raise InvalidModel(f"{what}: a level of {size} has more elements than the tensor, {most}")
            before, new = np.repeat(np.arange(at.size), size), np.tile(np.arange(size), at.size)
            at = at[before] * size + new
        else:
            segments, held = (_numbers(level[name]) for name in ("array_segments", "array_indices"))
            if at.size and (segments.size <= at.max() + 1 or np.any(np.diff(segments) < 0)):
                raise InvalidModel(f"{what}: a sparse level has {segments.size} segments that do not fit")
            first, counts = segments[at], segments[at + 1] - segments[at]
            before = np.repeat(np.arange(at.size), counts)
            at = np.arange(before.size) + np.repeat(first - (np.cumsum(counts) - counts), counts)
            if at.size and (first.min() < 0 or at.max() >= held.size):
                raise InvalidModel(f"{what}: a sparse level has {held.size} indices, fewer than its segments say")
            new = held[at]
        indices = [*(i[before] for i in indices), new]
    found = [np.zeros_like(at)] * rank
    for axis, i in zip(axes, indices):
        found[axis] = i
    for block, level, i in zip(blocks, levels[rank:], indices[rank:]):
        found[of_axis[block]] = found[of_axis[block]] * int(level["dense_size"]) + i
    if any(i.size and not 0 <= i.min() <= i.max() < n for i, n in zip(found, shape)):
        raise InvalidModel(f"{what}: indices of a sparse level lie outside of {list(shape)}")
    return np.ravel_multi_index(found, shape) if rank else at


def _numbers(vector: Table | None) -> Array:
    return np.zeros(0, np.int64) if vector is None else np.asarray(vector.items("values"), np.int64)
