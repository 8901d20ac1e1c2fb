"""Damaged files of Keras and of PyTorch: archives whose members are missing, there twice, very large or not what they
state, or damaged themselves."""

from __future__ import annotations

import io
import json
import lzma
import random
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.frontends.fuzz_hdf5 import hdf5
from tests.frontends.fuzz_json import json_places, json_text
from tests.frontends.mutations import EXTREMES, all_places, any_bytes

Members = dict[str, bytes]
_ENDS = zipfile.BadZipFile, ValueError, OSError, RuntimeError, EOFError, KeyError, struct.error, lzma.LZMAError
_BOMB = 1 << 26  # bytes of zeros


def unpacked(content: bytes) -> Members:
    """Return the members of an archive. Raises what zipfile raises."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {i.filename: archive.read(i) for i in archive.infolist()}


def packed(members: Mapping[str, bytes], twice: Sequence[str] = (), method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name in (*members, *twice):
            archive.writestr(name, members[name])
    return out.getvalue()


def keras(content: bytes, chance: random.Random) -> bytes:
    """A .keras file with changes of its config, its weights, or the archive."""
    return _archive(content, chance, {"config.json": json_text, "model.weights.h5": hdf5, "metadata.json": json_text})


def program(content: bytes, chance: random.Random) -> bytes:
    """A .pt2 file with changes of its graph, the lists of its weights, elements, or the archive."""
    return _archive(content, chance, {".json": json_text, "": any_bytes})


def _archive(content: bytes, chance: random.Random, changes: Mapping[str, Any]) -> bytes:
    way = chance.random()
    try:
        members = unpacked(content) if way < 0.9 else {}
    except _ENDS:
        members = Members()
    if not members:
        return _entries(content, chance) if chance.random() < 0.7 else any_bytes(content, chance)
    if way < 0.8:
        suffix = chance.choice([*changes][:2]) if chance.random() < 0.9 else chance.choice([*changes])
        names = [name for name in members if name.endswith(suffix)]
        if names:
            name = max(names, key=lambda n: len(members[n])) if chance.random() < 0.7 else chance.choice(names)
            members[name] = changes[suffix](members[name], chance)
        return packed(members)
    name, method = chance.choice([*members]), zipfile.ZIP_STORED
    match chance.randrange(6):
        case 0:
            del members[name]
        case 1:
            return packed(members, [name] * chance.choice((1, 3)))
        case 2:
            members[chance.choice(("../x", "/x", "a" * 300, "x/", name.upper(), chance.choice([*members])))] = members[
                name
            ]
        case 3 if chance.random() < 0.1:
            members[name], method = bytes(_BOMB), zipfile.ZIP_DEFLATED
        case 4:
            members[name] = members[name][: chance.randrange(len(members[name]) + 1)]
        case _:
            method = chance.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    return packed(members, method=method)


def _entries(content: bytes, chance: random.Random) -> bytes:
    """A number in what an archive says of one of its members, or of itself: sizes, offsets, methods, flags."""
    found = bytearray(content)
    marks = (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7")
    places = [at for mark in marks for at in all_places(content, mark)]
    for _ in range(chance.choice((1, 1, 2, 5))):
        if places:
            at = chance.choice(places) + chance.choice((4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 42))
            if at + 4 <= len(found):
                form, bits = chance.choice((("<H", 16), ("<I", 32)))
                struct.pack_into(form, found, at, chance.choice((*EXTREMES, 8, 9, 12, 14)) & (1 << bits) - 1)
    return bytes(found)


# --- smaller ones -----------------------------------------------------------------------------------------------------


def smaller(content: bytes) -> Iterator[bytes]:
    """Archives without one of their members, or without a value of their JSON; other files cut."""
    try:
        members = unpacked(content)
    except _ENDS:
        return
    for name in members:
        yield packed({n: c for n, c in members.items() if n != name})
    for name in (n for n in members if n.endswith(".json")):
        try:
            value = json.loads(members[name])
        except (ValueError, RecursionError):
            continue
        for held, key in [*json_places(value)]:
            if isinstance(held, dict) and key in held:
                left = held.pop(key)
                yield packed({**members, name: json.dumps(value).encode()})
                held[key] = left
