"""The kernels of batch norm for tensors of one shape, called with addresses. What shapes and dtypes decide is decided
once for each of them."""

from __future__ import annotations

from ctypes import memmove
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from renorm.core.errors import InvalidInput
from renorm.graph.op import OpDef
from renorm.ops.batch_norm_gradient import BatchNormGradient
from renorm.ops.batch_norm_parts import Normalize
from renorm.ops.batch_norm_training import BatchNormTraining
from renorm.runtime.arrays import Array, address
from renorm.runtime.module import Module
from renorm.torch.arrays import DTYPES, Order, array_of, copied
from renorm.torch.kernels import compiled, run_at, workers
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


class Key(NamedTuple):
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
    by: Any


class Kernels:
    """The kernels of a key on one rank: that of the forward pass, and those of the backward pass, which are made when
    that first comes."""

    def __init__(self, key: Key):
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
            self._forward = self._compiled(BatchNormTraining, (*attributes, *sense(self._rule)), key.by, types)
        else:
            types = self._data, mean, var, self._scale, bias, residual
            self._forward = self._compiled(Normalize, attributes, key.by, types)
        # momentum and the small results lie in one piece of memory, each on cache lines of its own
        sizes = [_WORD, *(spec.nbytes for spec in self._forward.outputs[1:])]
        self._nbytes = self._channels.count * self._vector[1].itemsize
        begins = np.cumsum([0, *(-(-size // _LINE) * _LINE for size in sizes)])
        self._words, self._offsets = int(begins[-1]) // _WORD, tuple(begins[1:-1].tolist())
        self._backward = dict[Any, Module]()

    def _compiled(self, op: type[OpDef], attributes: Any, by: Any, types: Any) -> Module:
        is_torchs = self._rule.name == "torch" and self._mask is None
        return compiled((op, attributes, by, types), is_torchs)

    def _check_single(self, count: int) -> None:
        if self._key.uses_batch:
            check_single(count, self._rule, f"x {str(self._key.dtype)[6:]}{list(self._key.shape)}")

    def forward(self, operands: Operands) -> tuple[Tensor, Any]:
        """Return y, and what `backward` wants. Running statistics are those after this batch then."""
        x, weight, bias, residual, mean, var, settings = operands
        scale, shift = self._read("weight", weight), self._read("bias", bias)
        old_mean, old_var = self._read("running_mean", mean), self._read("running_var", var)
        y, ordered, mask = self._order.like(x), self._order.contiguous, None
        small = self._small(x)
        at = self._at(small)
        x, residual = ordered(x), None if residual is None else ordered(residual)
        affine = [t.data_ptr() for t in (scale, shift) if t is not None]
        running = [t.data_ptr() for t in (old_mean, old_var) if t is not None]
        if settings.uses_batch:
            addresses = [x.data_ptr(), *affine, *running]
            if running:
                addresses.append(self._momentum(small, momentum_of(self._rule, settings.momentum, 0)))
            if self._mask is not None:
                mask = mask_of(settings.mask, self._channels)
                self._check_single(int(np.count_nonzero(mask)))
                addresses.append(address(mask))
        else:
            addresses = [x.data_ptr(), *running, *affine]
        if residual is not None:
            addresses.append(residual.data_ptr())
        run_at(self._forward, [*addresses, y.data_ptr(), *[at + offset for offset in self._offsets]], self._key.by)
        if settings.uses_batch and mean is not None and var is not None:
            assert old_mean is not None
            assert old_var is not None
            self._keep((mean, var), (old_mean, old_var), small, settings.name)
        return y, (small, mask)

    def backward(self, ctx: Any, dy: Tensor, residual: bool) -> list[Tensor]:
        """Return the gradients of x, weight, bias and, where that is asked for, the residual."""
        (small, mask), (x, weight, y, *running) = ctx.saved, ctx.saved_tensors
        key = workers(x), y is not None, residual
        module = self._backward.get(key) or self._gradient(*key)
        dx, *added = [self._order.like(x) for _ in range(1 + residual)]
        sums = [torch.empty(self._vector[0], dtype=self._wide, device=x.device) for _ in range(2)]
        ordered, scale = self._order.contiguous, self._read("weight", weight)
        dy, x = ordered(dy), ordered(x)
        addresses = [dy.data_ptr(), x.data_ptr()]
        if scale is not None:
            addresses.append(scale.data_ptr())
        frozen = self._frozen(*running) if running else []
        addresses += map(self._at, frozen)
        if not frozen:
            addresses += [self._at(small) + offset for offset in self._offsets[2:5:2]]
        if mask is not None:
            addresses.append(address(mask))
        if y is not None:
            y = ordered(y)
            addresses.append(y.data_ptr())
        results = [dx, *sums, *added]
        run_at(module, addresses + [t.data_ptr() for t in results], key[0])
        return results

    def _gradient(self, by: Any, is_rectified: bool, residual: bool) -> Module:
        key = self._key
        statistic = self._vector if key.uses_batch else (self._vector[0], FLOAT64)
        y = self._data if is_rectified else None
        types = self._data, self._data, self._scale, statistic, statistic, self._mask, y
        attributes = *(() if key.uses_batch else (("frozen", True),)), ("residual", residual)
        found = self._backward[by, is_rectified, residual] = self._compiled(BatchNormGradient, attributes, by, types)
        return found

    _at = staticmethod(address)  # where small results and statistics lie

    def _small(self, x: Tensor) -> Any:
        """Return fresh memory for momentum and the small results."""
        return np.empty(self._words)

    def _read(self, name: str, given: Tensor | None) -> Tensor | None:
        """Return a parameter [C] as kernels read it: itself, or a copy in the dtype of statistics."""
        if given is None or (given.dtype is self._wide and given.shape == self._vector[0] and given.is_contiguous()):
            return given
        return copied(per_channel(name, array_of(given), self._channels, self._vector[1]))

    def _momentum(self, small: Any, share: float) -> int:
        """Return where kernels read the momentum."""
        small[0] = share
        return address(small)

    def _frozen(self, mean: Tensor, var: Tensor) -> list[Any]:
        """Return what the gradient reads of running statistics: mean and 1 / sqrt(var + epsilon), float64."""
        means, variances = (array_of(t).astype(FLOAT64) for t in (mean, var))
        return [means, inverse_root(variances, self._key.epsilon)]

    def _keep(self, running: tuple[Tensor, Tensor], read: tuple[Tensor, Tensor], small: Any, name: str) -> None:
        """Write the statistics after a batch into running ones. read: these, as kernels read them."""
        new_var = np.ndarray(*self._vector, small, self._offsets[1])
        if not np.maximum.reduce(new_var) < np.inf:
            report_overflow(new_var, array_of(read[1]), name)
        if read[0] is running[0] and read[1] is running[1]:
            for old, offset in zip(running, self._offsets):
                memmove(old.data_ptr(), address(small) + offset, self._nbytes)
            increment_version(running)
        else:
            store(*running, np.ndarray(*self._vector, small, self._offsets[0]), new_var, name)


def store(mean: Tensor, var: Tensor, new_mean: Any, new_var: Any, name: str) -> None:
    """Write the statistics after a batch, arrays [C], into tensors of any dtype. Warn of a variance that float16 cannot
    hold."""
    mean.copy_(copied(new_mean))
    var.copy_(copied(new_var))
    if var.dtype is torch.float16:
        report_overflow(array_of(var), new_var, name)
