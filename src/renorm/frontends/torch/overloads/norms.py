"""Overloads of normalizations, each one op, whole."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from renorm import ops
from renorm.core.dims import Dim
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call, Given, axes_of
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value
from renorm.ops.batch_norm_training import TORCH, BatchNormTraining
from renorm.ops.group_norm_training import GroupNormTraining


def _parameters(c: Call, channels: Dim, dtype: str, scale: Given, bias: Given) -> tuple[Value, Value]:
    held = c.ones(channels, dtype) if scale is None else c.cast(scale, dtype)
    return held, c.ones(channels, dtype, 0.0) if bias is None else c.cast(bias, dtype)


# --- batch ------------------------------------------------------------------------------------------------------------


@reads("_native_batch_norm_legit_no_training")
def _frozen(c: Call, x: Value, scale: Given, bias: Given, mean: Value, var: Value, momentum: float, eps: float) -> Any:
    own = scale.dtype if scale is not None else bias.dtype if bias is not None else mean.dtype
    y = ops.batch_norm(x, *_parameters(c, x.shape[1], own, scale, bias), mean, var, epsilon=eps)
    return [y, c.ones(0, own), c.ones(0, own)]  # no statistics of x


@reads("batch_norm")
def _batch_norm(
    c: Call,
    x: Value,
    scale: Given,
    bias: Given,
    mean: Given,
    var: Given,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Any:
    if training and mean is not None:
        raise UnsupportedOp("batch_norm updates running statistics where they lie", do="run_decompositions({}) first")
    if training or mean is None or var is None:
        return _trained(c, x, scale, bias, None, None, momentum, eps)[0]
    return _frozen(c, x, scale, bias, mean, var, momentum, eps)[0]


def _trained(c: Call, x: Value, scale: Given, bias: Given, mean: Given, var: Given, momentum: float, eps: float) -> Any:
    """y, new_mean, new_var, mean, var, invstd, count."""
    op = BatchNormTraining(epsilon=eps, **{k: v for k, v in TORCH.items() if k != "epsilon"})
    given = None if mean is None else np.array([momentum])
    return op(x, scale, bias, mean, var, given)


@reads("_native_batch_norm_legit_functional")
def _functional(
    c: Call, x: Value, scale: Given, bias: Given, mean: Value, var: Value, training: bool, momentum: float, eps: float
) -> Any:
    if not training:
        return [*_frozen(c, x, scale, bias, mean, var, momentum, eps), mean, var]
    y, new_mean, new_var, own, _, invstd, _ = _trained(c, x, scale, bias, mean, var, momentum, eps)
    return [y, own, invstd, new_mean, new_var]


@reads("_native_batch_norm_legit.no_stats")
def _no_statistics(c: Call, x: Value, scale: Given, bias: Given, training: bool, momentum: float, eps: float) -> Any:
    y, _, _, mean, _, invstd, _ = _trained(c, x, scale, bias, None, None, momentum, eps)
    return [y, mean, invstd]


@reads("native_batch_norm")
def _native(
    c: Call, x: Value, scale: Given, bias: Given, mean: Given, var: Given, training: bool, momentum: float, eps: float
) -> Any:
    if not training and mean is not None and var is not None:
        return _frozen(c, x, scale, bias, mean, var, momentum, eps)
    return _no_statistics(c, x, scale, bias, training, momentum, eps)


# --- instance, group, layer -------------------------------------------------------------------------------------------


@reads("instance_norm")
def _instance_norm(
    c: Call,
    x: Value,
    scale: Given,
    bias: Given,
    mean: Given,
    var: Given,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Any:
    if not use_input_stats and mean is not None and var is not None:
        return _frozen(c, x, scale, bias, mean, var, momentum, eps)[0]
    if mean is not None:
        raise UnsupportedOp("instance_norm updates running statistics", do="track_running_stats=False, or .eval()")
    return ops.instance_norm(x, *_parameters(c, x.shape[1], x.dtype, scale, bias), epsilon=eps)


@reads("group_norm")
def _group_norm(
    c: Call,
    x: Value,
    groups: int,
    scale: Given = None,
    bias: Given = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    own = _parameters(c, x.shape[1], x.dtype, scale, bias)
    return ops.group_norm(x, *own, num_groups=groups, epsilon=eps)


@reads("native_group_norm")
def _native_group_norm(
    c: Call, x: Value, scale: Given, bias: Given, batch: Dim, channels: Dim, spatial: Dim, groups: int, eps: float
) -> Any:
    if not c.read & {1, 2} and x.rank > 2:
        return [_group_norm(c, x, groups, scale, bias, eps), None, None]
    slices, axis = samples_of(c, x, batch, channels, spatial)
    return _of_slices(c, slices, scale, bias, groups, eps, axis)


def _affine(c: Call, shape: Sequence[Dim], dtype: str, given: Given, number: float) -> Value:
    if given is not None:
        return c.cast(given, dtype)
    if not all(isinstance(n, int) for n in shape):
        raise UnsupportedOp(f"a norm over {list(shape)}, of which extents are open")
    return c.reshaped(c.ones(prod(shape), dtype, number), tuple(shape))


@reads("layer_norm")
def _layer_norm(
    c: Call,
    x: Value,
    normalized: Sequence[Dim],
    scale: Given = None,
    bias: Given = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    own = [_affine(c, normalized, x.dtype, scale, 1.0), *([] if bias is None else [c.cast(bias, x.dtype)])]
    return ops.layer_norm(x, *own, axis=x.rank - len(normalized), epsilon=eps)


@reads("native_layer_norm")
def _native_layer_norm(c: Call, x: Value, normalized: Sequence[Dim], scale: Given, bias: Given, eps: float) -> Any:
    if not c.read & {1, 2}:
        return [_layer_norm(c, x, normalized, scale, bias, eps), None, None]
    return _of_slices(c, rows_of(c, x, normalized), scale, bias, 1, eps)


@reads("rms_norm")
def _rms_norm(c: Call, x: Value, normalized: Sequence[Dim], scale: Given = None, eps: float | None = None) -> Any:
    small = torch.finfo(getattr(torch, x.dtype)).eps if eps is None else eps
    return ops.rms_norm(x, _affine(c, normalized, x.dtype, scale, 1.0), axis=x.rank - len(normalized), epsilon=small)


@reads("_fused_rms_norm")
def _fused_rms_norm(c: Call, x: Value, normalized: Sequence[Dim], scale: Given, eps: float | None) -> Any:
    return [_rms_norm(c, x, normalized, scale, eps), None]


# --- with the statistics that their backward passes read --------------------------------------------------------------


def rows_of(c: Call, x: Value, normalized: Sequence[Dim]) -> Value:
    """Return x as [N, C], C the elements that are normalized together."""
    axes = x.rank - len(normalized)
    return c.reshaped(x, (prod(x.shape[:axes]), prod(x.shape[axes:])))


def samples_of(c: Call, x: Value, batch: Dim, channels: Dim, spatial: Dim) -> tuple[Value, int]:
    """Return x [N, C, *S] as [N, C, S], or rows of pixels [N * S, C] as [N, S, C], and the axis of channels."""
    if x.rank == 2 and spatial != 1:
        return c.reshaped(x, (batch, spatial, channels)), 2
    return c.reshaped(x, (batch, channels, spatial)), 1


def _of_slices(c: Call, x: Value, scale: Given, bias: Given, groups: int, eps: float, axis: int = 1) -> list[Value]:
    """Return y, mean and invstd of a norm over slices of x [N, C] or [N, C, S], channels on an axis, as PyTorch says
    that they are."""
    own = [None if p is None else c.reshaped(p, (x.shape[axis],)) for p in (scale, bias)]
    made = GroupNormTraining(num_groups=groups, epsilon=eps, axis=axis)(x, *own)
    return [c.reshaped(c.cast(v, c.type(i)[0]), c.type(i)[1]) for i, v in enumerate(made)]


# --- of weights, vectors ----------------------------------------------------------------------------------------------


@reads("_weight_norm")
def _weight_norm(c: Call, v: Value, g: Value, dim: int = 0) -> Any:
    axes = tuple(a for a in range(v.rank) if a != dim % v.rank) if dim != -1 else tuple(range(v.rank))
    return ops.mul(v, ops.div(g, ops.reduce_l2(v, axes=axes, keepdims=True)))


@reads("_weight_norm_interface")
def _weight_norm_interface(c: Call, v: Value, g: Value, dim: int = 0) -> Any:
    return [_weight_norm(c, v, g, dim), None]


@reads("cosine_similarity")
def _cosine_similarity(c: Call, a: Value, b: Value, dim: int = 1, eps: float = 1e-8) -> Any:
    own, least = c.spread([c.cast(a, c.dtype), c.cast(b, c.dtype)]), c.number(eps, c.dtype)
    axes = axes_of(own[0], dim)
    x, y = (ops.div(v, ops.max([ops.reduce_l2(v, axes=axes, keepdims=True), least])) for v in own)
    return ops.reduce_sum(ops.mul(x, y), axes=axes, keepdims=False)
