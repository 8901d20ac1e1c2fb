"""The source files of this package as a digest: a version that also changes while somebody works on them."""

from __future__ import annotations

import hashlib
import time
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
# A file that changed so recently may have been imported before it changed: then the digest is not of what runs.
_SETTLED = 2.0  # seconds


@cache
def digest(*packages: str) -> str:
    """Equal where the files of these packages of renorm (all, where none is named) are equal; 64 hexadecimal digits.
    Taken at the first call, so call it when what it stands for has just been imported. Empty where it would not tell:
    the files cannot be read, or have changed in the last seconds."""
    found, newest, count = hashlib.sha256(), 0.0, 0
    try:
        for folder in [_PACKAGE / name for name in packages] or [_PACKAGE]:
            for path in sorted(folder.rglob("*.py")):
                found.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
                found.update(hashlib.sha256(path.read_bytes()).digest())
                newest, count = max(newest, path.stat().st_mtime), count + 1
    except OSError:
        return ""
    return found.hexdigest() if count and newest < time.time() - _SETTLED else ""
