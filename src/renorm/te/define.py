"""How tensors and axes are made: placeholder, compute, reduce_axis, thread_axis; the reductions sum, max, min, prod."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from renorm.core import dtypes
from renorm.core.errors import InvalidExpression, suggest
from renorm.expr.extents import same_extent
from renorm.expr.nodes import (
    COMBINERS,
    Binary,
    Const,
    Expr,
    ExprLike,
    Reduce,
    Scalar,
    Var,
    as_expr,
    cast,
    combine,
    const,
    identity_element,
    if_then_else,
)
from renorm.te.arguments import Extent, checked
from renorm.te.tensor import IterVar, PlaceholderOp, Tensor, as_shape, compute_over
from renorm.te.window import Window
from renorm.tir.nodes import BLOCK_AXES, THREAD_AXES, VIRTUAL

__all__ = [
    "comm_reducer", "compute", "convert", "infinity", "max", "max_value", "min", "min_value", "placeholder", "prod",
    "reduce_axis", "sum", "thread_axis",
]  # fmt: skip


@checked("te.", InvalidExpression)
def placeholder(
    shape: Any, dtype: Any = "float32", name: str = "placeholder", strides: Sequence[int] | None = None
) -> Tensor:
    """A tensor that the caller of the kernel gives. shape: extents, or one of them; () for one element. strides: how
    many elements apart neighbours along each axis lie in memory, which holds more between them; None: row-major."""
    extents = as_shape(f"placeholder {name}", shape)
    window = None if strides is None else Window.of(f"placeholder {name}", extents, strides)
    return PlaceholderOp(name, extents, dtypes.lookup("float32" if dtype is None else dtype).name, window).tensor


@checked("te.", InvalidExpression)
def compute(
    shape: Any,
    fcompute: Callable[..., Any],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Tensor:
    """The tensor of the given shape whose element at (i, j, ...) is fcompute(i, j, ...).

    fcompute takes one index variable per axis, or `*indices`, and returns a scalar expression, a number, or a reduction
    (te.sum(...)) over axes made by te.reduce_axis. The axes are named after its parameters, or i0, i1, ... for
    `*indices`. tag, attrs: for schedules to read. Raises InvalidExpression where the numbers of axes and parameters
    differ, a reduction is not at the root of the expression, or the expression uses an axis of another compute.
    """
    extents = as_shape(f"compute {name}", shape)
    return compute_over(extents, _axis_names(fcompute, len(extents), name), fcompute, name, tag, attrs)


def _axis_names(f: Callable[..., Any], rank: int, name: str) -> list[str]:
    """Names of the axes from the parameters of `f`; parameters that have defaults may be left over."""
    parameters = list(inspect.signature(f).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in positional]
    needed = len([p for p in positional if p.default is p.empty])
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):
        if needed > rank:
            raise InvalidExpression(f"compute {name}: the shape has {rank} axes, the function takes at least {needed}")
        return (names[:needed] if needed else []) + [f"i{k}" for k in range(needed, rank)]
    if not needed <= rank <= len(names):
        raise InvalidExpression(
            f"compute {name}: the shape has {rank} axes, the function takes {needed}",
            [f"parameters: {', '.join(names) or 'none'}"],
        )
    return names[:rank]


@checked("te.", InvalidExpression)
def reduce_axis(dom: Sequence[Extent], name: str = "rv") -> IterVar:
    """An axis lo .. hi - 1 to reduce over. Each compute needs axes of its own."""
    if len(dom) != 2:
        raise InvalidExpression(f"reduce axis {name}: {dom!r} is not a pair (from, to)")
    low, high = bounds = list[Any](dom)  # open ones count as ints
    if any(isinstance(bound, Expr) for bound in bounds):
        return IterVar(name, high if same_extent(low, 0) else high - low, "reduce", low)
    if high < low:
        raise InvalidExpression(f"reduce axis {name}: it ends at {high}, before its start {low}")
    return IterVar(name, high - low, "reduce", low)


@checked("te.", InvalidExpression)
def thread_axis(dom: int | str | Sequence[int] | None = None, tag: str = "", name: str = "") -> IterVar:
    """An axis of the GPU grid to bind loops to: thread_axis("blockIdx.x"), thread_axis((0, 8), "threadIdx.x").

    Without an extent it takes that of the loop bound to it. tag: blockIdx.{x,y,z}, threadIdx.{x,y,z}, or
    vthread: virtual threads, of which one thread does the work side by side.
    """
    if isinstance(dom, str):
        dom, tag = None, dom
    tag = tag or name
    known = (*BLOCK_AXES, *THREAD_AXES, VIRTUAL)
    if tag not in known:
        raise InvalidExpression(f"{tag!r} is not an axis of the grid", [f"known: {suggest(tag, known, most=7)}"])
    if dom is not None:
        low, high = (0, dom) if isinstance(dom, int) else dom if len(dom) == 2 else (-1, -1)
        if low != 0 or high < 1:
            raise InvalidExpression(f"thread axis {tag}: the range {dom} does not start at 0 or is empty")
        return IterVar(tag, int(high), "thread", thread=tag)
    return IterVar(tag, 0, "thread", thread=tag)


def sum(
    expr: ExprLike, axis: IterVar | Sequence[IterVar], where: ExprLike | None = None, init: ExprLike | None = None
) -> Expr:
    """Sum over one or several reduce axes; 0 over an empty range. where: elements where it is false are left out."""
    return _reduce("sum", expr, axis, where, init)


def prod(
    expr: ExprLike, axis: IterVar | Sequence[IterVar], where: ExprLike | None = None, init: ExprLike | None = None
) -> Expr:
    """Product over reduce axes; 1 over an empty range."""
    return _reduce("prod", expr, axis, where, init)


def max(
    expr: ExprLike,
    axis: IterVar | Sequence[IterVar] | ExprLike,
    where: ExprLike | None = None,
    init: ExprLike | None = None,
) -> Expr:
    """Greatest value over reduce axes; the least value of the dtype over an empty range. max(a, b): the greater one."""
    return _reduce("max", expr, axis, where, init)


def min(
    expr: ExprLike,
    axis: IterVar | Sequence[IterVar] | ExprLike,
    where: ExprLike | None = None,
    init: ExprLike | None = None,
) -> Expr:
    """Least value over reduce axes; the greatest value of the dtype over an empty range. min(a, b): the lesser one."""
    return _reduce("min", expr, axis, where, init)


@checked("te.", InvalidExpression)
def comm_reducer(
    fcombine: Callable[..., Any], fidentity: Callable[..., Any], name: str = "reduce"
) -> Callable[..., Expr]:
    """A reduction by how two values combine, and by what it starts from in a dtype; called as `te.sum` is.

        product = te.comm_reducer(lambda x, y: x * y, lambda dtype: te.const(1, dtype), name="product")

    What combines must be the sum, product, maximum or minimum of one value. Raises InvalidExpression for others, and
    for tuples of values.
    """

    def reducer(
        expr: ExprLike, axis: IterVar | Sequence[IterVar], where: ExprLike | None = None, init: ExprLike | None = None
    ) -> Expr:
        if isinstance(expr, (tuple, list)):
            raise InvalidExpression(f"{name}: reductions of tuples are absent", do="use topi.argmax or topi.argmin")
        dtype = as_expr(expr).dtype
        x, y = Var("x", dtype), Var("y", dtype)
        try:
            step = as_expr(fcombine(x, y))
        except TypeError as error:
            facts = ["x and y are one value each: reductions of tuples are absent"]
            raise InvalidExpression(f"{name}: its function does not combine x and y: {error}", facts) from None
        for combiner, op in COMBINERS.items():
            if isinstance(step, Binary) and step.op == op and {id(step.a), id(step.b)} == {id(x), id(y)}:
                start = as_expr(fidentity(dtype), like=x)
                is_identity = isinstance(start, Const) and start.value == identity_element(combiner, dtype).value
                return _reduce(combiner, expr, axis, where, start if init is None and not is_identity else init)
        raise InvalidExpression(
            f"{name} combines x and y to {step}", [f"expected {', '.join(COMBINERS)} of x and y: others are absent"]
        )

    return reducer


def _reduce(combiner: str, expr: ExprLike, axis: Any, where: ExprLike | None, init: ExprLike | None) -> Expr:
    value = as_expr(expr)
    if combiner in ("max", "min") and not isinstance(axis, (IterVar, list, tuple)):
        return combine(combiner, value, as_expr(axis, like=value))
    axes: list[Any] = list(axis) if isinstance(axis, (list, tuple)) else [axis]
    for a in axes:
        if not isinstance(a, IterVar) or a.kind != "reduce":
            raise InvalidExpression(f"te.{combiner}: {a!r} is not a reduce axis", do="make one with te.reduce_axis")
    if len({id(a) for a in axes}) != len(axes):
        raise InvalidExpression(f"te.{combiner}: the axis {axes[0].name} comes twice")
    condition = None if where is None else cast("bool", as_expr(where))
    start = None if init is None else cast(value.dtype, as_expr(init, like=value))
    if not axes:
        value = value if condition is None else if_then_else(condition, value, identity_element(combiner, value.dtype))
        return value if start is None else combine(combiner, start, value)
    return Reduce(combiner, value, axes, condition, start)


def convert(value: Any) -> Any:
    """`value` as an expression; a list or tuple of values as a list of expressions."""
    return [convert(v) for v in value] if isinstance(value, (list, tuple)) else as_expr(value)


def min_value(dtype: str) -> Expr:
    """The least value of a dtype: of floats the least finite one."""
    return _limit(dtype, -1)


def max_value(dtype: str) -> Expr:
    """The greatest value of a dtype: of floats the greatest finite one."""
    return _limit(dtype, 1)


def _limit(dtype: str, sign: int) -> Expr:
    if not dtypes.is_float(dtype):
        return identity_element("max" if sign < 0 else "min", dtype)
    return const(sign * FLOAT_MAX[dtypes.lookup(dtype).name], dtype)


# IEEE 754: (2 - 2**-p) * 2**emax with p explicit significand bits; bfloat16 has 7 of them, tf32 10, and both the
# exponents of float32
FLOAT_MAX: dict[str, Scalar] = {
    "float64": (2 - 2.0**-52) * 2.0**1023,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float16": (2 - 2.0**-10) * 2.0**15,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "tf32": (2 - 2.0**-10) * 2.0**127,
    **{name: f.greatest for name, f in dtypes.FORMATS.items()},
}


def infinity(dtype: str) -> Expr:
    """Positive infinity of a float dtype."""
    return const(float("inf"), dtype)
