"""The normalization layers of torch.nn, computed by renorm's kernels.

Each is a subclass of torch's layer of the same name: constructor, parameters, buffers, state_dict and printed form are
inherited. What renorm does not compute (eligibility.py says what) and what torch refuses goes to torch's own function.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import inf, prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional as F

from renorm.core.errors import InvalidInput
from renorm.torch.arrays import array_of
from renorm.torch.batch import is_like, normalize_batch
from renorm.torch.batch_kernels import Settings
from renorm.torch.eligibility import is_epsilon, is_ours_in_batches, is_ours_in_slices
from renorm.torch.fx import is_inner_node, node_of
from renorm.torch.gpus import is_on_host
from renorm.torch.process_groups import world
from renorm.torch.slices import Slices, normalized
from renorm.training.communicators import Communicator, guarded
from renorm.training.forward import report_overflow
from renorm.training.kernels import NotYet


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm of any rank. relu: max(y, 0) is the result. Called with a residual, a tensor like the first, it adds
    that before: y = max(norm(x) + residual, 0) in one kernel, and one for the gradients. label: the layer's name in its
    network, for errors and warnings (replace_norms and convert_sync_batchnorm set it)."""

    relu = False
    label = ""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        relu: bool = False,
        **settings: Any,
    ):
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype, **settings
        )
        self.relu = relu

    def extra_repr(self) -> str:
        return super().extra_repr() + (", relu=True" if self.relu else "")

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        if is_inner_node(self, input):
            return node_of(self, *(operand for operand in (input, residual) if operand is not None))
        x, relu = input, self.relu
        self._check_input_dim(x)
        counted = self.num_batches_tracked if self.training and self.track_running_stats else None
        factor = self._share(counted)
        uses_batch = self.training or (self.running_mean is None and self.running_var is None)
        # where they are not tracked, running statistics of training are neither read nor written
        tracked = not self.training or self.track_running_stats
        running = (self.running_mean, self.running_var) if tracked else (None, None)
        group = self._group(x) if uses_batch and self.training else None
        is_ours = is_ours_in_batches(x, self.weight, self.bias, *running)  # a tracer sees no comparison of extents
        y = None
        reached = not isinstance(group, Communicator) or is_on_host(x)  # a communicator's statistics lie on the host
        if is_ours and reached and not (group is None and self._is_odd(x, uses_batch, factor)):
            momentum, name = factor if running[0] is not None else 0.0, self.label or type(self).__name__
            fits = residual is None or is_like(residual, x)  # what does not, as another shape or dtype, torch adds
            settings = Settings(
                self.eps, uses_batch, momentum, relu=relu and fits, comm=group, name=name, counted=counted
            )
            with suppress(NotYet):
                y = normalize_batch(x, *running, self.weight, self.bias, settings, residual if fits else None)
                if fits:
                    residual, relu = None, False
        if y is None:
            y = self._by_torch(x, *running, uses_batch, factor, group)
            if counted is not None:
                counted.add_(1)  # not before: a refused batch changes nothing
        y = y if residual is None else y + residual
        return y.relu() if relu else y

    def _is_odd(self, x: Tensor, uses_batch: bool, factor: float) -> bool:
        """Return whether torch refuses this, or has numbers of its own for it."""
        single = uses_batch and x.numel() <= x.shape[1]
        return single or x.shape[1] != self.num_features or not 0 <= factor <= 1 or not 0 < self.eps < inf

    def _share(self, counted: Tensor | None) -> float:
        """Return the weight of the batch in the running statistics after it. counted: the batches before it."""
        if self.momentum is not None:
            return self.momentum
        return 0.0 if counted is None else 1.0 / float(counted + 1)  # torch adds: a tracer sees what it depends on

    def _group(self, x: Tensor) -> Any:
        """Return the ranks whose batches are one, a communicator, or for tensors of GPUs a group of torch.distributed;
        None: this one alone."""
        return None

    def _by_torch(
        self, x: Tensor, mean: Tensor | None, var: Tensor | None, uses_batch: bool, factor: float, group: Any
    ) -> Tensor:
        return F.batch_norm(x, mean, var, self.weight, self.bias, uses_batch, factor, self.eps)


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d by renorm's kernels: [N, C] or [N, C, L]."""


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d by renorm's kernels: [N, C, H, W]."""


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d by renorm's kernels: [N, C, D, H, W]."""


