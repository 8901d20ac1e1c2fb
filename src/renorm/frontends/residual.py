"""An array as what it differs in from another one: exact to the last bit, and small where that one predicts it.

    array = round(near * factor) + residual        factor: per row, per column, or the product of both

A weight that norms were folded into is the original times a scale per output channel, per input channel, or both,
rounded. Dividing it away leaves the original but for a unit or two in the last place: the residual, counted in
neighbouring floats, takes about 1.5 bits per element. What no factor predicts (channels of scale zero, above all) has a
large residual and is kept as it is. Every step is IEEE arithmetic in float64, rounded once, so that it gives the same
bits on every machine.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm.core import dtypes

Array = np.ndarray[Any, Any]

_ENOUGH = 8  # a code that many times smaller than the array is not looked to be bettered
_ESCAPE = -128  # in the place of a residual that does not fit into 8 bits
_SPREAD, _FREE = 64, 1 << 16  # no part stands for more than so many times its bytes, and these
_SWEEPS = 8  # of alternating means; one is exact where every filter has elements that are not zero


@dataclass(frozen=True)
class Code:
    """An array in parts. way: how `near` is scaled, None for one that is stored as it stands. groups: blocks of rows
    that have factors of columns of their own. parts: compressed."""

    dtype: str
    shape: tuple[int, ...]
    way: str | None
    groups: int
    parts: tuple[bytes, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    @property
    def is_small(self) -> bool:
        """Return whether there is no need to look for a better one."""
        return self.size * _ENOUGH <= dtypes.itemsize(self.dtype) * prod(self.shape)


def encode(array: Array, near: Array | None = None, groups: int = 1) -> Code:
    """Return the smallest code that was found. near: an array that may predict this one."""
    dtype = dtypes.from_numpy(array.dtype)
    best: Code | None = None
    if near is not None:
        for way in _ways(array, near):
            form = _Factors(array.shape, way, groups)
            factors = form.fit(array, near)
            residual = _ordered(array) - _ordered(form.predict(near, factors, array.dtype))
            found = Code(dtype, array.shape, way, form.groups, (_packed(factors), *_small(residual)))
            if best is None or found.size < best.size:
                best = found
            if best.is_small:
                return best
    whole = Code(dtype, array.shape, None, 1, (packed(np.ascontiguousarray(array).tobytes()),))
    return best if best is not None and best.size < whole.size else whole


def decode(code: Code, near: Array | None = None) -> Array:
    """Return the array, to the last bit."""
    dtype = dtypes.numpy_dtype(code.dtype)
    if code.way is None:
        return np.frombuffer(unpacked(code.parts[0]), dtype).reshape(code.shape)
    assert near is not None
    form = _Factors(code.shape, code.way, code.groups)
    factors = np.frombuffer(unpacked(code.parts[0], (sum(near.shape) + near.size) * 8), np.float64)
    predicted = form.predict(near, factors, dtype)
    return _floats(_ordered(predicted) + _wide(code.parts[1:], predicted), dtype)


# --- factors ------------------------------------------------------------------------------------------------------


_TURNED = "transposed: "  # before a way: it is the transposed of `near` that is scaled


def _ways(array: Array, near: Array) -> list[str]:
    """Return how one may predict the other. Rows are the first axis, columns the second, or the last one."""
    if array.ndim < 2 or array.size == 0 or not all(dtypes.is_float(dtypes.from_numpy(a.dtype)) for a in (array, near)):
        return []
    ways = ["rows", "columns", "both"] + (["last", "rows and last"] if array.ndim > 2 else [])
    found = ways if array.shape == near.shape else []
    return found + [_TURNED + w for w in ways if array.ndim == 2 and array.shape == near.shape[::-1]]


class _Factors:
    """An array of `shape` as [groups, rows, columns, rest], and which factors it has: of rows, then of columns."""

    def __init__(self, shape: Sequence[int], way: str, groups: int):
        first, *others = shape
        self.is_turned, way = way.startswith(_TURNED), way.removeprefix(_TURNED)
        self.is_last = "last" in way
        self.turned = [first, others[-1], *others[:-1]] if self.is_last else [first, *others]
        self.groups = groups if groups > 0 and first % groups == 0 and not self.is_last else 1
        self.view = (self.groups, first // self.groups, self.turned[1], -1)
        self.rows, self.columns = way in ("rows", "both", "rows and last"), way != "rows"

    def spread(self, array: Array) -> Array:
        moved = np.moveaxis(array, -1, 1) if self.is_last else array
        return moved.reshape(self.view)

    def fit(self, array: Array, near: Array) -> Array:
        """Factors, flat: least squares over each row or column, or the product that fits the ratios of all filters."""
        a, n = (self.spread(x).astype(np.float64) for x in (array, near.T if self.is_turned else near))
        with np.errstate(all="ignore"):
            up, down = (a * n).sum(-1), (n * n).sum(-1)
            if self.rows and self.columns:
                found = np.concatenate([f.reshape(-1) for f in _product(up / down)])
            else:
                axis = 2 if self.rows else 1
                found = (up.sum(axis) / down.sum(axis)).reshape(-1)
        return np.where(np.isfinite(found), found, 0.0)

    def predict(self, near: Array, factors: Array, dtype: Any) -> Array:
        g, a, b, _ = self.view
        split = g * a if self.rows else 0
        scaled = self.spread(near.T if self.is_turned else near).astype(np.float64)
        with np.errstate(all="ignore"):
            if self.rows:
                scaled *= factors[:split].reshape(g, a, 1, 1)
            if self.columns:
                scaled *= factors[split:].reshape(g, 1, b, 1)
            rounded = scaled.astype(dtype).reshape(self.turned)
        return np.moveaxis(rounded, 1, -1) if self.is_last else rounded


def _product(ratio: Array) -> tuple[Array, Array]:
    """r[g, a] * c[g, b], the product nearest to ratio[g, a, b] in logarithms; what is no number counts as missing."""
    is_known = np.isfinite(ratio) & (ratio != 0)
    logs, weight = np.where(is_known, np.log(np.abs(np.where(is_known, ratio, 1.0))), 0.0), is_known.astype(np.float64)
    rows, columns = np.zeros((*ratio.shape[:2], 1)), np.zeros((ratio.shape[0], 1, ratio.shape[2]))
    for _ in range(_SWEEPS):
        rows = ((logs - columns) * weight).sum(2, keepdims=True) / np.maximum(weight.sum(2, keepdims=True), 1)
        columns = ((logs - rows) * weight).sum(1, keepdims=True) / np.maximum(weight.sum(1, keepdims=True), 1)
    signs = np.where(is_known, np.sign(ratio), 0.0)
    down = np.take_along_axis(signs, np.abs(signs).sum(2, keepdims=True).argmax(1, keepdims=True), 1)  # a full row
    across = np.sign((signs * down).sum(2, keepdims=True))
    return np.exp(rows) * np.where(across == 0, 1.0, across), np.exp(columns) * np.where(down == 0, 1.0, down)


# --- residuals ----------------------------------------------------------------------------------------------------


def _ordered(array: Array) -> Array:
    """Bits as unsigned integers that are ordered as the floats are, so that neighbours differ by 1."""
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = flat.view(f"u{flat.itemsize}")
    top = bits.dtype.type(1 << (8 * flat.itemsize - 1))
    return np.where(bits & top, ~bits, bits | top).reshape(array.shape)


def _floats(ordered: Array, dtype: Any) -> Array:
    """Return the inverse of `_ordered`."""
    top = ordered.dtype.type(1 << (8 * ordered.dtype.itemsize - 1))
    return np.where(ordered & top, ordered & ~top, ~ordered).view(dtype)


def _small(residual: Array) -> tuple[bytes, bytes]:
    """Residuals in 8 bits, and those that do not fit."""
    signed = residual.reshape(-1).view(f"i{residual.dtype.itemsize}")
    fits = (signed > _ESCAPE) & (signed <= 127)
    return _packed(np.where(fits, signed, _ESCAPE).astype(np.int8), zlib.Z_RLE), _packed(signed[~fits])


def _wide(parts: tuple[bytes, ...], like: Array) -> Array:
    small = np.frombuffer(unpacked(parts[0], like.size), np.int8)
    signed = small.astype(f"i{like.dtype.itemsize}")
    signed[small == _ESCAPE] = np.frombuffer(unpacked(parts[1], like.nbytes), signed.dtype)
    return signed.view(f"u{like.dtype.itemsize}").reshape(like.shape)


def packed(content: bytes) -> bytes:
    """Bytes of which nobody knows how many there should be, so that `unpacked` takes them."""
    found = zlib.compress(content)
    return found if len(content) <= _most(found) else zlib.compress(content, 0)


def unpacked(part: bytes, most: int | None = None) -> bytes:
    """Return what was compressed. most: how many bytes it can be; None for what `packed` gave. Raises ValueError for
    more: a small file could ask for all memory there is."""
    most = _most(part) if most is None else most
    unpacker = zlib.decompressobj()
    found = unpacker.decompress(part, most + 1)
    if len(found) > most:
        raise ValueError(f"{len(part)} bytes stand for more than the {most} that they may")
    if not unpacker.eof:
        raise ValueError(f"{len(part)} bytes end too early")
    return found


def _most(part: bytes) -> int:
    return _FREE + _SPREAD * len(part)


def _packed(array: Array, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    packer = zlib.compressobj(6, strategy=strategy)
    return packer.compress(np.ascontiguousarray(array).tobytes()) + packer.flush()
