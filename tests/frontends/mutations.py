"""Damaged FlatBuffers: files whose encoding is sound and whose contents are not, and files whose offsets are not sound.

`tables` changes what a file says: numbers out of range, vectors that are too long, too short or repeated, parts that
are missing, options of other operators. `encoding` changes how it says it: offsets that lead elsewhere, vtables of
other sizes, lengths, text that is no UTF-8, an end that comes too early.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import Any

import numpy as np

from renorm.core.errors import RenormError
from renorm.frontends.tflite.flatbuffer import Table, decode, encode
from renorm.frontends.tflite.schema import SCALARS, Field

EXTREMES = (0, 1, -1, 2, 3, 7, 127, 128, 255, -128, 2**15, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1e-45, 1e38, -1e38, float("inf"), float("nan"), 1e300)
TEXTS = ("", "x" * 1000, "a/b", "\0", "\U0001f600", "../..", "float32", "-1", "a.b.c", "None", "%s", "\n")


def any_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return any bytes with one to eight of them, numbers of four bytes, or pieces, changed or cut off."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if not found:
            break
        at = chance.randrange(len(found))
        match chance.randrange(6):
            case 0:
                found[at] = chance.randrange(256)
            case 1:
                found[at] ^= 1 << chance.randrange(8)
            case 2:
                found[at : at + 4] = struct.pack("<I", chance.choice(EXTREMES) & 0xFFFFFFFF)
            case 3:
                del found[at : at + chance.choice((1, 4, 64))]
            case 4:
                found[at:at] = found[at : at + chance.choice((1, 4, 64))]
            case _:
                del found[max(at, 8) :]
    return bytes(found)


def all_places(content: bytes, mark: bytes) -> Iterator[int]:
    """Give the places of a signature."""
    at = content.find(mark)
    while at >= 0:
        yield at
        at = content.find(mark, at + 1)


def flatbuffer(content: bytes, chance: random.Random) -> bytes:
    """Return a file with changes of what it says, of its encoding, or of any bytes."""
    try:
        return chance.choice((tables, tables, encoding, encoding, any_bytes))(content, chance)
    except (RenormError, ValueError, OverflowError, struct.error, RecursionError):  # it is damaged already
        return any_bytes(content, chance)


def smaller(content: bytes) -> Iterator[bytes]:
    """Give files without one of the fields of a table, or of the elements of a vector."""
    try:
        identifier, model = decode(memoryview(content), "smaller")
    except RenormError:
        return
    model = _copied(model)
    for table in [*_walk(model)]:
        for name, value in [*table.fields.items()]:
            vectors = [value[:i] + value[i + 1 :] for i in range(len(value))] if isinstance(value, list) else []
            for other in (None, *vectors):
                table.fields[name] = other
                with suppress(ValueError, OverflowError, struct.error, RecursionError, TypeError):
                    yield encode(identifier, model, "smaller")
            table.fields[name] = value


def tables(content: bytes, chance: random.Random) -> bytes:
    """The file with one to three changes of what it says."""
    identifier, model = decode(memoryview(content), "mutated")
    model = _copied(model)
    for _ in range(chance.choice((1, 1, 2, 3))):
        _change(chance.choice([*_walk(model)]), chance)
    return encode(identifier, model, "mutated")


def _copied(value: Any) -> Any:
    if isinstance(value, Table):
        return Table(value.name, value.schema, {k: _copied(v) for k, v in value.fields.items()})
    return [_copied(v) for v in value] if isinstance(value, list) else value


def _walk(table: Table) -> Iterator[Table]:
    yield table
    for value in table.fields.values():
        for v in value if isinstance(value, list) else [value]:
            if isinstance(v, Table):
                yield from _walk(v)


def _change(table: Table, chance: random.Random) -> None:
    slots = [f for f in table.schema.tables[table.name] if f is not None]
    if not slots:
        return
    present = [f for f in slots if f.name in table.fields]
    f = chance.choice(present if present and chance.random() < 0.8 else slots)
    if chance.random() < 0.1:
        table.fields.pop(f.name, None)
    elif f.is_union:
        _exchange(table, f, chance)
    elif f.name == "builtin_code":
        table.fields[f.name] = chance.choice([*table.schema.enums["BuiltinOperator"].values()])
    elif f.is_scalar:
        table.fields[f.name] = _scalar(f.type, chance)
    elif f.is_vector:
        table.fields[f.name] = _vector(table, f, chance)
    elif f.type == "string":
        table.fields[f.name] = chance.choice(("", "x" * 1000, "a/b", "\0", "\U0001f600", "CUSTOM"))
    else:
        table.fields[f.name] = Table(f.type, table.schema)


def _exchange(table: Table, f: Field, chance: random.Random) -> None:
    """Options of another operator, where members of the union are known."""
    number, name = chance.choice([*table.schema.unions[f.type].items()])
    table.fields[f"{f.name}_type"] = number
    table.fields[f.name] = made = Table(name, table.schema)
    for _ in range(chance.randrange(3)):
        scalars = [s for s in table.schema.tables[name] if s is not None and s.is_scalar]
        if scalars:
            s = chance.choice(scalars)
            made.fields[s.name] = _scalar(s.type, chance)


def _scalar(kind: str, chance: random.Random) -> Any:
    if kind == "bool":
        return chance.random() < 0.5
    if kind.startswith("float"):
        value = chance.choice(FLOATS)
        return value if kind == "float64" or abs(value) < 3e38 else float("inf")
    limits = np.iinfo(kind)
    return min(max(chance.choice((*EXTREMES, chance.randrange(40))), int(limits.min)), int(limits.max))


def _vector(table: Table, f: Field, chance: random.Random) -> Any:
    held: list[Any] = list(table.items(f.name))
    way = chance.randrange(6)
    if way == 0:
        held = held[: chance.randrange(len(held) + 1)]
    elif way == 1 and held:
        held += [copy(chance.choice(held)) for _ in range(chance.choice((1, 3, 50)))]
    elif way == 2:
        chance.shuffle(held)
    elif way == 3:
        held = []
    elif f.type in SCALARS:
        held = held or [0]
        held[chance.randrange(len(held))] = _scalar(f.type, chance)
    elif f.type != "string":
        held.insert(chance.randrange(len(held) + 1), Table(f.type, table.schema))
    if f.type in SCALARS:
        with np.errstate(all="ignore"):
            return np.asarray(held, np.dtype(f.type))
    return held


def encoding(content: bytes, chance: random.Random) -> bytes:
    """The file with one to three changes of its encoding."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 3))):
        if len(found) < 16:
            break
        _CHANGES[chance.randrange(len(_CHANGES))](found, chance)
    return bytes(found)


