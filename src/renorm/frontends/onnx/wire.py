"""Reads a model file with its large weights apart, which stay where they are: protobuf would copy each of them twice.

The serialized form is a list of fields, each a key (number * 8 + kind) and its content; see protobuf's documentation of
the encoding. Only the path from model to graph to initializer to raw data is followed, everything else is passed on as
it stands. What looks unusual is left to protobuf as a whole, errors included.
"""

from __future__ import annotations

import mmap
import os
from io import BytesIO
from math import prod
from typing import Any

import numpy as np

from renorm.core import dtypes

LARGE = 1 << 16  # bytes of an initializer that is worth it

Array = np.ndarray[Any, Any]

_VARINT, _BYTES = 0, 2  # kinds; content of kind 1 and 5 has a fixed size
_SIZES = {1: 8, 5: 4}
# keys: ModelProto.graph, GraphProto.initializer, and fields of TensorProto
_GRAPH, _INITIALIZER = 7 << 3 | _BYTES, 5 << 3 | _BYTES
_DIM, _DIMS, _DTYPE = 1 << 3 | _VARINT, 1 << 3 | _BYTES, 2 << 3 | _VARINT
_NAME, _RAW, _DOC = 8 << 3 | _BYTES, 9 << 3 | _BYTES, 12 << 3 | _BYTES
# ONNX's element types whose raw data is an array as it stands
_DTYPES = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 10: "float16", 11: "float64"}


_Bytes = mmap.mmap | BytesIO


class _UnusualError(Exception):
    pass


def read(path: str | os.PathLike[str]) -> tuple[bytes, dict[str, Array]]:
    """The serialized model without the elements of its large initializers, and those by name: read-only arrays over the
    mapped file, which must stay as it is while they are used. Raises OSError."""
    with open(path, "rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # a pipe, an empty file
            return file.read(), {}
        try:
            lifted: dict[str, Array] = {}
            return _model(mapped, len(mapped), lifted), lifted
        except (_UnusualError, ValueError):  # a name that is no text, a shape that no array has
            return file.read(), {}


def _model(file: mmap.mmap, end: int, lifted: dict[str, Array]) -> bytes:
    pieces, graphs = list[bytes](), 0
    while file.tell() < end:
        key, head = _varint(file)
        if key == _GRAPH:
            graphs += 1
            length, _ = _varint(file)
            pieces += [head, _prefixed(_graph(file, _end(file, length, end), lifted))]
        else:
            pieces.append(_field(file, key, head, end)[0])
    if graphs != 1:
        raise _UnusualError  # protobuf merges several
    return b"".join(pieces)


def _graph(file: mmap.mmap, end: int, lifted: dict[str, Array]) -> bytes:
    pieces = list[bytes]()
    while file.tell() < end:
        key, head = _varint(file)
        if key == _INITIALIZER:
            length, prefix = _varint(file)
            inner = _end(file, length, end)
            whole = prefix + _exactly(file, length) if length < LARGE else _prefixed(_tensor(file, inner, lifted))
            pieces += [head, whole]
        else:
            pieces.append(_field(file, key, head, end)[0])
    return b"".join(pieces)


def _tensor(file: mmap.mmap, end: int, lifted: dict[str, Array]) -> bytes:
    """A tensor without its raw data, which is now in `lifted`; as it stands where that is not all there is to it."""
    pieces, dims, raw = list[bytes](), list[int](), list[Array]()
    values: dict[int, Any] = {_NAME: b"", _DTYPE: 0}
    while file.tell() < end:
        key, head = _varint(file)
        if key == _RAW:
            length, _ = _varint(file)
            inner = _end(file, length, end)
            raw.append(np.frombuffer(file, np.uint8, length, file.tell()))
            file.seek(inner)
            continue
        whole, value = _field(file, key, head, end)
        pieces.append(whole)
        values[key] = value
        if key == _DIM:
            dims.append(value)
        elif key == _DIMS:
            packed = BytesIO(value)
            while packed.tell() < len(value):
                dims.append(_varint(packed)[0])
    name, dtype = values[_NAME].decode(), _DTYPES.get(values[_DTYPE], "")
    is_plain = bool(len(raw) == 1 and name and dtype and set(values) <= {_DIM, _DIMS, _DTYPE, _NAME, _DOC})
    if name in lifted or not is_plain or raw[0].nbytes != prod(dims) * dtypes.itemsize(dtype):
        return b"".join([*pieces, *(_encoded(_RAW) + _prefixed(r.tobytes()) for r in raw)])
    lifted[name] = raw[0].view(dtypes.numpy_dtype(dtype)).reshape(dims)
    return b"".join(pieces)


def _field(file: _Bytes, key: int, head: bytes, end: int) -> tuple[bytes, Any]:
    """The rest of a field whose key has been read: all of it as it stands, and its value (a number or bytes)."""
    if key & 7 == _VARINT:
        number, raw = _varint(file)
        return head + raw, number
    length, prefix = _varint(file) if key & 7 == _BYTES else (_SIZES.get(key & 7, -1), b"")
    _end(file, length, end)
    value = _exactly(file, length)
    return head + prefix + value, value


def _end(file: _Bytes, length: int, outer: int) -> int:
    """Where content of that length ends, which is not behind the end of what it stands in."""
    end = file.tell() + length
    if length < 0 or end > outer:
        raise _UnusualError
    return end


def _exactly(file: _Bytes, length: int) -> bytes:
    found = file.read(length)
    if len(found) != length:
        raise _UnusualError
    return found


def _varint(file: _Bytes) -> tuple[int, bytes]:
    """A number in groups of 7 bits, lowest first, and its bytes."""
    number, raw = 0, b""
    while len(raw) < 10:
        byte = _exactly(file, 1)
        number |= (byte[0] & 127) << 7 * len(raw)
        raw += byte
        if byte[0] < 128:
            return number, raw
    raise _UnusualError


def _encoded(number: int) -> bytes:
    raw = b""
    while number >= 128:
        raw, number = raw + bytes([number & 127 | 128]), number >> 7
    return raw + bytes([number])


def _prefixed(content: bytes) -> bytes:
    return _encoded(len(content)) + content
