"""Operators that move elements. Those that name axes one by one keep the order that their operand has already."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.core.shapes import normalize_axis
from renorm.frontends.orders import First
from renorm.frontends.tflite.call import OperatorCall, View
from renorm.frontends.tflite.emission import Emission
from renorm.frontends.tflite.operator import ALL, Operator
from renorm.frontends.tflite.tensors import COMPLEX, Array
from renorm.graph.ir import Value
from renorm.ops.pad import Pad

_BEFORE, _BEHIND = np.iinfo(np.int64).min, np.iinfo(np.int64).max  # ends of slices that reach beyond the first and last


def _shape(call: OperatorCall, index: int) -> Value | Array:
    """Return an operand that is a shape, in the integers that the graph's ops take."""
    value = call.stored(index)
    return ops.cast(value, to="int64") if value.data is None else value.data.reshape(-1).astype(np.int64)


def _reshape(call: OperatorCall) -> Value:
    stated = None if call.options is None else call.options["new_shape"]
    if not call.has(1) and stated is None:
        raise InvalidModel("RESHAPE states no shape")
    if call.tensor(0).dtype == COMPLEX:
        shape = [*(call.integers(1, "its shape") if stated is None else map(int, stated)), 2]
        return ops.reshape(call.stored(0), shape=np.asarray(shape, np.int64))
    shape = _shape(call, 1) if call.has(1) else np.asarray(stated, np.int64)
    return ops.reshape(call.stored(0), shape=shape, allowzero=True)


def _squeeze(call: OperatorCall) -> Value:
    axes = [] if call.options is None else [int(a) for a in call.options.items("squeeze_dims")]
    x, rank = call.stored(0), call.rank(0)
    return ops.squeeze(x, axes=tuple(a + rank if a < 0 else a for a in axes) or None)


def _expand_dims(call: OperatorCall) -> Value:
    (axis,) = call.integers(1, "its axis")
    return ops.unsqueeze(call.stored(0), axes=(axis + call.rank(0) + 1 if axis < 0 else axis,))


def _transpose(call: OperatorCall) -> Value:
    return ops.transpose(call.stored(0), perm=tuple(call.integers(1, "its permutation")))


def _concatenation(call: OperatorCall) -> Value | First:
    view = call.aligned()
    return view.result(ops.concat(list(view.values), axis=view.place(int(call.option("axis", 0)))))


def _split(call: OperatorCall) -> Sequence[Value | First]:
    """Inputs: the axis, then x."""
    view = call.aligned(1)
    (axis,) = call.integers(0, "its axis")
    return _parts(view, ops.split(view.values[0], axis=view.place(axis), num_outputs=len(call.outputs)))


def _split_v(call: OperatorCall) -> Sequence[Value | First]:
    view = call.aligned(0)
    sizes, (axis,) = call.integers(1, "its sizes"), call.integers(2, "its axis")
    x, place = view.values[0], view.place(axis)
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = int(str(x.shape[place])) - sum(s for s in sizes if s >= 0)
    return _parts(view, ops.split(x, np.asarray(sizes, np.int64), axis=place))


def _parts(view: View, made: Value | Sequence[Value]) -> list[Value | First]:
    return [view.result(v) for v in ([made] if isinstance(made, Value) else made)]


def _pack(call: OperatorCall) -> Value:
    axis = int(call.option("axis", 0))
    return ops.concat([ops.unsqueeze(call.stored(i), axes=(axis,)) for i in range(len(call.inputs))], axis=axis)


def _unpack(call: OperatorCall) -> list[Value]:
    axis, count = int(call.option("axis", 0)), len(call.outputs)
    made = ops.split(call.stored(0), axis=axis, num_outputs=count)
    return [ops.squeeze(v, axes=(axis,)) for v in ([made] if isinstance(made, Value) else made)]


