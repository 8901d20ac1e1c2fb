"""Overloads that move elements: other shapes, axes in another order, parts, several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim, Sym
from renorm.core.errors import UnsupportedOp
from renorm.core.shapes import normalize_axis
from renorm.frontends.torch.call import Call, Number, Operand, axes_of
from renorm.frontends.torch.overloads.making import stacked
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value

END = 2**63 - 1  # where slices end that go on to the end


@reads(
    *("view", "view_copy", "reshape", "_unsafe_view", "flatten.using_ints", "unflatten.int", "squeeze", "squeeze.dim"),
    *("squeeze.dims", "unsqueeze", "view_as", "reshape_as", "squeeze_copy.dim", "unsqueeze_copy", "_reshape_copy"),
    *("ravel", "_reshape_alias", "atleast_1d", "atleast_2d", "atleast_3d"),
)
def _reshaped(c: Call, x: Value, *_: Any, **__: Any) -> Any:
    return c.reshaped(x, c.shape)


@reads("view.dtype")
def _seen_as(c: Call, x: Value, dtype: Any) -> Any:
    if x.dtype != c.dtype:
        raise UnsupportedOp(f"{x.dtype} is seen as {c.dtype}, bit by bit")
    return x


@reads("permute", "permute_copy")
def _permute(c: Call, x: Value, dims: Sequence[int]) -> Any:
    order = axes_of(x, dims)
    return x if order == tuple(range(x.rank)) else ops.transpose(x, perm=order)


@reads("transpose.int", "swapaxes", "swapdims", "transpose_copy.int")
def _transpose(c: Call, x: Value, a: int, b: int) -> Any:
    if x.rank == 0:
        return x
    order = list(range(x.rank))
    order[a], order[b] = order[b], order[a]
    return _permute(c, x, order)


@reads("t", "numpy_T", "mT", "matrix_H", "adjoint", "t_copy")
def _turned(c: Call, x: Value) -> Any:
    return x if x.rank < 2 else _transpose(c, x, -1, -2)


@reads("movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist")
def _movedim(c: Call, x: Value, source: Any, destination: Any) -> Any:
    moved = dict(zip(axes_of(x, destination), axes_of(x, source)))
    others = iter(a for a in range(x.rank) if a not in moved.values())
    return _permute(c, x, [moved[a] if a in moved else next(others) for a in range(x.rank)])


@reads("expand", "expand_as", "broadcast_to", "expand_copy")
def _expand(c: Call, x: Value, *_: Any, **__: Any) -> Any:
    return c.expanded(x, c.shape)


@reads("repeat", "tile")
def _repeat(c: Call, x: Value, repeats: Sequence[Dim]) -> Any:
    """repeat may give more axes than there are, tile fewer."""
    times = (*[1] * (x.rank - len(repeats)), *repeats)
    spread = c.reshaped(x, (*[1] * (len(times) - x.rank), *x.shape))
    return spread if all(n == 1 for n in times) else ops.tile(spread, c.integers(times))


@reads("repeat_interleave.self_int")
def _repeat_interleave(c: Call, x: Value, repeats: Dim, dim: int | None = None, **_: Any) -> Any:
    flat = c.flat(x) if dim is None else x
    axis = normalize_axis(dim or 0, flat.rank)
    apart = c.reshaped(flat, (*flat.shape[: axis + 1], 1, *flat.shape[axis + 1 :]))
    spread = c.expanded(apart, (*flat.shape[: axis + 1], repeats, *flat.shape[axis + 1 :]))
    return c.reshaped(spread, c.shape)


@reads("cat", "concat", "concatenate")
def _cat(c: Call, tensors: Sequence[Value], dim: int = 0) -> Any:
    held = [c.cast(t, c.dtype) for t in tensors if t.shape != (0,) or len(c.shape) == 1]
    return held[0] if len(held) == 1 else ops.concat(held, axis=normalize_axis(dim, len(c.shape)))


@reads("stack")
def _stack(c: Call, tensors: Sequence[Value], dim: int = 0) -> Any:
    return stacked(c, [c.cast(t, c.dtype) for t in tensors], normalize_axis(dim, len(c.shape)))


def _cut(c: Call, x: Value, axis: int, sizes: Sequence[Dim]) -> list[Value]:
    """Return parts side by side. Parts of known extents are one node."""
    if len(sizes) > 1 and all(isinstance(n, int) for n in sizes):
        return list(ops.split(x, np.array(sizes), axis=axis))
    if len(sizes) == 1:
        return [x]
    parts, at = list[Value](), 0
    for n in sizes:
        parts.append(c.sliced(x, axis, at, at + n))
        at = at + n
    return parts


@reads(
    *("split.Tensor", "split_with_sizes", "chunk", "split.sizes", "unsafe_split.Tensor", "unsafe_chunk"),
    *("unsafe_split_with_sizes", "tensor_split.sections", "split_copy.Tensor", "split_with_sizes_copy"),
)
def _split(c: Call, x: Value, sizes: Any, dim: int = 0) -> Any:
    axis = normalize_axis(dim, x.rank)
    return _cut(c, x, axis, [c.type(i)[1][axis] for i in range(len(c.results))])


@reads("unbind.int", "unbind_copy.int")
def _unbind(c: Call, x: Value, dim: int = 0) -> Any:
    axis = normalize_axis(dim, x.rank)
    parts = _cut(c, x, axis, [1] * len(c.results))
    return [c.reshaped(p, c.type(i)[1]) for i, p in enumerate(parts)]


@reads("slice.Tensor", "slice_copy.Tensor")
def _slice(c: Call, x: Value, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1) -> Any:
    axis = normalize_axis(dim, x.rank)
    first, last = 0 if start is None else start, END if end is None else end
    if first == 0 and step == 1 and (last == x.shape[axis] or (isinstance(last, int) and last >= END)):
        return x
    return c.sliced(x, axis, first, last, step)


@reads("narrow")
def _narrow(c: Call, x: Value, dim: int, start: Dim, length: Dim) -> Any:
    return c.sliced(x, normalize_axis(dim, x.rank), start, start + length)


@reads("select.int", "select_copy.int")
def _select(c: Call, x: Value, dim: int, index: Dim | Value) -> Any:
    axis = normalize_axis(dim, x.rank)
    if isinstance(index, Value):
        return ops.gather(x, index, axis=axis)
    at = index + x.shape[axis] if isinstance(index, int) and index < 0 else index
    return c.reshaped(c.sliced(x, axis, at, at + 1), c.shape)


@reads("flip")
def _flip(c: Call, x: Value, dims: Sequence[int]) -> Any:
    axes = axes_of(x, dims)
    if not axes:
        return x
    each = [np.array([v] * len(axes)) for v in (-1, -END, -1)]
    return ops.slice(x, each[0], each[1], np.array(axes), each[2])


@reads("roll")
def _roll(c: Call, x: Value, shifts: Any, dims: Any = ()) -> Any:
    if not dims:
        flat = c.flat(x)
        return c.reshaped(_rolled(c, flat, 0, shifts if isinstance(shifts, (int, Sym)) else shifts[0]), x.shape)
    for axis, shift in zip(axes_of(x, dims), [shifts] if isinstance(shifts, int) else shifts):
        x = _rolled(c, x, axis, shift)
    return x


def _rolled(c: Call, x: Value, axis: int, shift: Dim) -> Value:
    n = x.shape[axis]
    if n == 0 or shift == 0:
        return x
    cut = -shift % n
    if cut == 0:
        return x
    return ops.concat([c.sliced(x, axis, cut, END), c.sliced(x, axis, 0, cut)], axis=axis)


@reads("constant_pad_nd")
def _constant_pad(c: Call, x: Value, pad: Sequence[Dim], value: Number = 0) -> Any:
    return _padded(c, x, pad, "constant", value)


@reads("pad")
def _pad(c: Call, x: Value, pad: Sequence[Dim], mode: str = "constant", value: Number | None = None) -> Any:
    return _padded(c, x, pad, mode, value or 0)


def _of_mode(mode: str) -> Any:
    def read(c: Call, x: Value, pad: Sequence[Dim]) -> Any:
        return _padded(c, x, pad, mode, 0)

    return read


reads("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")(_of_mode("reflect"))
reads("replication_pad1d", "replication_pad2d", "replication_pad3d")(_of_mode("replicate"))

_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _padded(c: Call, x: Value, pad: Sequence[Dim], mode: str, value: Number) -> Value:
    """pad: before and after the last axis, then the last but one, ..."""
    if not any(isinstance(p, Sym) or p for p in pad):
        return x
    axes = [x.rank - 1 - i for i in range(len(pad) // 2)]
    cut = [-p if mode != "constant" and isinstance(p, int) and p < 0 else 0 for p in pad]
    given = [0 if n else p for p, n in zip(pad, cut)]
    pads = c.integers([*given[::2], *given[1::2]])
    number = c.number(value, x.dtype) if mode == "constant" else None
    held = x if mode == "circular" else ops.pad(x, pads, number, np.array(axes), mode=_MODES[mode])
    for axis, before, after in zip(axes, cut[::2], cut[1::2]):  # mirrored are elements that are cut off, too
        held = c.sliced(held, axis, before, held.shape[axis] - after) if before or after else held
    return ops.pad(held, pads, number, np.array(axes), mode=_MODES[mode]) if mode == "circular" else held


@reads("tril")
def _tril(c: Call, x: Value, diagonal: Dim = 0) -> Any:
    return ops.trilu(x, c.integers([diagonal]), upper=False)


@reads("triu")
def _triu(c: Call, x: Value, diagonal: Dim = 0) -> Any:
    return ops.trilu(x, c.integers([diagonal]), upper=True)


@reads("diagonal", "diagonal_copy", "diag")
def _diagonal(c: Call, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    if x.rank == 1:
        raise UnsupportedOp("diag of a vector")
    a, b = axes_of(x, (dim1, dim2))
    last = _movedim(c, x, (a, b), (-2, -1))
    n = c.shape[-1]
    place = c.positions(n)
    rows = ops.add(place, c.number(max(-offset, 0), "int64"))
    columns = ops.add(place, c.number(max(offset, 0), "int64"))
    flat = c.reshaped(last, (*last.shape[:-2], last.shape[-2] * last.shape[-1]))
    index = ops.add(ops.mul(rows, c.number(last.shape[-1], "int64")), columns)
    return ops.gather(flat, index, axis=flat.rank - 1)


@reads("pixel_shuffle")
def _pixel_shuffle(c: Call, x: Value, factor: int) -> Any:
    """X[c*r*r + a*r + b, h, w] becomes Y[c, h*r + a, w*r + b]."""
    flat = c.reshaped(x, (prod(x.shape[:-3]), *x.shape[-3:]))
    return c.reshaped(ops.depth_to_space(flat, blocksize=factor, mode="CRD"), c.shape)


@reads("pixel_unshuffle")
def _pixel_unshuffle(c: Call, x: Value, factor: int) -> Any:
    *lead, channels, h, w = x.shape
    apart = c.reshaped(x, (*lead, channels, h // factor, factor, w // factor, factor))
    n = len(lead)
    return c.reshaped(ops.transpose(apart, perm=(*range(n), n, n + 2, n + 4, n + 1, n + 3)), c.shape)


@reads("unfold", "unfold_copy")
def _unfold(c: Call, x: Value, dimension: int, size: int, step: int) -> Any:
    """Windows along an axis, in a new last axis; of a number the one window that it is."""
    if x.rank == 0:
        return c.sliced(c.reshaped(x, (1,)), 0, 0, size)
    axis = normalize_axis(dimension, x.rank)
    count = c.shape[axis]
    starts = ops.mul(c.positions(count), c.number(step, "int64"))
    places = ops.add(c.reshaped(starts, (count, 1)), c.positions(size))
    windows = ops.gather(x, places, axis=axis)
    return _movedim(c, windows, axis + 1, -1)


@reads("im2col")
def _im2col(
    c: Call, x: Value, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Any:
    """Windows of an image as columns: rows of channels and places in the window."""
    ph, pw = padding
    held = _padded(c, x, (pw, pw, ph, ph), "constant", 0)
    h, w = held.shape[2:]
    counts = [(e - d * (k - 1) - 1) // s + 1 for e, k, d, s in zip((h, w), kernel, dilation, stride)]
    for axis, (count, k, d, s) in zip((2, 4), zip(counts, kernel, dilation, stride)):
        starts = c.reshaped(ops.mul(c.positions(count), c.number(s, "int64")), (1, count))
        steps = c.reshaped(ops.mul(c.positions(k), c.number(d, "int64")), (k, 1))
        held = ops.gather(held, ops.add(steps, starts), axis=axis)
    order = (0, 1, 2, 4, 3, 5)  # of n, c, kh, h, kw, w
    return c.reshaped(ops.transpose(held, perm=order), c.shape)


@reads("slice_scatter")
def _slice_scatter(
    c: Call, x: Value, part: Value, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1
) -> Any:
    """x with a part in the place of x[start:end:step]."""
    axis = normalize_axis(dim, x.rank)
    extent = x.shape[axis]
    first = 0 if start is None else start
    last = extent if end is None or (isinstance(end, int) and end >= END) else end
    first = first + extent if isinstance(first, int) and first < 0 else first
    last = last + extent if isinstance(last, int) and last < 0 else last
    if isinstance(extent, int) and isinstance(last, int):
        last = min(last, extent)
    given = c.cast(part, x.dtype)
    if step == 1:
        return _replaced(c, x, given, axis, first, last)
    if not (isinstance(extent, int) and isinstance(first, int) and isinstance(last, int)):
        raise UnsupportedOp(f"slices by {step} of an open extent are replaced")
    own = set(range(first, last, step))
    order = np.array([extent + (i - first) // step if i in own else i for i in range(extent)])
    return ops.gather(ops.concat([x, given], axis=axis), order, axis=axis)


@reads("select_scatter")
def _select_scatter(c: Call, x: Value, part: Value, dim: int, index: Dim) -> Any:
    axis = normalize_axis(dim, x.rank)
    at = index + x.shape[axis] if isinstance(index, int) and index < 0 else index
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    return _replaced(c, x, c.reshaped(c.cast(part, x.dtype), shape), axis, at, at + 1)


@reads("diagonal_scatter")
def _diagonal_scatter(c: Call, x: Value, part: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """x with a part in the place of x.diagonal(offset, dim1, dim2)."""
    a, b = axes_of(x, (dim1, dim2))
    last = _movedim(c, x, (a, b), (-2, -1))
    rows, n = last.shape[-2], part.shape[-1]
    if n == 0:
        return x
    above = ops.sub(c.positions(rows), c.number(max(-offset, 0), "int64"))  # its place in the part, where it has one
    place = ops.clip(above, c.number(0, "int64"), c.number(n - 1, "int64"))
    given = ops.gather(c.cast(part, x.dtype), place, axis=part.rank - 1)
    column = ops.add(c.reshaped(c.positions(rows), (rows, 1)), c.number(offset, "int64"))
    is_on = ops.equal(column, c.positions(last.shape[-1]))
    made = ops.where(is_on, c.reshaped(given, (*given.shape, 1)), last)
    return _movedim(c, made, (-2, -1), (a, b))


def _replaced(c: Call, x: Value, part: Value, axis: int, start: Dim, end: Dim) -> Value:
    extent = x.shape[axis]
    parts = [] if start == 0 else [c.sliced(x, axis, 0, start)]
    parts.append(part)
    if end != extent:
        parts.append(c.sliced(x, axis, end, END))
    return parts[0] if len(parts) == 1 else ops.concat(parts, axis=axis)


@reads("copy")
def _copy(c: Call, x: Value, source: Operand, non_blocking: bool = False) -> Any:
    return c.expanded(c.operand(source, x.dtype), x.shape)


@reads("broadcast_tensors")
def _broadcast_tensors(c: Call, tensors: Sequence[Value]) -> Any:
    return [c.expanded(t, c.type(i)[1]) for i, t in enumerate(tensors)]


@reads("one_hot")
def _one_hot(c: Call, x: Value, classes: int = -1) -> Any:
    depth = c.shape[-1]
    return c.cast(ops.equal(c.reshaped(x, (*x.shape, 1)), c.positions(depth, x.dtype)), c.dtype)
