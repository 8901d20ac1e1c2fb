"""Operators of StableHLO that converters leave in files, by its specification, and DILATE, which is a kind of PAD."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import static
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.tflite.call import OperatorCall, long
from renorm.frontends.tflite.operator import Operator, Reader
from renorm.frontends.tflite.operators.indexing import inside, updated
from renorm.graph.ir import Value

_COMPARED = ("equal", "not_equal", "greater_or_equal", "greater", "less_or_equal", "less")


def _listed(call: OperatorCall, name: str) -> list[int]:
    return [] if call.options is None else [int(i) for i in call.options.items(name)]


# --- element by element -----------------------------------------------------------------------------------------------


def _applied(apply: Callable[..., Value]) -> Reader:
    return lambda call: apply(*(call.stored(i) for i in range(len(call.inputs))))


def _bits(whole: str, each: str) -> Reader:
    """Of truth values, or of the bits of integers."""

    def read(call: OperatorCall) -> Value:
        a, b = call.stored(0), call.stored(1)
        return getattr(ops, whole if a.dtype == "bool" else each)(a, b)

    return read


def _compare(call: OperatorCall) -> Value:
    number = int(call.option("comparison_direction", 0))
    if number >= len(_COMPARED):
        raise InvalidModel(f"its direction is {number}, of {len(_COMPARED)}")
    a, b = call.stored(0), call.stored(1)
    return ops.logical_not(ops.equal(a, b)) if number == 1 else getattr(ops, _COMPARED[number])(a, b)


def _convert(call: OperatorCall) -> Value:
    return ops.cast(call.stored(0), to=call.outputs[0].dtype)


def _cube_root(x: Value) -> Value:
    return ops.mul(ops.sign(x), ops.pow(ops.abs(x), np.asarray(1 / 3, numpy_dtype(x.dtype))))


def _clamped(low: Value, x: Value, high: Value) -> Value:
    return ops.min(ops.max(x, low), high)


# --- moved ------------------------------------------------------------------------------------------------------------


def _broadcast_in_dim(call: OperatorCall) -> Value:
    """Axes of x at the places named in the result; other axes are new."""
    x, shape, places = call.stored(0), call.result_shape(), _listed(call, "broadcast_dimensions")
    spread = [1] * len(shape)
    for place, extent in zip(places, static(x.shape), strict=True):
        spread[place] = extent
    if sorted(set(places)) != places:
        order = [int(i) for i in np.argsort(places)]
        x = ops.transpose(x, perm=order)
    return ops.expand(ops.reshape(x, shape=np.asarray(spread, np.int64)), shape=np.asarray(shape, np.int64))


def _reshape(call: OperatorCall) -> Value:
    return ops.reshape(call.stored(0), shape=np.asarray(call.result_shape(), np.int64), allowzero=True)


def _iota(call: OperatorCall) -> Value:
    shape, axis = call.result_shape(), int(call.option("iota_dimension", 0))
    call.allow(shape[axis])
    held = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    made = call.graph.constant(held.astype(numpy_dtype(call.outputs[0].dtype)), call.name)
    return ops.expand(made, shape=np.asarray(shape, np.int64))


def _transpose(call: OperatorCall) -> Value:
    return ops.transpose(call.stored(0), perm=_listed(call, "permutation"))


def _concatenate(call: OperatorCall) -> Value:
    return ops.concat([call.stored(i) for i in range(len(call.inputs))], axis=int(call.option("dimension", 0)))


def _cut(x: Value, begin: Sequence[int], end: Sequence[int], steps: Sequence[int]) -> Value:
    return ops.slice(x, *(np.asarray(v, np.int64) for v in (begin, end, range(x.rank), steps)))


def _slice(call: OperatorCall) -> Value:
    return _cut(call.stored(0), *(_listed(call, name) for name in ("start_indices", "limit_indices", "strides")))


def _padded(call: OperatorCall, low: Sequence[int], high: Sequence[int], between: Sequence[int], value: Value) -> Value:
    """Return the first operand with a value around it and between its elements; what is negative cuts."""
    x = call.stored(0)
    value = ops.reshape(value, shape=np.zeros(0, np.int64)) if value.rank else value
    for axis, gap in enumerate(between):
        extent = x.shape[axis]
        if not gap or not extent:
            continue
        if not isinstance(extent, int) or gap < 0:
            raise UnsupportedOp(f"padding of {gap} between {extent} elements is not read")
        apart, pads = ops.unsqueeze(x, axes=[axis + 1]), np.zeros((2, x.rank + 1), np.int64)
        pads[1, axis + 1] = gap
        shape = call.shape_of([*x.shape[:axis], extent * (gap + 1), *x.shape[axis + 1 :]])
        x = ops.reshape(ops.pad(apart, pads.reshape(-1), value), shape=shape)
        x = ops.slice(x, *(np.asarray([i], np.int64) for i in (0, (extent - 1) * (gap + 1) + 1, axis)))
    pads = np.asarray([*low, *high], np.int64)
    return ops.pad(x, pads, value) if pads.any() else x


_SIDES = (("edge", "_low"), ("edge", "_high"), ("interior", ""))


def _pad(call: OperatorCall) -> Value:
    low, high, between = (_listed(call, f"{side}_padding{end}") for side, end in _SIDES)
    return _padded(call, low, high, between, call.stored(1))


def _dilate(call: OperatorCall) -> Value:
    steps, none = call.integers(1, "its dilations"), [0] * call.rank(0)
    return _padded(call, none, none, [s - 1 for s in steps], call.stored(2))


def _starts(call: OperatorCall, first: int) -> Value:
    """Return where something begins, of which each operand says one axis."""
    held = [ops.reshape(long(call.stored(i)), shape=np.asarray([1], np.int64)) for i in range(first, len(call.inputs))]
    return ops.concat(held, axis=0)


def _dynamic_slice(call: OperatorCall) -> Value:
    x, sizes, starts = call.stored(0), _listed(call, "slice_sizes"), _starts(call, 1)
    for axis, (extent, size) in enumerate(zip(x.shape, sizes, strict=True)):
        if extent != size:
            call.allow(size)
            at = ops.slice(starts, *(np.asarray([i], np.int64) for i in (axis, axis + 1)))
            x = ops.gather(x, ops.add(inside(call, at, extent, size), np.arange(size)), axis=axis)
    return x


def _dynamic_update_slice(call: OperatorCall) -> Value:
    return updated(call, call.stored(0), call.stored(1), _starts(call, 2))


# --- summed up --------------------------------------------------------------------------------------------------------

_REDUCED = {  # what a body computes: over axes, and with the value that it begins with
    "ADD": ("reduce_sum", "add"), "MAXIMUM": ("reduce_max", "max"), "MINIMUM": ("reduce_min", "min"),
    "MULTIPLY": ("reduce_prod", "mul"), "MUL": ("reduce_prod", "mul"), "AND": ("reduce_min", "logical_and"),
    "OR": ("reduce_max", "logical_or"), "LOGICAL_AND": ("reduce_min", "logical_and"),
    "LOGICAL_OR": ("reduce_max", "logical_or"),
}  # fmt: skip


def _reduce(call: OperatorCall) -> Value:
    """One operand, the value that it begins with, and a body of one operator."""
    section = call.scope.reader.model.section(call.number("body_subgraph_index"))
    kinds = [call.scope.reader.model.kind(o).removeprefix("STABLEHLO_") for o in section.operators]
    if len(kinds) != 1 or kinds[0] not in _REDUCED or len(call.inputs) != 2:
        raise UnsupportedOp(f"a reduction of {len(call.inputs) // 2} operands by {', '.join(kinds)} is not read")
    over, begun = _REDUCED[kinds[0]]
    y = getattr(ops, over)(call.stored(0), axes=_listed(call, "dimensions"), keepdims=False)
    return getattr(ops, begun)(y, call.stored(1))


def _dot_general(call: OperatorCall) -> Value:
    """Axes of the result: those of batches, others of a, others of b."""
    a, b = call.stored(0), call.stored(1)
    batches, summed = (
        [_listed(call, f"{side}_{what}_dimensions") for side in ("lhs", "rhs")] for what in ("batching", "contracting")
    )
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names = [[""] * v.rank for v in (a, b)]
    for pairs in (batches, summed):
        for i, j in zip(*pairs, strict=True):
            names[0][i] = names[1][j] = next(letters)
    shared, free = [names[0][i] for i in batches[0]], list[str]()
    for row in names:
        for axis, name in enumerate(row):
            if not name:
                row[axis] = next(letters)
                free.append(row[axis])
    left, right = ("".join(row) for row in names)
    return ops.einsum([a, b], equation=f"{left},{right}->{''.join([*shared, *free])}")


def _convolution(call: OperatorCall) -> Value:
    def place(name: str) -> int:
        return int(call.option(f"{name}_dimension", 0))

    around = [[place(f"{side}_{which}") for which in both] for side, both in (
        ("input", ("batch", "feature")), ("kernel", ("output_feature", "input_feature")),
        ("output", ("batch", "feature")))]  # fmt: skip
    x_axes, w_axes, y_axes = (
        [*ends, *_listed(call, f"{side}_spatial_dimensions")]
        for side, ends in zip(("input", "kernel", "output"), around)
    )
    apart = [n for name in ("lhs_dilation",) for n in _listed(call, name) if n != 1]
    reversed_ = [] if call.options is None else [bool(r) for r in call.options.items("window_reversal")]
    if apart or any(reversed_) or int(call.option("batch_group_count", 1)) != 1:
        raise UnsupportedOp("a convolution that spreads its operand, turns its window or has groups of batches")
    pads = np.asarray(_listed(call, "padding"), np.int64).reshape(-1, 2).T.reshape(-1)
    more: dict[str, Any] = {"pads": pads.tolist()} if pads.size else {}
    for name, said in (("strides", "window_strides"), ("dilations", "rhs_dilation")):
        more |= {name: held} if (held := _listed(call, said)) else {}
    x, w = (ops.transpose(call.stored(i), perm=axes) for i, axes in enumerate((x_axes, w_axes)))
    y = ops.conv(x, w, group=int(call.option("feature_group_count", 1)), **more)
    return ops.transpose(y, perm=[int(a) for a in np.argsort(y_axes)])


_ALIKE: dict[str, Callable[..., Value]] = {
    "ABS": ops.abs, "ADD": ops.add, "CBRT": _cube_root, "CLAMP": _clamped, "COSINE": ops.cos, "DIVIDE": ops.div,
    "EXPONENTIAL": ops.exp, "FLOOR": ops.floor, "LOG": ops.log, "LOGISTIC": ops.sigmoid, "MAXIMUM": ops.max,
    "MINIMUM": ops.min, "MULTIPLY": ops.mul, "NEGATE": ops.neg, "POWER": ops.pow, "RSQRT": ops.rsqrt,
    "REMAINDER": lambda a, b: ops.mod(a, b, fmod=True), "SELECT": ops.where, "SUBTRACT": ops.sub, "TANH": ops.tanh,
    "SHIFT_LEFT": lambda a, b: ops.bit_shift(a, b, direction="LEFT"),
}  # fmt: skip
_READ: dict[str, Reader] = {
    **{name: _applied(apply) for name, apply in _ALIKE.items()},
    "AND": _bits("logical_and", "bitwise_and"), "BROADCAST_IN_DIM": _broadcast_in_dim, "COMPARE": _compare,
    "CONCATENATE": _concatenate, "CONVERT": _convert, "CONVOLUTION": _convolution, "DOT_GENERAL": _dot_general,
    "DYNAMIC_SLICE": _dynamic_slice, "DYNAMIC_UPDATE_SLICE": _dynamic_update_slice, "IOTA": _iota,
    "OR": _bits("logical_or", "bitwise_or"), "PAD": _pad, "REDUCE": _reduce, "RESHAPE": _reshape, "SLICE": _slice,
    "TRANSPOSE": _transpose,
}  # fmt: skip

OPERATORS = [
    Operator("DILATE", read=_dilate, picks=[0, 2]),
    *(Operator(f"STABLEHLO_{name}", read=read) for name, read in _READ.items()),
]
