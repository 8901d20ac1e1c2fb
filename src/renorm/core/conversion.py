"""Numbers as integers of a dtype: constants, interpreters and machine code agree on these two rules.

An integer wraps: of what it is, the lowest bits stay. A float is cut toward zero, and what is out of range becomes the
nearest number of the dtype; NaN becomes 0. C and ONNX leave the second open, where x86 and Arm differ. Integers of less
than 8 bits are made of floats as if by way of int32, which wraps: what ONNX's own tests expect.

A number becomes a float of at most 8 bits in one rounding, to nearest even. A float32 becomes a tf32 as GPUs round it
(cvt.rna): to nearest, ties away from zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from renorm.core import dtypes

TF32_KEPT, TF32_HALF = 0xFFFFE000, 0x1000  # of the bits of a float32: those that tf32 has, and half of its last place


@cache
def wrapping(dtype: str) -> Callable[[int], int]:
    """Bring integers into an integer dtype."""
    kind = dtypes.lookup(dtype)
    mask, half = (1 << kind.bits) - 1, 1 << (kind.bits - 1)
    return (lambda v: v & mask) if kind.kind == "uint" else lambda v: ((v + half) & mask) - half


def wrapped(value: int, dtype: str) -> int:
    """Return an integer as one of an integer dtype."""
    return wrapping(dtype)(value)


def limits(dtype: str) -> tuple[int, int]:
    """Return the least and the greatest number of an integer dtype."""
    kind = dtypes.lookup(dtype)
    low = -(1 << (kind.bits - 1)) if kind.kind == "int" else 0
    return low, low + (1 << kind.bits) - 1


def truncated(value: float, dtype: str) -> int:
    """Return a float as an integer of a dtype."""
    if dtypes.is_stored(dtype):
        return wrapped(truncated(value, "int32"), dtype)
    low, high = limits(dtype)
    return 0 if math.isnan(value) else low if value <= low else high if value >= high else int(value)


def converted(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return an array of floats or integers as one of a dtype."""
    if dtypes.is_stored(dtype):
        return _stored(array, dtype)
    made = dtypes.numpy_dtype(dtype)
    with np.errstate(all="ignore"):
        if dtype == "tf32":
            return _cut_short(array.astype(made))
        if array.dtype.kind not in "fV" or not dtypes.is_int(dtype):
            return array.astype(made)
        low, high = limits(dtype)
        whole = np.nan_to_num(np.trunc(array.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        is_high = whole >= high  # of 64 bits, compared as the float above it
        return np.where(is_high, made.type(high), np.where(is_high, 0, np.maximum(whole, low)).astype(made))


def _cut_short(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return float32 as tf32."""
    bits = (array.view(np.uint32) + np.uint32(TF32_HALF)) & np.uint32(TF32_KEPT)
    return np.where(np.isnan(array), np.float32(np.nan), bits.view(np.float32))


def _stored(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    made = dtypes.numpy_dtype(dtype)
    if array.dtype == made:
        return array
    if not dtypes.is_float(dtype):
        whole = converted(array, "int32") if array.dtype.kind in "fV" else array
        return (whole.astype(np.uint8) & np.uint8((1 << dtypes.lookup(dtype).bits) - 1)).view(made)
    with np.errstate(all="ignore"):
        return (_rounded_to_odd(array) if array.dtype == np.float64 else array.astype(np.float32)).astype(made)


def _rounded_to_odd(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return float64 cut to float32, the last bit set where that is inexact, so that a second rounding cannot err."""
    nearest = array.astype(np.float32)
    back = nearest.astype(np.float64)
    cut = nearest.view(np.uint32) - (np.abs(back) > np.abs(array))
    return (cut | ((back != array) & ~np.isnan(array))).astype(np.uint32).view(np.float32)


def stored_code(value: float, dtype: str) -> int:
    """Return the bits by which memory holds a number in a dtype of `dtypes.STORED`."""
    array = np.asarray(value, np.float64) if dtypes.is_float(dtype) else np.asarray(int(value))
    return int(converted(array, dtype).view(np.uint8))
