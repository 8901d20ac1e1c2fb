"""Files of models: opened, ordinary ones of a size that is allowed and nothing else, and replaced."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from renorm.core.errors import InvalidModel
from renorm.core.files import replacing
from renorm.core.limits import Limits

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}

Buffer = bytes | mmap.mmap


def called(source: Any, otherwise: str) -> str:
    """Return what errors call a source: the name of a file, otherwise as given."""
    return os.path.basename(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else otherwise


def content(path: str | os.PathLike[str], limits: Limits, is_mapped: bool = True) -> Buffer:
    """Return a file's bytes: mapped, where it is one that can be. Raises InvalidModel where it cannot be read,
    LimitExceeded."""
    try:
        with opened(path, limits) as file:
            if is_mapped:
                with suppress(OSError, ValueError):  # an empty file, one of a system that maps none
                    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        at = Path(path)
        near = sorted(p.name for p in at.parent.glob(f"*{at.suffix}"))[:5] if at.parent.is_dir() else []
        raise InvalidModel(
            f"{path}: {getattr(error, 'strerror', None) or error}",
            [f"in that directory: {', '.join(near)}"] if near else [],
        ) from error


def opened(path: str | os.PathLike[str], limits: Limits) -> BinaryIO:
    """Return an ordinary file. What is opened is what was looked at: nobody can put another file there in between, and
    a pipe is not waited for. Raises OSError, InvalidModel for what is no ordinary file, LimitExceeded."""
    label = called(path, "")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            kind = _KINDS.get(stat.S_IFMT(state.st_mode), "no ordinary file")
            raise InvalidModel(
                f"{label}: it is {kind}, and models are read from ordinary files",
                do="write it to a file first, or give the bytes themselves",
            )
        limits.check(label, [("file_bytes", state.st_size, "")])
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Generator[IO[bytes]]:
    """Give a file to write, which takes the place of `path` whole or not at all. Raises InvalidModel where the system
    refuses."""
    try:
        with replacing(path) as file:
            yield file
    except OSError as error:
        why = f"cannot write {error.filename or path}: {error.strerror or error}"
        raise InvalidModel(why, do="choose a directory that can be written, on a disk with room") from error
