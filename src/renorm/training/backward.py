"""Gradients of batch norm: in training, where statistics are functions of x, and frozen, where they are constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.core.errors import InvalidInput
from renorm.graph.op import OpDef
from renorm.ops.batch_norm_gradient import BatchNormGradient, BatchNormGradientElements, BatchNormGradientSums
from renorm.ops.shared.batch_gradient import lost_mean
from renorm.runtime.arrays import Array
from renorm.training import kernels
from renorm.training.communicators import guarded
from renorm.training.conventions import nonnegative
from renorm.training.forward import inverse_root, moments_of
from renorm.training.merging import summed
from renorm.training.operands import Batch, array_of, converted, host


def batch_norm_backward(
    dy: Any,
    x: Any,
    scale: Any = None,
    saved_mean: Any = None,
    saved_invstd: Any = None,
    *,
    epsilon: float | None = None,
    axis: int | tuple[int, ...] = 1,
    mask: Any = None,
    comm: Any = None,
    out: Any = None,
    mode: str = "spatial",
    y: Any = None,
    residual: bool = False,
    local: bool = False,
) -> tuple[Array, ...]:
    """Return (dx, dscale, dbias) of `batch_norm`, from the gradient dy of a loss by y.

    dy, x: of one dtype and shape. saved_mean, saved_invstd: what `batch_norm` saved; without both they are computed
    again from x and epsilon. axis, mask, mode: as in the forward run. dscale and dbias have the dtype of scale, or of
    statistics where scale is None.
    comm: dscale and dbias are the sums over all ranks, after one collective (two where nothing was saved); with `local`
    those of this rank, for an optimizer that adds them up itself, as torch's SyncBatchNorm.
    y: the result of a forward call with relu=True; dy counts where y > 0. residual: the gradient of what was added is
    a fourth result. out: an array for dx, or one for each result, None in the place of those that shall be fresh.
    """
    with guarded(comm, "batch_norm backward"):
        backward = _BackwardPass(dy, x, scale, axis, mode, mask, y, residual, out)
        batch = backward.batch
        statistics = mean, invstd = _statistics(batch, saved_mean, saved_invstd, epsilon, comm)
        if comm is None:
            return backward.gradients(statistics)
        operands = backward.dy, batch.kernel, mean, batch.mask, backward.y
        own = host(kernels.run(BatchNormGradientSums, (), operands, None)[0])
        label = f"batch_norm backward, {batch.named}"
        count, sums = summed(comm, label, np.array([float(batch.count)]), own)
    found = backward.run(BatchNormGradientElements, (*statistics, sums, count))
    if local:
        found[1:3] = _local(own, sums, count, host(mean), host(invstd), batch)
    return backward.finished(found)


def batch_norm_backward_frozen(
    dy: Any,
    x: Any,
    scale: Any,
    running_mean: Any,
    running_var: Any,
    *,
    epsilon: float,
    axis: int | tuple[int, ...] = 1,
    out: Any = None,
    y: Any = None,
    residual: bool = False,
) -> tuple[Array, ...]:
    """Return (dx, dscale, dbias) of `batch_norm_inference`: the running statistics are constants. Operands as for
    `batch_norm_backward`."""
    backward = _BackwardPass(dy, x, scale, axis, "spatial", None, y, residual, out)
    if running_mean is None or running_var is None:
        raise InvalidInput("running_mean and running_var are needed: frozen, the gradient is by them")
    mean, var = backward.batch.wide("running_mean", running_mean), backward.batch.wide("running_var", running_var)
    root = inverse_root(host(var), nonnegative("epsilon", epsilon))
    return backward.gradients((mean, root), ("frozen", True))


class _BackwardPass:
    """The operands of a backward pass as kernels see them. results: of the caller, None where one shall be fresh."""

    def __init__(self, dy: Any, x: Any, scale: Any, axis: Any, mode: str, mask: Any, y: Any, residual: bool, out: Any):
        self.batch = batch = Batch(x, axis, mode, mask)
        self.dy, self.scale, self.y = batch.tensor("dy", dy), batch.per_channel("scale", scale), batch.tensor("y", y)
        if self.dy is None:
            raise InvalidInput("dy is None")
        self.residual = residual
        self.results: list[Any] = list(out) if isinstance(out, (list, tuple)) else [out]
        count = 3 + residual
        if len(self.results) > count:
            raise InvalidInput(
                f"out has {len(self.results)} arrays", [f"expected at most {count}: dx, dscale, dbias, ..."]
            )
        if any(a is not None for a in self.results[1:3]):
            raise InvalidInput(
                "out has an array for dscale or dbias", ["expected None: they are small, and always fresh"]
            )
        self.results += [None] * (count - len(self.results))
        self._into = [batch.output(f"out[{i}]", a) for i, a in enumerate(self.results)]
        self._dtype = batch.dtype if scale is None else array_of("scale", scale).dtype

    def run(self, op: type[OpDef], between: Sequence[Array], *attributes: tuple[str, Any]) -> list[Array]:
        """Return the results of `op` on dy, x, scale, `between`, mask and y."""
        operands = self.dy, self.batch.kernel, self.scale, *between, self.batch.mask, self.y
        return kernels.run(op, (*attributes, ("residual", self.residual)), operands, self._into)

    def gradients(self, statistics: Sequence[Array], *attributes: tuple[str, Any]) -> tuple[Array, ...]:
        """Return the gradients of this batch alone. statistics: mean and 1 / sqrt(variance + epsilon)."""
        return self.finished(self.run(BatchNormGradient, statistics, *attributes))

    def finished(self, found: Sequence[Array]) -> tuple[Array, ...]:
        """Return results in the shapes and dtypes of what they are gradients of; those of the caller as they came."""
        dx, dscale, dbias, *rest = found
        with np.errstate(over="ignore"):  # who scales a loss looks for inf
            parameters = [converted(self.batch.of_channels(a), self._dtype) for a in (dscale, dbias)]
        results = [self.batch.shaped(dx), *parameters, *map(self.batch.shaped, rest)]
        return tuple([r if given is None else given for given, r in zip(self.results, results)])


def _statistics(batch: Batch, mean: Any, invstd: Any, epsilon: float | None, comm: Any) -> tuple[Any, Any]:
    if (mean is None) != (invstd is None):
        raise InvalidInput("saved_mean and saved_invstd go together: one is given, the other is None")
    if mean is not None:
        return batch.per_channel("saved_mean", mean), batch.per_channel("saved_invstd", invstd)
    if epsilon is None:
        raise InvalidInput(
            "neither saved values nor epsilon",
            ["without saved_mean and saved_invstd they are computed from x, which takes epsilon"],
            "give epsilon= as in the forward call, or what batch_norm saved",
        )
    m = moments_of(batch, comm, "batch_norm backward, moments")
    return m.mean, inverse_root(m.var, nonnegative("epsilon", epsilon))


def _local(own: Array, sums: Array, count: Array, mean: Array, invstd: Array, batch: Batch) -> list[Array]:
    """Return dscale and dbias of this rank alone."""
    along = own[1] - lost_mean(sums, count, mean) * own[0]
    factor = np.where((count == 0) & (along == 0), 1.0, invstd)  # of no values invstd may be infinite
    dscale = along * factor.astype(np.float64)
    with np.errstate(over="ignore"):
        return [dscale.astype(batch.dtype), own[0].astype(batch.dtype)]