def _offsets(found: bytearray) -> list[int]:
    """Places that hold what could be an offset."""
    words = np.frombuffer(bytes(found[: len(found) // 4 * 4]), "<u4").astype(np.int64)
    at = np.arange(words.size) * 4
    return at[(words > 0) & (words + at < len(found))].tolist() or [0]


def _led_elsewhere(found: bytearray, chance: random.Random) -> None:
    """Onto the target of another offset, before it or behind: what is there is of another kind, or overlaps."""
    places = _offsets(found)
    at, other = chance.choice(places), chance.choice(places)
    target = other + struct.unpack_from("<I", found, other)[0] + chance.choice((0, 0, 4, -4, 1))
    struct.pack_into("<I", found, at, (target - at) & 0xFFFFFFFF)


def _in_a_circle(found: bytearray, chance: random.Random) -> None:
    """To itself, or back."""
    at = chance.choice(_offsets(found))
    struct.pack_into("<I", found, at, -chance.choice((0, 4, at)) & 0xFFFFFFFF)


def _another_vtable(found: bytearray, chance: random.Random) -> None:
    tables = [at for at in range(8, len(found) - 4, 4) if 4 <= at - struct.unpack_from("<i", found, at)[0] < len(found)]
    if tables:
        at = chance.choice(tables)
        vtable = at - struct.unpack_from("<i", found, at)[0]
        if vtable + 4 < len(found):
            kind = chance.randrange(3)
            value = chance.choice((0, 2, 3, 4, 5, 0xFFFF, 0x7FFE, chance.randrange(64)))
            place = (vtable, vtable + 2, vtable + 4 + 2 * chance.randrange(8))[kind]
            struct.pack_into("<H", found, min(place, len(found) - 2), value)


def _another_length(found: bytearray, chance: random.Random) -> None:
    at = chance.choice(_offsets(found))
    target = min(at + struct.unpack_from("<I", found, at)[0], len(found) - 4)
    length = chance.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**30, len(found), len(found) // 4, 5))
    struct.pack_into("<I", found, target, length)


def _no_text(found: bytearray, chance: random.Random) -> None:
    letters = [i for i, b in enumerate(found) if 97 <= b <= 122]
    if letters:
        found[chance.choice(letters)] = chance.choice((0x80, 0xC0, 0xFF, 0xED))


def _cut(found: bytearray, chance: random.Random) -> None:
    del found[chance.randrange(8, len(found)) :]


def _moved(found: bytearray, chance: random.Random) -> None:
    """A piece that is missing, or there twice."""
    at, size = chance.randrange(8, len(found)), chance.choice((1, 4, 16))
    if chance.random() < 0.5:
        del found[at : at + size]
    else:
        found[at:at] = found[at : at + size]


def _any_bits(found: bytearray, chance: random.Random) -> None:
    found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)


_CHANGES = (
    _led_elsewhere, _in_a_circle, _another_vtable, _another_length, _no_text, _cut, _moved, _any_bits, _led_elsewhere,
)  # fmt: skip
