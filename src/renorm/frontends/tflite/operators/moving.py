"""Operators that move elements. Those that name axes one by one keep the order that their operand has already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from renorm import ops
from renorm.core.dims import normalize_axis
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.tflite.call import Call, Reader
from renorm.frontends.tflite.emission import Emission, Writer
from renorm.frontends.tflite.tensors import Array, First, to_first
from renorm.graph.ir import Value
from renorm.ops.pad import Pad

_BEFORE, _BEHIND = np.iinfo(np.int64).min, np.iinfo(np.int64).max  # ends of slices that reach beyond the first and last


@dataclass(frozen=True)
class _View:
    """Operands in one order of axes. place: where an axis of the file is in it."""

    values: Sequence[Value]
    is_first: bool
    order: tuple[int, ...]

    def place(self, axis: int) -> int:
        return self.order.index(normalize_axis(axis, len(self.order)))

    def result(self, value: Value) -> Value | First:
        return First(value) if self.is_first else value


def _view(call: Call, indices: Sequence[int]) -> _View:
    tensors = [call.tensor(i) for i in indices]
    rank, is_first = tensors[0].value.rank, any(t.is_first for t in tensors)
    if is_first:
        return _View([t.first() for t in tensors], True, to_first(rank))
    return _View([t.stored() for t in tensors], False, tuple(range(rank)))


def _shape(call: Call, index: int) -> Value | Array:
    """An operand that is a shape, in the integers that the graph's ops take."""
    value = call.stored(index)
    return ops.cast(value, to="int64") if value.data is None else value.data.reshape(-1).astype(np.int64)


def _reshape(call: Call) -> Value:
    stated = None if call.options is None else call.options["new_shape"]
    if not call.has(1) and stated is None:
        raise InvalidModel("RESHAPE states no shape")
    shape = _shape(call, 1) if call.has(1) else np.asarray(stated, np.int64)
    return ops.reshape(call.stored(0), shape=shape, allowzero=True)


def _squeeze(call: Call) -> Value:
    axes = [] if call.options is None else [int(a) for a in call.options.items("squeeze_dims")]
    return ops.squeeze(call.stored(0), axes=tuple(axes) or None)


def _expand_dims(call: Call) -> Value:
    return ops.unsqueeze(call.stored(0), axes=tuple(call.integers(1, "its axis")))


def _transpose(call: Call) -> Value:
    return ops.transpose(call.stored(0), perm=tuple(call.integers(1, "its permutation")))


def _concatenation(call: Call) -> Value | First:
    view = _view(call, range(len(call.inputs)))
    return view.result(ops.concat(list(view.values), axis=view.place(int(call.option("axis", 0)))))


def _split(call: Call) -> Sequence[Value | First]:
    """Inputs: the axis, then x."""
    view = _view(call, [1])
    (axis,) = call.integers(0, "its axis")
    return _parts(view, ops.split(view.values[0], axis=view.place(axis), num_outputs=len(call.outputs)))


def _split_v(call: Call) -> Sequence[Value | First]:
    view = _view(call, [0])
    sizes, (axis,) = call.integers(1, "its sizes"), call.integers(2, "its axis")
    x, place = view.values[0], view.place(axis)
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = int(str(x.shape[place])) - sum(s for s in sizes if s >= 0)
    return _parts(view, ops.split(x, np.asarray(sizes, np.int64), axis=place))


def _parts(view: _View, made: Value | Sequence[Value]) -> list[Value | First]:
    return [view.result(v) for v in ([made] if isinstance(made, Value) else made)]


def _pack(call: Call) -> Value:
    axis = int(call.option("axis", 0))
    return ops.concat([ops.unsqueeze(call.stored(i), axes=(axis,)) for i in range(len(call.inputs))], axis=axis)


def _unpack(call: Call) -> list[Value]:
    axis, count = int(call.option("axis", 0)), len(call.outputs)
    made = ops.split(call.stored(0), axis=axis, num_outputs=count)
    return [ops.squeeze(v, axes=(axis,)) for v in ([made] if isinstance(made, Value) else made)]


def _slice(call: Call) -> Value | First:
    """Sizes of -1 reach to the end."""
    view = _view(call, [0])
    begin, size = call.integers(1, "its begin"), call.integers(2, "its size")
    end = [_BEHIND if s < 0 else b + s for b, s in zip(begin, size, strict=True)]
    return view.result(_cut(view, begin, end, [1] * len(begin)))


def _cut(view: _View, begin: Sequence[int], end: Sequence[int], steps: Sequence[int]) -> Value:
    axes = [view.place(a) for a in range(len(begin))]
    return ops.slice(view.values[0], *(np.asarray(v, np.int64) for v in (begin, end, axes, steps)))


