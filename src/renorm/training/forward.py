"""Batch norm in training and at inference, whole and in parts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from renorm.core.errors import InvalidInput
from renorm.ops.batch_norm_parts import BatchMoments, Normalize, UpdateStatistics
from renorm.ops.batch_norm_training import BatchNormTraining
from renorm.runtime.arrays import Array
from renorm.runtime.state import beyond
from renorm.training import kernels
from renorm.training.communicators import guarded
from renorm.training.conventions import DEFAULT, Convention, count_of, epsilon_of, find, momentum_of, nonnegative
from renorm.training.merging import Statistics, merged
from renorm.training.operands import FLOAT64, Batch, Channels, array_of, host, per_channel, statistics_dtype


class BatchNorm(NamedTuple):
    """The results of batch norm for a batch. Statistics are float32, or float64 for float64, in the shape of the
    channels. Where x lies on a GPU, so do they, as DeviceArrays.

    y: like x. running_mean, running_var: the new ones; None where there were none. saved_mean, saved_invstd: what the
    backward pass wants, the mean and 1 / sqrt(variance + epsilon) of the batch. batch_mean, batch_var: of the batch;
    the population's variance. count: values per channel, of all ranks. num_batches_tracked: batches so far, with this
    one.
    """

    y: Array
    running_mean: Array | None
    running_var: Array | None
    saved_mean: Array
    saved_invstd: Array
    batch_mean: Array
    batch_var: Array
    count: int
    num_batches_tracked: int


class Moments(NamedTuple):
    """Of each channel: mean and population variance in float64, and how many values they are of."""

    mean: Array
    var: Array
    count: int


def batch_norm(
    x: Any,
    scale: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    axis: int | tuple[int, ...] = 1,
    convention: str = "torch",
    momentum: Any = DEFAULT,
    epsilon: Any = DEFAULT,
    fused: bool = True,
    mask: Any = None,
    comm: Any = None,
    out: Any = None,
    mode: str = "spatial",
    num_batches_tracked: int = 0,
    relu: bool = False,
    residual: Any = None,
    name: str = "",
) -> BatchNorm:
    """Return y = scale * (x - mean) / sqrt(var + epsilon) + bias with the statistics of the batch, and the running
    statistics after it. Nothing that is given is modified but `out`.

    x: float16, bfloat16, float32 or float64, C-contiguous, of rank 2 or more, in memory of the host or of a GPU, where
    the results are then (`on_stream` says in whose order). scale, bias, running_mean, running_var: one number per
    channel, float32 (float64 for float64) or narrower; None for scale is 1, for bias 0, for running statistics none
    are kept. axis: the channels'; a tuple of neighbouring axes names a channel together.
    convention: "torch", "keras", "tf_fused", "onnx", "cudnn": what momentum multiplies, which variance runs, and the
    defaults of momentum and epsilon (renorm.training.conventions). momentum=None: the running statistics are the mean
    over all batches, `num_batches_tracked` of which were before this one.
    fused: one kernel, or moments, update and normalize one after the other, with the same results.
    mask: where x counts, as bool that broadcasts to x without its channels; all of x is normalized.
    comm: a communicator; then the statistics are those of the batch of all ranks, after one collective.
    out: an array for y. mode: "per_activation" (convention "cudnn") has a channel for each element of a sample.
    relu, residual: y = max(y + residual, 0). name: of the layer, for warnings.

    An empty batch, and one of which the mask leaves nothing, changes no running statistics; mean and variance are 0
    then. Raises InvalidInput before anything is changed; for one value per
    channel where the convention's library does (torch). SynchronizationError as renorm.training.communicators says.
    Warns (StatisticsWarning) of a running variance beyond what its dtype holds.
    """
    with guarded(comm, "batch_norm forward"):
        rule = find(convention)
        tracked = count_of(num_batches_tracked)
        batch = Batch(x, axis, mode, mask, has_modes=rule.per_activation)
        share = momentum_of(rule, momentum, tracked)
        settings = ("epsilon", epsilon_of(rule, epsilon)), ("relu", relu)
        affine = batch.per_channel("scale", scale), batch.per_channel("bias", bias)
        running = batch.per_channel("running_mean", running_mean), batch.per_channel("running_var", running_var)
        if (running[0] is None) != (running[1] is None):
            raise InvalidInput("running_mean and running_var go together: one is given, the other is None")
        added, into = batch.tensor("residual", residual), batch.output("out", out)
        kept = "" if running[0] is None else f", momentum {share}"
        layer = f"batch_norm forward as {rule.name} (epsilon {settings[0][1]}{kept})"  # the same on all ranks
        m = None if fused and comm is None else moments_of(batch, comm, layer)
    count = batch.count if m is None else m.count
    check_single(count, rule, batch if comm is None or comm.size == 1 else f"the batch of all {comm.size} ranks")
    if m is None:
        rate = None if running[0] is None else batch.rate(share)
        given = (batch.kernel, *affine, *running, rate, batch.mask, added)
        outs = None if into is None else [into, *[None] * 6]
        y, *new, mean, var, invstd, _ = kernels.run(BatchNormTraining, (*settings, *sense(rule)), given, outs)
    else:
        new = _updated(rule, count, m.mean, m.var, np.array([share]), *running)
        y = _normalized(settings, (batch.kernel, m.mean, m.var, *affine, added), into)
        with np.errstate(over="ignore"):
            root = inverse_root(m.var, settings[0][1])
            mean, var, invstd = (v.astype(batch.dtype) for v in (m.mean, m.var, root))
    if running[1] is None:
        kept = None, None
    else:
        report_overflow(new[1], running[1], name)
        kept = batch.of_channels(new[0]), batch.of_channels(new[1])
    saved, invstd, mean, var = map(batch.of_channels, (mean.copy(), invstd, mean, var))
    return BatchNorm(batch.result(y, out), *kept, saved, invstd, mean, var, count, tracked + (count > 0))


def batch_norm_inference(
    x: Any,
    scale: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    *,
    epsilon: float,
    axis: int | tuple[int, ...] = 1,
    out: Any = None,
    relu: bool = False,
    residual: Any = None,
) -> Array:
    """Return y = scale * (x - running_mean) / sqrt(running_var + epsilon) + bias; operands, relu and residual as for
    `batch_norm`."""
    return normalize(
        x, running_mean, running_var, scale, bias, epsilon=epsilon, axis=axis, out=out, relu=relu, residual=residual
    )


def moments(x: Any, *, axis: int | tuple[int, ...] = 1, mask: Any = None, comm: Any = None) -> Moments:
    """Return (mean, var, count) of each channel: the first part of `batch_norm`. mean and the population's variance are
    float64 whatever x is, so that nothing is lost before `update` and `normalize`; 0 of no values. mask, comm: as for
    `batch_norm`."""
    with guarded(comm, "moments"):
        batch = Batch(x, axis, mask=mask)
        m = moments_of(batch, comm, "moments")
    return Moments(batch.of_channels(m.mean), batch.of_channels(m.var), m.count)


def update(
    running_mean: Any,
    running_var: Any,
    mean: Any,
    var: Any,
    count: int,
    *,
    convention: str = "torch",
    momentum: Any = DEFAULT,
    num_batches_tracked: int = 0,
) -> tuple[Array, Array]:
    """Return (running_mean, running_var) after a batch with these moments: the second part of `batch_norm`. In the
    shape of running_mean; float64 if that is, else float32. var: the population's; count: of how many values, which a
    correction needs; where it is 0 nothing changes."""
    rule = find(convention)
    rate = np.array([momentum_of(rule, momentum, count_of(num_batches_tracked))])
    old = array_of("running_mean", running_mean)
    dtype = statistics_dtype(old)
    like = Channels(1, old.size, 1, old.shape, (), (1, old.size), (1,))
    running = [per_channel(n, v, like, dtype) for n, v in (("running_mean", old), ("running_var", running_var))]
    batch = [per_channel(n, v, like, FLOAT64) for n, v in (("mean", mean), ("var", var))]
    count = count_of(count, "count", "how many values the statistics are of")
    check_single(count, rule, "what these statistics are of")
    new = _updated(rule, count, *batch, rate, *running)
    report_overflow(new[1], running[1])
    return new[0].reshape(old.shape), new[1].reshape(old.shape)


def normalize(
    x: Any,
    mean: Any,
    var: Any,
    scale: Any = None,
    bias: Any = None,
    *,
    epsilon: float,
    axis: int | tuple[int, ...] = 1,
    out: Any = None,
    relu: bool = False,
    residual: Any = None,
) -> Array:
    """Return y = scale * (x - mean) / sqrt(var + epsilon) + bias: the third part of `batch_norm`. mean, var: float64 as
    `moments` gives them, or of the dtype of running statistics."""
    batch = Batch(x, axis)
    given = batch.wide("mean", mean), batch.wide("var", var)
    affine = batch.per_channel("scale", scale), batch.per_channel("bias", bias)
    added, into = batch.tensor("residual", residual), batch.output("out", out)
    settings = ("epsilon", nonnegative("epsilon", epsilon)), ("relu", relu)
    return batch.result(_normalized(settings, (batch.kernel, *given, *affine, added), into), out)


def moments_of(batch: Batch, comm: Any, label: str) -> Statistics:
    """Return count, mean, and sum of squared distances: of this batch, or of that of all ranks."""
    count, mean, squares = map(host, kernels.run(BatchMoments, (), (batch.kernel, batch.mask), None))
    own = Statistics(int(count[0]), mean, squares)
    return own if comm is None else merged(comm, f"{label}, {batch.named}", *own)


def _normalized(settings: Any, operands: tuple[Array | None, ...], into: Array | None) -> Array:
    """Return y; operands and result are as kernels see them."""
    (y,) = kernels.run(Normalize, settings, operands, None if into is None else [into])
    return y


def _updated(rule: Convention, count: int, mean: Array, var: Array, rate: Array, *running: Array | None) -> list[Any]:
    if running[0] is None:
        return [None, None]
    operands = np.array([float(count)]), mean, var, rate, *running
    return kernels.run(UpdateStatistics, sense(rule), operands, None)


def sense(rule: Convention) -> tuple[tuple[str, Any], ...]:
    return ("momentum_multiplies", rule.momentum_multiplies), ("corrected", rule.corrected)


def inverse_root(var: Array, epsilon: float) -> Array:
    """Return 1 / sqrt(var + epsilon); inf where that is 0, NaN where it is negative."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1.0 / np.sqrt(var + epsilon)


def check_single(count: int, rule: Convention, what: object) -> None:
    """Raise InvalidInput where `what` has one value per channel, and the convention's library refuses that."""
    if count == 1 and rule.refuses_single:
        raise InvalidInput(
            f"{what} has one value per channel",
            [f"convention {rule.name!r} divides by n - 1 and refuses that in training, as its library does"],
            "train on more values per channel, or use a convention that takes it: keras, tf_fused, onnx, cudnn",
        )


def report_overflow(new: Any, old: Any, name: str = "") -> None:
    """Warn of running variances of the layer `name` that have just become infinite; not of those on a GPU that nobody
    waits for."""
    if isinstance(new, np.ndarray) or kernels.is_awaited():
        beyond(host(new), host(old), f"{name}: running_var" if name else "running_var", stacklevel=4)