def _slice(call: OperatorCall) -> Value | First:
    """Sizes of -1 reach to the end."""
    view = call.aligned(0)
    begin, size = call.integers(1, "its begin"), call.integers(2, "its size")
    end = [_BEHIND if s < 0 else b + s for b, s in zip(begin, size, strict=True)]
    return view.result(_cut(view, begin, end, [1] * len(begin)))


def _cut(view: View, begin: Sequence[int], end: Sequence[int], steps: Sequence[int]) -> Value:
    axes = [view.place(a) for a in range(len(begin))]
    return ops.slice(view.values[0], *(np.asarray(v, np.int64) for v in (begin, end, axes, steps)))


def _strided_slice(call: OperatorCall) -> Value | First:
    """Cut as x[begin:end:stride, ...] of NumPy, with bits of masks for what stands in the brackets: an end that is left
    out, an ellipsis, a new axis, an index in the place of a slice."""
    masks = {m: int(call.option(f"{m}_mask", 0)) for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    given = [call.integers(i, what) for i, what in ((1, "its begin"), (2, "its end"), (3, "its strides"))]
    rank, count = call.tensor(0).value.rank, len(given[0])
    bit = {m: [bool(mask >> k & 1) for k in range(count)] for m, mask in masks.items()}
    wide = next((k for k in range(count) if bit["ellipsis"][k]), count)
    spared = rank - sum(not bit["new_axis"][k] and k != wide for k in range(count))  # axes that the ellipsis stands for
    if spared < 0:
        raise InvalidModel(f"it cuts {rank - spared} axes of {rank}")
    begin, end, steps = [0] * rank, [_BEHIND] * rank, [1] * rank
    axis, shrunk, new, place = 0, list[int](), list[int](), 0
    for k, (first, last, step) in enumerate(zip(*given, strict=True)):
        if k == wide:
            axis, place = axis + spared, place + spared
        elif bit["new_axis"][k]:
            new.append(place)
            place += 1
        elif bit["shrink_axis"][k]:
            begin[axis], end[axis] = first, (first + 1) or _BEHIND
            shrunk.append(axis)
            axis += 1
        else:
            last = first + last if call.option("offset", False) else last
            begin[axis] = (0 if step > 0 else _BEHIND) if bit["begin"][k] else first
            end[axis] = (_BEHIND if step > 0 else _BEFORE) if bit["end"][k] else last
            steps[axis] = step
            axis, place = axis + 1, place + 1
    view = call.aligned(0) if not shrunk and not new else View([call.stored(0)])
    y = _cut(view, begin, end, steps)
    y = ops.squeeze(y, axes=tuple(shrunk)) if shrunk else y
    return view.result(ops.unsqueeze(y, axes=tuple(new)) if new else y)


def _pad(call: OperatorCall) -> Value | First:
    view = call.aligned(0)
    value: Value | Array | None = call.stored(2) if call.has(2) else call.zero
    if isinstance(value, Value) and value.rank:
        scalar = np.asarray([], np.int64)
        value = ops.reshape(value, shape=scalar) if value.data is None else value.data.reshape(())
    return view.result(ops.pad(view.values[0], _pads(call, view), value))


def _pads(call: OperatorCall, view: View) -> Array:
    """Return all elements before, axis by axis, then all elements after."""
    rows = call.array(1, "its padding")
    if rows.shape != (len(view.order), 2):
        raise InvalidModel(f"its padding has shape {list(rows.shape)}, expected {[len(view.order), 2]}")
    return rows[list(view.order)].T.reshape(-1).astype(np.int64)


def _mirror_pad(call: OperatorCall) -> Value | First:
    """REFLECT leaves out the edge, SYMMETRIC repeats it."""
    view = call.aligned(0)
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


def _fill(call: OperatorCall) -> Value:
    return ops.expand(call.stored(1), shape=_shape(call, 0))


def _range(call: OperatorCall) -> Value:
    return ops.range(*(call.stored(i) for i in range(3)))


def _reverse(call: OperatorCall) -> Value | First:
    view = call.aligned(0)
    axes = [view.place(a) for a in call.integers(1, "its axes")]
    x = view.values[0]
    for axis in axes:
        x = _reversed(x, axis, _BEHIND, _BEFORE)
    return view.result(x)


def _rank(call: OperatorCall) -> Value:
    return call.graph.constant(np.asarray(call.tensor(0).value.rank, np.int32), call.name)


def _batches(call: OperatorCall) -> First:
    """SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND over all axes between the first and the last."""
    edges = _EDGES[call.kind]
    x, blocks = call.first(0), call.integers(1, "its blocks")
    rows = call.array(2, f"its {edges}")
    if len(blocks) != x.rank - 2 or rows.shape != (len(blocks), 2):
        raise UnsupportedOp(f"{call.kind} over {len(blocks)} of {x.rank} axes is not read")
    return First(call.op(x, blocks=tuple(blocks), **{edges: tuple(int(i) for i in rows.T.reshape(-1))}))


def _broadcast_to(call: OperatorCall) -> Value:
    return ops.expand(call.stored(0), shape=_shape(call, 1))


def _extents(call: OperatorCall) -> Value:
    return ops.cast(ops.shape(call.stored(0)), to=call.outputs[0].dtype)


def _tile(call: OperatorCall) -> Value:
    return ops.tile(call.stored(0), repeats=_shape(call, 1))


# --- written ----------------------------------------------------------------------------------------------------------


def _reshape_written(e: Emission) -> None:
    e.reshaped(e.subgraph.plain(e.operand(0)))


def _transpose_written(e: Emission) -> None:
    x = e.operand(0)
    perm = tuple(e.attribute("perm") or reversed(range(x.rank)))
    if not e.subgraph.turn(e.result, x, perm):
        e.operator([e.subgraph.plain(x), e.subgraph.integers(perm, "order")])


def _concat_written(e: Emission) -> None:
    operands, is_last = e.aligned()
    rank = e.result.rank
    e.operator(operands, is_last, axis=e.place(normalize_axis(e.attribute("axis"), rank), rank, is_last))


def _split_written(e: Emission) -> None:
    x = e.operand(0)
    (at,), is_last = e.aligned(x)
    axis = normalize_axis(e.attribute("axis"), x.rank)
    sizes = [v.shape[axis] for v in e.node.outputs]
    if not all(isinstance(s, int) for s in sizes):
        raise UnsupportedOp(f"the parts of {x.name!r} are not known")
    place = e.subgraph.constant(np.asarray(e.place(axis, x.rank, is_last), np.int32), "axis")
    outputs = [e.subgraph.make(v, is_last) for v in e.node.outputs]
    inputs = [at, e.subgraph.integers([int(str(s)) for s in sizes], "sizes"), place]
    e.subgraph.operator(e.kind, inputs, outputs, num_splits=len(sizes))


def _slice_written(e: Emission) -> None:
    x = e.operand(0)
    (at,), is_last = e.aligned(x)
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
    inputs = [at, *(e.subgraph.integers(v, "bounds") for v in (begin, end, stride))]
    version = 2 if min(stride) < 0 else 1
    e.operator(inputs, is_last, version=version, begin_mask=begin_mask, end_mask=end_mask)


def _pad_written(e: Emission) -> None:
    x, op = e.operand(0), e.node.op
    assert isinstance(op, Pad)
    axes = None if e.optional(3) is None else e.data(3, "its axes")
    around = [(int(b), int(a)) for b, a in op.around(x.rank, e.data(1, "its padding"), axes)]
    if any(min(p) < 0 for p in around):
        raise UnsupportedOp("negative padding is not one the formats have", do="crop with slice instead")
    (at,), is_last = e.aligned(x)
    rows = [(0, 0)] * x.rank
    for axis, pair in enumerate(around):
        rows[e.place(axis, x.rank, is_last)] = pair
    inputs = [at, e.subgraph.constant(np.asarray(rows, np.int32), "pads")]
    value = e.optional(2)
    match e.attribute("mode"):
        case "constant" if value is None:
            e.operator(inputs, is_last)
        case "constant":
            held = e.subgraph.constant(e.data(2, "its value").reshape(1), "value", e.operand(2))
            e.operator([*inputs, held], is_last, kind="PADV2")
        case "reflect" if all(max(p) < (d if isinstance(d, int) else 0) for p, d in zip(around, x.shape) if any(p)):
            e.operator(inputs, is_last, kind="MIRROR_PAD", mode=0)
        case mode:
            raise UnsupportedOp(f"padding by {mode} is not one the formats have")


def _expand_written(e: Emission) -> None:
    e.operator([e.subgraph.plain(e.operand(0)), e.subgraph.shape(e.result)], version=2)


def _tile_written(e: Emission) -> None:
    repeats = e.subgraph.integers([int(r) for r in e.data(1, "its repeats").reshape(-1)], "repeats")
    e.operator([e.subgraph.plain(e.operand(0)), repeats])


def _batches_written(e: Emission) -> None:
    rank, pairs = e.operand(0).rank - 2, e.attribute(_EDGES[e.kind])
    rows = np.asarray([*zip(pairs[:rank], pairs[rank:])], np.int32)
    inputs = [
        e.subgraph.last(e.operand(0)),
        e.subgraph.integers(e.attribute("blocks"), "blocks"),
        e.subgraph.constant(rows),
    ]
    e.operator(inputs, True)


# --- both -------------------------------------------------------------------------------------------------------------

_EDGES = {"BATCH_TO_SPACE_ND": "crops", "SPACE_TO_BATCH_ND": "pads"}  # the attribute that each has

OPERATORS = [
    Operator("BATCH_TO_SPACE_ND", "batch_to_space", _batches, _batches_written, picks=[0]),
    Operator("BROADCAST_TO", "expand", _broadcast_to, _expand_written, picks=[0]),
    Operator("CONCATENATION", "concat", _concatenation, _concat_written, picks=ALL),
    Operator("EXPAND_DIMS", read=_expand_dims, picks=[0], is_complex=True),
    Operator("FILL", read=_fill),
    Operator("MIRROR_PAD", read=_mirror_pad, picks=[0]),
    Operator("PACK", read=_pack, picks=ALL),
    Operator("PAD", "pad", _pad, _pad_written, picks=[0]),
    Operator("PADV2", read=_pad, picks=[0, 2]),
    Operator("RANGE", read=_range),
    Operator("RANK", read=_rank),
    Operator("RESHAPE", "reshape", _reshape, _reshape_written, picks=[0], is_complex=True),
    Operator("RESHAPE", "flatten", write=_reshape_written, picks=[0]),
    Operator("RESHAPE", "squeeze", write=_reshape_written, picks=[0]),
    Operator("RESHAPE", "unsqueeze", write=_reshape_written, picks=[0]),
    Operator("REVERSE_V2", read=_reverse, picks=[0]),
    Operator("SHAPE", read=_extents),
    Operator("SLICE", read=_slice, picks=[0]),
    Operator("SPACE_TO_BATCH_ND", "space_to_batch", _batches, _batches_written),
    Operator("SPLIT", read=_split, picks=[1]),
    Operator("SPLIT_V", "split", _split_v, _split_written, picks=[0]),
    Operator("SQUEEZE", read=_squeeze, picks=[0], is_complex=True),
    Operator("STRIDED_SLICE", "slice", _strided_slice, _slice_written, picks=[0]),
    Operator("TILE", "tile", _tile, _tile_written, picks=[0]),
    Operator("TRANSPOSE", "transpose", _transpose, _transpose_written, picks=[0]),
    Operator("UNPACK", read=_unpack, picks=[0]),
]
