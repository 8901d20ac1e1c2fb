"""Batch norm as a function with a gradient: over a batch, over the batches of all ranks, or with running statistics."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from renorm import training
from renorm.torch.arrays import Array, Order, array_of, array_or_none, copied
from renorm.torch.direct import DirectBatchNorm, direct
from renorm.torch.first import waits
from renorm.torch.once import once_differentiable
from renorm.torch.reach import is_ours
from renorm.torch.threads import torch_threads
from renorm.torch.twice import of_batch_norm
from renorm.training.communicators import guarded
from renorm.training.forward import report_overflow


class Settings(NamedTuple):
    """Attributes of batch norm. uses_batch: with the statistics of the batch, and running statistics,
    if there are some, are updated in place; else with the running ones. convention: as in renorm.training; momentum: of
    the update, None where there are no running statistics; relu: max(y, 0) is the result; comm: the ranks whose batches
    are one; mask: where x counts, an array that broadcasts to x in the order of memory, without its channels; name: of
    the layer, for warnings; counted: where batches are counted, with the update of running statistics."""

    epsilon: float
    uses_batch: bool
    momentum: float | None = None
    convention: str = "torch"
    relu: bool = False
    comm: Any = None
    mask: Array | None = None
    name: str = ""
    counted: Tensor | None = None

    @property
    def is_torchs(self) -> bool:
        """Whether torch has a function for it."""
        return self.comm is None and self.mask is None and self.convention == "torch"

    def waits(self) -> bool:
        """Whether kernels that are not there are waited for."""
        return not self.is_torchs or waits()


def is_like(residual: object, x: Tensor) -> bool:
    """Whether `normalize_batch` adds it: its sum with x has the shape and the dtype of both."""
    return (
        isinstance(residual, Tensor) and residual.shape == x.shape and residual.dtype is x.dtype and is_ours(residual)
    )


def normalize_batch(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    settings: Settings,
    residual: Tensor | None = None,
) -> Tensor:
    """Batch norm of x [N, C, *S], plus residual, if there is one. Raises NotYet where torch has a function for it."""
    operands = x, weight, bias, residual, running_mean, running_var, settings
    plain = direct(*operands)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands[:4]):
        return _BatchNorm.apply(*operands) if plain is None else DirectBatchNorm.apply(*operands, plain)
    return _BatchNorm.forward(None, *operands) if plain is None else plain.forward(*operands)[0]


class _BatchNorm(torch.autograd.Function):
    """Of the result the gradient wants the sign alone, and only behind a ReLU: it is what the next layer keeps anyway,
    so that neither x plus its residual nor what a ReLU would keep takes memory."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        settings: Settings,
    ) -> Tensor:
        running = running_mean, running_var
        with guarded(settings.comm, "batch_norm forward"), torch_threads(settings.waits()):
            order = Order.of(x)
            operands = order.array(x), *map(array_or_none, (weight, bias, *running))
            added = None if residual is None else order.array(residual)
            y = order.empty(x.shape, x.dtype)
            same: Any = {"axis": order.axis, "epsilon": settings.epsilon, "relu": settings.relu, "residual": added}
            same["out"] = order.array(y)
            if settings.uses_batch:
                own: Any = {k: getattr(settings, k) for k in ("convention", "momentum", "mask", "comm", "name")}
                r = training.batch_norm(*operands, **same, **own)
                new, saved = (r.running_mean, r.running_var), (r.saved_mean, r.saved_invstd)
            else:
                training.batch_norm_inference(*operands, **same)
                new, saved = (None, None), None
        for kept, moved in zip(running, new):
            if kept is not None and moved is not None:
                kept.copy_(copied(moved))
                if kept is running_var and kept.dtype is torch.float16:  # wider ones overflow in float32
                    report_overflow(array_of(kept), moved, settings.name)
        if settings.counted is not None:
            settings.counted.add_(1)
        if ctx is not None:
            constants = (None, None) if settings.uses_batch else running
            ctx.save_for_backward(x, weight, y if settings.relu else None, *constants)
            ctx.order, ctx.settings, ctx.saved = order, settings, saved
            ctx.bias = None if bias is None else bias.dtype
        return y

    @staticmethod
    @of_batch_norm
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        order, settings, wanted = ctx.order, ctx.settings, ctx.needs_input_grad
        with guarded(settings.comm, "batch_norm backward"), torch_threads(settings.waits()):
            x, weight, y, *running = ctx.saved_tensors
            operands = order.array(dy), order.array(x), array_or_none(weight)
            through_relu = wanted[3] and y is not None  # else the residual's gradient is dy
            results = [order.empty(x.shape, x.dtype) for _ in range(1 + through_relu)]
            dx, *added = map(order.array, results)
            same: Any = {"axis": order.axis, "residual": through_relu, "y": None if y is None else order.array(y)}
            same["out"] = dx, None, None, *added
            if settings.uses_batch:
                own: Any = {"mask": settings.mask, "comm": settings.comm, "local": settings.comm is not None}
                _, dscale, dbias, *_ = training.batch_norm_backward(*operands, *ctx.saved, **same, **own)
            else:
                own = map(array_of, running)
                _, dscale, dbias, *_ = training.batch_norm_backward_frozen(
                    *operands, *own, **same, epsilon=settings.epsilon
                )
        return (
            results[0] if wanted[0] else None,
            copied(dscale) if wanted[1] else None,
            copied(dbias).to(ctx.bias) if wanted[2] else None,
            results[-1] if through_relu else dy if wanted[3] else None,
            None,
            None,
            None,
        )
