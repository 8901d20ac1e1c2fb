"""Reductions over some axes, as numpy.sum and its like.

axis: one, several, or None for all; keepdims leaves extents of 1. A sum over no elements is 0, a product 1, a maximum
the least value of the type. 16-bit floats are accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod as product

from renorm import te
from renorm.core import dims, dtypes, shapes
from renorm.core.errors import OperandError
from renorm.expr.nodes import COMBINERS, Expr, Reduce, any_of, as_expr, binary, call, cast, const, select
from renorm.te import tag
from renorm.te.arguments import checked

Axis = int | Sequence[int] | None


def reduced_axes(axis: Axis, rank: int) -> tuple[int, ...]:
    """The axes that `axis` names, counted from the front, in order."""
    if axis is None:
        return tuple(range(rank))
    given = (axis,) if isinstance(axis, int) else axis
    return tuple(sorted({shapes.normalize_axis(a, rank) for a in given}))


def reduced_shape(shape: Sequence[dims.Dim], gone: Sequence[int], keepdims: bool) -> dims.Shape:
    """What is left of a shape after a reduction over axes."""
    return tuple(1 if a in gone else d for a, d in enumerate(shape) if keepdims or a not in gone)


def joined(index: Sequence[Expr], gone: Sequence[int], inside: Sequence[Expr], keepdims: bool) -> tuple[Expr, ...]:
    """The index of an operand: `inside` along the axes that are reduced, that of the result along the others."""
    kept = [i for a, i in enumerate(index) if not keepdims or a not in gone]
    for a, i in zip(gone, inside):  # in order of the axes
        kept.insert(a, i)
    return tuple(kept)


def reduce(
    combiner: str,
    x: te.Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    formula: Callable[[Expr, Sequence[Expr]], Expr] = lambda e, index: e,
    name: str = "",
    dtype: str | None = None,
) -> te.Tensor:
    """combiner ("sum", "prod", "max", "min") over `formula(element, its index along the reduced axes)`.

    dtype: what is accumulated and returned; by default that of x, 16-bit floats widened to float32.
    """
    if combiner not in COMBINERS:
        raise OperandError(f"{combiner!r} is not a reduction", [f"known: {', '.join(COMBINERS)}"])
    gone = reduced_axes(axis, len(x.shape))
    axes = [te.reduce_axis((0, x.shape[a]), name=f"k{a}") for a in gone]

    def element(*index: Expr) -> Expr:
        at = joined(index, gone, [k.var for k in axes], keepdims)
        value = cast(dtype or dtypes.compute_dtype(x.dtype), x[at])
        return Reduce(combiner, formula(value, [k.var for k in axes]), axes) if axes else formula(value, [])

    return te.compute(
        reduced_shape(x.shape, gone, keepdims), element, name=name or f"{x.name}_red", tag=tag.COMM_REDUCE
    )


def _named(name: str, combiner: str, said: str, dtype: str | None = None) -> Callable[..., te.Tensor]:
    """Return the operator of that name and docstring, called as (data, axis=None, keepdims=False)."""

    def reduced(data: te.Tensor, axis: Axis = None, keepdims: bool = False) -> te.Tensor:
        return reduce(combiner, data, axis, keepdims, dtype=dtype).astype(dtype or data.dtype)

    reduced.__name__, reduced.__qualname__, reduced.__doc__ = name, name, said
    return checked("topi.")(reduced)


sum = _named("sum", "sum", "Sum.")
prod = _named("prod", "prod", "Product.")
max = _named("max", "max", "Greatest element; NaN where there is one.")
min = _named("min", "min", "Smallest element; NaN where there is one.")
all = _named("all", "min", "Whether all elements are true, as numbers other than 0 are.", "bool")
any = _named("any", "max", "Whether some element is true, as numbers other than 0 are.", "bool")


@checked("topi.")
def mean(data: te.Tensor, axis: Axis = None, keepdims: bool = False) -> te.Tensor:
    """Sum over count; integers, added in 64 bits, are divided with truncation. NaN over no elements."""
    wide = "int64" if dtypes.is_int(data.dtype) and data.dtype != "uint64" else None
    total = reduce("sum", data, axis, keepdims, dtype=wide)
    count = product(data.shape[a] for a in reduced_axes(axis, len(data.shape)))
    return te.compute(
        total.shape,
        lambda *i: cast(data.dtype, te.div(total[i], cast(total.dtype, as_expr(count)))),
        name="T_divide",
        tag=tag.ELEMWISE,
    )


def _position(name: str, combiner: str, said: str) -> Callable[..., te.Tensor]:
    """Return the operator of that name and docstring: the extreme value first, then the least (or greatest) index that
    has it."""

    def found(
        data: te.Tensor,
        axis: int | None = None,
        keepdims: bool = False,
        select_last_index: bool = False,
        *,
        dtype: str = "int32",
    ) -> te.Tensor:
        gone = reduced_axes(axis, len(data.shape))
        extreme = reduce(combiner, data, gone, True)
        axes = [te.reduce_axis((0, data.shape[a]), name=f"k{a}") for a in gone]
        missing = -1 if select_last_index else product(data.shape[a] for a in gone)

        def element(*index: Expr) -> Expr:
            value = cast(extreme.dtype, data[joined(index, gone, [k.var for k in axes], keepdims)])
            best = extreme[joined(index, gone, [const(0)] * len(gone), keepdims)]
            flat: Expr = const(0)
            for k in axes:
                flat = flat * k.extent + k.var
            is_best = binary("==", value, best)
            if dtypes.is_float(value.dtype):
                is_best = any_of(is_best, call("isnan", value))
            position = cast(dtype, select(is_best, flat, as_expr(missing)))
            return Reduce("max" if select_last_index else "min", position, axes) if axes else position

        shape = reduced_shape(data.shape, gone, keepdims)
        return te.compute(shape, element, name=f"{data.name}_arg{combiner}", tag=tag.COMM_REDUCE)

    found.__name__, found.__qualname__, found.__doc__ = name, name, said
    return checked("topi.")(found)


_ALONG = "element along `axis` (in data flattened, without it): the first, or the last; NaN wins."
argmax = _position("argmax", "max", f"Index of the greatest {_ALONG}")
argmin = _position("argmin", "min", f"Index of the smallest {_ALONG}")
