"""One file that holds a compiled network: code, weights, and the manifest that says what they are.

    offset  bytes
    0       8       magic; a transfer in text mode breaks it
    8       4       version of the format
    12      4       zero
    16      8       bytes of the head: everything before the weights
    24      8       bytes of the manifest
    32      8       bytes of the weights
    40      8       zero
    48      32      SHA-256 of the manifest
    80      32      SHA-256 of the rest of the head
    112     32      SHA-256 of the weights
    144     64      Ed25519 signature of the bytes before it (runtime.signing); zeros where there is none
    208     16      zero
    224     32      SHA-256 of the bytes before it
    256             manifest: JSON in UTF-8: the program, and where the objects are
    ...             walker, objects, what external code saved, and state, each at a multiple of 64
    head            weights, at a multiple of 4096, to the end of the file

Little-endian. The *digest* of an artifact is the SHA-256 of its first 144 bytes, which stand for all that it holds. The
weights are mapped, read-only and shared: processes that load one file share its pages. A file is replaced, never
changed: writing goes to another name in the same directory, which then takes the place of the old file at once. Who
changes it in place all the same, as `cp` does, changes the weights of whoever has mapped it, or ends the process.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BufferedReader
from itertools import islice
from typing import Any

import numpy as np

from renorm.core import records
from renorm.core.errors import InvalidArtifact
from renorm.core.files import replacing
from renorm.runtime import cpu, signing
from renorm.runtime.launches import GPU
from renorm.runtime.memory import Memory
from renorm.runtime.program import ALIGNMENT, Program, align
from renorm.runtime.signing import Key

MAGIC = b"\x89RENORM\n"
VERSION = 16
HEADER_BYTES = 256
_HEADER = struct.Struct("<8sI4xQQQ8x32s32s32s")  # what the digest is of
_SIGNED = struct.Struct(f"<{_HEADER.size}s64s16x32s")
_PAGE = 4096
_DAMAGED = "copy or compile the file again"

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Span:
    """Where bytes are, counted from where the first of them starts: so it does not depend on the manifest's length."""

    is_row = True  # in JSON, since there are many

    begin: int
    size: int


@dataclass(frozen=True)
class Manifest:
    """The manifest of a file."""

    program: Program
    walker: Span
    objects: tuple[Span, ...]
    externals: tuple[Span, ...]
    state: tuple[Span, ...]

    @property
    def spans(self) -> tuple[Span, ...]:
        return (self.walker, *self.objects, *self.externals, *self.state)


@dataclass(frozen=True)
class Artifact:
    """The content of a file. weights: a read-only array over the mapped file, which it keeps open, or a copy.
    externals: what the code of Program.externals saved. state: the elements of Program.state, row-major."""

    program: Program
    walker: bytes
    objects: tuple[bytes, ...]
    weights: Bytes | Memory
    externals: tuple[bytes, ...] = ()
    state: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Header:
    """The first bytes of a file, checked. Sizes in bytes; digest: of the whole artifact, in hexadecimal digits;
    changed: when the file was, in nanoseconds."""

    head: int
    manifest: int
    weights: int
    manifest_digest: bytes
    code_digest: bytes
    weights_digest: bytes
    digest: str
    is_signed: bool
    changed: int


