"""Batch norm of tensors with gradients: over a batch, over the batches of all ranks, or with running statistics.

One rank calls one kernel for each pass with the addresses of tensors (`_Kernels`). Between the operations of a network,
which leave little of Python in the caches, a call takes several times what it takes in a loop: so what shapes and
dtypes decide is decided once for each of them. Several ranks exchange sums between kernels, which is the work of
renorm.training: they call it with arrays over the same memory (`_OverRanks`).
"""

from __future__ import annotations

from ctypes import memmove
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from renorm import training
from renorm.core.errors import InvalidInput
from renorm.graph.op import OpDef
from renorm.ops.batch_norm_gradient import BatchNormGradient
from renorm.ops.batch_norm_parts import Normalize
from renorm.ops.batch_norm_training import BatchNormTraining
from renorm.runtime.arrays import Array, address
from renorm.runtime.module import Module
from renorm.torch.arrays import DTYPES, Order, array_of, array_or_none, copied
from renorm.torch.caching_allocator import CPU
from renorm.torch.double_backward import of_batch_norm
from renorm.torch.eligibility import is_ours
from renorm.torch.kernels import compiled, team
from renorm.training import kernels
from renorm.training.communicators import guarded
from renorm.training.conventions import epsilon_of, find, momentum_of
from renorm.training.forward import check_single, inverse_root, report_overflow, sense
from renorm.training.operands import FLOAT64, channels_of, mask_of, per_channel

_LINE, _WORD = 64, 8  # bytes of a cache line, and of the numbers that small results are counted in
_BOOL = np.dtype(np.bool_)


class Settings(NamedTuple):
    """Attributes of batch norm. uses_batch: with the statistics of the batch, and running statistics, if there are
    some, are updated in place; else with the running ones. convention: as in renorm.training; momentum: of the update,
    None where there are no running statistics; relu: max(y, 0) is the result; comm: the ranks whose batches are one;
    mask: where x counts, an array that broadcasts to x in the order of memory, without its channels; name: of the
    layer, for warnings; counted: where batches are counted, with the update of running statistics."""

    epsilon: float
    uses_batch: bool
    momentum: float | None = None
    convention: str = "torch"
    relu: bool = False
    comm: Any = None
    mask: Array | None = None
    name: str = ""
    counted: Tensor | None = None


# x, weight, bias, residual, running mean and variance
Operands = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Settings]


def is_like(residual: object, x: Tensor) -> bool:
    """Return whether `normalize_batch` adds it: its sum with x has the shape and the dtype of both."""
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
        passes = _over_ranks if settings.comm is not None else _kernels(operands)
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


