"""Quantized tensors as values: operators compute with the real numbers that integers stand for, and what they make is
rounded to the integers of its tensor, as runtimes store it.

    x -> dequantize_linear(quantize_linear(x))

Passes multiply integers where both operands are dequantized (`passes.quantized_products`). An operator whose results
are elements of its operands reads and makes integers, where all of them have one scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from renorm import ops
from renorm.core.conversion import limits
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import InvalidModel
from renorm.graph.ir import Node, Value
from renorm.ops.shared.quantization import BYTES, QUANTIZED, is_single

if TYPE_CHECKING:
    from renorm.frontends.tflite.tensors import Array, Range, Scale


def parameters(scale: Scale, dtype: str) -> tuple[Array, Array]:
    """Return scale and zero point as ops take them. Raises InvalidModel."""
    low, high = limits(dtype)
    if np.any((scale.zero_point < low) | (scale.zero_point > high)):
        raise InvalidModel(f"zero points {scale.zero_point.min()} to {scale.zero_point.max()} are no {dtype}")
    shape = () if scale.scale.size == 1 else (-1,)
    return scale.scale.astype(np.float32).reshape(shape), scale.zero_point.astype(numpy_dtype(dtype)).reshape(shape)


def real(value: Value, scale: Scale, axis: int) -> Value:
    """Return the real numbers that integers stand for. axis: of the value, along which scales differ if there are
    several."""
    if value.dtype in QUANTIZED:
        return ops.dequantize_linear(value, *parameters(scale, value.dtype), axis=axis)
    by, zero = (a.astype(np.float32) for a in scale.spread(value.rank))
    return ops.mul(ops.sub(ops.cast(value, to="float32"), zero), by)


def integers(value: Value, scale: Scale, dtype: str, axis: int) -> Value:
    """Return the integers of a tensor that real numbers are rounded to: halves to even, those beyond the range cut."""
    if holds(value, scale, dtype):
        assert value.producer is not None
        return value.producer.operands[0]
    if dtype in QUANTIZED:
        return ops.quantize_linear(value, *parameters(scale, dtype), axis=axis)
    by, zero = (a.astype(np.float32) for a in scale.spread(value.rank))
    return ops.cast(ops.add(ops.round(ops.div(value, by)), zero), to=dtype)


def rounded(value: Value, scale: Scale, dtype: str, axis: int) -> Value:
    """Return real numbers as a tensor holds them."""
    if dtype not in QUANTIZED or holds(value, scale, dtype):
        return value
    return real(integers(value, scale, dtype, axis), scale, axis)


def held(value: Value) -> Value | None:
    """Return the integers that a value stands for, one scale for all of them; None for other values."""
    node = value.producer
    if node is None or node.op.name != "dequantize_linear" or not is_single(node.operands[1].shape):
        return None
    return node.inputs[0]


def parameter(node: Node | None) -> tuple[float, int] | None:
    """Return the constant scale and zero point of a node that quantizes or dequantizes, one for all elements; None for
    others."""
    if node is None or node.op.name not in ("quantize_linear", "dequantize_linear"):
        return None
    by, zero = (None if v is None else v.data for v in node.inputs[1:])
    if by is None or by.size != 1 or (zero is None and node.inputs[2] is not None):
        return None
    return float(by.item()), 0 if zero is None else int(zero.reshape(-1)[0])


def holds(value: Value, scale: Scale, dtype: str) -> bool:
    """Return whether a value is of integers of that dtype, with that scale and zero point for all."""
    node, whole = value.producer, held(value)
    if node is None or whole is None or whole.dtype != dtype or scale.scale.size > 1:
        return False
    by, zero = parameters(scale, dtype)
    return parameter(node) == (float(by), int(zero))


def moved(value: Value, move: Callable[[Value], Value]) -> Value:
    """Return `move` of a value: of its integers, where it stands for such."""
    whole = held(value)
    if whole is None:
        return move(value)
    assert value.producer is not None
    return ops.dequantize_linear(move(whole), *value.producer.operands[1:])


def is_of_bytes(value: Value) -> bool:
    """Return whether a value stands for integers of 8 bits, one scale for all of them."""
    whole = held(value)
    return whole is not None and whole.dtype in BYTES


def is_cut(ends: Range, scale: Scale, dtype: str) -> bool:
    """Return whether integers of a tensor can stand for numbers outside of a range."""
    low, high = limits(dtype)
    with np.errstate(all="ignore"):  # of scales that are 0
        first, last = (np.rint(end / scale.scale) + scale.zero_point for end in ends)
    return bool(np.any(first > low) or np.any(last < high))
