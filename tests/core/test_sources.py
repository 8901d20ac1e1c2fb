"""The digest of the sources: another one for every change, and none where it would not tell."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from renorm.core import sources


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a/x.py", "a/deep/y.py", "b/z.py", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    age(tmp_path)
    monkeypatch.setattr(sources, "_PACKAGE", str(tmp_path))
    return tmp_path


def age(package: Path, seconds: float = 100.0) -> None:
    for path in package.rglob("*"):
        os.utime(path, (0, time.time() - seconds))


def digest(*packages: str) -> str:
    sources.digest.cache_clear()
    try:
        return sources.digest(*packages)
    finally:
        sources.digest.cache_clear()


def test_every_change_counts_and_nothing_else(package: Path) -> None:
    seen = [digest()]
    (package / "a" / "deep" / "y.py").write_text("another")
    age(package)
    seen.append(digest())
    (package / "b" / "z.py").rename(package / "b" / "zz.py")
    seen.append(digest())
    (package / "b" / "new.py").touch()
    age(package)
    seen.append(digest())
    assert len({*seen}) == 4
    a = digest("a")
    (package / "b" / "notes.txt").write_text("no source")
    (package / "b" / "new.py").unlink()
    age(package, 50.0)
    assert digest("a") == a != digest("b") != digest("a", "b")
    assert digest() == seen[2]


def test_there_is_none_where_it_would_not_tell(package: Path) -> None:
    assert digest("missing") == ""
    age(package, 0.0)
    assert digest() == ""
    age(package, -1000.0)
    assert digest() == ""
