"""Batch norm over the batches of several GPUs: they exchange what is small, by the group of torch.distributed that a
layer was given, in the order of PyTorch's stream.

    count, mean, M2 of each   -- all_gather -->  of all (renorm.training.merging)  -->  y
    sums of the gradient      -- all_reduce -->  dx
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from renorm.ops.batch_norm_gradient import BatchNormGradientElements, BatchNormGradientSums
from renorm.ops.batch_norm_parts import BatchMoments, Normalize, UpdateStatistics
from renorm.torch.arrays import Order
from renorm.torch.batch_kernels import Operands, Settings
from renorm.torch.batch_on_gpu import per_channel
from renorm.torch.kernels import run as run_kernel
from renorm.training.conventions import find, momentum_of
from renorm.training.forward import sense
from renorm.training.operands import channels_of

# whoever waited for no kernel would exchange with the others what they do not
run = partial(run_kernel, is_torchs=False)


class _Batch:
    """The batch of this GPU, as kernels see tensors like x."""

    def __init__(self, x: Tensor):
        self.order = Order.of(x)
        shape = tuple(x.shape) if self.order.axis == 1 else (x.shape[0], *x.shape[2:], x.shape[1])
        self._kernel, self.channels, self._shape = channels_of(shape, self.order.axis).kernel, x.shape[1], x.shape
        self.dtype = torch.float64 if x.dtype is torch.float64 else torch.float32  # of statistics
        self.x = self.flat(x)

    def flat(self, t: Tensor) -> Tensor:
        return self.order.contiguous(t).view(self._kernel)

    def flat_or_none(self, t: Tensor | None) -> Tensor | None:
        return None if t is None else self.flat(t)

    def shaped(self, flat: Tensor) -> Tensor:
        """Return a result of a kernel in the shape of x."""
        if self.order.axis == 1:
            return flat.view(self._shape)
        return flat.view(self._shape[0], *self._shape[2:], self._shape[1]).movedim(-1, 1)

    def per_channel(self, name: str, given: Tensor | None) -> Tensor | None:
        return per_channel(name, given, self.channels, self.dtype)

    def moments(self, group: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return count [1], mean and M2 [C] of the batches of all GPUs, float64, with the same bits on each."""
        count = torch.empty(1, dtype=torch.float64, device=self.x.device)
        mean, squares = run(BatchMoments, (), (self.x, None), count)
        own = torch.cat([count, mean, squares])
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, own, group)
        counts, means, squares = torch.stack(parts).split([1, self.channels, self.channels], 1)
        total = counts.sum(0)
        mean = (counts * means).sum(0) / total.clamp(min=1)
        return total, mean, (squares + counts * (means - mean) ** 2).sum(0)


class OverGpus:
    """Both passes; settings.comm is the group."""

    def forward(self, operands: Operands) -> tuple[Tensor, Any]:
        x, weight, bias, residual, running_mean, running_var, s = operands
        batch, y = _Batch(x), Order.of(x).like(x)
        scale, shift = batch.per_channel("weight", weight), batch.per_channel("bias", bias)
        count, mean, squares = batch.moments(s.comm)
        var = squares / count.clamp(min=1)
        given = batch.x, mean, var, scale, shift, batch.flat_or_none(residual)
        run(Normalize, (("epsilon", s.epsilon), ("relu", s.relu)), given, y)
        if running_mean is not None and running_var is not None:
            rule, names = find(s.convention), ("running_mean", "running_var")
            rate = torch.full((1,), momentum_of(rule, s.momentum, 0), dtype=torch.float64, device=x.device)
            old = [batch.per_channel(name, r) for name, r in zip(names, (running_mean, running_var))]
            new_mean = torch.empty(batch.channels, dtype=batch.dtype, device=x.device)
            (new_var,) = run(UpdateStatistics, sense(rule), (count, mean, var, rate, *old), new_mean)
            running_mean.copy_(new_mean)
            running_var.copy_(new_var)
        saved = mean.to(batch.dtype), (var + s.epsilon).rsqrt().to(batch.dtype)
        return y, (count, mean, *saved)

    def backward(self, ctx: Any, dy: Tensor, residual: bool) -> list[Tensor]:
        settings: Settings = ctx.settings
        (count, exact, mean, invstd), (x, weight, y) = ctx.saved, ctx.saved_tensors
        batch, dx = _Batch(x), Order.of(x).like(x)
        given, result = batch.flat(dy), batch.flat_or_none(y)
        own = torch.empty(3, batch.channels, dtype=torch.float64, device=x.device)
        run(BatchNormGradientSums, (), (given, batch.x, mean, None, result), own)
        sums = own.clone()
        dist.all_reduce(sums, group=settings.comm)
        operands = given, batch.x, batch.per_channel("weight", weight), mean, invstd, sums, count, None, result
        _, _, *added = run(BatchNormGradientElements, (("residual", residual),), operands, dx)
        along = own[1] - (exact - mean) * own[0]  # of this GPU: the mean of x was rounded
        return [dx, (along * invstd).to(batch.dtype), own[0].to(batch.dtype), *map(batch.shaped, added)]
