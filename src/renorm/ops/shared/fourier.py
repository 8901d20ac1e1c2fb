"""Fourier transforms along the last axis, of real or complex numbers, as one array or two: products with matrices.

A transform of n = a b elements is one of a, a turn of each element, and one of b (Cooley and Tukey, Math. Comp. 19,
1965): n (a + b) products in the place of n n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.ops.shared.composite import apply
from renorm.ops.shared.reshaping import reshaped_to

WHOLE = 128  # elements: transforms of fewer are one product
_LEAST = 4  # parts of a transform, for parts to pay
_MOST = 1 << 26  # elements of a matrix

Array = np.ndarray[Any, Any]


def is_whole(n: int, whole: int = WHOLE) -> bool:
    """Return whether a transform of n elements is one product; whole: of how many it is at most, if it has parts."""
    return n <= whole or _factor(n) < _LEAST


def parts_of(n: int, length: int, onesided: bool, inverse: bool) -> Array:
    """Return the matrix [n, part, frequency, part] of a transform of some length, real parts first: zeros behind it."""
    count = length // 2 + 1 if onesided else length
    if length < 1 or 4 * n * count > _MOST:
        raise OperandError(f"a Fourier transform of {n} elements to {count} frequencies is no product of moderate size")
    turns = np.arange(n)[:, None] * np.arange(count) % length / length * (2 * np.pi) * (-1 if inverse else 1)
    cos, sin = np.cos(turns), np.sin(turns)
    matrix = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], 1) / (length if inverse else 1)
    matrix[length:] = 0
    return matrix


def real_parts_of(n: int, length: int) -> Array:
    """Return the matrix [n, part, t, 1] of an inverse transform to a real signal, of the first half of frequencies."""
    full = parts_of(n, length, False, True)[..., :1]
    full[1 : (length + 1) // 2] *= 2  # what the other half has too
    full[length // 2 + 1 :] = 0
    return full


def multiplied(parts: Sequence[Any], matrix: Array) -> list[Any]:
    """Return the parts of the last axis times a matrix [n, part, frequency, part]; parts: real, imaginary if any."""
    held = parts[0] if len(parts) == 1 else apply("concat", *parts, axis=-1)
    flat = matrix[:, : len(parts)].transpose(1, 0, 2, 3).reshape(len(parts) * len(matrix), *matrix.shape[2:])
    return [apply("matmul", held, _as(held, flat[..., part])) for part in range(flat.shape[-1])]


def transformed(parts: Sequence[Any], n: int, inverse: bool) -> list[Any]:
    """Return both parts of the transform of n elements, which is not scaled; parts: real, imaginary if any."""
    if is_whole(n):
        return multiplied(parts, parts_of(n, n, False, inverse) * (n if inverse else 1))
    a = _factor(n)
    b, rank = n // a, parts[0].rank  # x[t b + s] becomes y[k + l a]
    apart = [_turned(_cut(x, *x.shape[:-1], a, b)) for x in parts]
    real, imaginary = transformed(apart, a, inverse)  # [s, k]
    angle = np.arange(b)[:, None] * np.arange(a) * (2 * np.pi / n * (1 if inverse else -1))
    cos, sin = _as(real, np.cos(angle)), _as(real, np.sin(angle))
    turned = (
        apply("sub", apply("mul", real, cos), apply("mul", imaginary, sin)),
        apply("add", apply("mul", real, sin), apply("mul", imaginary, cos)),
    )
    second = transformed([_turned(x) for x in turned], b, inverse)  # [k, l]
    return [_cut(_turned(y), *y.shape[: rank - 1], n) for y in second]


def signal_of_half(parts: Sequence[Any], length: int, scale: float) -> Any:
    """Return scale / length times the inverse of half a transform, [length // 2 + 1], which is real."""
    if is_whole(length):
        return multiplied(parts, real_parts_of(length // 2 + 1, length) * scale)[0]
    order, whole = np.arange((length + 1) // 2 - 1, 0, -1), list[Any]()
    for x, sign in zip(parts, (1, -1)):
        mirrored = apply("gather", x, order, axis=-1)
        whole.append(apply("concat", x, mirrored if sign == 1 else apply("neg", mirrored), axis=-1))
    return apply("mul", transformed(whole, length, True)[0], _as(parts[0], np.array(scale / length)))


def _factor(n: int) -> int:
    """Return the divisor of n that is next to its root."""
    return next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)


def _as(x: Any, array: Array) -> Array:
    return np.ascontiguousarray(array, numpy_dtype(x.dtype))


def _turned(x: Any) -> Any:
    return apply("transpose", x, perm=(*range(x.rank - 2), x.rank - 1, x.rank - 2))


def _cut(x: Any, *shape: Any) -> Any:
    return reshaped_to(x, shape)