class SyncBatchNorm(_BatchNorm):
    """torch.nn.SyncBatchNorm by renorm's kernels, on the CPU too, where torch has none.

    Statistics are those of the batches of all ranks of process_group, merged exactly, whatever their sizes: a group of
    torch.distributed, None for the default one, or a communicator of renorm.training, as Mpi(timeout=60). Autograd is
    given the sums of this rank for weight and bias: DistributedDataParallel adds them up and divides. It is no subclass
    of torch's: DistributedDataParallel lets none of these on a CPU.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        **settings: Any,
    ):
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype, **settings
        )
        self.process_group = process_group

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        if is_compiling() and self.training and (self.process_group is not None or dist.is_initialized()):
            from renorm.torch.graph_breaks import sync_batch_norm  # Dynamo, which is there by now

            return sync_batch_norm(self, input, residual)
        return super().forward(input, residual)

    def _check_input_dim(self, input: Tensor) -> None:
        group = self._group(input) if self.training else None
        group = group if isinstance(group, Communicator) else None
        with guarded(group, "SyncBatchNorm forward"):  # no more: torch's checkpoint leaves what follows by an exception
            if input.dim() < 2:
                raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
            parameters = self.weight, self.bias, self.running_mean, self.running_var
            if input.shape[1] != self.num_features and any(p is not None for p in parameters):
                raise ValueError(f"expected {self.num_features} channels on axis 1, got x {list(input.shape)}")
            if group is not None and is_on_host(input) and not is_ours_in_batches(input, *parameters):
                shown = ", ".join("None" if p is None else str(p.dtype)[6:] for p in parameters)
                raise InvalidInput(
                    f"SyncBatchNorm over {group.size} ranks: x is {str(input.dtype)[6:]}{list(input.shape)}",
                    [
                        "expected float16, bfloat16, float32 or float64, where nobody sees the calls (modes, tracers)",
                        f"weight, bias, running_mean, running_var: {shown}",
                    ],
                )

    def _group(self, x: Tensor) -> Any:
        if not (is_on_host(x) or isinstance(self.process_group, Communicator)):
            own = self.process_group or (dist.group.WORLD if dist.is_available() and dist.is_initialized() else None)
            return own if own is not None and dist.get_world_size(own) > 1 else None
        comm = world(self.process_group)
        return comm.named(self.label) if comm is not None and self.label else comm

    def _by_torch(
        self, x: Tensor, mean: Tensor | None, var: Tensor | None, uses_batch: bool, factor: float, group: Any
    ) -> Tensor:
        if group is None:
            return super()._by_torch(x, mean, var, uses_batch, factor, group)
        from torch.nn.modules._functions import SyncBatchNorm as function

        if isinstance(group, Communicator):
            raise InvalidInput(
                f"SyncBatchNorm: x is on {x.device}, process_group {type(group).__name__}",
                ["torch computes it there, over groups of torch.distributed"],
            )
        size = dist.get_world_size(group)
        return function.apply(x, self.weight, self.bias, mean, var, self.eps, factor, group, size)

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Make a SyncBatchNorm of every batch norm in `module`, torch's or ours: each stays the same object, with its
        parameters and buffers. Return `module`. What errors call a layer is its name in `module`, which is the same on
        all ranks."""
        for name, m in module.named_modules():
            if type(m) in _BATCH_NORMS:
                m.__class__ = cls
                m.__dict__ |= {"process_group": process_group, "label": name}
        return module


class _InstanceNorm(nn.modules.instancenorm._InstanceNorm):
    """Instance norm of any rank. label: as of a batch norm."""

    label = ""

    def forward(self, input: Tensor) -> Tensor:
        return node_of(self, input) if is_inner_node(self, input) else super().forward(input)

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        uses_input = self.training or not self.track_running_stats
        running = self.running_mean, self.running_var
        known = [r for r in running if r is not None]
        if not (is_ours_in_batches(input, self.weight, self.bias, *known) and self._fits(input, known)):
            return super()._apply_instance_norm(input)
        slices, y, weight = Slices.of_channels(input, input.shape[1], self.eps), None, _apart(self.weight)
        with suppress(NotYet):
            if not uses_input:
                mean, var = map(_apart, running)
                return normalize_batch(input, mean, var, weight, self.bias, Settings(self.eps, False))
            y, mean, invstd = normalized(input, weight, self.bias, slices)
            if known and self.training:
                self._update(mean, invstd, prod(input.shape[2:]))
        return super()._apply_instance_norm(input) if y is None else y

    def _fits(self, x: Tensor, running: list[Tensor]) -> bool:
        """Return whether torch neither refuses this nor has numbers of its own for it."""
        fits = all(r.numel() == x.shape[1] for r in running) and is_epsilon(self.eps)
        return fits and prod(x.shape[2:]) > 1 and x.numel() > 0

    def _update(self, mean: Tensor, invstd: Tensor, size: int) -> None:
        """Move running statistics to the mean over the samples; the variance is that of size - 1."""
        assert self.running_mean is not None
        assert self.running_var is not None
        var = (invstd**-2 - self.eps).clamp_(min=0) * (size / (size - 1))
        share = 0.0 if self.momentum is None else self.momentum
        for running, batch in ((self.running_mean, mean), (self.running_var, var)):
            moved = (1 - share) * running + share * batch.mean(0)
            running.copy_(moved)
            if running is self.running_var and running.is_cpu:
                report_overflow(array_of(running), array_of(moved), self.label or type(self).__name__)


