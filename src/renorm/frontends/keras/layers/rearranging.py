"""Operations of keras.ops that move elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.dims import Dim, size
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.building import one_hot
from renorm.frontends.keras.call import Call, Made, Tensor
from renorm.frontends.keras.layers.operations import operands
from renorm.frontends.keras.layers.table import computes
from renorm.graph.ir import Value


@computes("Reshape")
def _reshape(c: Call, x: Tensor, newshape: Any = None) -> Made:
    given = c.option("newshape") if newshape is None else newshape
    value, target = x.stored(), list[Any]([given] if isinstance(given, int) else given or ())
    if not all(d is None or isinstance(d, int) for d in target):
        raise UnsupportedOp(f"a reshape to {target}, of which extents are computed")
    own: list[Dim] = [-1 if d is None else d for d in target]
    if own.count(-1) > 1:
        raise InvalidModel(f"a reshape to {target} leaves several extents open")
    if -1 in own:
        known = size(d for d in own if d != -1)
        own[own.index(-1)] = size(value.shape) // known
    return c.reshaped(value, tuple(own))


@computes("Transpose")
def _transpose(c: Call, x: Tensor, axes: Any = None) -> Made:
    given, value = c.option("axes") if axes is None else axes, x.stored()
    perm = range(value.rank)[::-1] if given is None else [int(a) % value.rank for a in given]
    return ops.transpose(value, perm=tuple(perm))


@computes("ExpandDims")
def _expand_dims(c: Call, x: Tensor, axis: Any = None) -> Made:
    given, value = c.option("axis") if axis is None else axis, x.stored()
    at = given if isinstance(given, int) else given[0]
    return ops.unsqueeze(value, axes=(at % (value.rank + 1),))


@computes("Squeeze")
def _squeeze(c: Call, x: Tensor, axis: Any = None) -> Made:
    given, value = c.option("axis") if axis is None else axis, x.stored()
    if given is None:
        raise UnsupportedOp("a squeeze that does not say of which axes")
    held = [given] if isinstance(given, int) else given
    return ops.squeeze(value, axes=tuple(int(a) % value.rank for a in held))


@computes("Concatenate")
def _concatenate(c: Call, xs: Sequence[Any], axis: Any = None) -> Made:
    held = [t.stored() for t in operands(c, xs)]
    at = c.option("axis", 0) if axis is None else axis
    return ops.concat(held, axis=int(at) % held[0].rank)


@computes("Stack")
def _stack(c: Call, xs: Sequence[Any], axis: Any = None) -> Made:
    held = [t.stored() for t in operands(c, xs)]
    at = int(c.option("axis", 0) if axis is None else axis) % (held[0].rank + 1)
    return ops.concat([ops.unsqueeze(v, axes=(at,)) for v in held], axis=at)


@computes("GetItem")
def _item(c: Call, x: Tensor, key: Any) -> Made:
    """x[key]: slices and whole numbers."""
    value = x.stored()
    keys = list(key) if isinstance(key, (list, tuple)) else [key]
    rest = value.rank - sum(k is not None and k is not Ellipsis for k in keys)
    full = [slice(None)] * rest
    at = keys.index(Ellipsis) if Ellipsis in keys else len(keys)
    keys = [*keys[:at], *full, *keys[at + 1 :]]
    gone, new, axis = list[int](), list[int](), 0
    for k in keys:
        if k is None:
            new.append(axis - len(gone) + len(new))
            continue
        if isinstance(k, int):
            end = k + 1 if k != -1 else value.shape[axis]
            value = c.sliced(value, axis, k, end)
            gone.append(axis)
        elif isinstance(k, slice):
            value = _sliced(c, value, axis, k)
        else:
            raise UnsupportedOp(f"an index {k!r}")
        axis += 1
    value = ops.squeeze(value, axes=tuple(gone)) if gone else value
    return ops.unsqueeze(value, axes=tuple(new)) if new else value


def _sliced(c: Call, x: Value, axis: int, k: Any) -> Value:
    start, stop, step = bounds = list[Any]((k.start, k.stop, k.step))
    if bounds == [None, None, None]:
        return x
    if not all(b is None or isinstance(b, int) for b in bounds):
        raise UnsupportedOp(f"a slice {k!r}, of which bounds are computed")
    if step is not None and step < 0:
        return c.sliced(x, axis, -1 if start is None else start, -(1 << 62) if stop is None else stop, step)
    return c.sliced(x, axis, start or 0, x.shape[axis] if stop is None else stop, step or 1)


@computes("Swapaxes")
def _swap_axes(c: Call, x: Tensor) -> Made:
    value = x.stored()
    a, b = (c.count(key) % value.rank for key in ("axis1", "axis2"))
    perm = [b if i == a else a if i == b else i for i in range(value.rank)]
    return ops.transpose(value, perm=tuple(perm))


@computes("Moveaxis")
def _move_axes(c: Call, x: Tensor) -> Made:
    value = x.stored()
    sources, targets = (np.atleast_1d(c.option(key)).tolist() for key in ("source", "destination"))
    order = [a for a in range(value.rank) if a not in [s % value.rank for s in sources]]
    for target, source in sorted((t % value.rank, s % value.rank) for s, t in zip(sources, targets)):
        order.insert(target, source)
    return ops.transpose(value, perm=tuple(order))


@computes("Flip")
def _flip(c: Call, x: Tensor) -> Made:
    value, given = x.stored(), c.option("axis")
    for axis in range(value.rank) if given is None else [given] if isinstance(given, int) else given:
        value = c.sliced(value, int(axis) % value.rank, -1, -(1 << 62), -1)
    return value


@computes("Split")
def _split(c: Call, x: Tensor) -> Any:
    value, given = x.stored(), c.option("indices_or_sections")
    axis = c.count("axis", 0) % value.rank
    extent = value.shape[axis]
    if isinstance(given, int):
        if not isinstance(extent, int) or extent % given:
            raise UnsupportedOp(f"a split of {extent} elements in {given} parts")
        given = range(extent // given, extent, extent // given)
    bounds: list[Dim] = [0, *(int(i) for i in given), extent]
    return [c.sliced(value, axis, a, b) for a, b in pairwise(bounds)]


@computes("Take")
def _take(c: Call, x: Any, indices: Any) -> Made:
    axis, value = c.option("axis"), c.held(x).stored()
    if axis is None:
        value, axis = c.reshaped(value, (size(value.shape),)), 0
    chosen = c.held(indices).stored()
    whole = chosen if chosen.dtype in ("int32", "int64") else ops.cast(chosen, to="int32")
    return ops.gather(value, whole, axis=int(axis) % value.rank)


@computes("Tile")
def _tile(c: Call, x: Tensor) -> Made:
    value, given = x.stored(), c.option("repeats")
    repeats = [given] if isinstance(given, int) else [int(r) for r in given]
    wide = c.reshaped(value, (*[1] * (len(repeats) - value.rank), *value.shape))
    return ops.tile(wide, np.array([1] * (wide.rank - len(repeats)) + repeats, np.int64))


@computes("Repeat")
def _repeat(c: Call, x: Tensor) -> Made:
    """Each element so many times, side by side."""
    value, axis, many = x.stored(), c.option("axis"), c.count("repeats")
    if axis is None:
        value, axis = c.reshaped(value, (size(value.shape),)), 0
    at = int(axis) % value.rank
    before, extent, after = value.shape[:at], value.shape[at], value.shape[at + 1 :]
    apart = c.expanded(c.reshaped(value, (*before, extent, 1, *after)), (*before, extent, many, *after))
    return c.reshaped(apart, (*before, extent * many, *after))


@computes("BroadcastTo")
def _broadcast_to(c: Call, x: Tensor) -> Made:
    value, given = x.stored(), list(c.option("shape") or ())
    rest = [1] * (len(given) - value.rank)
    shape = [d if g is None or g == -1 else g for g, d in zip(given, (*rest, *value.shape))]
    if not all(isinstance(g, int) for g in given if g is not None):
        raise UnsupportedOp(f"a shape {given}, of which extents are computed")
    return c.expanded(value, tuple(shape))


@computes("Pad")
def _pad(c: Call, x: Tensor, constant_values: Any = None) -> Made:
    value, given = x.stored(), [tuple(p) for p in c.option("pad_width") or ()]
    pairs = given * value.rank if len(given) == 1 else given
    mode = {"constant": "constant", "reflect": "reflect"}.get(str(c.option("mode", "constant")))
    if mode is None or len(pairs) != value.rank:
        raise UnsupportedOp(f"pads {given} of mode {c.option('mode')}")
    pads = np.array([p[0] for p in pairs] + [p[-1] for p in pairs], np.int64)
    number = c.scalar(float(constant_values or 0), value.dtype)
    return ops.pad(value, pads, number, mode=mode) if mode == "constant" else ops.pad(value, pads, mode=mode)


@computes("OneHot")
def _one_hot(c: Call, x: Tensor) -> Made:
    value, dtype = x.stored(), str(c.option("dtype") or "float32")
    if dtype not in dtypes.BY_NAME or c.option("sparse"):
        raise UnsupportedOp(f"one_hot of {dtype}")
    ends = c.graph.constant(np.array([0, 1], dtypes.numpy_dtype(dtype)), f"{c.name}.values")
    return one_hot(value, c.count("num_classes"), ends, c.count("axis", -1))
