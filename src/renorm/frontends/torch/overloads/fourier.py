"""Fourier transforms (ops.shared.fourier), along one axis after the other. Of frames of a signal it is a convolution,
whose weight is the matrix with the window in it; back from frames, a transposed one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim, bounds, minimum
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import UnsupportedOp
from renorm.core.shapes import normalize_axis
from renorm.frontends.torch.call import Call, Given
from renorm.frontends.torch.overloads.complexes import scaled
from renorm.frontends.torch.overloads.table import reads, reads_pairs
from renorm.frontends.torch.pairs import Pair, gives_pairs, joined, of_two, on_parts
from renorm.graph.ir import Value
from renorm.ops.shared import fourier

_POWERS = 0.0, -0.5, -1.0  # of n, that a result is multiplied with, by PyTorch's numbers for norms


def _moved(x: Value, source: int, to: int) -> Value:
    order = [a for a in range(x.rank) if a != source]
    order.insert(to, source)
    return x if source == to else ops.transpose(x, perm=tuple(order))


def _constant(c: Call, array: np.ndarray[Any, Any]) -> Value:
    return c.graph.constant(np.ascontiguousarray(array, numpy_dtype(c.dtype)), "transform")


def _whole(x: Pair | Value, n: int, is_inverse: bool) -> Pair:
    """Return the transform of the last axis, of n elements, which is not scaled."""
    return Pair(*fourier.transformed([x] if isinstance(x, Value) else x, n, is_inverse))


def _transform(c: Call, x: Pair | Value, axis: int, norm: int, is_inverse: bool = False, is_half: bool = False) -> Pair:
    """Return the transform along an axis. is_half: of a real signal, without what mirrors the rest."""
    one = x if isinstance(x, Value) else x.real
    n, last, power = one.shape[axis], one.rank - 1, _POWERS[norm]
    moved = on_parts(lambda v: _moved(v, axis, last), x)
    if not isinstance(n, int):
        made = of_two(ops.matmul, moved, _open(c, n, n, n // 2 + 1 if is_half else n, is_inverse))
        made = Pair(*(_of_power(c, v, n, power) for v in made))
    elif is_half and isinstance(moved, Value) and fourier.is_whole(n):
        made = Pair(*fourier.multiplied([moved], fourier.parts_of(n, n, True, False) * float(n) ** power))
    else:
        made = scaled(c, _whole(moved, n, is_inverse), float(n) ** power)
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
    """Return the real signal of half a transform, which its other half mirrors."""
    *others, axis = (normalize_axis(d, x.real.rank) for d in dims)
    for other in others:
        x = _transform(c, x, other, norm, is_inverse=True)
    n, last, power = x.real.shape[axis], x.real.rank - 1, _POWERS[norm]
    moved = Pair(*(_moved(v, axis, last) for v in x))
    if isinstance(length, int):
        if n != length // 2 + 1:
            raise UnsupportedOp(f"an inverse transform to {length} elements of {n}")
        made = fourier.signal_of_half(moved, length, float(length) ** power * length)
    else:  # what has a mirrored one counts twice
        twice = c.reshaped(ops.mul(c.positions(n), c.number(2, "int64")), (n, 1))
        is_once = ops.logical_or(ops.equal(twice, c.number(0, "int64")), ops.equal(twice, c.number(length, "int64")))
        weight = ops.where(is_once, c.number(1, c.dtype), c.number(2, c.dtype))
        cos, sin = (ops.mul(m, weight) for m in _open(c, length, n, length, is_inverse=True))
        made = _of_power(c, ops.sub(ops.matmul(moved.real, cos), ops.matmul(moved.imaginary, sin)), length, power)
    return _moved(made, last, axis)


_AXES = {"": 1, "2": 2, "n": None}  # how many, where none are given
_KINDS = {"fft": "c2c", "ifft": "c2c", "rfft": "r2c", "irfft": "c2r"}  # from real or complex numbers to such


def _named(is_inverse: bool, kind: str, count: int | None) -> Callable[..., Any]:
    """Return the reader of torch.fft's functions, which PyTorch takes apart for the extents alone that it has seen."""

    def read(c: Call, x: Any, lengths: Any = None, dims: Any = None, norm: str | None = None) -> Any:
        one = x.real if isinstance(x, Pair) else x
        wanted = None if lengths is None else [lengths] if count == 1 else [*lengths]
        given = count or (one.rank if wanted is None else len(wanted))
        axes = [dims] if isinstance(dims, int) else [*(dims if dims is not None else range(-given, 0))]
        axes = [normalize_axis(a, one.rank) for a in axes]
        own = [one.shape[a] for a in axes]
        whole = [*own[:-1], 2 * (own[-1] - 1) if kind == "c2r" else own[-1]]
        wanted = whole if wanted is None else [n if w == -1 else w for n, w in zip(whole, wanted, strict=True)]
        held = [*wanted[:-1], wanted[-1] // 2 + 1] if kind == "c2r" else wanted
        number = {None: 0, "backward": 0, "ortho": 1, "forward": 2}[norm]
        for axis, n in zip(axes, held):
            x = on_parts(lambda v, axis=axis, n=n: _of_length(c, c.cast(v, c.dtype), axis, n), x)
        number = 2 - number if is_inverse else number
        if isinstance(x, Value) and kind == "r2c":
            return _real(c, x, axes, number, True)
        if kind == "c2r":
            assert isinstance(x, Pair)
            return _back(c, x, axes, number, wanted[-1])
        for axis in axes:
            x = _transform(c, x, axis, number, is_inverse)
        return x

    return read


def _of_length(c: Call, x: Value, axis: int, n: Dim) -> Value:
    """Return a signal that is cut to n elements along an axis, or continued by zeros. Raises UnsupportedOp where it is
    not known which."""
    more = n - x.shape[axis]
    least, most = bounds(more)
    if least < 0 and most > 0:
        raise UnsupportedOp(f"a signal of {x.shape[axis]} elements is cut, or continued, to {n}")
    if most <= 0:
        return x if most == least == 0 else c.sliced(x, axis, 0, n)
    pads: list[Dim] = [0] * (2 * x.rank)
    pads[x.rank + axis] = more
    return ops.pad(x, pads=c.integers(pads))


for _name, _kind in _KINDS.items():
    for _end, _count in _AXES.items():
        reads_pairs(f"fft_{_name}{_end}")(_named(_name[0] == "i", _kind, _count))


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
    if fourier.is_whole(n, 4 * fourier.WHOLE):
        matrix = fourier.parts_of(n, n, is_half, False)[:, 0] * scale  # [n, frequency, part]
        count = matrix.shape[1]
        weight = ops.mul(_constant(c, matrix.transpose(2, 1, 0).reshape(2 * count, 1, n)), held)
        y = ops.conv(ops.unsqueeze(signal, axes=(1,)), weight, strides=(hop,))
        made = Pair(*ops.split(y, np.array([count, count]), axis=1))
    else:
        found = scaled(c, _whole(ops.mul(_frames(c, signal, n, hop), held), n, is_inverse=False), scale)
        kept = (c.sliced(v, 2, 0, n // 2 + 1) if is_half else v for v in found)
        made = Pair(*(ops.transpose(v, perm=(0, 2, 1)) for v in kept))
    made = made if x.rank == 2 else Pair(*(c.reshaped(v, v.shape[1:]) for v in made))
    return made if gives_pairs(c) else joined(made)


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
    made = fourier.signal_of_half(rows, n, math.sqrt(n) if normalized else 1.0)
    y = _overlapped(c, ops.mul(made, held), n, hop)
    overlap = _overlapped(c, c.expanded(ops.mul(held, held), (1, frames, n)), n, hop)
    whole = hop * (frames - 1) + n
    begin = n // 2 if center else 0
    end = whole - begin if signal_length is None else begin + signal_length
    last = minimum(end, whole)
    made = ops.div(*(c.sliced(v, 1, begin, last) for v in (y, overlap)))
    if end != last:  # which is longer than the frames
        made = ops.pad(made, pads=c.integers([0, 0, 0, end - last]))
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
