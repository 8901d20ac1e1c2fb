"""The source files of this package as a digest: a version that also changes while somebody works on them."""

from __future__ import annotations

import hashlib
import os
import time
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
        for folder in packages or ("",):
            for path in _sources(os.path.join(_PACKAGE, folder)):
                with open(path, "rb") as file:
                    text, newest = file.read(), max(newest, os.fstat(file.fileno()).st_mtime)
                name = os.path.relpath(path, _PACKAGE).replace(os.sep, "/")
                found.update(name.encode() + b"\0" + hashlib.sha256(text).digest())
    except OSError:
        return ""
    return found.hexdigest() if 0.0 < newest < time.time() - _SETTLED else ""


def _sources(folder: str) -> list[str]:
    return sorted(os.path.join(at, f) for at, _, files in os.walk(folder) for f in files if f.endswith(".py"))
