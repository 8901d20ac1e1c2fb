"""Batch norm of tensors with gradients: over a batch, over the batches of all ranks, or with running statistics.

One rank calls one kernel for each pass with the addresses of tensors (batch_kernels). Between the operations of a
network, which leave little of Python in the caches, a call takes several times what it takes in a loop: so what shapes
and dtypes decide is decided once for each of them. Several ranks exchange sums between kernels, which is the work of
renorm.training: they call it with arrays over the same memory (`_OverRanks`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from renorm import training
from renorm.torch.arrays import Order, array_or_none, copied
from renorm.torch.batch_kernels import Kernels, Key, Operands, Settings, store
from renorm.torch.batch_on_gpu import KernelsOnGpu
from renorm.torch.batch_over_gpus import OverGpus
from renorm.torch.double_backward import of_batch_norm
from renorm.torch.eligibility import is_ours
from renorm.torch.kernels import team, workers
from renorm.training import kernels
from renorm.training.communicators import Communicator, guarded
from renorm.training.kernels import Gpu


def is_like(residual: object, x: Tensor) -> bool:
    """Return whether `normalize_batch` adds it: its sum with x has the shape and the dtype of both."""
    return (
        isinstance(residual, Tensor)
        and residual.shape == x.shape
        and residual.dtype is x.dtype
        and is_ours(x, residual)
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
    """Return the batch norm of x [N, C, *S], plus residual, if there is one. Raises NotYet where torch has a function
    for it, and InvalidInput, before anything has changed, for parameters that are not [C]."""
    operands = x, weight, bias, residual, running_mean, running_var, settings
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands[:4]):
        return _BatchNorm.apply(*operands)
    return _BatchNorm.forward(None, *operands)


class _BatchNorm(torch.autograd.Function):
    """Of the result the gradient wants the sign alone, and only after a ReLU: it is what the next layer keeps anyway,
    so that neither x plus its residual nor what a ReLU would keep takes memory."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Tensor:
        x, weight, bias, _, *running, settings = operands
        passes = _kernels(operands) if settings.comm is None else _over(settings.comm)
        y, saved = passes.forward(operands)
        if settings.counted is not None:
            settings.counted.add_(1)
        if ctx is not None:
            constants = () if settings.uses_batch else running
            ctx.save_for_backward(x, weight, y if settings.relu else None, *constants)
            ctx.passes, ctx.saved, ctx.settings = passes, saved, settings
            ctx.bias = None if bias is None else bias.dtype
        return y

    @staticmethod
    @of_batch_norm
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad
        through_relu = wanted[3] and ctx.settings.relu  # else the residual's gradient is dy
        found = ctx.passes.backward(ctx, dy, through_relu)  # autograd rounds them to the dtypes of parameters
        given = [gradient if is_wanted else None for gradient, is_wanted in zip(found, wanted[:3])]
        return *given, (found[3] if through_relu else dy) if wanted[3] else None, None, None, None


def _kernels(operands: Operands) -> Kernels:
    """Return the kernels for these operands on one rank. Raises NotYet and InvalidInput."""
    x, *others, s = operands
    order, shape, given = Order.of(x), x.shape, tuple([t is not None for t in others])
    shape = shape if order.axis == 1 else (shape[0], *shape[2:], shape[1])
    has_mask = s.mask is not None
    key = Key(shape, x.dtype, order.axis, given, has_mask, s.uses_batch, s.epsilon, s.convention, s.relu, workers(x))
    found = _known.get(key)
    if found is None:
        found = _known[key] = (KernelsOnGpu if isinstance(key.by, Gpu) else Kernels)(key)
        while len(_known) > kernels.KEPT:
            _known.pop(next(iter(_known)), None)
    return found


_known = dict[Key, Kernels]()


class _OverRanks:
    """Both passes over several ranks, by renorm.training on arrays over the memory of tensors."""

    def forward(self, operands: Operands) -> tuple[Tensor, Any]:
        x, weight, bias, residual, mean, var, settings = operands
        with guarded(settings.comm, "batch_norm forward"), kernels.threads(team()):
            order = Order.of(x)
            y = order.like(x)
            same: Any = {k: getattr(settings, k) for k in ("epsilon", "convention", "momentum", "relu", "name")}
            r = training.batch_norm(
                order.array(x),
                *map(array_or_none, (weight, bias, mean, var)),
                axis=order.axis,
                mask=settings.mask,
                comm=settings.comm,
                out=order.array(y),
                residual=None if residual is None else order.array(residual),
                **same,
            )
        if mean is not None and var is not None:
            store(mean, var, r.running_mean, r.running_var, settings.name)
        return y, (order, r.saved_mean, r.saved_invstd)

    def backward(self, ctx: Any, dy: Tensor, residual: bool) -> list[Tensor]:
        settings: Settings = ctx.settings
        with guarded(settings.comm, "batch_norm backward"), kernels.threads(team()):
            (order, mean, invstd), (x, weight, y) = ctx.saved, ctx.saved_tensors
            dx, *added = [order.like(x) for _ in range(1 + residual)]
            _, dscale, dbias, *_ = training.batch_norm_backward(
                order.array(dy),
                order.array(x),
                array_or_none(weight),
                mean,
                invstd,
                axis=order.axis,
                mask=settings.mask,
                comm=settings.comm,
                out=[None if t is None else order.array(t) for t in (dx, None, None, *added)],
                y=None if y is None else order.array(y),
                residual=residual,
                local=True,
            )
        return [dx, copied(dscale), copied(dbias), *added]


_over_ranks = _OverRanks()
_over_gpus = OverGpus()


def _over(group: Any) -> _OverRanks | OverGpus:
    """Return the passes over ranks of a communicator, on the host, or over GPUs of a group of torch.distributed."""
    return _over_ranks if isinstance(group, Communicator) else _over_gpus