def _strided_slice(call: Call) -> Value | First:
    """As x[begin:end:stride, ...] of NumPy, with bits of masks for what stands in the brackets."""
    masks = {m: int(call.option(f"{m}_mask", 0)) for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    if masks["ellipsis"] or masks["new_axis"]:
        raise UnsupportedOp("STRIDED_SLICE with an ellipsis or a new axis is not read", do="export plain slices")
    begin, end, steps = (call.integers(i, what) for i, what in ((1, "its begin"), (2, "its end"), (3, "its strides")))
    if call.option("offset", False):
        end = [b + e for b, e in zip(begin, end, strict=True)]
    shrunk = [a for a in range(len(begin)) if masks["shrink_axis"] >> a & 1]
    for a, step in enumerate(steps):
        if a in shrunk:
            end[a], steps[a] = (begin[a] + 1) or _BEHIND, 1
            continue
        if masks["begin"] >> a & 1:
            begin[a] = 0 if step > 0 else _BEHIND
        if masks["end"] >> a & 1:
            end[a] = _BEHIND if step > 0 else _BEFORE
    view = _view(call, [0]) if not shrunk else _View([call.stored(0)], False, tuple(range(call.stored(0).rank)))
    y = _cut(view, begin, end, steps)
    return view.result(ops.squeeze(y, axes=tuple(shrunk)) if shrunk else y)


def _pad(call: Call) -> Value | First:
    view = _view(call, [0])
    value: Value | Array | None = call.stored(2) if call.has(2) else None
    if isinstance(value, Value) and value.rank:
        scalar = np.asarray([], np.int64)
        value = ops.reshape(value, shape=scalar) if value.data is None else value.data.reshape(())
    return view.result(ops.pad(view.values[0], _pads(call, view), value))


def _pads(call: Call, view: _View) -> Array:
    """All elements before, axis by axis, then all elements after."""
    rows = call.array(1, "its padding")
    if rows.shape != (len(view.order), 2):
        raise InvalidModel(f"its padding has shape {list(rows.shape)}, expected {[len(view.order), 2]}")
    return rows[list(view.order)].T.reshape(-1).astype(np.int64)


def _mirror_pad(call: Call) -> Value | First:
    """REFLECT leaves out the edge, SYMMETRIC repeats it."""
    view = _view(call, [0])
    pads, x = _pads(call, view), view.values[0]
    if call.option("mode", 0) == 0:
        return view.result(ops.pad(x, pads, mode="reflect"))
    rank = len(view.order)
    for a in range(rank):
        x = _mirrored(x, a, int(pads[a]), int(pads[rank + a]))
    return view.result(x)


def _mirrored(x: Value, axis: int, before: int, after: int) -> Value:
    """x with elements in front of its first and after its last along an axis, in reverse, the edge repeated."""
    if not before and not after:
        return x
    extent = x.shape[axis]
    if not isinstance(extent, int) or not 0 <= min(before, after) <= max(before, after) <= extent:
        raise UnsupportedOp(f"SYMMETRIC padding of {before} and {after} along an axis of {extent}")
    parts = [x]
    if before:
        parts.insert(0, _reversed(x, axis, before - 1, _BEFORE))
    if after:
        parts.append(_reversed(x, axis, _BEHIND, extent - 1 - after if after < extent else _BEFORE))
    return ops.concat(parts, axis=axis)


def _reversed(x: Value, axis: int, start: int, end: int) -> Value:
    """x[start:end:-1] along an axis."""
    return ops.slice(x, *(np.asarray([v], np.int64) for v in (start, end, axis, -1)))


def _gather(call: Call) -> Value:
    if call.option("batch_dims", 0):
        raise UnsupportedOp("GATHER with batch_dims is not read", do="export it without")
    return ops.gather(call.stored(0), call.stored(1), axis=int(call.option("axis", 0)))


def _gather_nd(call: Call) -> Value:
    return ops.gather_nd(call.stored(0), ops.cast(call.stored(1), to="int64"))


def _fill(call: Call) -> Value:
    return ops.expand(call.stored(1), shape=_shape(call, 0))


def _range(call: Call) -> Value:
    return ops.range(*(call.stored(i) for i in range(3)))


def _one_hot(call: Call) -> Value:
    on, off = call.array(2, "its value"), call.array(3, "its other value")
    (depth,) = call.integers(1, "its depth")
    values = np.concatenate([off.reshape(1), on.reshape(1)])
    return ops.one_hot(call.stored(0), np.asarray(depth, np.int64), values, axis=int(call.option("axis", -1)))


def _reverse(call: Call) -> Value | First:
    view = _view(call, [0])
    axes = [view.place(a) for a in call.integers(1, "its axes")]
    x = view.values[0]
    for axis in axes:
        x = _reversed(x, axis, _BEHIND, _BEFORE)
    return view.result(x)


def _rank(call: Call) -> Value:
    return call.graph.constant(np.asarray(call.tensor(0).value.rank, np.int32), call.name)


def _batches(apply: Callable[..., Value], what: str) -> Reader:
    """SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND over all axes between the first and the last."""

    def read(call: Call) -> First:
        x, blocks = call.first(0), call.integers(1, "its blocks")
        rows = call.array(2, f"its {what}")
        if len(blocks) != x.rank - 2 or rows.shape != (len(blocks), 2):
            raise UnsupportedOp(f"{call.kind} over {len(blocks)} of {x.rank} axes is not read")
        return First(apply(x, blocks=tuple(blocks), **{what: tuple(int(i) for i in rows.T.reshape(-1))}))

    return read


READERS: dict[str, Reader] = {
    "BATCH_TO_SPACE_ND": _batches(lambda x, **of: ops.batch_to_space(x, **of), "crops"),
    "BROADCAST_TO": lambda call: ops.expand(call.stored(0), shape=_shape(call, 1)),
    "CONCATENATION": _concatenation,
    "EXPAND_DIMS": _expand_dims,
    "FILL": _fill,
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "MIRROR_PAD": _mirror_pad,
    "ONE_HOT": _one_hot,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad,
    "RANGE": _range,
    "RANK": _rank,
    "RESHAPE": _reshape,
    "REVERSE_V2": _reverse,
    "SHAPE": lambda call: ops.cast(ops.shape(call.stored(0)), to=call.outputs[0].dtype),
    "SLICE": _slice,
    "SPACE_TO_BATCH_ND": _batches(lambda x, **of: ops.space_to_batch(x, **of), "pads"),
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "SQUEEZE": _squeeze,
    "STRIDED_SLICE": _strided_slice,
    "TILE": lambda call: ops.tile(call.stored(0), repeats=_shape(call, 1)),
    "TRANSPOSE": _transpose,
    "UNPACK": _unpack,
}


# --- written ----------------------------------------------------------------------------------------------------------


def _reshape_written(e: Emission) -> None:
    e.plain("RESHAPE", [e.form.plain(e.operand(0)), e.form.shape(e.result)], "ReshapeOptions")


def _transpose_written(e: Emission) -> None:
    x = e.operand(0)
    perm = tuple(e.attribute("perm") or reversed(range(x.rank)))
    if not e.form.turn(e.result, x, perm):
        e.plain("TRANSPOSE", [e.form.plain(x), e.form.integers(perm, "order")], "TransposeOptions")


def _one_order(e: Emission, values: Sequence[Value]) -> tuple[list[int], bool]:
    """Operands of one rank, in the order in which the first exists."""
    is_last = any(e.form.is_last(v) for v in values)
    return [e.form.last(v) if is_last else e.form.plain(v) for v in values], is_last


def _concat_written(e: Emission) -> None:
    values = [v for v in e.node.inputs if v is not None]
    operands, is_last = _one_order(e, values)
    axis = e.place(normalize_axis(e.attribute("axis"), values[0].rank), values[0].rank, is_last)
    e.either(is_last, "CONCATENATION", operands, "ConcatenationOptions", 1, axis=axis)


def _split_written(e: Emission) -> None:
    x = e.operand(0)
    (at,), is_last = _one_order(e, [x])
    axis = normalize_axis(e.attribute("axis"), x.rank)
    sizes = [v.shape[axis] for v in e.node.outputs]
    if not all(isinstance(s, int) for s in sizes):
        raise UnsupportedOp(f"the parts of {x.name!r} are not known")
    place = e.form.constant(np.asarray(e.place(axis, x.rank, is_last), np.int32), "axis")
    outputs = [e.form.make(v, is_last) for v in e.node.outputs]
    inputs = [at, e.form.integers([int(str(s)) for s in sizes], "sizes"), place]
    e.form.operator("SPLIT_V", inputs, outputs, "SplitVOptions", 1, num_splits=len(sizes))


def _slice_written(e: Emission) -> None:
    x = e.operand(0)
    (at,), is_last = _one_order(e, [x])
    starts, ends = ([int(i) for i in e.data(i, "its bounds").reshape(-1)] for i in (1, 2))
    axes = [int(a) for a in e.data(3, "its axes").reshape(-1)] if e.optional(3) is not None else [*range(len(starts))]
    steps = [int(a) for a in e.data(4, "its steps").reshape(-1)] if e.optional(4) is not None else [1] * len(starts)
    begin, end, stride, begin_mask, end_mask = [0] * x.rank, [0] * x.rank, [1] * x.rank, 0, (1 << x.rank) - 1
    limit = np.iinfo(np.int32)
    for axis, start, stop, step in zip(axes, starts, ends, steps):
        place = e.place(normalize_axis(axis, x.rank), x.rank, is_last)
        begin[place], end[place], stride[place] = start, stop, step
        end_mask &= ~(1 << place)
        if step > 0 and start >= limit.max:
            raise UnsupportedOp(f"a slice from element {start} on is not written")
        if not limit.min < start < limit.max:
            begin[place], begin_mask = 0, begin_mask | 1 << place
        if not limit.min < stop < limit.max:
            end[place], end_mask = 0, end_mask | 1 << place
    inputs = [at, *(e.form.integers(v, "bounds") for v in (begin, end, stride))]
    version = 2 if min(stride) < 0 else 1
    e.either(is_last, "STRIDED_SLICE", inputs, "StridedSliceOptions", version, begin_mask=begin_mask, end_mask=end_mask)


def _pad_written(e: Emission) -> None:
    x, op = e.operand(0), e.node.op
    assert isinstance(op, Pad)
    axes = None if e.optional(3) is None else e.data(3, "its axes")
    around = [(int(b), int(a)) for b, a in op.around(x.rank, e.data(1, "its padding"), axes)]
    if any(min(p) < 0 for p in around):
        raise UnsupportedOp("negative padding is not one the formats have", do="crop with slice instead")
    (at,), is_last = _one_order(e, [x])
    rows = [(0, 0)] * x.rank
    for axis, pair in enumerate(around):
        rows[e.place(axis, x.rank, is_last)] = pair
    inputs = [at, e.form.constant(np.asarray(rows, np.int32), "pads")]
    value = e.optional(2)
    match e.attribute("mode"):
        case "constant" if value is None:
            e.either(is_last, "PAD", inputs, "PadOptions")
        case "constant":
            held = e.form.constant(e.data(2, "its value").reshape(1), "value")
            e.either(is_last, "PADV2", [*inputs, held], "PadV2Options")
        case "reflect" if all(max(p) < (d if isinstance(d, int) else 0) for p, d in zip(around, x.shape) if any(p)):
            e.either(is_last, "MIRROR_PAD", inputs, "MirrorPadOptions", 1, mode=0)
        case mode:
            raise UnsupportedOp(f"padding by {mode} is not one the formats have")


def _gather_written(e: Emission) -> None:
    x, indices = e.operand(0), e.operand(1)
    axis = normalize_axis(e.attribute("axis"), x.rank)
    if indices.data is not None and indices.data.size and indices.data.min() < 0:
        raise UnsupportedOp("negative indices are not written")
    e.plain("GATHER", [e.form.plain(x), e.form.plain(indices)], "GatherOptions", 1, axis=axis)


def _expand_written(e: Emission) -> None:
    e.plain("BROADCAST_TO", [e.form.plain(e.operand(0)), e.form.shape(e.result)], "BroadcastToOptions", 2)


def _tile_written(e: Emission) -> None:
    repeats = e.form.integers([int(r) for r in e.data(1, "its repeats").reshape(-1)], "repeats")
    e.plain("TILE", [e.form.plain(e.operand(0)), repeats], "TileOptions")


def _batches_written(kind: str, options: str, edges: str) -> Writer:
    def write(e: Emission) -> None:
        rank, pairs = e.operand(0).rank - 2, e.attribute(edges)
        rows = np.asarray([*zip(pairs[:rank], pairs[rank:])], np.int32)
        inputs = [e.form.last(e.operand(0)), e.form.integers(e.attribute("blocks"), "blocks"), e.form.constant(rows)]
        e.last(kind, inputs, options)

    return write


WRITERS: dict[str, Writer] = {
    "batch_to_space": _batches_written("BATCH_TO_SPACE_ND", "BatchToSpaceNDOptions", "crops"),
    "concat": _concat_written,
    "expand": _expand_written,
    "flatten": _reshape_written,
    "gather": _gather_written,
    "pad": _pad_written,
    "reshape": _reshape_written,
    "slice": _slice_written,
    "space_to_batch": _batches_written("SPACE_TO_BATCH_ND", "SpaceToBatchNDOptions", "pads"),
    "split": _split_written,
    "squeeze": _reshape_written,
    "tile": _tile_written,
    "transpose": _transpose_written,
    "unsqueeze": _reshape_written,
}