def write(
    path: str | os.PathLike[str],
    program: Program,
    walker: bytes,
    objects: Sequence[bytes],
    weights: Sequence[Bytes],
    externals: Sequence[bytes] = (),
    state: Sequence[bytes] = (),
    key: Key | None = None,
) -> str:
    """Writes an artifact, signed where there is a private key, and returns its digest. weights: in parts. The file at
    `path` is either the old one or the whole new one, whatever happens. Raises InvalidArtifact where it cannot be
    written."""
    spans, data = list[Span](), bytearray()
    for blob in (walker, *objects, *externals, *state):
        data += bytes(align(len(data)) - len(data))
        spans.append(Span(len(data), len(blob)))
        data += blob
    counts = (len(objects), len(externals), len(state))
    rest = iter(spans[1:])
    said = Manifest(program, spans[0], *(tuple(islice(rest, n)) for n in counts))
    manifest = json.dumps(records.plain(said), separators=(",", ":")).encode()
    begin = align(HEADER_BYTES + len(manifest))
    head_size = align(begin + len(data), _PAGE)
    code = bytes(begin - HEADER_BYTES - len(manifest)) + bytes(data) + bytes(head_size - begin - len(data))
    of_weights = sha256()
    for part in weights:
        of_weights.update(part.data)
    digests = (sha256(manifest).digest(), sha256(code).digest(), of_weights.digest())
    size = sum(part.nbytes for part in weights)
    stated = _HEADER.pack(MAGIC, VERSION, head_size, len(manifest), size, *digests)
    signature = bytes(signing.BYTES) if key is None else signing.sign(stated, key)
    header = _SIGNED.pack(stated, signature, bytes(32))
    header = header[:-32] + sha256(header[:-32]).digest()

    try:
        with replacing(path) as file:
            file.write(header)
            file.write(manifest)
            file.write(code)
            for part in weights:
                file.write(part.data)
    except OSError as error:
        raise InvalidArtifact(f"{path} cannot be written: {error.strerror or error}") from error
    return sha256(stated).hexdigest()


def read(
    path: str | os.PathLike[str],
    verify: bool = True,
    digest: str | None = None,
    key: Key | None = None,
    mapped: bool = True,
) -> Artifact:
    """Reads an artifact and checks that this machine can run it.

    verify: also check the weights, which reads all of them once; without it they are read as they are needed.
    digest: what `write` returned: no other artifact is read. key: a public key: only what its owner signed is read.
    mapped: whether weights stay in the file; without it they are read at once, and the file may change from here on.
    Whether the program contradicts itself is Module's to check.
    Raises InvalidArtifact for a file that cannot be read, is damaged, of another version, for another machine, or not
    the one that digest and key ask for, OutOfMemory where weights are copied and there is none for them.
    """
    path = os.fspath(path)
    try:
        with _opened(path) as file:
            header = _header(file, path, digest, key)
            manifest = _manifest(file, header, path)
            rest = file.read(header.head - HEADER_BYTES - header.manifest)
            weights = _mapped(file, header) if mapped else _copied(file, header, path)
            _check(path, "code", rest, header.code_digest)
            if verify:
                held = weights.array if isinstance(weights, Memory) else weights
                _check(path, "weights", held.data, header.weights_digest)
            if os.fstat(file.fileno()).st_mtime_ns != header.changed:
                raise _invalid(path, "was changed while it was read", "an artifact is replaced, never changed")
    except OSError as error:
        raise _unreadable(path, error) from error
    code = memoryview(rest)[-(HEADER_BYTES + header.manifest) % ALIGNMENT :]
    total = sum(max(0, s.size) for s in manifest.spans)
    outside = [s for s in manifest.spans if not 0 <= s.begin <= s.begin + s.size <= len(code)]
    if outside or total > len(code):
        raise _invalid(path, "contradicts itself", f"{outside or total} of {len(code)} bytes of code")
    if manifest.program.machine.arch != GPU:  # whether there is a GPU is asked when it runs
        cpu.require(manifest.program.machine, platform.machine(), path)

    def blobs(spans: Sequence[Span]) -> tuple[bytes, ...]:
        return tuple(bytes(code[s.begin : s.begin + s.size]) for s in spans)

    walker, *objects = blobs([manifest.walker, *manifest.objects])
    externals, state = blobs(manifest.externals), blobs(manifest.state)
    return Artifact(manifest.program, walker, tuple(objects), weights, externals, state)


def _mapped(file: BufferedReader, header: Header) -> Bytes:
    mapping = mmap.mmap(file.fileno(), header.head + header.weights, access=mmap.ACCESS_READ)
    return np.frombuffer(mapping, np.uint8, header.weights, header.head)


