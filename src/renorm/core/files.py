"""Files that are written whole, or not at all; and NumPy's files of arrays, which may be damaged."""

from __future__ import annotations

import atexit
import errno
import os
import re
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO, Any

import numpy as np

from renorm.core.errors import InvalidInput
from renorm.core.locks import Leaf

TEMPORARY = re.compile(r"\.renorm\.[0-9]+\.[0-9a-f]{8}")
"""The name of a file while it is written: process and random digits. One of a process that was killed stays."""

_OPEN = re.compile("/dev/(std|fd/)|/proc/")  # files that a process has open already

_unfinished = set[str]()
_opening = Leaf("a file that is begun")
_is_ending = False
_END_S = 1.0  # that the end of the interpreter waits for files that are being begun


def _at_exit() -> None:
    """Take away what daemon threads have begun, who are lost in the middle of it when the interpreter ends."""
    global _is_ending
    _is_ending = True
    if _opening.acquire(timeout=_END_S):  # from here on nobody begins one, and all that were begun are there
        _opening.release()
    for path in [p for p in list(_unfinished) if f".renorm.{os.getpid()}." in p]:  # not those of a parent by fork()
        with suppress(OSError):
            os.unlink(path)


def _is_lost() -> bool:
    """Return whether this is a daemon thread at the end of the interpreter, which nobody hears any more."""
    return _is_ending and threading.current_thread() is not threading.main_thread()


atexit.register(_at_exit)


def _begun(path: str, flags: int, mode: int) -> int:
    with _opening:
        if _is_lost():
            raise SystemExit
        return os.open(path, flags, mode)


def name_of(path: str | bytes | os.PathLike[Any]) -> str:
    """Return a path as text. Raises OSError where no file may be called that, InvalidInput for what is no path."""
    try:
        name = os.fsdecode(path)
        with suppress(OSError):
            os.lstat(name)
    except TypeError as error:
        raise InvalidInput(f"{path!r} is no path", [str(error)]) from error
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), path) from error
    return name


@contextmanager
def replacing(path: str | os.PathLike[str], mode: int = 0o666, is_durable: bool = True) -> Generator[IO[bytes]]:
    """Give a file to write, which takes the place of `path` when the block has ended without an error: at once, so that
    readers see the old file or the whole new one. Else nothing is changed.

    mode: permissions of a new file, less those that the umask takes; an old one hands its own on. is_durable: whether
    the bytes are on the disk before the old file goes. What a link points to is replaced, not the link; what is no
    regular file, as /dev/stdout, is written as it is. Raises OSError that names `path`.
    """
    path = name_of(path)
    place = os.path.realpath(path)
    temporary = os.path.join(os.path.dirname(place), f".renorm.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        old = os.stat(path) if os.path.exists(path) else None
        if _OPEN.match(os.path.abspath(path)) or (old is not None and not stat.S_ISREG(old.st_mode)):
            with open(path, "wb") as file:
                yield file
            return
        _unfinished.add(temporary)
        try:
            with open(temporary, "x+b", opener=lambda name, flags: _begun(name, flags, mode)) as file:
                if old is not None:
                    os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
                yield file
                file.flush()
                if is_durable:
                    os.fsync(file.fileno())
            os.replace(temporary, place)
        finally:
            with suppress(OSError):  # it is not there once it has taken the place of the old file
                os.unlink(temporary)
            _unfinished.discard(temporary)
    except OSError as error:
        if _is_lost():
            raise SystemExit from error
        if error.errno is None or error.filename not in (None, temporary):
            raise
        raise OSError(error.errno, os.strerror(error.errno), path) from error


def arrays_of(path: str | os.PathLike[str]) -> np.ndarray[Any, Any] | dict[str, np.ndarray[Any, Any]]:
    """Return the array of a .npy file, mapped, or those of a .npz file by their names. Raises InvalidInput."""
    try:
        with open(path, "rb") as file:
            if file.peek(6)[:6] == np.lib.format.MAGIC_PREFIX:
                return np.lib.format.open_memmap(path, "r")
            with np.load(file, allow_pickle=False) as held:
                return dict(held)
    except Exception as error:  # of damaged files NumPy, zipfile, zlib and tokenize each raise their own
        raise InvalidInput(f"{os.fsdecode(path)}: {error}", do="give .npy or .npz files") from error
