"""The source files of this package as a digest: a version that also changes while somebody works on them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from functools import cache

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A file that changed so recently may have been imported before it changed: then the digest is not of what runs.
_SETTLED = 2.0  # seconds


@cache
def digest(*packages: str) -> str:
    """Equal where the files of these packages of renorm (all, where none is named) are equal; 64 hexadecimal digits.
    Taken at the first call, so call it when what it stands for has just been imported. Empty where it would not tell:
    the files cannot be read, or have changed in the last seconds."""
    found, newest = hashlib.sha256(), 0.0
    try:
        for path in sorted(p for folder in packages or ("",) for p in _sources(os.path.join(_PACKAGE, folder))):
            with open(path, "rb", buffering=0) as file:
                state, text = os.fstat(file.fileno()), file.readall()
            newest = max(newest, state.st_mtime)
            name = path[len(_PACKAGE) + 1 :].replace(os.sep, "/")
            found.update(name.encode() + b"\0" + hashlib.sha256(text).digest())
    except OSError:
        return ""
    return found.hexdigest() if 0.0 < newest < time.time() - _SETTLED else ""


def _sources(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.path
            elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                yield from _sources(entry.path)