def _copied(file: BufferedReader, header: Header, path: str) -> Memory:
    memory = Memory(header.weights)
    file.seek(header.head)
    if (count := file.readinto(memory.array.data)) != header.weights:
        raise _invalid(path, "is not complete", f"{count} bytes of weights, expected {header.weights}")
    memory.seal()
    return memory


def inspect(path: str | os.PathLike[str], digest: str | None = None, key: Key | None = None) -> tuple[Header, Manifest]:
    """Return header and manifest of a file, as data: reads header and manifest and checks these; nothing else of the
    file is looked at, and the machine may be another one. digest, key, errors: as for `read`; a program that
    contradicts itself is refused too."""
    path = os.fspath(path)
    try:
        with _opened(path) as file:
            header = _header(file, path, digest, key)
            manifest = _manifest(file, header, path)
    except OSError as error:
        raise _unreadable(path, error) from error
    manifest.program.verify(len(manifest.objects), header.weights, len(manifest.externals))
    return header, manifest


def _opened(path: str) -> BufferedReader:
    """The file, open; without waiting for whoever might write to a pipe."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InvalidArtifact(f"{path} is not a file")
    return file


def _header(file: BufferedReader, path: str, digest: str | None, key: Key | None) -> Header:
    data, status = file.read(HEADER_BYTES), os.fstat(file.fileno())
    size = status.st_size
    magic, version = data[:8], int.from_bytes(data[8:12], "little")
    if len(data) < HEADER_BYTES:
        raise _invalid(path, "is not a renorm artifact", f"{size} bytes, expected at least {HEADER_BYTES}")
    if magic != MAGIC:
        raise _invalid(path, "is not a renorm artifact", f"it begins with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise InvalidArtifact(
            f"{path} has another version of the format",
            [f"version {version}, expected {VERSION}"],
            "compile the model with this version of renorm",
        )
    stated, signature, own = _SIGNED.unpack(data)
    _check(path, "header", data[:-32], own)
    _, _, head, manifest, weights, of_manifest, of_code, of_weights = _HEADER.unpack(stated)
    if size != head + weights:
        raise _invalid(path, "is not complete", f"{size} bytes, expected {head + weights}")
    if head % _PAGE or align(HEADER_BYTES + manifest) > head:
        raise _invalid(path, "contradicts itself", f"a manifest of {manifest} bytes in a head of {head}")
    found = sha256(stated).hexdigest()
    if digest is not None and digest.strip().lower() != found:
        raise InvalidArtifact(
            f"{path} is another artifact than the one asked for", [f"digest {found}, expected {digest}"]
        )
    if key is not None:
        signing.check(stated, signature, key, path)
    return Header(head, manifest, weights, of_manifest, of_code, of_weights, found, any(signature), status.st_mtime_ns)


def _manifest(file: BufferedReader, header: Header, path: str) -> Manifest:
    data = file.read(header.manifest)
    _check(path, "manifest", data, header.manifest_digest)
    try:
        return records.record(Manifest, json.loads(data))
    except (ValueError, RecursionError) as error:  # RecursionError: how the parser refuses lists in lists in lists
        raise _invalid(path, "has a manifest that cannot be read", f"{type(error).__name__}: {error}") from error


def _invalid(path: str, what: str, fact: str) -> InvalidArtifact:
    return InvalidArtifact(f"{path} {what}", [fact], _DAMAGED)


def _unreadable(path: str, error: OSError) -> InvalidArtifact:
    return InvalidArtifact(f"{path} cannot be read: {error.strerror or error}")


def _check(path: str, part: str, data: bytes | memoryview, expected: bytes) -> None:
    actual = sha256(data).digest()
    if actual != expected:
        raise _invalid(path, "is damaged", f"{part}: SHA-256 {actual.hex()}, expected {expected.hex()}")


assert _SIGNED.size == HEADER_BYTES
assert HEADER_BYTES % ALIGNMENT == 0
