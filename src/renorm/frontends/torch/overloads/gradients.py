"""Overloads of backward passes: activations, dropout, and norms, each of these one op, whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from renorm import ops
from renorm.core.dims import Dim
from renorm.frontends.torch.call import Call, Given
from renorm.frontends.torch.overloads.norms import rows_of, samples_of
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value
from renorm.ops.batch_norm_gradient import BatchNormGradient
from renorm.ops.group_norm_gradient import GroupNormGradient

# --- activations ------------------------------------------------------------------------------------------------------


class _Elements:
    """Numbers and formulas in one dtype."""

    def __init__(self, c: Call):
        self._call = c

    def number(self, x: float) -> Value:
        return self._call.number(x, self._call.dtype)

    def plus(self, x: Value, more: float) -> Value:
        return ops.add(x, self.number(more))

    def times(self, x: Value, factor: float) -> Value:
        return ops.mul(x, self.number(factor))

    def without(self, x: Value, y: Value | None = None) -> Value:
        """Return 1 - x, or y - x."""
        return ops.sub(self.number(1.0) if y is None else y, x)

    def between(self, x: Value, low: float, high: float) -> Value:
        """Return where x lies strictly between."""
        return ops.logical_and(ops.greater(x, self.number(low)), ops.less(x, self.number(high)))


def _slope(name: str, of: Callable[[_Elements, Value], Value]) -> None:
    """Read `name` as g * of(x)."""

    @reads(name)
    def _(c: Call, g: Value, x: Value) -> Any:
        return ops.mul(c.cast(g, c.dtype), of(_Elements(c), c.cast(x, c.dtype)))


def _silu(e: _Elements, x: Value) -> Value:
    s = ops.sigmoid(x)
    return ops.mul(s, e.plus(ops.mul(x, e.without(s)), 1.0))


def _mish(e: _Elements, x: Value) -> Value:
    t = ops.tanh(ops.softplus(x))
    return ops.add(t, ops.mul(ops.mul(x, ops.sigmoid(x)), e.without(ops.mul(t, t))))


_slope("silu_backward", _silu)
_slope("mish_backward", _mish)
_slope("sigmoid_backward", lambda e, y: ops.mul(y, e.without(y)))
_slope("tanh_backward", lambda e, y: e.without(ops.mul(y, y)))


@reads("threshold_backward")
def _threshold(c: Call, g: Value, x: Value, threshold: float) -> Any:
    return ops.where(ops.less_or_equal(x, c.number(threshold, x.dtype)), c.number(0, c.dtype), c.cast(g, c.dtype))


@reads("hardtanh_backward")
def _hardtanh(c: Call, g: Value, x: Value, low: float, high: float) -> Any:
    return ops.where(_Elements(c).between(x, low, high), g, c.number(0, c.dtype))


@reads("hardsigmoid_backward")
def _hardsigmoid(c: Call, g: Value, x: Value) -> Any:
    e = _Elements(c)
    return ops.where(e.between(x, -3.0, 3.0), e.times(g, 1 / 6), e.number(0.0))


@reads("hardswish_backward")
def _hardswish(c: Call, g: Value, x: Value) -> Any:
    e = _Elements(c)
    inside = ops.where(ops.less(x, e.number(3.0)), ops.mul(g, e.plus(e.times(x, 1 / 3), 0.5)), g)
    return ops.where(ops.greater(x, e.number(-3.0)), inside, e.number(0.0))


@reads("leaky_relu_backward")
def _leaky_relu(c: Call, g: Value, x: Value, slope: float, self_is_result: bool) -> Any:
    e = _Elements(c)
    return ops.where(ops.greater(x, e.number(0.0)), g, e.times(g, slope))


@reads("elu_backward")
def _elu(c: Call, g: Value, alpha: float, scale: float, input_scale: float, is_result: bool, x: Value) -> Any:
    e = _Elements(c)
    if is_result:
        below = e.times(e.plus(x, alpha * scale), input_scale)
    else:
        below = e.times(ops.exp(e.times(x, input_scale)), input_scale * alpha * scale)
    return ops.mul(g, ops.where(ops.less_or_equal(x, e.number(0.0)), below, e.number(scale)))


@reads("softplus_backward")
def _softplus(c: Call, g: Value, x: Value, beta: float, threshold: float) -> Any:
    e = _Elements(c)
    scaled = e.times(x, beta)
    return ops.where(ops.greater(scaled, e.number(threshold)), g, ops.mul(g, ops.sigmoid(scaled)))


@reads("gelu_backward")
def _gelu(c: Call, g: Value, x: Value, *, approximate: str = "none") -> Any:
    e = _Elements(c)
    if approximate == "none":
        below = e.times(e.plus(ops.erf(e.times(x, math.sqrt(0.5))), 1.0), 0.5)
        density = e.times(ops.exp(e.times(ops.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
        return ops.mul(g, ops.add(below, ops.mul(x, density)))
    a, b = math.sqrt(2 / math.pi), 0.044715
    square = ops.mul(x, x)
    t = ops.tanh(e.times(ops.mul(x, e.plus(e.times(square, b), 1.0)), a))
    inner = e.times(e.plus(e.times(square, 3 * b), 1.0), a)
    steep = ops.mul(ops.mul(x, e.without(ops.mul(t, t))), inner)
    return ops.mul(g, e.times(ops.add(e.plus(t, 1.0), steep), 0.5))


@reads("native_dropout_backward")
def _dropout(c: Call, g: Value, mask: Value, scale: float) -> Any:
    return _Elements(c).times(ops.mul(g, c.cast(mask, g.dtype)), scale)


# --- norms ------------------------------------------------------------------------------------------------------------


def _as(c: Call, values: Sequence[Value | None], wanted: Sequence[bool]) -> list[Value | None]:
    """Return gradients in dtype and shape of what they are of; None for those that nobody wants."""
    made = list[Value | None]()
    for i, (value, is_wanted) in enumerate(zip(values, wanted)):
        if not is_wanted or value is None or c.results[i] is None:
            made.append(None)
        else:
            dtype, shape = c.type(i)
            made.append(c.reshaped(c.cast(value, dtype), shape))
    return made


@reads("native_batch_norm_backward")
def _batch_norm(
    c: Call,
    dy: Value,
    x: Value,
    scale: Given,
    running_mean: Given,
    running_var: Given,
    mean: Given,
    invstd: Given,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> Any:
    if not train and running_mean is not None and running_var is not None:
        dtype = "float64"  # as the layers of renorm.torch take them
        mean = c.cast(running_mean, dtype)
        root = ops.sqrt(ops.add(c.cast(running_var, dtype), c.number(eps, dtype)))
        invstd = ops.reciprocal(root)
    made = BatchNormGradient(frozen=not train)(c.cast(dy, x.dtype), x, scale, mean, invstd, None, None)
    return _as(c, made[:3], mask)


def _of_slices(
    c: Call,
    dy: Value,
    x: Value,
    mean: Value,
    invstd: Value,
    scale: Given,
    groups: int,
    wanted: Sequence[bool],
    axis: int = 1,
) -> Any:
    """Return gradients of x, scale and bias, of x as [N, C] or [N, C, S], channels on an axis."""
    statistics = (c.reshaped(c.cast(v, "float64"), (x.shape[0], groups)) for v in (mean, invstd))
    own = None if scale is None else c.reshaped(scale, (x.shape[axis],))
    like_x = c.reshaped(c.cast(dy, x.dtype), x.shape)
    dx, sums = GroupNormGradient(num_groups=groups, axis=axis)(like_x, x, *statistics, own)
    added = ops.reduce_sum(sums, axes=(0,), keepdims=False)
    dbias, dscale = (c.sliced(added, 0, i, i + 1) for i in range(2))
    return _as(c, [dx, dscale, dbias], wanted)


@reads("native_group_norm_backward")
def _group_norm(
    c: Call,
    dy: Value,
    x: Value,
    mean: Value,
    invstd: Value,
    scale: Given,
    batch: Dim,
    channels: Dim,
    spatial: Dim,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    samples, axis = samples_of(c, x, batch, channels, spatial)
    return _of_slices(c, dy, samples, mean, invstd, scale, groups, mask, axis)


@reads("native_layer_norm_backward")
def _layer_norm(
    c: Call,
    dy: Value,
    x: Value,
    normalized: Sequence[Dim],
    mean: Value,
    invstd: Value,
    scale: Given,
    bias: Given,
    mask: Sequence[bool],
) -> Any:
    return _of_slices(c, dy, rows_of(c, x, normalized), mean, invstd, scale, 1, mask)
