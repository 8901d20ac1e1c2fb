"""One stage from a scalar formula: elementwise over tensors of any broadcastable shapes.

    topi.elementwise(lambda x, y: te.exp(x) * y, A, B, name="gate")

16-bit floats are storage: the formula sees them as float32, and its value is rounded once, to the result's type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

from renorm import te
from renorm.core import dtypes
from renorm.core.errors import OperandError
from renorm.expr import nodes
from renorm.expr.nodes import Expr, as_expr, call, const, maximum, minimum
from renorm.te import tag
from renorm.te.arguments import Extent, checked
from renorm.topi import formulas


@checked("topi.")
def elementwise(
    formula: Callable[..., Any], *operands: te.Tensor, name: str = "compute", dtype: str | None = None
) -> te.Tensor:
    """formula(x0, x1, ...) for every element, shapes broadcast as in NumPy.

    dtype: the result's, by default what the formula gives (the storage type of a 16-bit operand is kept).
    """
    narrow = next((x.dtype for x in operands if dtypes.compute_dtype(x.dtype) != x.dtype), None)

    def element(*elements: Expr) -> Expr:
        value = as_expr(formula(*(nodes.cast(dtypes.compute_dtype(x.dtype), x) for x in elements)))
        return nodes.cast(dtype or (narrow if narrow and value.dtype == "float32" else value.dtype), value)

    return te.broadcast(element, *operands, name=name, prefix="i" if len(operands) == 1 else "ax")


def _unary(name: str, formula: Callable[[Expr], Expr], meaning: str) -> Callable[[te.Tensor], te.Tensor]:
    def apply(x: te.Tensor) -> te.Tensor:
        return elementwise(formula, x)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{meaning}, for every element of a tensor."
    return checked("topi.")(apply)


def _intrinsic(name: str, meaning: str) -> Callable[[te.Tensor], te.Tensor]:
    return _unary(name, lambda x: call(name, x), meaning)


exp = _intrinsic("exp", "e^x")
log = _intrinsic("log", "Natural logarithm")
sqrt = _intrinsic("sqrt", "Square root")
rsqrt = _intrinsic("rsqrt", "1 / sqrt(x)")
tanh = _intrinsic("tanh", "Hyperbolic tangent")
sigmoid = _intrinsic("sigmoid", "1 / (1 + e^-x)")
erf = _intrinsic("erf", "Error function")
abs = _intrinsic("abs", "|x|")
sin = _intrinsic("sin", "Sine")
cos = _intrinsic("cos", "Cosine")
tan = _intrinsic("tan", "Tangent")
asin = _intrinsic("asin", "Arc sine")
acos = _intrinsic("acos", "Arc cosine")
atan = _intrinsic("atan", "Arc tangent")
sinh = _intrinsic("sinh", "Hyperbolic sine")
cosh = _intrinsic("cosh", "Hyperbolic cosine")
asinh = _intrinsic("asinh", "Inverse hyperbolic sine")
acosh = _intrinsic("acosh", "Inverse hyperbolic cosine")
atanh = _intrinsic("atanh", "Inverse hyperbolic tangent")
floor = _intrinsic("floor", "The greatest integer not above x")
ceil = _intrinsic("ceil", "The least integer not below x")
trunc = _intrinsic("trunc", "x without its fraction")
round = _intrinsic("round", "The nearest integer, halves to even")
sign = _intrinsic("sign", "-1, 0 or 1")
isnan = _intrinsic("isnan", "Whether x is not a number")
isinf = _intrinsic("isinf", "Whether x is infinite")
isfinite = _unary("isfinite", lambda x: te.isfinite(x), "Whether x is neither infinite nor NaN")
logical_not = _unary("logical_not", lambda x: te.logical_not(x), "Whether x is false")
negative = _unary("negative", lambda x: -x, "-x")
identity = _unary("identity", lambda x: x, "x")
reciprocal = _unary("reciprocal", lambda x: const(1.0, x.dtype) / x, "1 / x")
relu = _unary("relu", lambda x: maximum(x, const(0, x.dtype)), "max(x, 0)")
softplus = _unary("softplus", formulas.softplus, "ln(1 + e^x)")
gelu = _unary("gelu", formulas.gelu, "x * (1 + erf(x / sqrt 2)) / 2")


@checked("topi.")
def cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """The elements of x as dtype; floats become integers by truncation."""
    return te.compute(x.shape, lambda *i: nodes.cast(dtype, x[i]), name="compute", tag=tag.ELEMWISE)


@checked("topi.")
def elemwise_sum(xs: Sequence[te.Tensor]) -> te.Tensor:
    """The sum of tensors of one shape."""
    if len({x.shape for x in xs}) != 1:
        raise OperandError("topi.elemwise_sum: expected tensors of one shape", [f"{x.name} {x.shape}" for x in xs])
    return elementwise(lambda *e: reduce(add, e), *xs, name="T_elemwise_sum")


@checked("topi.")
def clip(x: te.Tensor, a_min: float, a_max: float) -> te.Tensor:
    """min(max(x, a_min), a_max)."""
    return elementwise(lambda e: minimum(maximum(e, const(a_min, e.dtype)), const(a_max, e.dtype)), x)


@checked("topi.")
def full(shape: Sequence[Extent], dtype: str, fill_value: float) -> te.Tensor:
    """A tensor of one value."""
    return te.compute(tuple(shape), lambda *i: const(fill_value, dtype), name="T_full", tag=tag.ELEMWISE)


@checked("topi.")
def full_like(x: te.Tensor, fill_value: float) -> te.Tensor:
    """A tensor of one value in the shape and dtype of x."""
    return full(x.shape, x.dtype, fill_value)


@checked("topi.")
def arange(start: float, stop: float | None = None, step: float = 1, dtype: str = "float32") -> te.Tensor:
    """start, start + step, ... up to but without stop."""
    if stop is None:
        start, stop = 0, start
    if not step or not all(map(math.isfinite, (start, stop, step))):
        raise OperandError(f"topi.arange: from {start} to {stop} in steps of {step} is no finite sequence")
    count = max(0, math.ceil((stop - start) / step))
    return te.compute(
        (count,),
        lambda i: nodes.cast(dtype, i) * const(step, dtype) + const(start, dtype),
        name="T_arange",
        tag=tag.INJECTIVE,
    )
