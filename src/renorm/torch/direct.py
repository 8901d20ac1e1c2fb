"""Batch norm in training by kernels that are called with addresses of tensors.

What `batch` computes for all that it may be given, this computes for what it mostly is given: one rank, no mask,
parameters that kernels read where they lie. All that shapes and dtypes say is looked at once. Between the operations
of a network, which leave little of Python in the caches, a call takes several times what it takes in a loop, so that
its length shows in a step of training.
"""

from __future__ import annotations

from ctypes import memmove
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from renorm.ops.batch_norm_gradient import BatchNormGradient
from renorm.ops.batch_norm_training import BatchNormTraining
from renorm.runtime.arrays import Array, address
from renorm.runtime.module import Module
from renorm.torch.arrays import DTYPES, Order, array_of
from renorm.torch.calls import compiled
from renorm.torch.recycled import CPU
from renorm.torch.threads import team
from renorm.torch.twice import of_batch_norm
from renorm.training import kernels
from renorm.training.conventions import epsilon_of, find, momentum_of
from renorm.training.forward import report_overflow, sense
from renorm.training.operands import FLOAT64, channels_of

if TYPE_CHECKING:
    from renorm.torch.batch import Settings

_LINE = 64  # bytes
_WORD = 8


class _Form(NamedTuple):
    """The key of a layer's kernels. shape: in the order of memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    axis: int
    has_scale: bool
    has_bias: bool
    is_tracked: bool
    is_added: bool
    epsilon: float
    convention: str
    relu: bool
    team: Any


def direct(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    settings: Settings,
) -> Direct | None:
    """The kernels for operands of `batch.normalize_batch`; None: they are for `batch`, or for its words of what is
    wrong with them. Raises NotYet."""
    shape = x.shape
    is_plain = settings.uses_batch and settings.comm is None and settings.mask is None
    if not is_plain or x.numel() <= shape[1] or (mean is None) != (var is None):
        return None
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    for p in (weight, bias, mean, var):
        if p is not None and not (p.dtype is wide and p.shape == shape[1:2] and p.is_contiguous()):
            return None
    order = Order.of(x)
    form = _Form(
        shape if order.axis == 1 else (shape[0], *shape[2:], shape[1]),
        x.dtype,
        order.axis,
        weight is not None,
        bias is not None,
        mean is not None,
        residual is not None,
        settings.epsilon,
        settings.convention,
        settings.relu,
        team(),
    )
    found = _known.get(form)
    if found is None:
        found = _known[form] = Direct(form)
        while len(_known) > kernels.KEPT:
            _known.pop(next(iter(_known)), None)
    return found


class Direct:
    """The two kernels of a form: `forward` and, from what that saved, `backward`."""

    def __init__(self, form: _Form):
        self._form, self._rule = form, find(form.convention)
        self._order = Order(form.axis)
        channels = channels_of(tuple(form.shape), form.axis)
        self._wide = torch.float64 if form.dtype is torch.float64 else torch.float32
        self._data = channels.kernel, DTYPES[form.dtype]
        self._vector = (channels.count,), DTYPES[self._wide]
        scale, bias = (self._vector if given else None for given in (form.has_scale, form.has_bias))
        running = self._vector if form.is_tracked else None
        momentum = ((1,), FLOAT64) if form.is_tracked else None
        residual = self._data if form.is_added else None
        settings = ("epsilon", epsilon_of(self._rule, form.epsilon)), ("relu", form.relu), *sense(self._rule)
        types = self._data, scale, bias, running, running, momentum, None, residual
        self._training = compiled((BatchNormTraining, settings, form.team, types), form.convention == "torch")
        # momentum and the small results lie in one piece of memory, each on cache lines of its own
        sizes = [_WORD, *(spec.nbytes for spec in self._training.outputs[1:])]
        self._nbytes = channels.count * self._vector[1].itemsize
        begins = np.cumsum([0, *(-(-size // _LINE) * _LINE for size in sizes)])
        self._words, self._offsets = int(begins[-1]) // _WORD, tuple(begins[1:-1].tolist())
        self._gradients = dict[Any, Module]()

    def forward(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        mean: Tensor | None,
        var: Tensor | None,
        settings: Settings,
    ) -> tuple[Tensor, Array]:
        """y, and the small results, which `backward` wants. Running statistics are those after this batch then."""
        small, y = np.empty(self._words), self._order.empty(x.shape, x.dtype)
        at, ordered = address(small), self._order.contiguous
        x = ordered(x)
        operands = [x.data_ptr()]
        if weight is not None:
            operands.append(weight.data_ptr())
        if bias is not None:
            operands.append(bias.data_ptr())
        if mean is not None and var is not None:
            small[0] = momentum_of(self._rule, settings.momentum, 0)
            operands += mean.data_ptr(), var.data_ptr(), at
        if residual is not None:
            residual = ordered(residual)
            operands.append(residual.data_ptr())
        self._training.run_at([*operands, y.data_ptr(), *[at + offset for offset in self._offsets]])
        if mean is not None and var is not None:
            self._update(small, at, mean, var, settings.name)
        if settings.counted is not None:
            settings.counted.add_(1)
        return y, small

    def _update(self, small: Array, at: int, mean: Tensor, var: Tensor, name: str) -> None:
        new = np.ndarray(self._vector[0], self._vector[1], small, self._offsets[1])
        if not np.maximum.reduce(new) < np.inf:
            report_overflow(new, array_of(var), name)
        for old, offset in zip((mean, var), self._offsets):
            memmove(old.data_ptr(), at + offset, self._nbytes)
        increment_version((mean, var))

    def backward(
        self, small: Array, dy: Tensor, x: Tensor, weight: Tensor | None, y: Tensor | None, residual: bool
    ) -> list[Tensor]:
        """Gradients of x, weight, bias and, where that is asked for, the residual. small: what `forward` gave; y: its
        result, behind a ReLU."""
        key = team(), y is not None, residual
        module = self._gradients.get(key) or self._gradient(*key)
        dx, *added = [self._order.empty(x.shape, x.dtype) for _ in range(1 + residual)]
        sums = [torch.empty(self._vector[0], dtype=self._wide, device=CPU) for _ in range(2)]
        ordered, at = self._order.contiguous, address(small)
        dy, x = ordered(dy), ordered(x)
        operands = [dy.data_ptr(), x.data_ptr()]
        if weight is not None:
            operands.append(weight.data_ptr())
        operands += [at + offset for offset in self._offsets[2:5:2]]
        if y is not None:
            y = ordered(y)
            operands.append(y.data_ptr())
        results = [dx, *sums, *added]
        module.run_at(operands + [t.data_ptr() for t in results])
        return results

    def _gradient(self, team: Any, is_rectified: bool, residual: bool) -> Module:
        scale = self._vector if self._form.has_scale else None
        statistics = self._vector, self._vector
        types = self._data, self._data, scale, *statistics, None, self._data if is_rectified else None
        found = compiled((BatchNormGradient, (("residual", residual),), team, types), self._rule.name == "torch")
        self._gradients[team, is_rectified, residual] = found
        return found


_known = dict[_Form, Direct]()


class DirectBatchNorm(torch.autograd.Function):
    """`batch._BatchNorm` by a Direct."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        mean: Tensor | None,
        var: Tensor | None,
        settings: Settings,
        direct: Direct,
    ) -> Tensor:
        y, ctx.small = direct.forward(x, weight, bias, residual, mean, var, settings)
        ctx.save_for_backward(x, weight, y if settings.relu else None)
        ctx.direct, ctx.settings = direct, settings
        ctx.bias = None if bias is None else bias.dtype
        return y

    @staticmethod
    @of_batch_norm
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, y), wanted = ctx.saved_tensors, ctx.needs_input_grad
        through_relu = wanted[3] and y is not None  # else the residual's gradient is dy
        found = ctx.direct.backward(ctx.small, dy, x, weight, y, through_relu)
        given = [g if w else None for g, w in zip(found, wanted)]
        added = (found[3] if through_relu else dy) if wanted[3] else None
        return (*given[:3], added, None, None, None, None)
