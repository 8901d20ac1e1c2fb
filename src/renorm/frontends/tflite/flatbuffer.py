"""FlatBuffers, read and written by their schema; every offset is checked before it is followed.

The encoding: a table is a signed offset back to its vtable, then its fields; a vtable is its size, the table's size,
and per slot the field's place in the table, 0 where it is absent. What is no scalar stands elsewhere, at an unsigned
offset that counts from where it is written. A vector is its length and its elements; a string is a vector of bytes and
a 0. All is little-endian. See "FlatBuffers Internals" in the documentation of FlatBuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from renorm.core.errors import InvalidModel
from renorm.frontends.tflite.schema import IDENTIFIERS, SCALARS, Field, Schema, schema

Array = np.ndarray[Any, Any]

_ALIGNED = 16  # of a vector of bytes: they hold the elements of tensors
_LARGEST = 2**31 - 1  # bytes of a file, by the width of its offsets


@dataclass
class Table:
    """A table of that name in the schema. fields: of those present; others have their default, or None."""

    name: str
    schema: Schema = field(repr=False)
    fields: dict[str, Any] = field(default_factory=dict[str, Any])

    def __getitem__(self, name: str) -> Any:
        if name in self.fields:
            return self.fields[name]
        found = next((f for f in self.schema.tables[self.name] if f is not None and f.name == name), None)
        if found is None:
            raise KeyError(f"{self.name} has no {name}")
        return _default(found) if found.is_scalar else None

    def __setitem__(self, name: str, value: Any) -> None:
        self.fields[name] = value

    def items(self, name: str) -> list[Any]:
        """Return elements of a vector that may be absent."""
        found = self[name]
        return [] if found is None else list(found)


def decode(data: memoryview, label: str, root: str = "Model") -> tuple[bytes, Table]:
    """Return the identifier and the root table of a file. root: its name in the schema. Vectors of scalars are arrays
    over `data`.

    Raises InvalidModel for a file of another kind, and where an offset or a length leads out of it.
    """
    identifier = bytes(data[4:8])
    if identifier not in IDENTIFIERS:
        known = ", ".join(f"{i.decode()} ({name})" for i, name in IDENTIFIERS.items())
        raise InvalidModel(
            f"{label}: not a TensorFlow Lite or Circle file", [f"its identifier is {identifier!r}; known: {known}"]
        )
    decoder = _Decoder(data, schema(identifier), label)
    return identifier, decoder.table(decoder.target(0), root)


def encode(identifier: bytes, root: Table, label: str) -> bytes:
    """Return a file with that root table. Raises InvalidModel where it would be larger than offsets of 32 bits
    reach."""
    encoder = _Encoder(root.schema)
    encoder.out += bytes(4) + identifier
    encoder.point(0, encoder.table(root))
    if len(encoder.out) > _LARGEST:
        raise InvalidModel(f"{label}: {len(encoder.out)} bytes are more than a file of this format holds, {_LARGEST}")
    return bytes(encoder.out)


class _Decoder:
    def __init__(self, data: memoryview, schema: Schema, label: str):
        self.data, self.schema, self.label = data, schema, label
        self.made: dict[tuple[int, str, bool], Any] = {}  # what several refer to is read once
        self.left = len(data)  # references that a file of this size has room for: vectors that overlap are no model

    def damaged(self, at: int, what: str) -> InvalidModel:
        return InvalidModel(
            f"{self.label}: the file is damaged at byte {at}: {what}", do="compare it with the original; write it again"
        )

    def number(self, at: int, type: str) -> Any:
        code = "<" + SCALARS[type]
        if not 0 <= at <= len(self.data) - struct.calcsize(code):
            raise self.damaged(at, f"{type} expected, but the file has {len(self.data)} bytes")
        return struct.unpack_from(code, self.data, at)[0]

    def target(self, at: int) -> int:
        """Return where the unsigned offset written at `at` leads."""
        offset = self.number(at, "uint32")
        self.left -= 1
        if offset == 0 or at + offset >= len(self.data) or self.left < 0:
            raise self.damaged(at, f"offset {offset} leads nowhere")
        return at + offset

    def once(self, at: int, field: Field, make: Callable[[], Any]) -> Any:
        key = (at, field.type, field.is_vector)
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def table(self, at: int, name: str) -> Table:
        vtable = at - self.number(at, "int32")
        size, extent = self.number(vtable, "uint16"), self.number(vtable + 2, "uint16")
        if size < 4 or size % 2 or vtable + size > len(self.data) or at + extent > len(self.data):
            raise self.damaged(vtable, f"no vtable of a table {name}: {size} bytes for {extent}")
        found = Table(name, self.schema)
        for slot, f in enumerate(self.schema.tables[name]):
            entry = 4 + 2 * slot
            place = self.number(vtable + entry, "uint16") if entry < size else 0
            if f is None or place == 0:
                continue
            width = struct.calcsize(SCALARS[f.type]) if f.is_scalar else 4
            if place < 4 or place + width > extent:
                raise self.damaged(vtable + entry, f"{name}.{f.name} lies outside its table")
            value = self.value(at + place, f, found)
            if value is not None:
                found.fields[f.name] = value
        return found

    def value(self, at: int, f: Field, owner: Table) -> Any:
        if f.is_scalar:
            return self.number(at, f.type)
        if f.is_union:
            tag = owner[f"{f.name}_type"]
            name = self.schema.unions[f.type].get(tag)
            if name is None:
                raise self.damaged(at, f"{owner.name}.{f.name} is of unknown type {tag}")
            f = Field(f.name, name)
        target = self.target(at)
        if f.type == "string" and not f.is_vector:
            return self.once(target, f, lambda: self.string(target))
        if f.is_vector:
            return self.once(target, f, lambda: self.vector(target, f.type))
        return self.once(target, f, lambda: self.table(target, f.type))

    def length(self, at: int, width: int) -> int:
        count = self.number(at, "uint32")
        if at + 4 + count * width > len(self.data):
            raise self.damaged(at, f"{count} elements of {width} bytes do not fit into {len(self.data)} bytes")
        return count

    def string(self, at: int) -> str:
        count = self.length(at, 1)
        return bytes(self.data[at + 4 : at + 4 + count]).decode("utf-8", "replace")

    def vector(self, at: int, type: str) -> Any:
        if type in SCALARS:
            dtype = np.dtype(type).newbyteorder("<")
            return np.frombuffer(self.data, dtype, self.length(at, dtype.itemsize), at + 4)
        places = [self.target(at + 4 + 4 * i) for i in range(self.length(at, 4))]
        if type == "string":
            return [self.once(p, Field("", type), lambda p=p: self.string(p)) for p in places]
        return [self.once(p, Field("", type), lambda p=p: self.table(p, type)) for p in places]


class _Encoder:
    """Writes from the front: a table, then what it refers to, so that all offsets lead forward."""

    def __init__(self, schema: Schema):
        self.schema = schema
        self.out = bytearray()
        self.vtables: dict[bytes, int] = {}

    def align(self, to: int, after: int = 0) -> None:
        """Move on until what is written `after` bytes later is aligned."""
        self.out += bytes(-(len(self.out) + after) % to)

    def point(self, at: int, target: int) -> None:
        struct.pack_into("<I", self.out, at, target - at)

    def table(self, table: Table) -> int:
        """Write a table and all that it refers to; where it stands."""
        slots = self.schema.tables[table.name]
        present = [f for f in slots if f is not None and _is_written(table, f)]
        widths = {f.name: struct.calcsize(SCALARS[f.type]) if f.is_scalar else 4 for f in present}
        places, end = dict[str, int](), 4
        for f in sorted(present, key=lambda f: -widths[f.name]):  # largest first: 8 bytes may need a gap, others none
            end += -end % widths[f.name]
            places[f.name] = end
            end += widths[f.name]
        entries = [0 if f is None else places.get(f.name, 0) for f in slots]
        while entries and entries[-1] == 0:
            entries.pop()
        vtable = struct.pack(f"<{2 + len(entries)}H", 4 + 2 * len(entries), end, *entries)
        if vtable not in self.vtables:
            self.align(2)
            self.vtables[vtable] = len(self.out)
            self.out += vtable
        self.align(max(4, *widths.values()) if widths else 4)
        at = len(self.out)
        self.out += bytes(end)
        struct.pack_into("<i", self.out, at, at - self.vtables[vtable])
        for f in present:
            if f.is_scalar:
                struct.pack_into("<" + SCALARS[f.type], self.out, at + places[f.name], table.fields[f.name])
        for f in present:
            if not f.is_scalar:
                self.point(at + places[f.name], self.value(table.fields[f.name], f))
        return at

    def value(self, value: Any, f: Field) -> int:
        if f.is_vector:
            return self.vector(value, f.type)
        return self.table(value) if isinstance(value, Table) else self.string(value)

    def string(self, text: str) -> int:
        raw = text.encode()
        self.align(4)
        at = len(self.out)
        self.out += struct.pack("<I", len(raw)) + raw + b"\0"
        return at

    def vector(self, elements: Any, type: str) -> int:
        if type in SCALARS:
            array = np.ascontiguousarray(elements, np.dtype(type).newbyteorder("<"))
            self.align(max(4, _ALIGNED if type == "uint8" else array.itemsize), after=4)
            at = len(self.out)
            self.out += struct.pack("<I", array.size)
            self.out += array.tobytes()
            return at
        self.align(4)
        at = len(self.out)
        self.out += struct.pack("<I", len(elements)) + bytes(4 * len(elements))
        for i, element in enumerate(elements):
            self.point(at + 4 + 4 * i, self.string(element) if type == "string" else self.table(element))
        return at


def _default(f: Field) -> Any:
    if f.type == "bool":
        return bool(f.default)
    return f.default if f.type.startswith("float") else int(f.default)


def _is_written(table: Table, f: Field) -> bool:
    """Return whether a field is stored: scalars that are their default are not."""
    value = table.fields.get(f.name)
    return value is not None and not (f.is_scalar and value == _default(f))
