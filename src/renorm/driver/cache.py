"""A directory of what was compiled before, shared by the processes of one user.

    file  ::= digest of the rest (32 bytes), key (64 hexadecimal digits), content
    place ::= first digit of the key / key

An entry is written under another name and takes its place at once, so readers see all of it or nothing; what does not
fit its digest or its key is removed. Each of the 16 parts is kept within its share of the size by whoever writes to it;
what was not used for the longest time goes first. Code from here is executed: the directory must belong to the user,
and nobody else may write to it. Nothing is ever unpickled, and no failure here fails a compilation.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from renorm.core.files import TEMPORARY, replacing

SWITCH, DIRECTORY, SIZE = "RENORM_CACHE", "RENORM_CACHE_DIR", "RENORM_CACHE_MIB"
DEFAULT_MIB = 512
_PARTS = "0123456789abcdef"
_KEY = re.compile("[0-9a-f]{64}")
_FRESH = 3600.0  # seconds for which an entry's time of use is not renewed, and a temporary file may still be written


@dataclass(frozen=True)
class Usage:
    """How much there is."""

    entries: int
    bytes: int


class Cache:
    """The entries below `root`. size: bytes that they may take. off: why it is not used, a sentence; it then has no
    entries and takes none."""

    def __init__(self, root: Path | None, size: int = DEFAULT_MIB << 20, off: str = ""):
        self.root, self.size, self.off = root, size, off
        self._room: dict[Path, int] = {}  # bytes that may be added to a part before its entries are listed again

    def get(self, key: str) -> bytes | None:
        """Return the content of an entry, None where there is none."""
        if self.root is None:
            return None
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                held, used = file.read(), os.fstat(file.fileno()).st_mtime
        except OSError:
            return None
        if hashlib.sha256(held[32:]).digest() != held[:32] or held[32:96] != key.encode():
            self.remove(key)
            return None
        if time.time() - used > _FRESH:
            with suppress(OSError):
                os.utime(path)
        return held[96:]

    def put(self, key: str, content: bytes) -> None:
        """Add or replace an entry, or do nothing where that is not possible."""
        if self.root is None:
            return
        path, rest = self._path(key), key.encode() + content
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with replacing(path, mode=0o600, is_durable=False) as file:
                file.write(hashlib.sha256(rest).digest() + rest)
        except OSError:  # read-only, full, or gone
            return
        self._room[path.parent] = self._room.get(path.parent, 0) - len(rest) - 32
        if self._room[path.parent] < 0:
            self._evict(path.parent)

    def remove(self, key: str) -> None:
        """Take an entry out, if it is there."""
        with suppress(OSError):
            os.unlink(self._path(key))

    def usage(self) -> Usage:
        found = [size for part in self._parts() for _, size, path in _files(part) if not path.name.startswith(".")]
        return Usage(len(found), sum(found))

    def clear(self) -> Usage:
        """Remove all entries, and nothing else that may lie there. Return what there was."""
        before = self.usage()
        for part in self._parts():
            for _, _, path in _files(part):
                with suppress(OSError):
                    os.unlink(path)
            with suppress(OSError):
                os.rmdir(part)
        return before

    def _parts(self) -> list[Path]:
        return [] if self.root is None else [self.root / digit for digit in _PARTS]

    def _path(self, key: str) -> Path:
        assert self.root is not None
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not a key")
        return self.root / key[0] / key

    def _evict(self, part: Path) -> None:
        """Bring a part back to its share of the size. Others may do the same at the same time: whoever finds a file
        gone goes on. Listing thousands of entries takes longer than adding one: until a sixteenth of the share has been
        added, or the share is full, it is not done again, so that n processes may leave n sixteenths too many."""
        files, now, share = sorted(_files(part)), time.time(), self.size // len(_PARTS)
        kept = sum(size for _, size, _ in files)
        for used, size, path in files:
            is_temporary = path.name.startswith(".")
            if now - used > _FRESH if is_temporary else kept > share:
                with suppress(OSError):
                    os.unlink(path)
                kept -= size
        self._room[part] = min(share - kept, share // 16)


def default() -> Cache:
    """Return the cache that the environment asks for: see SWITCH, DIRECTORY and SIZE, and docs/using.md."""
    if os.environ.get(SWITCH, "1").strip().lower() in ("0", "off", "no", "false"):
        return Cache(None, off=f"{SWITCH} says so")
    text = os.environ.get(SIZE, "").strip()
    if text and not (text.isdecimal() and len(text) < 10):
        return Cache(None, off=f"{SIZE} is {text[:20]!r}, not a number of MiB")
    named = os.environ.get(DIRECTORY, "").strip()
    shared = os.environ.get("XDG_CACHE_HOME", "").strip()
    try:
        base = Path(shared) if os.path.isabs(shared) else Path.home() / ".cache"
        root = Path(named).absolute() if named else base / "renorm"
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = root.stat()
    except (OSError, RuntimeError) as error:
        return Cache(None, off=f"there is no directory for it: {error}")
    if found.st_uid != os.geteuid():
        return Cache(None, off=f"{root} belongs to another user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return Cache(None, off=f"others may write to {root}: chmod go-w it")
    return Cache(root, int(text or DEFAULT_MIB) << 20)


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """(time of last use, bytes, path) of each entry, and of each that is being written."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not (_KEY.fullmatch(entry.name) or TEMPORARY.fullmatch(entry.name)):
                continue
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                yield found.st_mtime, found.st_size, Path(entry.path)
