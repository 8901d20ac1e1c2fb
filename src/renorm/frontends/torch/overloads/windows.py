"""Overloads that look at windows of an image: pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim, size
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call, of_each
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value


def _pooled(c: Call, op: Any, x: Value, n: int, kernel: Any, stride: Any, padding: Any, **others: Any) -> Value:
    """Return the pool of a batch, or of an image that is none."""
    batch = c.batched(x, n)
    sizes = of_each(n, kernel)
    steps = of_each(n, stride) if stride not in (None, [], ()) else sizes
    y = op(batch, kernel_shape=sizes, strides=steps, pads=of_each(n, padding) * 2, **others)
    return y if x.rank == n + 2 else c.reshaped(y, y.shape[1:])


def _max_pool(n: int, has_indices: bool = False) -> Any:
    def read(
        c: Call, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        given: dict[str, Any] = {"dilations": of_each(n, dilation), "ceil_mode": ceil_mode}
        y = _pooled(c, ops.max_pool, x, n, kernel, stride, padding, **given)
        if 1 not in c.read:
            return [y, None] if has_indices else y
        places = _pooled(c, ops.max_pool_positions, x, n, kernel, stride, padding, **given)  # of all elements
        return [y, ops.mod(places, c.number(size(x.shape[-n:]), "int64"))]

    return read


@reads("max_unpool2d", "max_unpool3d")
def _max_unpool(c: Call, x: Value, indices: Value, output_size: Sequence[Dim], *_: Any) -> Any:
    """Return y with y[plane, indices[plane, i]] = x[plane, i], and 0 elsewhere: ONNX's indices are of all elements."""
    shape, n = c.shape, len(output_size)
    lead = x.shape[: x.rank - n]
    zeros = c.filled(0, x.dtype, (size(lead), size(shape[-n:])))
    placed, held = (c.reshaped(v, (size(lead), size(v.shape[-n:]))) for v in (indices, x))
    return c.reshaped(ops.scatter_elements(zeros, placed, held, axis=1), shape)


def _average_pool(n: int) -> Any:
    def read(
        c: Call,
        x: Value,
        kernel: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        counted = count_include_pad or divisor_override is not None
        y = _pooled(c, ops.average_pool, x, n, kernel, stride, padding, ceil_mode=ceil_mode, count_include_pad=counted)
        if divisor_override is None:
            return y
        if ceil_mode:
            raise UnsupportedOp("avg_pool with divisor_override and ceil_mode")
        return ops.mul(y, c.number(int(np.prod(of_each(n, kernel))) / divisor_override, x.dtype))

    return read


for _n in (1, 2, 3):
    reads(f"max_pool{_n}d")(_max_pool(_n))
    reads(f"max_pool{_n}d_with_indices")(_max_pool(_n, has_indices=True))
    reads(f"avg_pool{_n}d")(_average_pool(_n))


def _adaptive(n: int, is_max: bool) -> Any:
    """Windows [i*H // m, ceil((i + 1)*H / m)) of the m along an axis."""

    def read(c: Call, x: Value, size: Any) -> Any:
        spatial = x.shape[-n:]
        given: list[Any] = [size] * n if isinstance(size, int) else list(size)
        wanted: list[Dim] = [e if w is None else w for w, e in zip(given * (n // len(given)), spatial)]
        batch = c.batched(x, n)
        if all(w == 1 for w in wanted):
            y = (ops.global_max_pool if is_max else ops.global_average_pool)(batch)
        elif tuple(wanted) == tuple(spatial):
            y = batch
        else:
            y = batch
            for axis, (w, e) in enumerate(zip(wanted, spatial)):
                y = _along(c, y, axis + 2, w, e, is_max)
        y = c.reshaped(y, c.shape)
        return [y, None] if is_max else y

    return read


def _along(c: Call, x: Value, axis: int, wanted: Dim, extent: Dim, is_max: bool) -> Value:
    if wanted == extent:
        return x
    if not isinstance(wanted, int):
        raise UnsupportedOp(f"adaptive pools to {wanted} elements, which is open")
    n, i = x.rank - 2, axis - 2
    if isinstance(extent, int) and extent % wanted:
        return _uneven(c, x, axis, wanted, extent, is_max)
    if not isinstance(extent, int) and extent % wanted != 0:
        raise UnsupportedOp(f"adaptive pools of {extent} elements to {wanted}: windows differ, and are open")
    width = extent // wanted
    if not isinstance(width, int):
        apart = c.reshaped(x, (*x.shape[:axis], wanted, width, *x.shape[axis + 1 :]))
        return (ops.reduce_max if is_max else ops.reduce_mean)(apart, axes=(axis + 1,), keepdims=False)
    kernel = [width if k == i else 1 for k in range(n)]
    return (ops.max_pool if is_max else ops.average_pool)(x, kernel_shape=kernel, strides=kernel)


def _uneven(c: Call, x: Value, axis: int, wanted: int, extent: int, is_max: bool) -> Value:
    """Windows of more than one size, and which overlap."""
    ends = [(i * extent // wanted, -(-(i + 1) * extent // wanted)) for i in range(wanted)]
    if not is_max:  # a product with the shares that elements have
        shares = np.zeros((extent, wanted))
        for i, (a, b) in enumerate(ends):
            shares[a:b, i] = 1 / (b - a)
        last = ops.transpose(x, perm=(*(a for a in range(x.rank) if a != axis), axis))
        y = ops.matmul(last, c.graph.constant(shares.astype(np.float32), "shares", dtype=x.dtype))
        order = list(range(x.rank - 1))
        order.insert(axis, x.rank - 1)
        return ops.transpose(y, perm=order)
    return ops.concat(
        [ops.reduce_max(c.sliced(x, axis, a, b), axes=(axis,), keepdims=True) for a, b in ends], axis=axis
    )


for _n in (1, 2, 3):
    reads(f"adaptive_avg_pool{_n}d")(_adaptive(_n, is_max=False))
    reads(f"adaptive_max_pool{_n}d")(_adaptive(_n, is_max=True))
reads("_adaptive_avg_pool2d")(_adaptive(2, is_max=False))
reads("_adaptive_avg_pool3d")(_adaptive(3, is_max=False))
