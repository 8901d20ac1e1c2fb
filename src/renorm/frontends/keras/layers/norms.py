"""Normalizations, each one op, whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.keras.call import Call, Made, Tensor
from renorm.frontends.keras.config import described
from renorm.frontends.keras.layers.table import reads
from renorm.frontends.keras.weights import Array
from renorm.frontends.orders import First, to_first
from renorm.graph.ir import Value

_LEAST = 1e-7  # keras.backend.epsilon()


def _variables(c: Call, *others: str) -> dict[str, Array]:
    """Return gamma and beta where the layer has them, and others."""
    given = [name for name, key in (("gamma", "scale"), ("beta", "center")) if c.option(key, True)]
    return c.own(*given, *others)


def _affine(c: Call, held: Mapping[str, Array], shape: Sequence[int], dtype: str) -> list[Value]:
    """Return scale and bias of these shapes."""
    found = list[Value]()
    for name, number in (("gamma", 1), ("beta", 0)):
        array = held.get(name, np.full(shape, number, dtypes.numpy_dtype(dtype)))
        if array.shape != tuple(shape):
            raise InvalidModel(f"{name} has shape {list(array.shape)}, expected {list(shape)}")
        found.append(c.constant(array, name))
    return found


def _static(x: Value, axes: Sequence[int]) -> tuple[int, ...]:
    shape = [x.shape[a] for a in axes]
    if not all(isinstance(n, int) for n in shape):
        raise UnsupportedOp(f"a norm over extents {shape}, which are open")
    return tuple(n for n in shape if isinstance(n, int))


def _by_channel(c: Call, x: Tensor, axis: int, norm: Callable[[Value], Value]) -> Made:
    """Return a norm for which an axis of the format is the second one."""
    rank = x.value.rank
    if rank > 2 and axis == rank - 1:
        return First(norm(x.first()))
    value = x.stored()
    if axis == 1:
        return norm(value)
    perm = (0, axis, *(a for a in range(1, rank) if a != axis))
    if axis == 0:
        raise UnsupportedOp("a norm whose channels are the batch")
    return ops.transpose(norm(ops.transpose(value, perm=perm)), perm=tuple(np.argsort(perm).tolist()))


def _one_axis(c: Call, x: Tensor) -> int:
    axes = c.axes("axis", x.value.rank)
    if len(axes) != 1:
        raise UnsupportedOp(f"a norm with several axes of channels, {list(axes)}")
    return axes[0]


@reads("BatchNormalization", keeps_mask=True)
def _batch_normalization(c: Call, x: Tensor) -> Made:
    held, axis = _variables(c, "moving_mean", "moving_variance"), _one_axis(c, x)
    size = held["moving_mean"].shape

    def norm(v: Value) -> Value:
        scale, bias = _affine(c, held, size, c.dtype)
        mean, var = (c.constant(held[name], name) for name in ("moving_mean", "moving_variance"))
        return ops.batch_norm(v, scale, bias, mean, var, epsilon=c.number("epsilon", 1e-3))

    return _by_channel(c, x, axis, norm)


@reads("GroupNormalization", keeps_mask=True)
def _group_normalization(c: Call, x: Tensor) -> Made:
    axis, groups = _one_axis(c, x), c.count("groups", 32)
    size = _static(x.value, [to_first(x.value.rank).index(axis) if x.is_first else axis])
    held = _variables(c)

    def norm(v: Value) -> Value:
        many = size[0] if groups == -1 else groups
        return ops.group_norm(v, *_affine(c, held, size, v.dtype), num_groups=many, epsilon=c.number("epsilon", 1e-3))

    return _by_channel(c, x, axis, norm)


def _of_last(c: Call, x: Tensor, norm: Callable[[Value, int], Value]) -> Made:
    """Return a norm over axes of the format, which are brought behind the others for it."""
    rank, axes = x.value.rank, c.axes("axis", x.value.rank)
    is_first, value, first = x.is_first, x.stored(), rank - len(axes)
    if axes == tuple(range(first, rank)):
        y = norm(value, first)
        return First(ops.transpose(y, perm=to_first(rank))) if is_first and axes == (rank - 1,) else y
    perm = (*(a for a in range(rank) if a not in axes), *axes)
    y = norm(ops.transpose(value, perm=perm), first)
    return ops.transpose(y, perm=tuple(np.argsort(perm).tolist()))


@reads("LayerNormalization", keeps_mask=True)
def _layer_normalization(c: Call, x: Tensor) -> Made:
    if c.option("rms_scaling"):
        raise UnsupportedOp("rms_scaling, which divides by the deviation and takes no mean", do="use RMSNormalization")
    held = _variables(c)

    def norm(v: Value, first: int) -> Value:
        scale, bias = _affine(c, held, _static(v, range(first, v.rank)), v.dtype)
        return ops.layer_norm(v, scale, bias, axis=first, epsilon=c.number("epsilon", 1e-3))

    return _of_last(c, x, norm)


@reads("RMSNormalization")
def _rms_normalization(c: Call, x: Tensor) -> Made:
    scale = c.own("scale")["scale"]

    def norm(v: Value, first: int) -> Value:
        if scale.shape != (shape := _static(v, range(first, v.rank))):
            raise InvalidModel(f"scale has shape {list(scale.shape)}, expected {list(shape)}")
        return ops.rms_norm(v, c.constant(scale, "scale"), axis=first, epsilon=c.number("epsilon", 1e-6))

    return _of_last(c, x, norm)


@reads("UnitNormalization", keeps_mask=True)
def _unit_normalization(c: Call, x: Tensor) -> Made:
    axes = c.axes("axis", x.value.rank)
    order = to_first(x.value.rank) if x.is_first else tuple(range(x.value.rank))
    return c.each(x, lambda v: unit(c, v, [order.index(a) for a in axes]))


def unit(c: Call, v: Value, axes: Sequence[int]) -> Value:
    """Return v / |v|, the root of the sum of squares over axes."""
    if len(axes) == 1:
        return ops.lp_norm(v, axis=axes[0], p=2)
    length = ops.reduce_l2(v, axes=tuple(axes), keepdims=True)
    return ops.div(v, ops.max([length, c.scalar(1e-12, v.dtype)]))


@reads("SpectralNormalization")
def _spectral_normalization(c: Call, x: Tensor) -> Any:
    """At inference the layer in it, whose kernel training has divided already."""
    layer = described(c.option("layer"), "layer")
    return c.inner(layer, c.weights.part("layer"), [x], {})


@reads("Normalization", keeps_mask=True)
def _normalization(c: Call, x: Tensor) -> Made:
    """(x - mean) / deviation with what was measured of the data: a batch norm where there is one for each channel."""
    rank, dtype = x.value.rank, c.dtype
    real = c.converted(x, dtype)
    axes = c.axes("axis", rank) if c.option("axis") not in (None, [], ()) else tuple[int, ...]()
    order = to_first(rank) if real.is_first else tuple(range(rank))
    shape = [1] * rank
    for a, n in zip(axes, _static(real.value, [order.index(a) for a in axes])):
        shape[a] = n
    mean, variance = _measured(c, shape, axes)
    deviation = np.maximum(np.sqrt(variance), _LEAST)
    if c.option("invert"):
        scaled = c.tensor(c.joined([real, c.held(deviation.astype(mean.dtype))], ops.mul))
        return c.joined([scaled, c.held(mean)], ops.add)
    if axes == (rank - 1,) and rank > 1:
        flat = [a.reshape(-1).astype(mean.dtype) for a in (np.ones_like(mean), np.zeros_like(mean), mean, deviation**2)]
        names = ("scale", "bias", "mean", "variance")

        def norm(v: Value) -> Value:
            return ops.batch_norm(v, *(c.constant(a, n) for a, n in zip(flat, names)), epsilon=0.0)

        return _by_channel(c, real, axes[0], norm)
    centred = c.tensor(c.joined([real, c.held(mean)], ops.sub))
    return c.joined([centred, c.held(deviation.astype(mean.dtype))], ops.div)


def _measured(c: Call, shape: Sequence[int], axes: Sequence[int]) -> tuple[Array, Array]:
    """Return mean and variance in shapes that broadcast to the data."""
    if c.option("mean") is None:
        held = c.own("mean", "variance")
        found = [held[name].astype(dtypes.numpy_dtype(c.dtype)).reshape(shape) for name in ("mean", "variance")]
        return found[0], found[1]
    made = list[Array]()
    for name in ("mean", "variance"):
        given = np.asarray(c.option(name), dtypes.numpy_dtype(c.dtype))
        own = [1] * len(shape)
        for size, a in zip(given.shape[::-1], axes[::-1]):
            own[a] = size
        made.append(np.ascontiguousarray(np.broadcast_to(given.reshape(own), shape)))
    return made[0], made[1]
