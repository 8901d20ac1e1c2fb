"""One file that holds a compiled network: code, weights, and the manifest that says what they are.

    offset  bytes
    0       8       magic; a transfer in text mode breaks it
    8       4       version of the format
    12      4       CRC-32 of the header, this field taken as zero
    16      8       bytes of the head: everything before the weights
    24      8       bytes of the manifest
    32      8       bytes of the weights
    40      4       CRC-32 of the head without the header
    44      4       CRC-32 of the weights
    48      16      zero
    64              manifest: JSON in UTF-8: the program, and where the objects are
    ...             walker, objects, what external code saved, and state, each at a multiple of 64
    head            weights, at a multiple of 4096, to the end of the file

Little-endian. The weights are mapped, read-only and shared: processes that load one file share its pages. A file is
replaced, never changed: writing goes to another name in the same directory, which then takes the place of the old file
at once.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from renorm.core.dataclass import dataclass
from renorm.core.errors import InvalidArtifact
from renorm.runtime import cpu
from renorm.runtime.program import ALIGNMENT, Program, align

MAGIC = b"\x89RENORM\n"
VERSION = 7
_HEADER = struct.Struct("<8sIIQQQII16x")
_PAGE = 4096
_DAMAGED = "copy or compile the file again"

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Artifact:
    """What a file holds. weights: a read-only array over the mapped file, which it keeps open. externals: what the code
    of Program.externals saved. state: the elements of Program.state, row-major."""

    program: Program
    walker: bytes
    objects: tuple[bytes, ...]
    weights: Bytes
    externals: tuple[bytes, ...] = ()
    state: tuple[bytes, ...] = ()


def write(
    path: str | os.PathLike[str],
    program: Program,
    walker: bytes,
    objects: Sequence[bytes],
    weights: Bytes,
    externals: Sequence[bytes] = (),
    state: Sequence[bytes] = (),
) -> None:
    """Writes an artifact. The file at `path` is either the old one or the whole new one, whatever happens.
    Raises InvalidArtifact where it cannot be written."""
    blobs, data = list[list[int]](), bytearray()
    for blob in (walker, *objects, *externals, *state):
        data += bytes(align(len(data)) - len(data))
        blobs.append([len(data), len(blob)])
        data += blob
    # blob offsets count from where the first one starts, so that they do not depend on the length of the manifest
    manifest = json.dumps({"program": program.to_json(), "blobs": blobs}, separators=(",", ":")).encode()
    begin = align(_HEADER.size + len(manifest))
    head_size = align(begin + len(data), _PAGE)
    head = manifest + bytes(begin - _HEADER.size - len(manifest)) + bytes(data) + bytes(head_size - begin - len(data))
    sizes = (head_size, len(manifest), weights.nbytes, zlib.crc32(head), zlib.crc32(weights.data))
    header = _HEADER.pack(MAGIC, VERSION, 0, *sizes)
    header = _HEADER.pack(MAGIC, VERSION, zlib.crc32(header), *sizes)

    path = os.fspath(path)
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(header)
            file.write(head)
            file.write(weights.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise InvalidArtifact(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(FileNotFoundError):  # it is not there once it has taken the place of the old file
            os.unlink(temporary)


def read(path: str | os.PathLike[str], verify: bool = True) -> Artifact:
    """Reads an artifact and checks that this machine can run it.

    verify: also check the weights, which reads all of them once; without it they are read as they are needed.
    Whether the program contradicts itself is Module's to check.
    Raises InvalidArtifact for a file that cannot be read, is damaged, of another version, or for another machine.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEADER.size:
                raise _invalid(path, "is not a renorm artifact", f"{size} bytes, expected at least {_HEADER.size}")
            mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise InvalidArtifact(f"{path} cannot be read: {error.strerror or error}") from error
    content = memoryview(mapping)
    magic, version, own, head_size, manifest_size, weight_size, head_crc, weight_crc = _HEADER.unpack_from(content)
    if magic != MAGIC:
        raise _invalid(path, "is not a renorm artifact", f"it begins with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise InvalidArtifact(
            f"{path} has another version of the format",
            [f"version {version}, expected {VERSION}"],
            "compile the model with this version of renorm",
        )
    header = bytearray(content[: _HEADER.size])
    header[12:16] = bytes(4)
    _check(path, "header", zlib.crc32(header), own)
    if size != head_size + weight_size:
        raise _invalid(path, "is not complete", f"{size} bytes, expected {head_size + weight_size}")
    _check(path, "manifest and code", zlib.crc32(content[_HEADER.size : head_size]), head_crc)
    if verify:
        _check(path, "weights", zlib.crc32(content[head_size:]), weight_crc)

    begin = align(_HEADER.size + manifest_size)
    try:
        manifest = json.loads(bytes(content[_HEADER.size : _HEADER.size + manifest_size]))
        blobs = [bytes(content[begin + at : begin + at + length]) for at, length in manifest["blobs"]]
        program = Program.from_json(manifest["program"])
        walker, *rest = blobs
        ends = [max(0, len(rest) - program.states - n) for n in (len(program.externals), 0)]
        objects, externals, state = rest[: ends[0]], rest[ends[0] : ends[1]], rest[ends[1] :]
    except (KeyError, TypeError, ValueError) as error:
        raise _invalid(path, "has a manifest that cannot be read", f"{type(error).__name__}: {error}") from error
    cpu.require(program.machine, platform.machine(), path)
    weights = np.frombuffer(mapping, np.uint8, weight_size, head_size)
    return Artifact(program, walker, tuple(objects), weights, tuple(externals), tuple(state))


def _invalid(path: str, what: str, fact: str) -> InvalidArtifact:
    return InvalidArtifact(f"{path} {what}", [fact], _DAMAGED)


def _check(path: str, part: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise _invalid(path, "is damaged", f"{part}: checksum {actual:08x}, expected {expected:08x}")


assert _HEADER.size == ALIGNMENT
