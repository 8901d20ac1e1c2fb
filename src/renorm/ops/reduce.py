"""Reductions over axes: one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Quotient
from renorm.core.dtypes import NUMBERS
from renorm.expr.nodes import as_expr, binary, call, cast, identity_element
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import bf16, boolean, f16, f32, f64, i32, i64
from renorm.ops.shared.exact import Known
from renorm.ops.shared.family import entry, method
from renorm.ops.shared.reduction import Reduction
from renorm.topi.reduction import reduced_axes


def row(
    title: str,
    formula: str,
    numpy: Callable[..., Any],
    *,
    combine: bool = False,
    types: Sequence[str] = NUMBERS,
    **members: Any,
) -> type[OpDef]:
    """A reduction of the table. combine: over elements of a shape chain too, symbolic ones included."""
    for part in ("before", "after"):
        if part in members:
            members[part] = method(members[part])
    members["numpy"] = lambda self, x, axes, keepdims: numpy(x, axis=axes, keepdims=keepdims)
    extra = {"known_result": lambda self, x: _known(self, numpy, x)} if combine else {}
    empty = [] if members.get("refuses_empty") else [Sample(f32[2, 0, 3], axes=(1,))]
    counted = np.arange(1, 13)  # logarithms of integers need positive ones
    return entry(
        Reduction,
        title,
        formula,
        __name__,
        signature="x: T[...] -> y: T[...]",
        types={"T": types},
        onnx={title: 1},
        samples=[
            Sample(f32[3, 4, 5].between(*members.pop("domain", (-2, 2))), axes=(1,)),
            Sample(f32[3, 4, 5].between(0.5, 2), axes=(0, -1), keepdims=False),
            Sample(f32[2, 3].between(0.5, 2)),
            Sample(f32[2, 3].between(0.5, 2), keepdims=False),
            Sample(f32[2, 3].between(0.5, 2), axes=()),
            Sample(f32[0, 3].between(0.5, 2), axes=(1,)),
            Sample(f32[3].of([1, math.nan, 2])),
            Sample(f64[3, 4].between(0.5, 2), axes=(0,)),
            Sample(f16[2, 300].between(0.9, 1.1), axes=(1,), tolerance=members.pop("tolerance", 2e-3)),
            Sample(bf16[2, 3].between(0.5, 2), axes=(1,)),
            *([Sample(i32[2, 3, 2].of(counted), axes=(-2,)), Sample(i64[3, 4].of(counted), axes=(0,))]),
            *([Sample(boolean[3, 4], axes=(1,)), Sample(boolean[2, 0], axes=(1,))] if "bool" in types else []),
            *empty,
        ],
        rejects=[
            Reject(f32[2, 3], axes=(2,), because="axis 2 is outside"),
            Reject(f32[2, 3], axes=(-3, 0), because="axis -3 is outside"),
        ],
        **members,
        **extra,
    )


def _known(op: Reduction, numpy: Callable[..., Any], x: Known) -> Any:
    """Elements of a shape chain reduced as they are: ints, or sums and products of symbols."""
    elements = x[1]
    if elements is None or (
        op.combiner in ("max", "min") and not all(isinstance(e, (int, float)) for e in elements.flat)
    ):
        return None
    if any(isinstance(e, Quotient) for e in elements.flat):
        return None
    axes = reduced_axes(op.axes, elements.ndim)
    return np.asarray(numpy(elements, axis=axes, keepdims=op.keepdims), dtype=object) if elements.size else None


def _extreme(combiner: str) -> Callable[..., Any]:
    """np.max or np.min, which give the other end of the dtype over no elements."""

    find: Any = np.max if combiner == "max" else np.min

    def over(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        if x.dtype == object:  # elements of a shape chain
            return find(x, axis=axis, keepdims=keepdims)
        start = identity_element(combiner, dtypes.from_numpy(x.dtype)).value
        return find(x, axis=axis, keepdims=keepdims, initial=start)

    return over


def _mean(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    return np.sum(x.astype(np.float64), axis=axis, keepdims=keepdims) / np.float64(math.prod(x.shape[a] for a in axis))


TABLE = [
    row("ReduceSum", "y = sum of x over axes", np.sum, combine=True, axes_operand_since=13, carries={"fixed": 0.0}),
    row(
        "ReduceMean",
        "y = (sum of x over axes) / number of elements; integers are truncated, NaN stands for no elements",
        _mean,
        after=lambda total, count: binary("/", total, cast(total.dtype, as_expr(count))),
        carries={},
    ),
    row("ReduceProd", "y = product of x over axes", np.prod, combine=True, combiner="prod", tolerance=3e-3),
    row(
        "ReduceMax",
        "y = maximum of x over axes",
        _extreme("max"),
        combine=True,
        combiner="max",
        carries={"positive": True},
        types=(*NUMBERS, "bool"),
    ),
    row(
        "ReduceMin",
        "y = minimum of x over axes",
        _extreme("min"),
        combine=True,
        combiner="min",
        carries={"positive": True},
        types=(*NUMBERS, "bool"),
    ),
    row(
        "ReduceL1",
        "y = sum of |x| over axes",
        lambda x, **how: np.sum(np.abs(x), **how),
        before=lambda x: call("abs", x),
    ),
    row(
        "ReduceL2",
        "y = square root of the sum of x*x over axes",
        lambda x, **how: np.sqrt(np.sum(np.square(x), **how)),
        before=lambda x: x * x,
        after=lambda total, count: call("sqrt", total),
        floating=True,
    ),
    row(
        "ReduceSumSquare",
        "y = sum of x*x over axes",
        lambda x, **how: np.sum(np.square(x), **how),
        before=lambda x: x * x,
    ),
    row(
        "ReduceLogSum",
        "y = log of the sum of x over axes",
        lambda x, **how: np.log(np.sum(x, **how)),
        after=lambda total, count: call("log", total),
        floating=True,
        domain=(0.5, 2),
    ),
]
