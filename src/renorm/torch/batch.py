"""Batch norm as a function with a gradient: over a batch, over the batches of all ranks, or with running statistics."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from renorm import training
from renorm.torch.arrays import Array, Order, array_of, array_or_none, is_ours, tensor_of
from renorm.torch.once import once_differentiable
from renorm.torch.threads import torch_threads
from renorm.training.communicators import guarded
from renorm.training.forward import report_overflow


class Settings(NamedTuple):
    """What batch norm does beside its operands. convention: as in renorm.training; momentum: of the update, None where
    there are no running statistics; relu: max(y, 0) is the result; comm: the ranks whose batches are one; mask: where
    x counts, an array that broadcasts to x in the order of memory, without its channels; name: of the layer, for
    warnings; counted: where batches are counted, with the update of running statistics."""

    epsilon: float
    momentum: float | None = None
    convention: str = "torch"
    relu: bool = False
    comm: Any = None
    mask: Array | None = None
    name: str = ""
    counted: Tensor | None = None


def is_ours_with(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether `normalize_batch` takes these: parameters in the dtype of x, or wider than a narrow one."""
    if x.dim() < 2 or not is_ours(x, *parameters):
        return False
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return all(p is None or p.dtype is x.dtype or p.dtype is wide for p in parameters)


def normalize_batch(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    is_training: bool,
    settings: Settings,
) -> Tensor:
    """Batch norm of x [N, C, *S]. is_training: with the statistics of the batch, and running statistics, if there are
    some, are updated in place; else with the running ones."""
    apply = _Training if is_training else _Frozen
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return apply.apply(x, weight, bias, running_mean, running_var, settings)
    return apply.forward(None, x, weight, bias, running_mean, running_var, settings)


class _Training(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        settings: Settings,
    ) -> Tensor:
        with guarded(settings.comm, "batch_norm forward"), torch_threads():
            order = Order.of(x)
            r = training.batch_norm(
                order.array(x),
                array_or_none(weight),
                array_or_none(bias),
                array_or_none(running_mean),
                array_or_none(running_var),
                axis=order.axis,
                convention=settings.convention,
                momentum=settings.momentum,
                epsilon=settings.epsilon,
                mask=settings.mask,
                comm=settings.comm,
                relu=settings.relu,
                name=settings.name,
            )
        for running, new in ((running_mean, r.running_mean), (running_var, r.running_var)):
            if running is not None and new is not None:
                running.copy_(tensor_of(new))
                if running is running_var and running.dtype is torch.float16:  # wider ones overflow in float32
                    report_overflow(array_of(running), new, settings.name)
        if settings.counted is not None:
            settings.counted.add_(1)
        y = order.tensor(r.y)
        if ctx is not None:
            ctx.save_for_backward(x, weight, y if settings.relu else None)
            ctx.order, ctx.settings, ctx.saved = order, settings, (r.saved_mean, r.saved_invstd)
            ctx.bias = None if bias is None else bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        settings: Settings = ctx.settings
        with guarded(settings.comm, "batch_norm backward"), torch_threads():
            x, weight, y = ctx.saved_tensors
            found = training.batch_norm_backward(
                ctx.order.array(dy),
                ctx.order.array(x),
                array_or_none(weight),
                *ctx.saved,
                axis=ctx.order.axis,
                mask=settings.mask,
                comm=settings.comm,
                y=None if y is None else ctx.order.array(y),
                local=settings.comm is not None,
            )
        return _gradients(ctx, *found)


class _Frozen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        settings: Settings,
    ) -> Tensor:
        order = Order.of(x)
        with torch_threads():
            result = training.batch_norm_inference(
                order.array(x),
                array_or_none(weight),
                array_or_none(bias),
                array_or_none(running_mean),
                array_or_none(running_var),
                epsilon=settings.epsilon,
                axis=order.axis,
                relu=settings.relu,
            )
        y = order.tensor(result)
        if ctx is not None:
            ctx.save_for_backward(x, weight, running_mean, running_var, y if settings.relu else None)
            ctx.order, ctx.settings = order, settings
            ctx.bias = None if bias is None else bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, running_mean, running_var, y = ctx.saved_tensors
        with torch_threads():
            found = training.batch_norm_backward_frozen(
                ctx.order.array(dy),
                ctx.order.array(x),
                array_or_none(weight),
                array_of(running_mean),
                array_of(running_var),
                epsilon=ctx.settings.epsilon,
                axis=ctx.order.axis,
                y=None if y is None else ctx.order.array(y),
            )
        return _gradients(ctx, *found)


def _gradients(ctx: Any, dx: Array, dscale: Array, dbias: Array) -> tuple[Tensor | None, ...]:
    """Of the six operands of both functions."""
    wanted = ctx.needs_input_grad
    return (
        ctx.order.tensor(dx) if wanted[0] else None,
        tensor_of(dscale) if wanted[1] else None,
        tensor_of(dbias).to(ctx.bias) if wanted[2] else None,
        None,
        None,
        None,
    )
