"""Layer, RMS, group and instance norm as functions with gradients.

All are one op: x as [N, C, S] with groups of channels (group norm), a group for each channel (instance norm), or one
group in rows [N, C] (layer norm, and RMS norm, which is not centered).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from renorm.ops.group_norm_gradient import GroupNormGradient
from renorm.ops.group_norm_training import GroupNormTraining
from renorm.torch.arrays import Order
from renorm.torch.double_backward import any_bias, gradients
from renorm.torch.eligibility import is_ours
from renorm.torch.kernels import run
from renorm.training.kernels import NotYet


class Slices(NamedTuple):
    """How a norm cuts a tensor into slices. order: of memory; shape: that the kernel is given, of the memory's axes;
    groups: of channels."""

    order: Order
    shape: tuple[int, ...]
    groups: int
    epsilon: float
    centered: bool = True

    @staticmethod
    def of_channels(x: Tensor, groups: int, epsilon: float) -> Slices:
        """Return those of groups of channels of each sample of x [N, C, *S]."""
        order, (batch, channels, *rest) = Order.of(x), x.shape
        size = prod(rest)
        shape = (batch, channels, size) if order.axis == 1 else (batch, size, channels)
        return Slices(order, shape if rest else (batch, channels), groups, epsilon)

    @staticmethod
    def of_rows(x: Tensor, axes: int, epsilon: float, centered: bool = True) -> Slices:
        """Return those of the last `axes` axes."""
        size = prod(x.shape[x.dim() - axes :])
        return Slices(Order(1), (prod(x.shape[: x.dim() - axes]), size), 1, epsilon, centered)

    def flat(self, x: Tensor) -> Tensor:
        """Return x in the order of memory, as the kernel is given it."""
        return self.order.contiguous(x).view(self.shape)

    def by_torch(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        flat = x.reshape(self.shape) if self.order.axis == 1 else x
        scale, shift = (None if p is None else p.reshape(-1) for p in (weight, bias))
        if not self.centered:
            return torch.rms_norm(flat, flat.shape[1:], scale, self.epsilon).reshape(x.shape)
        return torch.group_norm(flat, self.groups, scale, shift, self.epsilon).reshape(x.shape)

    @property
    def attributes(self) -> tuple[tuple[str, Any], ...]:
        return ("num_groups", self.groups), ("axis", self.order.axis), ("centered", self.centered)


class Normalized(NamedTuple):
    """y: like x. mean, invstd: float64, of each slice [N, groups]."""

    y: Tensor
    mean: Tensor
    invstd: Tensor


def _normalize(x: Tensor, weight: Tensor | None, bias: Tensor | None, slices: Slices) -> Normalized:
    scale, shift = (None if p is None else p.reshape(-1) for p in (weight, bias))
    y, settings = slices.order.like(x), (*slices.attributes, ("epsilon", slices.epsilon))
    return Normalized(y, *run(GroupNormTraining, settings, (slices.flat(x), scale, shift), y))


class _Normalize(torch.autograd.Function):
    """y, where the statistics are appended to `kept`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, slices: Slices, kept: list[Tensor]
    ) -> Tensor:
        y, mean, invstd = _normalize(x, weight, bias, slices)
        kept += [mean, invstd]
        ctx.save_for_backward(x, weight)
        ctx.slices, ctx.mean, ctx.invstd = slices, mean, invstd
        ctx.scale, ctx.bias = (None if p is None else (p.shape, p.dtype) for p in (weight, bias))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        slices: Slices = ctx.slices
        wanted: Sequence[bool] = ctx.needs_input_grad
        found = None
        if not torch.is_grad_enabled() and is_ours(dy):
            scale, dx = None if weight is None else weight.reshape(-1), slices.order.like(x)
            operands = slices.flat(dy), slices.flat(x), ctx.mean, ctx.invstd, scale
            with suppress(NotYet):
                found = dx, *run(GroupNormGradient, slices.attributes, operands, dx)
        if found is None:
            bias = None if ctx.bias is None else any_bias(x, *ctx.bias)
            return (*gradients(slices.by_torch, (x, weight, bias), wanted[:3], dy), None, None)
        dx, sums = found
        dbias, dscale = sums.sum(0, dtype=torch.float64)
        return (
            dx if wanted[0] else None,
            dscale.to(ctx.scale[1]).reshape(ctx.scale[0]) if wanted[1] else None,
            dbias.to(ctx.bias[1]).reshape(ctx.bias[0]) if wanted[2] else None,
            None,
            None,
        )


def normalized(x: Tensor, weight: Tensor | None, bias: Tensor | None, slices: Slices) -> Normalized:
    """Return scale * (x - mean) / sqrt(var + epsilon) + bias over the slices, and their statistics. Raises NotYet."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        kept = list[Tensor]()
        y: Any = _Normalize.apply(x, weight, bias, slices, kept)
        return Normalized(y, *kept)
    return _normalize(x, weight, bias, slices)
