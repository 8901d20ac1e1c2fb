"""Overloads that make tensors of no other: of one number, of numbers in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim, Sym, static
from renorm.core.dtypes import is_float, numpy_dtype
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call, Number
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value


def _of(number: float) -> Any:
    def read(c: Call, *shape: Any, **layout: Any) -> Any:
        return c.filled(number, *c.type())

    return read


reads("zeros", "zeros_like", "zero", "new_zeros", "empty.memory_format", "empty_like", "new_empty", "empty_strided")(
    _of(0)
)
reads("new_empty_strided", "empty_permuted")(_of(0))
reads("ones", "ones_like", "new_ones")(_of(1))


@reads("full", "full_like")
def _full(c: Call, like: Any, number: Number, **layout: Any) -> Any:
    return c.filled(number, *c.type())


@reads("new_full")
def _new_full(c: Call, like: Value, shape: Any, number: Number, **layout: Any) -> Any:
    return c.filled(number, *c.type())


@reads("fill.Scalar", "fill.Tensor")
def _fill(c: Call, x: Value, number: Any) -> Any:
    return c.expanded(c.operand(number, x.dtype), x.shape)


@reads("scalar_tensor", "prims.scalar_tensor.default")
def _scalar(c: Call, number: Number, **layout: Any) -> Any:
    return c.number(number, c.dtype)


@reads("arange.start_step")
def _arange_step(c: Call, start: Number, end: Number, step: Number = 1, **layout: Any) -> Any:
    bounds: list[Any] = [start, end, step]
    if any(isinstance(n, (Sym, Value)) for n in bounds):
        if any(is_float(n.dtype) if isinstance(n, Value) else isinstance(n, float) and n % 1 for n in bounds):
            raise UnsupportedOp("a bound or a step that is no whole number, beside others that are not known")
        return c.cast(ops.range(*(c.number(n, "int64") for n in bounds)), c.dtype)
    first, _, by = bounds if is_float(c.dtype) else map(int, bounds)
    return c.graph.constant(
        np.asarray(first + np.arange(static(c.shape)[0]) * by).astype(numpy_dtype(c.dtype)), "arange"
    )


@reads("arange.start")
def _arange_start(c: Call, start: Number, end: Number, **layout: Any) -> Any:
    return _arange_step(c, start, end)


@reads("arange")
def _arange(c: Call, end: Number, **layout: Any) -> Any:
    return _arange_step(c, 0, end)


@reads("linspace")
def _linspace(c: Call, start: float, end: float, steps: Dim, **layout: Any) -> Any:
    if isinstance(steps, int):
        return c.graph.constant(np.linspace(start, end, steps).astype(numpy_dtype(c.dtype)), "linspace")
    place = c.cast(c.positions(steps), c.dtype)
    step = ops.div(c.number(end - start, c.dtype), c.number(steps - 1, c.dtype))
    return ops.add(ops.mul(place, step), c.number(start, c.dtype))


@reads("eye", "eye.m")
def _eye(c: Call, n: Dim, m: Dim | None = None, **layout: Any) -> Any:
    rows, columns = c.positions(n), c.positions(n if m is None else m)
    return c.cast(ops.equal(c.reshaped(rows, (n, 1)), columns), c.dtype)


def stacked(c: Call, values: Sequence[Value], axis: int) -> Value:
    """Return values of one shape side by side along a new axis."""
    return ops.concat([ops.unsqueeze(v, axes=(axis,)) for v in values], axis=axis)
