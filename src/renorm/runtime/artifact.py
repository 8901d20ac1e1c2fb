"""One file that holds a compiled network: code, weights, and the manifest that says what they are.

    offset  bytes
    0       8       magic; a transfer in text mode breaks it
    8       4       version of the format
    12      4       0; 1 for a network in parts (runtime.steps)
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

The manifest of a network in parts is its plan, with the digests of the artifacts that lie, each at a multiple of 4096,
where weights lie else; there is no code beside these.

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
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BufferedReader
from itertools import islice
from typing import Any

import numpy as np

from renorm.core import records
from renorm.core.errors import InvalidArtifact, InvalidInput
from renorm.core.files import name_of, replacing
from renorm.runtime import cpu, signing
from renorm.runtime.launches import GPU
from renorm.runtime.memory import Memory
from renorm.runtime.program import ALIGNMENT, Program, align
from renorm.runtime.signing import Key
from renorm.runtime.steps import Plan

MAGIC = b"\x89RENORM\n"
VERSION = 16
HEADER_BYTES = 256
_HEADER = struct.Struct("<8sIIQQQ8x32s32s32s")  # what the digest is of
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
class Held:
    """An artifact in the weights of another one: where it begins there, its size, and its digest."""

    is_row = True  # in JSON

    begin: int
    size: int
    digest: str


@dataclass(frozen=True)
class PlanManifest:
    """The manifest of a network in parts. held: the artifacts of each part, in the order in which they are tried."""

    plan: Plan
    held: tuple[tuple[Held, ...], ...]


@dataclass(frozen=True)
class Encoded:
    """An artifact as what stands in its file, one after the other, and its digest."""

    blobs: tuple[Any, ...]
    digest: str

    @property
    def size(self) -> int:
        return sum(memoryview(b).nbytes for b in self.blobs)

    def __bytes__(self) -> bytes:
        return b"".join(memoryview(b).cast("B") for b in self.blobs)


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
    """The first bytes of a file, checked. is_plan: of a network in parts. Sizes in bytes; digest: of the whole
    artifact, in hexadecimal digits; changed: when the file was, in nanoseconds."""

    is_plan: bool
    head: int
    manifest: int
    weights: int
    manifest_digest: bytes
    code_digest: bytes
    weights_digest: bytes
    digest: str
    is_signed: bool
    changed: int


def encoded(
    program: Program,
    walker: bytes,
    objects: Sequence[bytes],
    weights: Sequence[Bytes],
    externals: Sequence[bytes] = (),
    state: Sequence[bytes] = (),
    key: Key | None = None,
) -> Encoded:
    """Return an artifact, signed where there is a private key. weights: in parts."""
    spans, data = list[Span](), bytearray()
    for blob in (walker, *objects, *externals, *state):
        data += bytes(align(len(data)) - len(data))
        spans.append(Span(len(data), len(blob)))
        data += blob
    counts = (len(objects), len(externals), len(state))
    rest = iter(spans[1:])
    said = Manifest(program, spans[0], *(tuple(islice(rest, n)) for n in counts))
    return _sealed(said, bytes(data), weights, key)


def encoded_plan(plan: Plan, parts: Sequence[Sequence[Encoded]], key: Key | None = None) -> Encoded:
    """Return the artifact of a network in parts. parts: the artifacts of each."""
    at, blobs, held = 0, list[Any](), list[tuple[Held, ...]]()
    for artifacts in parts:
        places = list[Held]()
        for one in artifacts:
            places.append(Held(at, one.size, one.digest))
            padding = align(one.size, _PAGE) - one.size
            blobs += [*one.blobs, bytes(padding)]
            at += one.size + padding
        held.append(tuple(places))
    return _sealed(PlanManifest(plan, tuple(held)), b"", [np.frombuffer(b, np.uint8) for b in blobs], key)


def _sealed(said: Manifest | PlanManifest, data: bytes, weights: Sequence[Bytes], key: Key | None) -> Encoded:
    manifest = json.dumps(records.plain(said), separators=(",", ":")).encode()
    begin = align(HEADER_BYTES + len(manifest))
    head_size = align(begin + len(data), _PAGE)
    code = bytes(begin - HEADER_BYTES - len(manifest)) + data + bytes(head_size - begin - len(data))
    of_weights = sha256()
    for part in weights:
        of_weights.update(part.data)
    digests = (sha256(manifest).digest(), sha256(code).digest(), of_weights.digest())
    size = sum(part.nbytes for part in weights)
    is_plan = isinstance(said, PlanManifest)
    stated = _HEADER.pack(MAGIC, VERSION, is_plan, head_size, len(manifest), size, *digests)
    signature = bytes(signing.BYTES) if key is None else signing.sign(stated, key)
    header = _SIGNED.pack(stated, signature, bytes(32))
    header = header[:-32] + sha256(header[:-32]).digest()
    return Encoded((header, manifest, code, *(part.data for part in weights)), sha256(stated).hexdigest())


def store(path: str | os.PathLike[str], made: Encoded) -> str:
    """Write an artifact to a file, and return its digest. The file at `path` is either the old one or the whole new
    one, whatever happens. Raises InvalidArtifact where it cannot be written."""
    try:
        with replacing(path) as file:
            for blob in made.blobs:
                file.write(blob)
    except OSError as error:
        raise InvalidArtifact(f"{os.fsdecode(path)} cannot be written: {error.strerror or error}") from error
    return made.digest


def read(
    path: str | os.PathLike[str],
    verify: bool = True,
    digest: str | None = None,
    key: Key | None = None,
    mapped: bool = True,
    held: tuple[int, int] = (0, 0),
) -> Artifact:
    """Reads an artifact and checks that this machine can run it.

    verify: also check the weights, which reads all of them once; without it they are read as they are needed.
    digest: what `store` returned: no other artifact is read. key: a public key: only what its owner signed is read.
    mapped: whether weights stay in the file; without it they are read at once, and the file may change from here on.
    held: where it begins in a file that holds several, and its size; 0: it is all of the file.
    Whether the program contradicts itself is Module's to check.
    Raises InvalidArtifact for a file that cannot be read, is damaged, of another version, for another machine, or not
    the one that digest and key ask for, OutOfMemory where weights are copied and there is none for them.
    """
    with _opened(path, held[0]) as (path, file):
        header = _header(file, path, digest, key, held[1])
        manifest = _manifest(file, header, path)
        if isinstance(manifest, PlanManifest):
            raise _invalid(path, "contradicts itself", "a network in parts, where one program is expected")
        rest = file.read(header.head - HEADER_BYTES - header.manifest)
        weights = _mapped(file, header, held[0]) if mapped else _copied(file, header, path, held[0])
        _check(path, "code", rest, header.code_digest)
        if verify:
            array = weights.array if isinstance(weights, Memory) else weights
            _check(path, "weights", array.data, header.weights_digest)
        if os.fstat(file.fileno()).st_mtime_ns != header.changed:
            raise _invalid(path, "was changed while it was read", "an artifact is replaced, never changed")
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


def _mapped(file: BufferedReader, header: Header, begin: int) -> Bytes:
    before = begin % mmap.ALLOCATIONGRANULARITY
    size = before + header.head + header.weights
    mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=begin - before)
    return np.frombuffer(mapping, np.uint8, header.weights, before + header.head)


def _copied(file: BufferedReader, header: Header, path: str, begin: int) -> Memory:
    memory = Memory(header.weights)
    file.seek(begin + header.head)
    if (count := file.readinto(memory.array.data)) != header.weights:
        raise _invalid(path, "is not complete", f"{count} bytes of weights, expected {header.weights}")
    memory.seal()
    return memory


def is_plan(path: str | os.PathLike[str], held: tuple[int, int] = (0, 0)) -> bool:
    """Return whether a file claims to be a network in parts; of one that is no artifact, False."""
    with _opened(path, held[0]) as (_, file):
        data = file.read(16)
    return data[:8] == MAGIC and data[12:16] != bytes(4)


def inspect(
    path: str | os.PathLike[str], digest: str | None = None, key: Key | None = None, held: tuple[int, int] = (0, 0)
) -> tuple[Header, Manifest | PlanManifest]:
    """Return header and manifest of a file, as data: reads and checks these; nothing else of the file is looked at, and
    the machine may be another one. Artifacts of parts are held by places in the file, and are checked when they are
    read. digest, key, held, errors: as for `read`; what contradicts itself is refused too."""
    with _opened(path, held[0]) as (path, file):
        header = _header(file, path, digest, key, held[1])
        manifest = _manifest(file, header, path)
        if isinstance(manifest, PlanManifest):
            _check(path, "padding", file.read(header.head - HEADER_BYTES - header.manifest), header.code_digest)
            _check_places(file, manifest, header, path)
    if isinstance(manifest, Manifest):
        manifest.program.verify(len(manifest.objects), header.weights, len(manifest.externals))
        return header, manifest
    plan = manifest.plan
    if fault := plan.fault() or ("" if len(plan.parts) == len(manifest.held) else "other parts than it holds"):
        raise _invalid(path, "contradicts itself", fault)
    base = held[0] + header.head
    places = tuple(tuple(replace(h, begin=base + h.begin) for h in of) for of in manifest.held)
    return header, PlanManifest(plan, places)


def _check_places(file: BufferedReader, manifest: PlanManifest, header: Header, path: str) -> None:
    """Raise InvalidArtifact where artifacts of parts do not lie one after the other, as `encoded_plan` writes them.
    file: read up to the first of them."""
    at, base = 0, file.tell()
    for one in (one for of in manifest.held for one in of):
        end = one.begin + align(max(0, one.size), _PAGE)
        if one.begin != at or end > header.weights:
            raise _invalid(path, "contradicts itself", f"{one} of {header.weights} bytes")
        file.seek(base + one.begin + one.size)
        if any(file.read(end - one.begin - one.size)):
            raise _invalid(path, "is damaged", f"bytes behind {one} are not zero")
        at = end
    if at != header.weights:
        raise _invalid(path, "contradicts itself", f"{at} bytes in parts of {header.weights}")


def programs(
    path: str | os.PathLike[str], digest: str | None = None, key: Key | None = None, held: tuple[int, int] = (0, 0)
) -> tuple[Header, Plan | None, list[Program]]:
    """Return the header of a file, its plan where it is a network in parts, and all programs that it holds, as data."""
    header, said = inspect(path, digest, key, held)
    if isinstance(said, Manifest):
        return header, None, [said.program]
    inner = [programs(path, h.digest, None, (h.begin, h.size))[2] for of in said.held for h in of]
    return header, said.plan, [program for of in inner for program in of]


@contextmanager
def _opened(path: str | os.PathLike[str], begin: int) -> Generator[tuple[str, BufferedReader]]:
    """Give a path as text and its file, open at a place; without waiting for whoever might write to a pipe. Raises
    InvalidArtifact where it cannot be read."""
    try:
        name = name_of(path)
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidArtifact(f"{name} is not a file")
            file.seek(begin)
            yield name, file
    except OSError as error:
        raise InvalidArtifact(f"{os.fsdecode(path)} cannot be read: {error.strerror or error}") from error


def _header(file: BufferedReader, path: str, digest: str | None, key: Key | None, size: int) -> Header:
    """size: of the artifact; 0: that of the file."""
    data, status = file.read(HEADER_BYTES), os.fstat(file.fileno())
    size = size or status.st_size
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
    _, _, kind, head, manifest, weights, of_manifest, of_code, of_weights = _HEADER.unpack(stated)
    if size != head + weights:
        raise _invalid(path, "is not complete", f"{size} bytes, expected {head + weights}")
    if head % _PAGE or align(HEADER_BYTES + manifest) > head:
        raise _invalid(path, "contradicts itself", f"a manifest of {manifest} bytes in a head of {head}")
    found = sha256(stated).hexdigest()
    if digest is not None and not isinstance(digest, str):
        raise InvalidInput(f"digest={digest!r}", ["expected 64 hexadecimal digits, or None for any artifact"])
    if digest is not None and digest.strip().lower() != found:
        raise InvalidArtifact(
            f"{path} is another artifact than the one asked for", [f"digest {found}, expected {digest}"]
        )
    if key is not None:
        signing.check(stated, signature, key, path)
    digests = (of_manifest, of_code, of_weights)
    return Header(kind == 1, head, manifest, weights, *digests, found, any(signature), status.st_mtime_ns)


def _manifest(file: BufferedReader, header: Header, path: str) -> Manifest | PlanManifest:
    data = file.read(header.manifest)
    _check(path, "manifest", data, header.manifest_digest)
    try:
        said = json.loads(data)
        return records.record(PlanManifest, said) if header.is_plan else records.record(Manifest, said)
    except (ValueError, RecursionError) as error:  # RecursionError: how the parser refuses lists in lists in lists
        raise _invalid(path, "has a manifest that cannot be read", f"{type(error).__name__}: {error}") from error


def _invalid(path: str, what: str, fact: str) -> InvalidArtifact:
    return InvalidArtifact(f"{path} {what}", [fact], _DAMAGED)


def _check(path: str, part: str, data: bytes | memoryview, expected: bytes) -> None:
    actual = sha256(data).digest()
    if actual != expected:
        raise _invalid(path, "is damaged", f"{part}: SHA-256 {actual.hex()}, expected {expected.hex()}")


assert _SIGNED.size == HEADER_BYTES
assert HEADER_BYTES % ALIGNMENT == 0
