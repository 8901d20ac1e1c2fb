"""Fourier transforms: products with a constant matrix, along one axis after the other.

A transform of n = a b elements is one of a, a turn of each element, and one of b (Cooley and Tukey, Math. Comp. 19,
1965): n (a + b) products in the place of n n. Of frames of a signal it is a convolution, whose weight is the matrix
with the window in it; back from frames, a transposed one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import UnsupportedOp
from renorm.core.shapes import normalize_axis
from renorm.frontends.torch.call import Call, Given
from renorm.frontends.torch.overloads.complexes import conjugate, multiplied, scaled
from renorm.frontends.torch.overloads.table import reads, reads_pairs
from renorm.frontends.torch.pairs import Pair, gives_pairs, joined, of_two
from renorm.graph.ir import Value
from renorm.ops.dft import parts_of, real_parts_of

WHOLE = 128  # elements: transforms of fewer are one product
_POWERS = 0.0, -0.5, -1.0  # of n, that a result is multiplied with, by PyTorch's numbers for norms


def _moved(x: Value, source: int, to: int) -> Value:
    order = [a for a in range(x.rank) if a != source]
    order.insert(to, source)
    return x if source == to else ops.transpose(x, perm=tuple(order))


def _constant(c: Call, array: np.ndarray[Any, Any]) -> Value:
    return c.graph.constant(np.ascontiguousarray(array, numpy_dtype(c.dtype)), "transform")


def _along_last(c: Call, x: Pair | Value, matrix: np.ndarray[Any, Any]) -> Pair:
    """Multiply the last axis with a matrix [n, part, frequency, part]."""
    held = x if isinstance(x, Value) else ops.concat([*x], axis=x.real.rank - 1)
    rows = 1 if isinstance(x, Value) else 2
    flat = matrix[:, :rows].transpose(1, 0, 2, 3).reshape(rows * len(matrix), *matrix.shape[2:])
    return Pair(*(ops.matmul(held, _constant(c, flat[..., part])) for part in range(2)))


def _factor(n: int) -> int:
    """Return the divisor of n that is next to its root."""
    return next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)


def _whole(c: Call, x: Pair | Value, n: int, is_inverse: bool) -> Pair:
    """Return the transform of the last axis, of n elements, which is not scaled."""
    a = _factor(n)
    if n <= WHOLE or a < 4:
        return _along_last(c, x, parts_of(n, n, False, is_inverse) * (n if is_inverse else 1))
    b = n // a  # x[t b + s] becomes y[k + l a]
    parts = [x] if isinstance(x, Value) else [*x]
    apart = [_moved(c.reshaped(v, (*v.shape[:-1], a, b)), v.rank - 1, v.rank) for v in parts]
    first = _whole(c, apart[0] if isinstance(x, Value) else Pair(*apart), a, is_inverse)  # [s, k]
    angle = np.arange(b)[:, None] * np.arange(a) * (2 * np.pi / n * (1 if is_inverse else -1))
    turned = multiplied(c, first, Pair(_constant(c, np.cos(angle)), _constant(c, np.sin(angle))))
    rank = turned.real.rank
    second = _whole(c, Pair(*(_moved(v, rank - 2, rank - 1) for v in turned)), b, is_inverse)  # [k, l]
    return Pair(*(c.reshaped(_moved(v, rank - 2, rank - 1), (*v.shape[:-2], n)) for v in second))


def _transform(c: Call, x: Pair | Value, axis: int, norm: int, is_inverse: bool = False, is_half: bool = False) -> Pair:
    """Return the transform along an axis. is_half: of a real signal, without what mirrors the rest."""
    one = x if isinstance(x, Value) else x.real
    n, last, power = one.shape[axis], one.rank - 1, _POWERS[norm]
    moved = _moved(x, axis, last) if isinstance(x, Value) else Pair(*(_moved(v, axis, last) for v in x))
    if not isinstance(n, int):
        made = of_two(ops.matmul, moved, _open(c, n, n, n // 2 + 1 if is_half else n, is_inverse))
        made = Pair(*(_of_power(c, v, n, power) for v in made))
    elif is_half and n <= WHOLE:
        made = _along_last(c, moved, parts_of(n, n, True, False) * float(n) ** power)
    else:
        made = scaled(c, _whole(c, moved, n, is_inverse), float(n) ** power)
        made = Pair(*(c.sliced(v, last, 0, n // 2 + 1) for v in made)) if is_half else made
    return Pair(*(_moved(v, last, axis) for v in made))


def _open(c: Call, n: Dim, rows: Dim, columns: Dim, is_inverse: bool) -> Pair:
    """Return the matrix [t, k] of a transform of n elements, computed in each call, of t k mod n, which is exact."""
    turns = ops.mod(ops.mul(c.reshaped(c.positions(rows), (rows, 1)), c.positions(columns)), c.number(n, "int64"))
    turn = ops.div(c.number(2 * np.pi * (1 if is_inverse else -1), "float64"), c.number(n, "float64"))
    angle = ops.mul(c.cast(turns, "float64"), turn)
    return Pair(*(c.cast(f(angle), c.dtype) for f in (ops.cos, ops.sin)))


def _of_power(c: Call, x: Value, n: Dim, power: float) -> Value:
    return ops.mul(x, ops.pow(c.number(n, c.dtype), c.number(power, c.dtype))) if power else x


@reads_pairs("_fft_r2c")
def _real(c: Call, x: Value, dims: Sequence[int], norm: int, onesided: bool) -> Any:
    *others, last = (normalize_axis(d, x.rank) for d in dims)
    made = _transform(c, c.cast(x, c.dtype), last, norm, is_half=onesided)
    for axis in others:
        made = _transform(c, made, axis, norm)
    return made


@reads_pairs("_fft_c2c")
def _full(c: Call, x: Pair, dims: Sequence[int], norm: int, forward: bool) -> Any:
    for axis in dims:
        x = _transform(c, x, normalize_axis(axis, x.real.rank), norm, not forward)
    return x


@reads_pairs("_fft_c2r")
def _back(c: Call, x: Pair, dims: Sequence[int], norm: int, length: Dim) -> Any:
    """The inverse of half a transform, which its other half mirrors; a real signal."""
    *others, axis = (normalize_axis(d, x.real.rank) for d in dims)
    for other in others:
        x = _transform(c, x, other, norm, is_inverse=True)
    n, last, power = x.real.shape[axis], x.real.rank - 1, _POWERS[norm]
    moved = Pair(*(_moved(v, axis, last) for v in x))
    if isinstance(length, int):
        if n != length // 2 + 1:
            raise UnsupportedOp(f"an inverse transform to {length} elements of {n}")
        made = _mirrored(c, moved, length, float(length) ** power * length)
    else:  # what has a mirrored one counts twice
        twice = c.reshaped(ops.mul(c.positions(n), c.number(2, "int64")), (n, 1))
        is_once = ops.logical_or(ops.equal(twice, c.number(0, "int64")), ops.equal(twice, c.number(length, "int64")))
        weight = ops.where(is_once, c.number(1, c.dtype), c.number(2, c.dtype))
        cos, sin = (ops.mul(m, weight) for m in _open(c, length, n, length, is_inverse=True))
        made = _of_power(c, ops.sub(ops.matmul(moved.real, cos), ops.matmul(moved.imaginary, sin)), length, power)
    return _moved(made, last, axis)


@reads_pairs("fft_irfft")
def _irfft(c: Call, x: Any, n: Dim | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """Read by itself, since PyTorch takes it apart for the extents alone that it has seen."""
    found = x.real.shape[dim] if isinstance(x, Pair) else None
    length = n if n is not None or found is None else 2 * (found - 1)
    if not isinstance(x, Pair) or length is None or found != length // 2 + 1:
        raise UnsupportedOp("a spectrum that is cut, or continued by zeros")
    return _back(c, x, [dim], {"forward": 0, "ortho": 1}.get(norm or "", 2), length)


def _mirrored(c: Call, x: Pair, length: int, scale: float) -> Value:
    """Return scale / length times the inverse of half a transform, on the last axis."""
    last = x.real.rank - 1
    if length <= WHOLE:
        matrix = real_parts_of(length // 2 + 1, length)[..., 0].transpose(1, 0, 2) * scale  # [part, frequency, t]
        return ops.matmul(ops.concat([*x], axis=last), _constant(c, matrix.reshape(-1, length)))
    mirrored = (c.sliced(v, last, 1, (length + 1) // 2) for v in conjugate(c, x))
    order = np.arange((length + 1) // 2 - 2, -1, -1)
    parts = [ops.concat([v, ops.gather(m, order, axis=last)], axis=last) for v, m in zip(x, mirrored)]
    return scaled(c, _whole(c, Pair(*parts), length, is_inverse=True), scale / length).real


# --- frames -----------------------------------------------------------------------------------------------------------


def _window(c: Call, window: Given, length: int, n: int, dtype: str) -> Value:
    """Return a window of n elements, of which `length` in the middle are not 0."""
    held = c.filled(1, dtype, (length,)) if window is None else c.cast(window, dtype)
    left = (n - length) // 2
    return held if length == n else ops.pad(held, pads=np.array([left, n - length - left]))


def _frames(c: Call, x: Value, n: int, hop: int) -> Value:
    """Return [batch, frame, n] of [batch, elements]."""
    count = (x.shape[1] - n) // hop + 1
    starts = c.reshaped(ops.mul(c.positions(count), c.number(hop, "int64")), (count, 1))
    return ops.gather(x, ops.add(starts, c.positions(n)), axis=1)


@reads("stft")
@reads_pairs("stft")
def _stft(
    c: Call,
    x: Value,
    n: int,
    hop: int | None = None,
    length: int | None = None,
    window: Given = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """Return the transforms of frames: [batch, frequency, frame]."""
    if not isinstance(x, Value) or isinstance(window, Pair) or align_to_window:
        raise UnsupportedOp("frames of complex numbers, or aligned to their window")
    dtype, hop, is_half = x.dtype, hop or n // 4, onesided is not False
    held = _window(c, window, length or n, n, dtype)
    signal = x if x.rank == 2 else c.reshaped(x, (1, *x.shape))
    scale = n**-0.5 if normalized else 1.0
    if n <= 4 * WHOLE or _factor(n) < 4:
        matrix = parts_of(n, n, is_half, False)[:, 0] * scale  # [n, frequency, part]
        count = matrix.shape[1]
        weight = ops.mul(_constant(c, matrix.transpose(2, 1, 0).reshape(2 * count, 1, n)), held)
        y = ops.conv(ops.unsqueeze(signal, axes=(1,)), weight, strides=(hop,))
        made = Pair(*ops.split(y, np.array([count, count]), axis=1))
    else:
        found = scaled(c, _whole(c, ops.mul(_frames(c, signal, n, hop), held), n, is_inverse=False), scale)
        kept = (c.sliced(v, 2, 0, n // 2 + 1) if is_half else v for v in found)
        made = Pair(*(ops.transpose(v, perm=(0, 2, 1)) for v in kept))
    made = made if x.rank == 2 else Pair(*(c.reshaped(v, v.shape[1:]) for v in made))
    return made if gives_pairs(c) else joined(made)


@reads("stft.center")
@reads_pairs("stft.center")
def _centered(
    c: Call,
    x: Value,
    n: int,
    hop: int | None = None,
    length: int | None = None,
    window: Given = None,
    center: bool = True,
    pad_mode: str = "reflect",
    *others: Any,
    **named: Any,
) -> Any:
    if center:
        pads = np.zeros((2, x.rank), np.int64)
        pads[:, -1] = n // 2
        x = ops.pad(x, pads=pads.reshape(-1), mode={"constant": "constant", "reflect": "reflect"}[pad_mode])
    return _stft(c, x, n, hop, length, window, *others, **named)


@reads_pairs("istft")
def _istft(
    c: Call,
    x: Pair,
    n: int,
    hop: int | None = None,
    length: int | None = None,
    window: Given = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    signal_length: Dim | None = None,
    return_complex: bool = False,
) -> Any:
    """Return the signal whose frames these are the transforms of: each times the window, added where they overlap, and
    divided by the squares of the windows there."""
    if return_complex or isinstance(window, Pair):
        raise UnsupportedOp("a complex signal of frames")
    hop, dtype = hop or n // 4, x.real.dtype
    held = _window(c, window, length or n, n, dtype)
    parts = list(x) if x.real.rank == 3 else [c.reshaped(v, (1, *v.shape)) for v in x]
    count, frames = n // 2 + 1, parts[0].shape[2]
    parts = [c.sliced(v, 1, 0, count) if v.shape[1] == n > count else v for v in parts]  # the rest mirrors these
    rows = Pair(*(ops.transpose(v, perm=(0, 2, 1)) for v in parts))
    made = _mirrored(c, rows, n, math.sqrt(n) if normalized else 1.0)
    y = _overlapped(c, ops.mul(made, held), n, hop)
    overlap = _overlapped(c, c.expanded(ops.mul(held, held), (1, frames, n)), n, hop)
    whole = hop * (frames - 1) + n
    begin = n // 2 if center else 0
    end = whole - begin if signal_length is None else begin + signal_length
    made = ops.div(*(c.sliced(v, 1, begin, end) for v in (y, overlap)))
    lacking = end - whole
    if isinstance(lacking, int) and lacking > 0:
        made = ops.pad(made, pads=np.array([0, 0, 0, lacking]))
    return c.reshaped(made, c.shape)


def _overlapped(c: Call, x: Value, n: int, hop: int) -> Value:
    """Return the sum of frames [batch, frame, n] of which each begins `hop` behind the one before it: of their parts of
    that length, part j of frame t lies where part 0 of frame t + j does."""
    batch, frames, parts = x.shape[0], x.shape[1], -(-n // hop)
    padded = x if parts * hop == n else ops.pad(x, pads=np.array([0, 0, 0, 0, 0, parts * hop - n]))
    shifted = (
        ops.pad(c.sliced(padded, 2, j * hop, (j + 1) * hop), pads=np.array([0, j, 0, 0, parts - 1 - j, 0]))
        for j in range(parts)
    )
    return c.reshaped(reduce(ops.add, shifted), (batch, (frames + parts - 1) * hop))
