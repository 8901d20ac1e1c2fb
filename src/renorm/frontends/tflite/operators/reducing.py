"""Operators over whole axes: reductions, softmax, norms."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.core.shapes import normalize_axis
from renorm.frontends.orders import First
from renorm.frontends.tflite.call import OperatorCall, View
from renorm.frontends.tflite.emission import Emission
from renorm.frontends.tflite.operator import Operator
from renorm.frontends.tflite.tensors import NUMBER
from renorm.graph.ir import Value


def _reduction(call: OperatorCall) -> Value | First:
    """Over constant axes. With all axes kept, the order of axes stays; so it does over all spatial axes."""
    tensor, keep = call.tensor(0), bool(call.option("keep_dims", False))
    rank = tensor.value.rank
    axes = sorted({normalize_axis(a, rank) for a in call.integers(1, "its axes")})
    is_spatial = rank > 2 and axes == list(range(1, rank - 1))
    if not axes:
        return tensor.stored()
    view = call.aligned(0) if keep or is_spatial else View([tensor.stored()])
    return view.result(call.op(view.values[0], axes=tuple(sorted(map(view.place, axes))), keepdims=keep))


def _softmax(call: OperatorCall) -> Value:
    x, beta = call.stored(0), float(call.option("beta", 1.0))
    return ops.softmax(x if beta == 1 else ops.mul(x, np.asarray(beta, x.dtype)), axis=-1)


def _log_softmax(call: OperatorCall) -> Value:
    return ops.log_softmax(call.stored(0), axis=-1)


def _arg(call: OperatorCall) -> Value:
    (axis,) = call.integers(1, "its axis")
    return ops.cast(call.op(call.stored(0), axis=axis, keepdims=False), to=call.outputs[0].dtype)


def _l2_normalization(call: OperatorCall) -> Value:
    """x / max(sqrt(sum of squares over the last axis), 1e-6)"""
    x = call.stored(0)
    root = ops.sqrt(ops.reduce_sum(ops.mul(x, x), axes=(-1,), keepdims=True))
    return ops.div(x, ops.max(root, np.asarray(1e-6, x.dtype)))


def _local_response_normalization(call: OperatorCall) -> First:
    """x * (bias + alpha * sum of squares over the window) ** -beta; alpha is not divided by the window's size."""
    size = 2 * int(call.option("radius", 0)) + 1
    alpha, beta, bias = (float(call.option(o, 0.0)) for o in ("alpha", "beta", "bias"))
    return First(ops.local_response_norm(call.first(0), size=size, alpha=alpha * size, beta=beta, bias=bias))


def _cumsum(call: OperatorCall) -> Value:
    (axis,) = call.integers(1, "its axis")
    way = {"exclusive": bool(call.option("exclusive", False)), "reverse": bool(call.option("reverse", False))}
    return ops.cum_sum(call.stored(0), axis=np.asarray(axis, np.int64), **way)


def _instance_norm(call: OperatorCall) -> First:
    x, scale, bias = call.first(0), call.stored(1), call.stored(2)
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise UnsupportedOp(f"the number of channels of {x.name!r} is not known")
    scale, bias = (_per_channel(call, v, channels) for v in (scale, bias))
    return First(ops.instance_norm(x, scale, bias, epsilon=float(call.option("epsilon", 1e-5))))


def _per_channel(call: OperatorCall, value: Value, channels: int) -> Value:
    """Return a parameter of one element per channel; one for all is repeated."""
    if value.data is None or value.data.size == channels:
        return value if value.rank == 1 else ops.reshape(value, shape=np.asarray([channels], np.int64))
    if value.data.size != 1:
        raise InvalidModel(f"{value.name!r} has {value.data.size} elements for {channels} channels")
    return ops.expand(ops.reshape(value, shape=np.asarray([1], np.int64)), shape=np.asarray([channels], np.int64))


def _rms_norm(call: OperatorCall) -> Value:
    x = call.stored(0)
    scale = call.stored(1) if call.has(1) else call.graph.constant(np.ones(1, x.dtype), "scale")
    return ops.rms_norm(x, scale, axis=-1, epsilon=float(call.option("epsilon", 1e-6)))


def _rope(call: OperatorCall) -> Value:
    """x * cos + (-second half of x, first half) * sin, over the last axis."""
    if call.option("mode", 0):
        raise UnsupportedOp("its mode is not GPT_NEOX", do="export the rotation as separate operators")
    x, sin, cos = call.stored(0), call.stored(1), call.stored(2)
    width = x.shape[-1]
    if not isinstance(width, int) or width % 2:
        raise InvalidModel(f"the last axis of {x.name!r} has {width} elements, which are no two halves")
    first, second = ops.split(x, axis=-1, num_outputs=2)
    turned = ops.concat([ops.neg(second), first], axis=-1)
    return ops.add(ops.mul(x, cos), ops.mul(turned, sin))


# --- written ----------------------------------------------------------------------------------------------------------