def _apart(t: Tensor | None) -> Tensor | None:
    """Return a copy, where a backward pass may read it: torch repeats what instance norm reads for each sample, so that
    it may be changed before that."""
    return t.clone() if t is not None and torch.is_grad_enabled() else t


class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d by renorm's kernels: [N, C, L] or [C, L]."""


class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d by renorm's kernels: [N, C, H, W] or [C, H, W]."""


class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """torch.nn.InstanceNorm3d by renorm's kernels: [N, C, D, H, W] or [C, D, H, W]."""


class _SliceNorm(nn.Module):
    """A norm of slices of each sample: `normalized` where it takes the call, and torch's layer, the next base, else."""

    weight: Any
    eps: Any

    def forward(self, input: Tensor) -> Tensor:
        if is_inner_node(self, input):
            return node_of(self, input)
        bias = getattr(self, "bias", None)
        if is_ours_in_slices(input, self.weight, bias) and (slices := self._slices(input)) is not None:
            with suppress(NotYet):
                return normalized(input, self.weight, bias, slices).y
        return super().forward(input)

    def _slices(self, x: Tensor) -> Slices | None:
        """Return the slices that share statistics; None where torch refuses x, or has numbers of its own for it."""
        raise NotImplementedError


class LayerNorm(_SliceNorm, nn.LayerNorm):
    """torch.nn.LayerNorm by renorm's kernels: [..., *normalized_shape], over the last axes."""

    def _slices(self, x: Tensor) -> Slices | None:
        return _rows(x, self.normalized_shape, self.eps)


class RMSNorm(_SliceNorm, nn.RMSNorm):
    """torch.nn.RMSNorm by renorm's kernels: [..., *normalized_shape], over the last axes."""

    def forward(self, x: Tensor) -> Tensor:  # which torch calls so
        return super().forward(x)

    def _slices(self, x: Tensor) -> Slices | None:
        epsilon = self.eps
        if epsilon is None:  # torch's, which computes in float32 at least
            epsilon = torch.finfo(torch.float64 if x.dtype is torch.float64 else torch.float32).eps
        return _rows(x, self.normalized_shape, epsilon, centered=False)


class GroupNorm(_SliceNorm, nn.GroupNorm):
    """torch.nn.GroupNorm by renorm's kernels: [N, C, ...], over C / num_groups channels of a sample."""

    def _slices(self, x: Tensor) -> Slices | None:
        fits = x.dim() >= 2 and x.shape[1] == self.num_channels and x.numel() > 0 and is_epsilon(self.eps)
        if not fits or prod(x.shape[1:]) == self.num_groups:  # torch has words for slices of one element
            return None
        return Slices.of_channels(x, self.num_groups, self.eps)


def _rows(x: Tensor, shape: Sequence[int], epsilon: float, centered: bool = True) -> Slices | None:
    """Return the slices over the last axes of x, where these are `shape`, and there are some."""
    axes = len(shape)
    fits = x.dim() >= axes > 0 and tuple(x.shape[x.dim() - axes :]) == tuple(shape)
    return Slices.of_rows(x, axes, epsilon, centered) if fits and x.numel() > 0 and is_epsilon(epsilon) else None


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d)

OURS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
    nn.SyncBatchNorm: SyncBatchNorm,
    nn.InstanceNorm1d: InstanceNorm1d,
    nn.InstanceNorm2d: InstanceNorm2d,
    nn.InstanceNorm3d: InstanceNorm3d,
    nn.LayerNorm: LayerNorm,
    nn.RMSNorm: RMSNorm,
    nn.GroupNorm: GroupNorm,
}
"""torch's layer -> ours."""
