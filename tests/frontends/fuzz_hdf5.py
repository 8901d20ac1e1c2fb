"""Damaged HDF5 files of Keras: objects of other shapes, types and kinds, and bytes of the structure damaged."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tests.frontends.fuzz_json import json_text
from tests.frontends.mutations import EXTREMES, all_places


def hdf5(content: bytes, chance: random.Random) -> bytes:
    """An HDF5 file with one to three objects or attributes changed, or bytes damaged: those of its structure mostly."""
    if chance.random() < 0.45:
        return _structure(content, chance)
    import h5py

    file = io.BytesIO(content)
    try:
        with h5py.File(file, "r+") as root:
            for _ in range(chance.choice((1, 1, 2, 3))):
                objects = [root, *(root[name] for name in _named(root))]
                chance.choice(_CHANGES)(chance.choice(objects), root, chance)
    except Exception:  # whatever h5py says of a file that is damaged already
        return _structure(content, chance)
    return file.getvalue()


def _named(root: Any) -> list[str]:
    found = list[str]()
    root.visit(lambda name: found.append(name) or None)
    return found


def _attribute(held: Any, root: Any, chance: random.Random) -> None:
    names = [*held.attrs] or ["model_config"]
    name = chance.choice(names)
    value = held.attrs.get(name)
    if name == "model_config" and value is not None and chance.random() < 0.95:
        text = value.encode("utf-8", "replace") if isinstance(value, str) else bytes(value)
        held.attrs[name] = json_text(text, chance).decode("utf-8", "replace")
        return
    made = (
        b"x",
        "x",
        3,
        -1.5,
        np.zeros((2, 2)),
        h5empty(),
        [b"vars/0", b"kernel:0"],
        np.zeros(0, "S1"),
        ["é"] * 300,
        True,
    )
    if value is not None and chance.random() < 0.3:
        del held.attrs[name]
    else:
        held.attrs[chance.choice((name, name, "dtype", "weight_names", "layer_names"))] = chance.choice(made)


def h5empty() -> Any:
    import h5py

    return h5py.Empty("f")


def _replaced(held: Any, root: Any, chance: random.Random) -> None:
    """Another array, of any dtype or shape, a group, or what leads elsewhere, in the place of an object."""
    import h5py

    if held.name == "/":
        return
    parent, name = held.parent, held.name.rpartition("/")[2]
    shape = getattr(held, "shape", None) or (2, 3)
    if chance.random() < 0.8:
        del parent[name]
    else:
        name = chance.choice(("0", "1", "7", "x", "vars", "layers", "kernel:0"))
    if name in parent:
        return
    match chance.randrange(9):
        case 0:
            parent[name] = np.zeros(chance.choice((shape[::-1], shape[1:], (*shape, 1), (), (0,), (1,))), "f4")
        case 1:
            kinds = "f2", "f8", ">f4", "i1", "?", "c8", "S4", "V6", [("a", "f4"), ("b", "i2")]
            parent[name] = np.zeros(shape, np.dtype(chance.choice(kinds)))
        case 2:
            huge = chance.choice(((2**40,), (2**62, 2), (2**31, 4, 4), (10**9,)))
            parent.create_dataset(name, huge, "f4", chunks=(1,) * len(huge))
        case 3:
            parent.create_dataset(name, (1 << 24,), "f4", chunks=(1 << 20,), compression="gzip", fillvalue=0)
        case 4:
            parent[name] = h5py.SoftLink(chance.choice(("/", "/nothing", ".", held.name)))
        case 5:
            parent[name] = h5py.ExternalLink(chance.choice(("held.h5", "/etc/passwd", "")), "/")
        case 6:
            parent.create_group(name)
        case 7:
            parent[name] = root  # a group within itself
        case _:
            at = parent.create_group(name)
            for _ in range(chance.choice((1, 40))):
                at = at.create_group(chance.choice(("layers", "vars", "cell")))
            at["0"] = h5py.Empty("f4") if chance.random() < 0.5 else np.asarray("text", h5py.string_dtype())


def _without(held: Any, root: Any, chance: random.Random) -> None:
    if held.name != "/":
        del held.parent[held.name.rpartition("/")[2]]


def _exchanged(held: Any, root: Any, chance: random.Random) -> None:
    names = [n for n in _named(root) if n != held.name.strip("/") and not n.startswith(f"{held.name.strip('/')}/")]
    if names and held.name != "/":
        parent, name, other = held.parent, held.name.rpartition("/")[2], root[chance.choice(names)]
        del parent[name]
        parent[name] = other


_CHANGES: Sequence[Callable[[Any, Any, random.Random], None]] = (
    _attribute,
    _attribute,
    _replaced,
    _without,
    _exchanged,
)


def _structure(content: bytes, chance: random.Random) -> bytes:
    """Bytes that are no elements of arrays, as a rule: near signatures of headers, trees and heaps."""
    found = bytearray(content)
    places = [
        at for mark in (b"\x89HDF", b"TREE", b"SNOD", b"HEAP", b"GCOL", b"OHDR") for at in all_places(content, mark)
    ]
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.choice(places) + chance.randrange(96) if places else chance.randrange(max(len(found), 1))
        if at + 8 <= len(found):
            match chance.randrange(3):
                case 0:
                    found[at] = chance.randrange(256)
                case 1:
                    found[at] ^= 1 << chance.randrange(8)
                case _:
                    struct.pack_into("<q", found, at, max(min(chance.choice(EXTREMES), 2**63 - 1), -(2**63)))
    return bytes(found) if chance.random() < 0.95 else bytes(found[: chance.randrange(len(found) + 1)])
