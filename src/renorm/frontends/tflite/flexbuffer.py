"""FlexBuffers, read as far as options of custom operators need them: a map of numbers.

The encoding: values stand at the end, the root last, behind it its type and its width. A type is packed with the width
of what it refers to: type * 4 + log2(width). A map is a vector of values in the order of its keys, after each other,
then their types; before it stand its length, the width of its keys, and how far back these are. Numbers of a width lie
in the vector itself. See "FlexBuffers" in the documentation of FlatBuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from renorm.core.errors import InvalidModel

_INT, _UINT, _FLOAT, _MAP, _BOOL = 1, 2, 3, 9, 26
_INDIRECT = {6: _INT, 7: _UINT, 8: _FLOAT}  # numbers that are referred to
_CODES = {
    _INT: {1: "b", 2: "h", 4: "i", 8: "q"}, _UINT: {1: "B", 2: "H", 4: "I", 8: "Q"}, _FLOAT: {2: "e", 4: "f", 8: "d"},
}  # fmt: skip


def numbers(data: bytes) -> Mapping[str, float]:
    """Return the numbers of a map by their keys, and nothing else that it has. Raises InvalidModel."""
    try:
        if not data:
            return {}
        width = data[-1]
        if data[-2] >> 2 != _MAP:
            raise ValueError("it is no map")
        at = _target(data, len(data) - 2 - width, width)
        return _map(data, at, 1 << (data[-2] & 3))
    except (struct.error, IndexError, ValueError, KeyError) as error:
        raise InvalidModel(f"its options are damaged: {error}") from error


def _number(data: bytes, at: int, width: int, kind: int) -> float:
    if at < 0:
        raise ValueError(f"a number at byte {at}")
    return struct.unpack_from("<" + _CODES[kind][width], data, at)[0]


def _target(data: bytes, at: int, width: int) -> int:
    """Return where an offset leads, which counts backward from itself."""
    found = at - int(_number(data, at, width, _UINT))
    if found < 0:
        raise ValueError(f"an offset leads to byte {found}")
    return found


def _map(data: bytes, at: int, width: int) -> dict[str, float]:
    count = int(_number(data, at - width, width, _UINT))
    if count * (width + 1) > len(data):
        raise ValueError(f"a map of {count} values in {len(data)} bytes")
    keys, key_width = _target(data, at - 3 * width, width), int(_number(data, at - 2 * width, width, _UINT))
    found = dict[str, float]()
    for k in range(count):
        name = _target(data, keys + k * key_width, key_width)
        key = data[name : data.index(b"\0", name)].decode("utf-8", "replace")
        packed, place, size = data[at + count * width + k], at + k * width, width
        kind = packed >> 2
        if kind in _INDIRECT:
            kind, place, size = _INDIRECT[kind], _target(data, place, width), 1 << (packed & 3)
        if kind in (*_CODES, _BOOL):
            found[key] = _number(data, place, size, _UINT if kind == _BOOL else kind)
    return found