def _reduced(e: Emission) -> None:
    x, axes = e.operand(0), e.node.op.values.get("axes")
    keep = bool(e.node.op.values.get("keepdims", True))
    rank = x.rank
    if e.node.op.name == "global_average_pool":
        axes = tuple(range(2, rank))
    axes = sorted({normalize_axis(a, rank) for a in axes} if axes is not None else range(rank))
    is_last = e.subgraph.is_last(x) and (keep or axes == list(range(2, rank)))
    places = sorted(e.place(a, rank, is_last) for a in axes)
    at = e.subgraph.last(x) if is_last else e.subgraph.plain(x)
    e.operator([at, e.subgraph.integers(places, "axes")], is_last, keep_dims=keep)


def _softmax_written(e: Emission) -> None:
    x, fields = e.operand(0), dict[str, Any](beta=1.0) if e.kind == "SOFTMAX" else {}
    axis = normalize_axis(e.attribute("axis"), x.rank)
    if e.attribute("flatten") and axis != x.rank - 1:
        raise UnsupportedOp("softmax over several axes is not written")
    if axis not in (1, x.rank - 1):
        raise UnsupportedOp(f"softmax over axis {axis} of {x.rank} is not written, only over the last or channels")
    is_last = axis == 1 and x.rank > 2
    e.operator([e.subgraph.last(x) if is_last else e.subgraph.plain(x)], is_last, **fields)


def _arg_written(e: Emission) -> None:
    x = e.operand(0)
    if e.attribute("select_last_index"):
        raise UnsupportedOp("select_last_index is not one the formats have")
    place = normalize_axis(e.attribute("axis"), x.rank)
    axis = e.subgraph.constant(np.asarray(place, np.int32), "axis")
    number = e.number("TensorType", NUMBER[e.result.dtype])
    if not e.attribute("keepdims"):
        e.operator([e.subgraph.plain(x), axis], output_type=number)
        return
    made = e.subgraph.tensor(e.result.dtype, [d for a, d in enumerate(x.shape) if a != place], f"{e.node.name}.flat")
    e.subgraph.operator(e.kind, [e.subgraph.plain(x), axis], [made], output_type=number)
    e.reshaped(made)


def _cum_sum_written(e: Emission) -> None:
    axis = e.subgraph.constant(e.data(1, "its axis").astype(np.int32).reshape(()), "axis")
    inputs = [e.subgraph.plain(e.operand(0)), axis]
    e.operator(inputs, exclusive=bool(e.attribute("exclusive")), reverse=bool(e.attribute("reverse")))


def _local_response_written(e: Emission) -> None:
    size = e.attribute("size")
    if size % 2 == 0:
        raise UnsupportedOp(f"a window of {size} channels has no middle")
    fields = {"radius": size // 2, "bias": e.attribute("bias"), "alpha": e.attribute("alpha") / size}
    e.operator([e.subgraph.last(e.operand(0))], True, beta=e.attribute("beta"), **fields)


def _instance_norm_written(e: Emission) -> None:
    inputs = [e.subgraph.last(e.operand(0)), e.subgraph.plain(e.operand(1)), e.subgraph.plain(e.operand(2))]
    e.operator(inputs, True, epsilon=e.attribute("epsilon"))


def _rms_norm_written(e: Emission) -> None:
    x, scale = e.operand(0), e.operand(1)
    if normalize_axis(e.attribute("axis"), x.rank) != x.rank - 1:
        raise UnsupportedOp("RMS_NORM is over the last axis only")
    e.operator([e.subgraph.plain(x), e.subgraph.plain(scale)], epsilon=e.attribute("epsilon"))


# --- both -------------------------------------------------------------------------------------------------------------

OPERATORS = [
    Operator("ARG_MAX", "arg_max", _arg, _arg_written),
    Operator("ARG_MIN", "arg_min", _arg, _arg_written),
    Operator("CUMSUM", "cum_sum", _cumsum, _cum_sum_written),
    Operator("INSTANCE_NORM", "instance_norm", _instance_norm, _instance_norm_written),
    Operator("L2_NORMALIZATION", read=_l2_normalization),
    Operator(
        "LOCAL_RESPONSE_NORMALIZATION", "local_response_norm", _local_response_normalization, _local_response_written
    ),
    Operator("LOG_SOFTMAX", "log_softmax", _log_softmax, _softmax_written),
    Operator("MEAN", "reduce_mean", _reduction, _reduced),
    Operator("MEAN", "global_average_pool", write=_reduced),
    Operator("REDUCE_ALL", "reduce_min", _reduction),
    Operator("REDUCE_ANY", "reduce_max", _reduction),
    Operator("REDUCE_MAX", "reduce_max", _reduction, _reduced, picks=[0]),
    Operator("REDUCE_MIN", "reduce_min", _reduction, _reduced, picks=[0]),
    Operator("REDUCE_PROD", "reduce_prod", _reduction, _reduced),
    Operator("RMS_NORM", "rms_norm", _rms_norm, _rms_norm_written),
    Operator("ROPE", read=_rope),
    Operator("SOFTMAX", "softmax", _softmax, _softmax_written),
    Operator("SUM", "reduce_sum", _reduction, _reduced),
]
