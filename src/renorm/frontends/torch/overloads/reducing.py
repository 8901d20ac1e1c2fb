"""Overloads that make one number of many: sums, means, extremes, moments, norms of vectors; running sums; softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import maximum
from renorm.core.dtypes import is_float
from renorm.core.errors import UnsupportedOp
from renorm.core.shapes import normalize_axis
from renorm.frontends.torch.call import Call, Given, axes_of
from renorm.frontends.torch.overloads.comparing import truth
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value

Axes = int | Sequence[int] | None


def _reduced(c: Call, op: Any, x: Value, axes: Axes, keepdim: bool) -> Value:
    chosen = axes_of(x, None if axes is not None and not isinstance(axes, int) and not axes else axes)
    return op(x, axes=chosen, keepdims=keepdim) if chosen else x


@reads("sum", "sum.dim_IntList")
def _sum(c: Call, x: Value, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _reduced(c, ops.reduce_sum, c.cast(x, c.dtype), dim, keepdim)


@reads("mean", "mean.dim")
def _mean(c: Call, x: Value, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _reduced(c, ops.reduce_mean, c.cast(x, c.dtype), dim, keepdim)


@reads("prod")
def _prod(c: Call, x: Value, *, dtype: Any = None) -> Any:
    return _reduced(c, ops.reduce_prod, c.cast(x, c.dtype), None, False)


@reads("prod.dim_int")
def _prod_dim(c: Call, x: Value, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _reduced(c, ops.reduce_prod, c.cast(x, c.dtype), dim, keepdim)


def _of_numbers(c: Call, op: Any, x: Value, dim: Axes, keepdim: bool) -> Value:
    """Return the extreme; that of truth values is one of numbers."""
    if x.dtype != "bool":
        return _reduced(c, op, x, dim, keepdim)
    return c.cast(_reduced(c, op, c.cast(x, "uint8"), dim, keepdim), "bool")


@reads("amax", "max")
def _amax(c: Call, x: Value, dim: Axes = None, keepdim: bool = False) -> Any:
    return _of_numbers(c, ops.reduce_max, x, dim, keepdim)


@reads("amin", "min")
def _amin(c: Call, x: Value, dim: Axes = None, keepdim: bool = False) -> Any:
    return _of_numbers(c, ops.reduce_min, x, dim, keepdim)


@reads("max.dim")
def _max_dim(c: Call, x: Value, dim: int, keepdim: bool = False) -> Any:
    return [_amax(c, x, dim, keepdim), _place(c, ops.arg_max, x, dim, keepdim)]


@reads("min.dim")
def _min_dim(c: Call, x: Value, dim: int, keepdim: bool = False) -> Any:
    return [_amin(c, x, dim, keepdim), _place(c, ops.arg_min, x, dim, keepdim)]


def _place(c: Call, op: Any, x: Value, dim: int | None, keepdim: bool) -> Value:
    held = c.cast(x, "uint8") if x.dtype == "bool" else x
    if x.rank == 0:
        return c.filled(0, "int64", ())
    if dim is None:
        found = op(c.flat(held), axis=0, keepdims=False)
        return c.reshaped(found, (1,) * x.rank) if keepdim else found
    return op(held, axis=normalize_axis(dim, x.rank), keepdims=keepdim)


@reads("argmax")
def _argmax(c: Call, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    return _place(c, ops.arg_max, x, dim, keepdim)


@reads("argmin")
def _argmin(c: Call, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    return _place(c, ops.arg_min, x, dim, keepdim)


@reads("any", "any.dim", "any.dims")
def _any(c: Call, x: Value, dim: Axes = None, keepdim: bool = False) -> Any:
    return _of_truth(c, ops.reduce_max, x, dim, keepdim)


@reads("all", "all.dim", "all.dims")
def _all(c: Call, x: Value, dim: Axes = None, keepdim: bool = False) -> Any:
    return _of_truth(c, ops.reduce_min, x, dim, keepdim)


def _of_truth(c: Call, op: Any, x: Value, dim: Axes, keepdim: bool) -> Value:
    return c.cast(_reduced(c, op, c.cast(truth(c, x), "uint8"), dim, keepdim), c.dtype)


@reads("count_nonzero", "count_nonzero.dim_IntList")
def _count_nonzero(c: Call, x: Value, dim: Axes = None) -> Any:
    return _reduced(c, ops.reduce_sum, c.cast(truth(c, x), "int64"), dim, False)


# --- moments ----------------------------------------------------------------------------------------------------------


def _variance(c: Call, x: Value, axes: Axes, correction: float | None, keepdim: bool) -> tuple[Value, Value]:
    """Return the variance and the mean."""
    chosen = axes_of(x, None if axes is None or (not isinstance(axes, int) and not axes) else axes)
    count = prod(x.shape[a] for a in chosen)
    mean = ops.reduce_mean(x, axes=chosen, keepdims=True)
    apart = ops.sub(x, mean)
    less = 1 if correction is None else correction
    squares = ops.mul(apart, apart)
    if less == 0:
        variance = ops.reduce_mean(squares, axes=chosen, keepdims=keepdim)
    else:
        degrees = max(count - less, 0) if isinstance(count, int) else maximum(count - int(less), 0)
        total = ops.reduce_sum(squares, axes=chosen, keepdims=keepdim)
        variance = ops.div(total, c.number(degrees, x.dtype))
    return variance, mean if keepdim else c.reshaped(mean, variance.shape)


def _moment(is_root: bool, has_mean: bool) -> tuple[Any, Any]:
    def made(c: Call, x: Value, dim: Axes, correction: float | None, keepdim: bool) -> Any:
        variance, mean = _variance(c, x, dim, correction, keepdim)
        first = ops.sqrt(variance) if is_root else variance
        return [first, mean] if has_mean else first

    def corrected(
        c: Call, x: Value, dim: Axes = None, *, correction: float | None = None, keepdim: bool = False
    ) -> Any:
        return made(c, x, dim, correction, keepdim)

    def unbiased(c: Call, x: Value, *arguments: Any) -> Any:
        """(unbiased), or (dim, unbiased, keepdim)."""
        given = list[Any](arguments)
        is_whole = len(given) < 2 and not isinstance(next(iter(given), False), (list, tuple))
        dim, rest = (None, given) if is_whole else (given[0], given[1:])
        return made(c, x, dim, float(rest[0]) if rest else 1.0, bool(rest[1]) if len(rest) > 1 else False)

    return corrected, unbiased


for _name, _is_root, _has_mean in (
    ("var", False, False),
    ("std", True, False),
    ("var_mean", False, True),
    ("std_mean", True, True),
):
    _corrected, _unbiased = _moment(_is_root, _has_mean)
    reads(f"{_name}.correction")(_corrected)
    reads(f"{_name}.default", f"{_name}.dim")(_unbiased)


@reads("linalg_vector_norm")
def _vector_norm(
    c: Call, x: Value, ord: float = 2, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return _norm(c, c.cast(x, c.dtype), ord, dim, keepdim)


@reads("norm.ScalarOpt_dim", "norm.Scalar")
def _norm_dim(c: Call, x: Value, p: float | None = 2, dim: Axes = None, keepdim: bool = False) -> Any:
    return _norm(c, x, 2 if p is None else p, dim, keepdim)


def _norm(c: Call, x: Value, p: float, dim: Axes, keepdim: bool) -> Value:
    size = ops.abs(x)
    if x.rank == 0 and p != 0:
        return size
    if p == 2:
        return _reduced(c, ops.reduce_l2, x, dim, keepdim)
    if p == 1:
        return _reduced(c, ops.reduce_l1, x, dim, keepdim)
    if math.isinf(p):
        return _reduced(c, ops.reduce_max if p > 0 else ops.reduce_min, size, dim, keepdim)
    if p == 0:
        return _reduced(c, ops.reduce_sum, c.cast(truth(c, x), x.dtype), dim, keepdim)
    total = _reduced(c, ops.reduce_sum, ops.pow(size, c.number(p, x.dtype)), dim, keepdim)
    return ops.pow(total, c.number(1 / p, x.dtype))


@reads("_cdist_forward")
def _distances(c: Call, a: Value, b: Value, p: float, mode: int | None) -> Any:
    """Return |a_i - b_j| of each pair of rows. One kernel sums the differences, which do not lie in memory."""
    rows = c.reshaped(a, (*a.shape[:-1], 1, a.shape[-1]))
    columns = c.reshaped(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    return _norm(c, ops.sub(rows, columns), p, -1, False)


@reads("logsumexp")
def _logsumexp(c: Call, x: Value, dim: Axes, keepdim: bool = False) -> Any:
    return _reduced(c, ops.reduce_log_sum_exp, c.cast(x, c.dtype), dim, keepdim)


def _running(op: Any) -> Any:
    def read(c: Call, x: Value, dim: int, *, dtype: Any = None) -> Any:
        held = c.cast(x, c.dtype)
        return op(held, np.array(normalize_axis(dim, x.rank))) if x.rank else held

    return read


reads("cumsum")(_running(ops.cum_sum))
reads("cumprod")(_running(ops.cum_prod))


def _accumulated(c: Call, values: list[Value], axis: int, join: Callable[..., list[Value]]) -> list[Value]:
    """Return what each place and all before it are joined to: results of 1, 2, 4, ... places become those of twice as
    many. join: of earlier places and of those behind them."""
    n, width = values[0].shape[axis], 1
    if not isinstance(n, int):
        raise UnsupportedOp(f"elements are accumulated along an axis of {n}, which is open")
    while width < n:
        begins, earlier, later = (
            [c.sliced(v, axis, a, b) for v in values] for a, b in ((0, width), (0, n - width), (width, n))
        )
        values = [ops.concat([b, j], axis=axis) for b, j in zip(begins, join(earlier, later))]
        width *= 2
    return values


def _running_extreme(no_worse: Callable[..., Any]) -> Any:
    """The last one of equal elements; a NaN is worse than none but another one behind it."""

    def join(earlier: list[Value], later: list[Value]) -> list[Value]:
        a, b = earlier[0], later[0]
        takes = no_worse(b, a)
        takes = ops.logical_or(takes, ops.isnan(b)) if is_float(b.dtype) else takes
        return [ops.where(takes, y, x) for x, y in zip(earlier, later)]

    def read(c: Call, x: Value, dim: int) -> Any:
        if x.rank == 0:
            return [x, c.filled(0, "int64", ())]
        axis = normalize_axis(dim, x.rank)
        place = c.reshaped(c.positions(x.shape[axis]), (x.shape[axis], *[1] * (x.rank - 1 - axis)))
        held = c.cast(x, "uint8") if x.dtype == "bool" else x
        values, places = _accumulated(c, [held, c.expanded(place, x.shape)], axis, join)
        return [c.cast(values, x.dtype), places]

    return read


reads("cummax")(_running_extreme(ops.greater_or_equal))
reads("cummin")(_running_extreme(ops.less_or_equal))


@reads("logcumsumexp")
def _log_running_sum(c: Call, x: Value, dim: int) -> Any:
    def join(earlier: list[Value], later: list[Value]) -> list[Value]:
        both = ops.concat([ops.unsqueeze(v, axes=(0,)) for v in (*earlier, *later)], axis=0)
        return [ops.reduce_log_sum_exp(both, axes=(0,), keepdims=False)]

    return x if x.rank == 0 else _accumulated(c, [x], normalize_axis(dim, x.rank), join)[0]


@reads("diff")
def _diff(c: Call, x: Value, n: int = 1, dim: int = -1, prepend: Given = None, append: Given = None) -> Any:
    axis = normalize_axis(dim, x.rank)
    if n == 0:
        return x  # alone
    parts = [v for v in (prepend, x, append) if v is not None]
    found = ops.concat(parts, axis=axis) if len(parts) > 1 else x
    for _ in range(n):
        size = found.shape[axis]
        after, before = c.sliced(found, axis, 1, size), c.sliced(found, axis, 0, size - 1)
        found = ops.logical_xor(after, before) if x.dtype == "bool" else ops.sub(after, before)
    return found


# --- softmax ----------------------------------------------------------------------------------------------------------


@reads("softmax.int", "_softmax")
def _softmax(c: Call, x: Value, dim: int, *_: Any, **__: Any) -> Any:
    return _along(c, ops.softmax, x, dim)


@reads("_safe_softmax")
def _safe_softmax(c: Call, x: Value, dim: int, *_: Any, **__: Any) -> Any:
    """Of nothing but -inf it is 0."""
    y = _along(c, ops.softmax, x, dim)
    most = ops.reduce_max(c.cast(x, c.dtype), axes=(dim,), keepdims=True)
    return ops.where(ops.equal(most, c.number(-math.inf, c.dtype)), c.number(0.0, c.dtype), y)


@reads("log_softmax.int", "_log_softmax")
def _log_softmax(c: Call, x: Value, dim: int, *_: Any, **__: Any) -> Any:
    return _along(c, ops.log_softmax, x, dim)


def _along(c: Call, op: Any, x: Value, dim: int) -> Value:
    held = c.cast(x, c.dtype)
    if x.rank == 0:
        return c.reshaped(op(c.reshaped(held, (1,)), axis=0), ())
    return op(held, axis=normalize_axis(dim, x.rank))
