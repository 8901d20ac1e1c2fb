"""A file of protobuf as a tree that can be changed, whatever comes of it: parts of messages, by ONNX's definitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from renorm.frontends.onnx import wire
from renorm.frontends.onnx.messages import ModelProto

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


@dataclass
class Part:
    """A field. number: the field's. kind: of its content. value: a number, bytes, or the parts of a message. lie: what
    is added to the length that the file states. message: what it is, None for another value."""

    number: int
    kind: int
    value: Any
    message: type[wire.Message] | None = None
    lie: int = 0


Parts = list[Part]


# --- the encoding -----------------------------------------------------------------------------------------------------


def parsed(data: bytes, message: type[wire.Message] = ModelProto) -> Parts:
    """Return the parts of a message. Raises IndexError, ValueError, struct.error for what is none."""
    found, at = Parts(), 0
    nested = {f.number: f.message() for f in message.fields.values() if isinstance(f, wire.Nested)}
    while at < len(data):
        key, at = _number(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _number(data, at)
        elif kind == LENGTH:
            size, at = _number(data, at)
            value, at = data[at : at + size], at + size
            if at > len(data):
                raise ValueError("too long")
            if number in nested:
                found.append(Part(number, kind, parsed(value, nested[number]), nested[number]))
                continue
        elif kind in (FIXED32, FIXED64):
            size = 8 if kind == FIXED64 else 4
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"kind {kind}")
        found.append(Part(number, kind, value))
    return found


def written(parts: Parts) -> bytes:
    out = bytearray()
    for p in parts:
        out += varint(p.number << 3 | p.kind)
        if p.kind == VARINT:
            out += varint(p.value)
            continue
        content = written(p.value) if isinstance(p.value, list) else p.value
        if p.kind == LENGTH:
            out += varint(max(len(content) + p.lie, 0))
        out += content
    return bytes(out)


def _number(data: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        byte, at = data[at], at + 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7


def varint(number: int) -> bytes:
    number, out = number & (1 << 70) - 1 if number > 0 else number & (1 << 64) - 1, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def text(number: int, text: str) -> Part:
    return Part(number, LENGTH, text.encode())


# --- places -----------------------------------------------------------------------------------------------------------

Place = tuple[Parts, int, type[wire.Message]]  # the parts of a message, one of them, what the message is


def places_of(parts: Parts, message: type[wire.Message] = ModelProto) -> Iterator[Place]:
    for i, p in enumerate(parts):
        yield parts, i, message
        if isinstance(p.value, list):
            assert p.message is not None
            yield from places_of(p.value, p.message)


def field_of(place: Place) -> wire.Field | None:
    parts, i, message = place
    return next((f for f in message.fields.values() if f.number == parts[i].number), None)


def is_of(place: Place, *kinds: wire.Kind) -> bool:
    field = field_of(place)
    return field is not None and not isinstance(field, wire.Nested) and any(field.kind is k for k in kinds)


def held_by(parts: Parts, message: type[wire.Message]) -> list[Parts]:
    """Return what all messages of a kind hold."""
    return [ps[i].value for ps, i, _ in places_of(parts) if ps[i].message is message and isinstance(ps[i].value, list)]
