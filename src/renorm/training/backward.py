"""Gradients of batch norm: in training, where statistics are functions of x, and frozen, where they are constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.core.errors import InvalidInput
from renorm.ops.batch_gradient import lost_mean
from renorm.ops.batch_norm_gradient import BatchNormGradient
from renorm.ops.batch_norm_gradient_elements import BatchNormGradientElements
from renorm.ops.batch_norm_gradient_sums import BatchNormGradientSums
from renorm.runtime.arrays import Array
from renorm.training import kernels
from renorm.training.communicators import guarded
from renorm.training.conventions import nonnegative
from renorm.training.forward import inverse_root, moments_of
from renorm.training.merging import summed
from renorm.training.operands import Batch, array_of


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
    """(dx, dscale, dbias) of `batch_norm`, from the gradient dy of a loss by y.

    dy, x: of one dtype and shape. saved_mean, saved_invstd: what `batch_norm` saved; without both they are computed
    again from x and epsilon. axis, mask, mode: as in the forward call. dscale and dbias have the dtype of scale, or of
    statistics where scale is None.
    comm: dscale and dbias are the sums over all ranks, after one collective (two where nothing was saved); with `local`
    those of this rank, for an optimizer that adds them up itself, as torch's SyncBatchNorm.
    y: the result of a forward call with relu=True; dy counts where y > 0. residual: the gradient of what was added is
    a fourth result. out: an array for dx, or one for each result, None in the place of those that shall be fresh.
    """
    with guarded(comm, "batch_norm backward"):
        batch, operands, into = _operands(dy, x, scale, axis, mode, mask, y, residual, out)
        mean, invstd = _statistics(batch, saved_mean, saved_invstd, epsilon, comm)
        given, scaled, result = operands
        if comm is None:
            found = kernels.run(
                BatchNormGradient,
                (("residual", residual),),
                (given, batch.kernel, scaled, mean, invstd, batch.mask, result),
                into,
            )
            return _finished(batch, found, scale, out)
        (own,) = kernels.run(BatchNormGradientSums, (), (given, batch.kernel, mean, batch.mask, result), None)
        label = f"batch_norm backward, {batch.named}"
        count, sums = summed(comm, label, np.array([float(batch.count)]), own)
    found = kernels.run(
        BatchNormGradientElements,
        (("residual", residual),),
        (given, batch.kernel, scaled, mean, invstd, sums, count, batch.mask, result),
        into,
    )
    if local:
        found[1:3] = _local(own, sums, count, mean, invstd, batch)
    return _finished(batch, found, scale, out)


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
    """(dx, dscale, dbias) of `batch_norm_inference`: the running statistics are constants. Operands as for
    `batch_norm_backward`."""
    batch, (given, scaled, result), into = _operands(dy, x, scale, axis, "spatial", None, y, residual, out)
    if running_mean is None or running_var is None:
        raise InvalidInput("running_mean and running_var are needed: frozen, the gradient is by them")
    mean, var = batch.wide("running_mean", running_mean), batch.wide("running_var", running_var)
    invstd = inverse_root(var, nonnegative("epsilon", epsilon))
    found = kernels.run(
        BatchNormGradient,
        (("frozen", True), ("residual", residual)),
        (given, batch.kernel, scaled, mean, invstd, None, result),
        into,
    )
    return _finished(batch, found, scale, out)


def _operands(
    dy: Any, x: Any, scale: Any, axis: Any, mode: str, mask: Any, y: Any, residual: bool, out: Any
) -> tuple[Batch, tuple[Any, Any, Any], list[Array | None] | None]:
    """The batch, (dy, scale, y) as kernels see them, and where results go."""
    batch = Batch(x, axis, mode, mask)
    operands = batch.tensor("dy", dy), batch.per_channel("scale", scale), batch.tensor("y", y)
    if operands[0] is None:
        raise InvalidInput("dy is None")
    if out is None:
        return batch, operands, None
    given = [out] if not isinstance(out, (list, tuple)) else list(out)
    count = 3 + residual
    if len(given) > count:
        raise InvalidInput(f"out has {len(given)} arrays", [f"expected at most {count}: dx, dscale, dbias, ..."])
    if any(a is not None for a in given[1:3]):
        raise InvalidInput("out has an array for dscale or dbias", ["expected None: they are small, and always fresh"])
    given += [None] * (count - len(given))
    return batch, operands, [batch.output(f"out[{i}]", a) for i, a in enumerate(given)]


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
    """dscale and dbias of this rank alone."""
    along = own[1] - lost_mean(sums, count, mean) * own[0]
    factor = np.where((count == 0) & (along == 0), 1.0, invstd)  # of no values invstd may be infinite
    dscale = along * factor.astype(np.float64)
    with np.errstate(over="ignore"):
        return [dscale.astype(batch.dtype), own[0].astype(batch.dtype)]


def _finished(batch: Batch, found: Sequence[Array], scale: Any, out: Any) -> tuple[Array, ...]:
    """Results in the shapes and dtypes of what they are gradients of; those of `out` as they came."""
    given = list(out) if isinstance(out, (list, tuple)) else [out]
    given += [None] * (len(found) - len(given))
    dx, dscale, dbias, *rest = found
    dtype = batch.dtype if scale is None else array_of("scale", scale).dtype
    with np.errstate(over="ignore"):  # who scales a loss looks for inf
        parameters = [batch.of_channels(a).astype(dtype, copy=False) for a in (dscale, dbias)]
    results = [batch.shaped(dx), *parameters, *map(batch.shaped, rest)]
    return tuple([r if g is None else g for g, r in zip(given, results)])
