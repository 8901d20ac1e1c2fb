"""Integers that stand for numbers, (q - zero point) * scale: where scale and zero point of an element are, and how
numbers become such integers.

Scale and zero point are one for a tensor, one for each index along an axis, or one for each block of neighbours along
an axis. Numbers are rounded to integers, halves to even, and cut to the range of the integer type, as ONNX has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core import conversion, dtypes
from renorm.core.dims import Dim, format_shape, take
from renorm.core.errors import OperandError
from renorm.core.shapes import is_scalar, normalize_axis, spreads
from renorm.expr.nodes import Expr, call, cast, const, maximum, minimum
from renorm.graph.types import Operand
from renorm.ops.shared.precision import element_of

Array = np.ndarray[Any, Any]

BYTES = ("int8", "uint8")
QUANTIZED = (*BYTES, "int16", "uint16")
WEIGHTS = (*BYTES, *(name for name in dtypes.STORED if dtypes.is_int(name)))
ROUNDED = tuple(name for name in dtypes.STORED if dtypes.is_float(name))
ALL = (*QUANTIZED, *dtypes.STORED)


def is_single(shape: Sequence[Any]) -> bool:
    """Return whether a scale or zero point of this shape is one for all elements."""
    return all(isinstance(d, int) and d == 1 for d in shape)


def check_parameters(op: str, x: Operand, scale: Operand, zero: Operand | None, axis: int, block: int) -> None:
    """Raise OperandError where scale and zero point are not for the elements of x. block: elements along `axis` that
    have the same, or 0."""
    if zero is not None and not (is_single(zero.shape) and is_single(scale.shape)):
        check_alike(op, zero, scale.shape, f"{scale} asks for")
    if is_single(scale.shape):
        return
    at = normalize_axis(axis, x.rank)
    if not block:
        check_alike(op, scale, (x.shape[at],), f"axis {axis} of {x} asks for")
        return
    shape = (*x.shape[:at], (x.shape[at] + (block - 1)) // block, *x.shape[at + 1 :])
    check_alike(op, scale, shape, f"blocks of {block} along axis {axis} of {x} ask for")


def check_alike(op: str, given: Operand, shape: Sequence[Dim], whose: str) -> None:
    """Raise OperandError where an operand has another shape than the one that `whose` says."""
    differs = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(given.shape, shape))
    if given.rank != len(shape) or differs:
        raise OperandError(f"{op}: {given}, where {whose} {format_shape(tuple(shape))}")
    for a, b in zip(given.shape, shape):
        take(a, "==", b)


def check_single(op: str, *parameters: Operand | None) -> None:
    """Raise OperandError where a scale or zero point is not one for all elements."""
    for given in parameters:
        if given is not None and not is_scalar(given.shape):
            raise OperandError(f"{op}: {given} is not a scalar")


def check_zero(op: str, x: Operand, zero: Operand | None, axis: int) -> None:
    """Raise OperandError where a zero point of x (or scale) is not one, nor one for each index along an axis, nor has
    several axes that broadcast to x."""
    if zero is None or is_single(zero.shape):
        return
    if zero.rank > 1 and not spreads(zero.shape, x.shape):
        raise OperandError(f"{op}: {zero} does not broadcast to {x}")
    if zero.rank == 1:
        check_alike(op, zero, x.shape[axis:][:1] if x.rank > 1 else (), f"{x} asks for")


def parameter(p: te.Tensor, index: Sequence[Any], axis: int, block: int = 0) -> Expr:
    """Return the scale or zero point of the element at `index`; one of several axes without blocks broadcasts."""
    if is_single(p.shape):
        return p[(0,) * p.ndim]
    at = normalize_axis(axis, len(index))
    if block:
        return p[(*index[:at], index[at] // block, *index[at + 1 :])]
    return p[index[at]] if p.ndim == 1 else element_of(p, index)


def parameters(p: Any, shape: Sequence[int], axis: int, block: int = 0) -> Any:
    """Return `parameter` of all elements, as an array that broadcasts to `shape`."""
    if is_single(np.shape(p)):
        return np.reshape(p, ())
    at = normalize_axis(axis, len(shape))
    if block:
        return np.take(np.repeat(p, block, at), np.arange(shape[at]), at)
    return np.reshape(p, [-1 if a == at else 1 for a in range(len(shape))]) if np.ndim(p) == 1 else p


def joint(a_scale: Any, b_scale: Any, y_scale: Any) -> Any:
    """Return the factor by which a sum of products of integers counts steps of y, in the order in which it is rounded
    to float32."""
    return a_scale * b_scale / y_scale


def quantized(number: Expr, zero: Expr | None, dtype: str, saturate: bool = True) -> Expr:
    """Return a float32 in a dtype of at most 16 bits: as the nearest integer, halves to even, shifted by the zero point
    and cut to the range of the dtype (NaN becomes 0), or as the float that it rounds to. saturate: whether that is
    cut, too."""
    number = call("round", number) if dtypes.is_int(dtype) else number
    number = number if zero is None else number + cast("float32", zero)
    if dtype in QUANTIZED or (dtype in ROUNDED and not saturate):
        return cast(dtype, number)  # a cast to these integers cuts
    low, high = (const(float(end), "float32") for end in ends(dtype))
    return cast(dtype, maximum(minimum(number, high), low))


def quantized_array(numbers: Any, zero: Any, dtype: str, saturate: bool = True) -> Array:
    """Return `quantized` of all elements."""
    number = np.rint(np.asarray(numbers, np.float64)) if dtypes.is_int(dtype) else np.asarray(numbers, np.float64)
    number = number if zero is None else number + np.asarray(zero, np.float64)
    is_cut = saturate or dtype not in ROUNDED
    return conversion.converted(np.clip(number, *ends(dtype)) if is_cut else number, dtype)


def ends(dtype: str) -> tuple[float, float]:
    """Return the least and the greatest finite number of a dtype that stands for others."""
    if dtype in dtypes.FORMATS:
        return -dtypes.FORMATS[dtype].greatest, dtypes.FORMATS[dtype].greatest
    return conversion.limits(dtype)


def requantized(total: te.Tensor, factor: Callable[..., Expr], zero: Callable[..., Expr], dtype: str) -> te.Tensor:
    """Return integers that stand for sums of products of integers: each times a factor, and shifted."""

    def element(*i: Expr) -> Expr:
        return quantized(cast("float32", total[i]) * factor(*i), zero(*i), dtype)

    return te.compute(total.shape, element, name="requantized", tag=te.tag.BROADCAST)


def requantized_array(total: Any, factor: Any, zero: Any) -> Array:
    """Return `requantized` of all elements, in the dtype of zero. The product is that of float32: which integer a half
    becomes is decided by its last digit."""
    return quantized_array(np.float32(total) * np.float32(factor), np.reshape(zero, ()), str(zero.dtype))


def centred(x: te.Tensor, zero: te.Tensor | None, axis: int = 0) -> te.Tensor:
    """Return integers of 8 or 16 bits less their zero points (see `parameter`), as int32."""

    def element(*i: Expr) -> Expr:
        whole = cast("int32", x[i])
        return whole if zero is None else whole - cast("int32", parameter(zero, i, axis))

    return te.compute(x.shape, element, name="centred", tag=te.tag.BROADCAST)


def centred_array(x: Any, zero: Any, axis: int = 0) -> Array:
    """Return `centred` of all elements, in 64 bits."""
    whole = np.asarray(x, np.int64)
    return whole if zero is None else whole - parameters(zero, whole.shape, axis).astype(np.int64)
