"""Operators over whole axes: reductions, softmax, norms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from renorm import ops
from renorm.core.dims import normalize_axis
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.tflite.call import Call, Reader
from renorm.frontends.tflite.tensors import First, to_first
from renorm.graph.ir import Value


def _reduction(apply: Callable[..., Value]) -> Reader:
    """Over constant axes. With all axes kept, the order of axes stays; so it does over all spatial axes."""

    def read(call: Call) -> Value | First:
        tensor, keep = call.tensor(0), bool(call.option("keep_dims", False))
        rank = tensor.value.rank
        axes = sorted({normalize_axis(a, rank) for a in call.integers(1, "its axes")})
        is_spatial = rank > 2 and axes == list(range(1, rank - 1))
        if not axes:
            return tensor.stored()
        if tensor.is_first and (keep or is_spatial):
            order = to_first(rank)
            y = apply(tensor.first(), axes=tuple(sorted(order.index(a) for a in axes)), keepdims=keep)
            return First(y)
        return apply(tensor.stored(), axes=tuple(axes), keepdims=keep)

    return read


def _softmax(call: Call) -> Value:
    x, beta = call.stored(0), float(call.option("beta", 1.0))
    return ops.softmax(x if beta == 1 else ops.mul(x, np.asarray(beta, x.dtype)), axis=-1)


def _arg(apply: Callable[..., Value]) -> Reader:
    def read(call: Call) -> Value:
        (axis,) = call.integers(1, "its axis")
        return ops.cast(apply(call.stored(0), axis=axis, keepdims=False), to=call.outputs[0].dtype)

    return read


def _l2_normalization(call: Call) -> Value:
    """x / max(sqrt(sum of squares over the last axis), 1e-6)"""
    x = call.stored(0)
    root = ops.sqrt(ops.reduce_sum(ops.mul(x, x), axes=(-1,), keepdims=True))
    return ops.div(x, ops.max(root, np.asarray(1e-6, x.dtype)))


def _local_response_normalization(call: Call) -> First:
    """x * (bias + alpha * sum of squares over the window) ** -beta; alpha is not divided by the window's size."""
    size = 2 * int(call.option("radius", 0)) + 1
    alpha, beta, bias = (float(call.option(o, 0.0)) for o in ("alpha", "beta", "bias"))
    return First(ops.local_response_norm(call.first(0), size=size, alpha=alpha * size, beta=beta, bias=bias))


def _cumsum(call: Call) -> Value:
    (axis,) = call.integers(1, "its axis")
    way = {"exclusive": bool(call.option("exclusive", False)), "reverse": bool(call.option("reverse", False))}
    return ops.cum_sum(call.stored(0), axis=np.asarray(axis, np.int64), **way)


def _instance_norm(call: Call) -> First:
    x, scale, bias = call.first(0), call.stored(1), call.stored(2)
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise UnsupportedOp(f"the number of channels of {x.name!r} is not known")
    scale, bias = (_per_channel(call, v, channels) for v in (scale, bias))
    return First(ops.instance_norm(x, scale, bias, epsilon=float(call.option("epsilon", 1e-5))))


def _per_channel(call: Call, value: Value, channels: int) -> Value:
    """A parameter of one element per channel; one for all is repeated."""
    if value.data is None or value.data.size == channels:
        return value if value.rank == 1 else ops.reshape(value, shape=np.asarray([channels], np.int64))
    if value.data.size != 1:
        raise InvalidModel(f"{value.name!r} has {value.data.size} elements for {channels} channels")
    return ops.expand(ops.reshape(value, shape=np.asarray([1], np.int64)), shape=np.asarray([channels], np.int64))


def _rms_norm(call: Call) -> Value:
    x = call.stored(0)
    scale = call.stored(1) if call.has(1) else call.graph.constant(np.ones(1, x.dtype), "scale")
    return ops.rms_norm(x, scale, axis=-1, epsilon=float(call.option("epsilon", 1e-6)))


def _rope(call: Call) -> Value:
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


OPERATORS: dict[str, Reader] = {
    "ARG_MAX": _arg(lambda x, **axis: ops.arg_max(x, **axis)),
    "ARG_MIN": _arg(lambda x, **axis: ops.arg_min(x, **axis)),
    "CUMSUM": _cumsum,
    "INSTANCE_NORM": _instance_norm,
    "L2_NORMALIZATION": _l2_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response_normalization,
    "LOG_SOFTMAX": lambda call: ops.log_softmax(call.stored(0), axis=-1),
    "MEAN": _reduction(lambda x, **axes: ops.reduce_mean(x, **axes)),
    "REDUCE_MAX": _reduction(lambda x, **axes: ops.reduce_max(x, **axes)),
    "REDUCE_MIN": _reduction(lambda x, **axes: ops.reduce_min(x, **axes)),
    "REDUCE_PROD": _reduction(lambda x, **axes: ops.reduce_prod(x, **axes)),
    "RMS_NORM": _rms_norm,
    "ROPE": _rope,
    "SOFTMAX": _softmax,
    "SUM": _reduction(lambda x, **axes: ops.reduce_sum(x, **axes)),
}
