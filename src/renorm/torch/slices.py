"""Layer, group and instance norm as functions with gradients.

All three are one op: x as [N, C, S] with groups of channels (group norm), a group for each channel (instance norm), or
one group in rows [N, C] (layer norm).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from renorm.ops.group_norm_gradient import GroupNormGradient
from renorm.ops.group_norm_training import GroupNormTraining
from renorm.torch.arrays import Array, Order, array_of, tensor_of
from renorm.torch.threads import torch_threads
from renorm.torch.twice import gradients
from renorm.training import kernels


class Form(NamedTuple):
    """How a norm sees a tensor. order: of memory; shape: that the kernel is given, of the memory's axes; groups: of
    channels."""

    order: Order
    shape: tuple[int, ...]
    groups: int
    epsilon: float

    @staticmethod
    def of_channels(x: Tensor, groups: int, epsilon: float) -> Form:
        """Slices are groups of channels of a sample [N, C, *S]."""
        order, (batch, channels, *rest) = Order.of(x), x.shape
        size = prod(rest)
        shape = (batch, channels, size) if order.axis == 1 else (batch, size, channels)
        return Form(order, shape if rest else (batch, channels), groups, epsilon)

    @staticmethod
    def of_rows(x: Tensor, axes: int, epsilon: float) -> Form:
        """Slices are the last `axes` axes."""
        size = prod(x.shape[x.dim() - axes :])
        return Form(Order(1), (prod(x.shape[: x.dim() - axes]), size), 1, epsilon)

    def array(self, x: Tensor) -> Array:
        return self.order.array(x).reshape(self.shape)

    def tensor(self, array: Array, like: Tensor) -> Tensor:
        shape = like.shape if self.order.axis == 1 else (like.shape[0], *like.shape[2:], like.shape[1])
        return self.order.tensor(array.reshape(shape))

    def by_torch(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        flat = x.reshape(self.shape) if self.order.axis == 1 else x
        scale, shift = (None if p is None else p.reshape(-1) for p in (weight, bias))
        return torch.group_norm(flat, self.groups, scale, shift, self.epsilon).reshape(x.shape)

    @property
    def attributes(self) -> tuple[tuple[str, Any], ...]:
        return ("num_groups", self.groups), ("axis", self.order.axis)


class Normalized(NamedTuple):
    """y: like x. mean, invstd: float64, of each slice of the form [N, groups]."""

    y: Tensor
    mean: Array
    invstd: Array


def _normalize(x: Tensor, weight: Tensor | None, bias: Tensor | None, form: Form) -> Normalized:
    flat = [None if p is None else array_of(p.reshape(-1)) for p in (weight, bias)]
    with torch_threads():
        y, mean, invstd = kernels.run(
            GroupNormTraining, (*form.attributes, ("epsilon", form.epsilon)), (form.array(x), *flat), None
        )
    return Normalized(form.tensor(y, x), mean, invstd)


class _Normalize(torch.autograd.Function):
    """y; the statistics are appended to `kept`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, form: Form, kept: list[Array]
    ) -> Tensor:
        y, mean, invstd = _normalize(x, weight, bias, form)
        kept += [mean, invstd]
        ctx.save_for_backward(x, weight)
        ctx.form, ctx.mean, ctx.invstd = form, mean, invstd
        ctx.scale, ctx.bias = (None if p is None else (p.shape, p.dtype) for p in (weight, bias))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        form: Form = ctx.form
        wanted: Sequence[bool] = ctx.needs_input_grad
        if torch.is_grad_enabled():
            bias = None if ctx.bias is None else torch.zeros(ctx.bias[0], dtype=ctx.bias[1], requires_grad=True)
            return (*gradients(form.by_torch, (x, weight, bias), wanted[:3], dy), None, None)
        scale = None if weight is None else array_of(weight.reshape(-1))
        operands = form.array(dy), form.array(x), ctx.mean, ctx.invstd, scale
        with torch_threads():
            dx, sums = kernels.run(GroupNormGradient, form.attributes, operands, None)
        dbias, dscale = tensor_of(sums).sum(0, dtype=torch.float64)
        return (
            form.tensor(dx, x) if wanted[0] else None,
            dscale.to(ctx.scale[1]).reshape(ctx.scale[0]) if wanted[1] else None,
            dbias.to(ctx.bias[1]).reshape(ctx.bias[0]) if wanted[2] else None,
            None,
            None,
        )


def normalized(x: Tensor, weight: Tensor | None, bias: Tensor | None, form: Form) -> Normalized:
    """scale * (x - mean) / sqrt(var + epsilon) + bias over the slices of `form`, and their statistics."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        kept = list[Array]()
        y: Any = _Normalize.apply(x, weight, bias, form, kept)
        return Normalized(y, *kept)
    return _normalize(x, weight, bias, form)


def normalize(x: Tensor, weight: Tensor | None, bias: Tensor | None, form: Form) -> Tensor:
    """`normalized` without the statistics."""
    return normalized(x, weight, bias, form).y