class _Key(NamedTuple):
    """The key of a layer's kernels. shape: in the order of memory; given: whether there are a weight, a bias, a
    residual, a running mean and variance."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    axis: int
    given: tuple[bool, ...]
    has_mask: bool
    uses_batch: bool
    epsilon: float
    convention: str
    relu: bool
    team: Any


def _kernels(operands: Operands) -> _Kernels:
    """Return the kernels for these operands on one rank. Raises NotYet and InvalidInput."""
    x, *others, s = operands
    order, shape, given = Order.of(x), x.shape, tuple([t is not None for t in others])
    shape = shape if order.axis == 1 else (shape[0], *shape[2:], shape[1])
    has_mask = s.mask is not None
    key = _Key(shape, x.dtype, order.axis, given, has_mask, s.uses_batch, s.epsilon, s.convention, s.relu, team())
    found = _known.get(key)
    if found is None:
        found = _known[key] = _Kernels(key)
        while len(_known) > kernels.KEPT:
            _known.pop(next(iter(_known)), None)
    return found


class _Kernels:
    """The kernels of a key on one rank: that of the forward pass, and those of the backward pass, which are made when
    that first comes."""

    def __init__(self, key: _Key):
        has_scale, has_bias, has_residual, has_mean, has_var = key.given
        if has_mean != has_var or not (has_mean or key.uses_batch):
            raise InvalidInput(
                f"running_mean is {'given' if has_mean else 'None'}, running_var {'given' if has_var else 'None'}",
                ["they go together, and are needed where statistics are not those of the batch"],
            )
        self._key, self._rule, self._order = key, find(key.convention), Order(key.axis)
        self._channels = channels_of(tuple(key.shape), key.axis)
        self._check_single(self._channels.values)
        self._wide = torch.float64 if key.dtype is torch.float64 else torch.float32
        self._data = self._channels.kernel, DTYPES[key.dtype]
        self._vector = (self._channels.count,), DTYPES[self._wide]
        self._mask = (self._channels.mask, _BOOL) if key.has_mask and key.uses_batch else None
        self._scale = self._vector if has_scale else None
        bias, mean, var = (self._vector if has else None for has in (has_bias, has_mean, has_var))
        residual = self._data if has_residual else None
        attributes = ("epsilon", epsilon_of(self._rule, key.epsilon)), ("relu", key.relu)
        if key.uses_batch:
            momentum = ((1,), FLOAT64) if has_mean else None
            types = self._data, self._scale, bias, mean, var, momentum, self._mask, residual
            self._forward = self._compiled(BatchNormTraining, (*attributes, *sense(self._rule)), key.team, types)
        else:
            types = self._data, mean, var, self._scale, bias, residual
            self._forward = self._compiled(Normalize, attributes, key.team, types)
        # momentum and the small results lie in one piece of memory, each on cache lines of its own
        sizes = [_WORD, *(spec.nbytes for spec in self._forward.outputs[1:])]
        self._nbytes = self._channels.count * self._vector[1].itemsize
        begins = np.cumsum([0, *(-(-size // _LINE) * _LINE for size in sizes)])
        self._words, self._offsets = int(begins[-1]) // _WORD, tuple(begins[1:-1].tolist())
        self._backward = dict[Any, Module]()

    def _compiled(self, op: type[OpDef], attributes: Any, team: Any, types: Any) -> Module:
        is_torchs = self._rule.name == "torch" and self._mask is None
        return compiled((op, attributes, team, types), is_torchs)

    def _check_single(self, count: int) -> None:
        if self._key.uses_batch:
            check_single(count, self._rule, f"x {str(self._key.dtype)[6:]}{list(self._key.shape)}")

    def _read(self, name: str, given: Tensor | None) -> Tensor | None:
        """Return a parameter [C] as kernels read it: itself, or a copy in the dtype of statistics."""
        if given is None or (given.dtype is self._wide and given.shape == self._vector[0] and given.is_contiguous()):
            return given
        return copied(per_channel(name, array_of(given), self._channels, self._vector[1]))

    def forward(self, operands: Operands) -> tuple[Tensor, Any]:
        """Return y, and what `backward` wants. Running statistics are those after this batch then."""
        x, weight, bias, residual, mean, var, settings = operands
        scale, shift = self._read("weight", weight), self._read("bias", bias)
        old_mean, old_var = self._read("running_mean", mean), self._read("running_var", var)
        small, y = np.empty(self._words), self._order.empty(x.shape, x.dtype)
        at, ordered, mask = address(small), self._order.contiguous, None
        x, residual = ordered(x), None if residual is None else ordered(residual)
        affine = [t.data_ptr() for t in (scale, shift) if t is not None]
        running = [t.data_ptr() for t in (old_mean, old_var) if t is not None]
        if settings.uses_batch:
            addresses = [x.data_ptr(), *affine, *running]
            if running:
                small[0] = momentum_of(self._rule, settings.momentum, 0)
                addresses.append(at)
            if self._mask is not None:
                mask = mask_of(settings.mask, self._channels)
                self._check_single(int(np.count_nonzero(mask)))
                addresses.append(address(mask))
        else:
            addresses = [x.data_ptr(), *running, *affine]
        if residual is not None:
            addresses.append(residual.data_ptr())
        self._forward.run_at([*addresses, y.data_ptr(), *[at + offset for offset in self._offsets]])
        if settings.uses_batch and mean is not None and var is not None and old_var is not None:
            new_var = np.ndarray(*self._vector, small, self._offsets[1])
            if not np.maximum.reduce(new_var) < np.inf:
                report_overflow(new_var, array_of(old_var), settings.name)
            if old_mean is mean and old_var is var:
                for old, offset in zip((mean, var), self._offsets):
                    memmove(old.data_ptr(), at + offset, self._nbytes)
                increment_version((mean, var))
            else:
                _store(mean, var, np.ndarray(*self._vector, small, self._offsets[0]), new_var, settings.name)
        return y, (small, mask)

    def backward(self, ctx: Any, dy: Tensor, residual: bool) -> list[Tensor]:
        """Return the gradients of x, weight, bias and, where that is asked for, the residual."""
        (small, mask), (x, weight, y, *running) = ctx.saved, ctx.saved_tensors
        key = team(), y is not None, residual
        module = self._backward.get(key) or self._gradient(*key)
        dx, *added = [self._order.empty(x.shape, x.dtype) for _ in range(1 + residual)]
        sums = [torch.empty(self._vector[0], dtype=self._wide, device=CPU) for _ in range(2)]
        ordered, scale = self._order.contiguous, self._read("weight", weight)
        dy, x = ordered(dy), ordered(x)
        addresses = [dy.data_ptr(), x.data_ptr()]
        if scale is not None:
            addresses.append(scale.data_ptr())
        if running:
            means, variances = (array_of(t).astype(FLOAT64) for t in running)
            roots = inverse_root(variances, self._key.epsilon)
            addresses += address(means), address(roots)
        else:
            at = address(small)
            addresses += [at + offset for offset in self._offsets[2:5:2]]
        if mask is not None:
            addresses.append(address(mask))
        if y is not None:
            y = ordered(y)
            addresses.append(y.data_ptr())
        results = [dx, *sums, *added]
        module.run_at(addresses + [t.data_ptr() for t in results])
        return results

    def _gradient(self, team: Any, is_rectified: bool, residual: bool) -> Module:
        key = self._key
        statistic = self._vector if key.uses_batch else (self._vector[0], FLOAT64)
        y = self._data if is_rectified else None
        types = self._data, self._data, self._scale, statistic, statistic, self._mask, y
        attributes = *(() if key.uses_batch else (("frozen", True),)), ("residual", residual)
        found = self._backward[team, is_rectified, residual] = self._compiled(
            BatchNormGradient, attributes, team, types
        )
        return found


_known = dict[_Key, _Kernels]()


class _OverRanks:
    """Both passes over several ranks, by renorm.training on arrays over the memory of tensors."""

    def forward(self, operands: Operands) -> tuple[Tensor, Any]:
        x, weight, bias, residual, mean, var, settings = operands
        with guarded(settings.comm, "batch_norm forward"), kernels.threads(team()):
            order = Order.of(x)
            y = order.empty(x.shape, x.dtype)
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
            _store(mean, var, r.running_mean, r.running_var, settings.name)
        return y, (order, r.saved_mean, r.saved_invstd)

    def backward(self, ctx: Any, dy: Tensor, residual: bool) -> list[Tensor]:
        settings: Settings = ctx.settings
        with guarded(settings.comm, "batch_norm backward"), kernels.threads(team()):
            (order, mean, invstd), (x, weight, y) = ctx.saved, ctx.saved_tensors
            dx, *added = [order.empty(x.shape, x.dtype) for _ in range(1 + residual)]
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


def _store(mean: Tensor, var: Tensor, new_mean: Any, new_var: Any, name: str) -> None:
    """Write the statistics after a batch, arrays [C], into tensors of any dtype. Warn of a variance that float16 cannot
    hold."""
    mean.copy_(copied(new_mean))
    var.copy_(copied(new_var))
    if var.dtype is torch.float16:
        report_overflow(array_of(var), new_var, name)
