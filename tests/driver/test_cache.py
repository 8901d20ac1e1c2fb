"""The directory of compiled code: what is put in comes out, or nothing does, whatever happens to the files."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.random_numbers import RNG

from renorm.driver import cache as caches
from renorm.driver.cache import Cache, Usage

ROOT = Path(__file__).parents[2]


def key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def keys(part: str) -> list[str]:
    """Keys whose entries share one part."""
    return [k for k in (key(str(i)) for i in range(2000)) if k[0] == part]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def files(cache: Cache) -> list[Path]:
    assert cache.root is not None
    return [p for p in cache.root.rglob("*") if p.is_file()]


def test_what_was_put_in_comes_out(cache: Cache) -> None:
    contents = {key(str(i)): RNG.bytes(int(n)) for i, n in enumerate([0, 1, 31, 96, 5000, *RNG.integers(0, 9999, 20)])}
    assert cache.get(key("0")) is None
    for k, content in contents.items():
        cache.put(k, content)
    assert {k: cache.get(k) for k in contents} == contents
    cache.put(key("0"), b"another")
    assert cache.get(key("0")) == b"another"
    assert cache.usage().entries == len(contents)
    assert all(p.stat().st_mode & 0o077 == 0 for p in files(cache))  # nobody else's business
    cache.remove(key("0"))
    assert cache.get(key("0")) is None
    assert cache.clear().entries == len(contents) - 1
    assert cache.usage() == Usage(0, 0)


def test_what_is_no_key_is_refused(cache: Cache) -> None:
    for name in ("", "../../etc/passwd", key("x").upper(), key("x")[:-1]):
        with pytest.raises(ValueError, match="not a key"):
            cache.put(name, b"")


DAMAGES = {
    "cut": lambda held, rng: held[: rng.integers(0, len(held))],
    "flipped": lambda held, rng: bytes(b ^ (i == at) for at in [rng.integers(len(held))] for i, b in enumerate(held)),
    "garbage": lambda held, rng: rng.bytes(200),
    "longer": lambda held, rng: held + b"\0",
    "zeros": lambda held, rng: bytes(len(held)),
    "empty": lambda held, rng: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entries_are_removed(cache: Cache, damage: str) -> None:
    for i in range(20):
        k = key(str(i))
        cache.put(k, RNG.bytes(100))
        (path,) = files(cache)
        path.write_bytes(DAMAGES[damage](path.read_bytes(), RNG))
        assert cache.get(k) is None
        assert files(cache) == []


def test_an_entry_under_the_key_of_another_is_none(cache: Cache) -> None:
    first, second = keys("a")[:2]
    cache.put(first, b"first")
    (path,) = files(cache)
    path.rename(path.with_name(second))
    assert cache.get(second) is None


def test_the_size_is_bounded_and_what_was_used_last_stays(tmp_path: Path) -> None:
    cache, content, now = Cache(tmp_path, size=16 * 1000), bytes(104), time.time()  # 5 entries of 200 bytes in a part
    first, second, third, *more = keys("7")
    for age, k in enumerate((third, second, first)):
        cache.put(k, content)
        os.utime(tmp_path / "7" / k, (0, now - 100_000 + age))
    assert cache.get(third) == content  # is now the one used last
    for k in more[:3]:
        cache.put(k, content)
    assert [cache.get(k) is not None for k in (first, second, third)] == [True, False, True]
    for k in more:
        cache.put(k, content)
    assert cache.usage() == Usage(5, 1000)
    cache.put(first, bytes(2000))  # larger than its share
    assert cache.usage().bytes <= 1000


def test_files_of_writers_that_died_are_removed_and_of_others_not(cache: Cache) -> None:
    k = keys("3")[0]
    cache.put(k, b"x")
    assert cache.root is not None
    dead, alive = cache.root / "3" / ".renorm.1.0000dead", cache.root / "3" / ".renorm.2.0000beef"
    for path in (dead, alive):
        path.write_bytes(b"half an en")
    os.utime(dead, (0, time.time() - 100_000))
    later = Cache(cache.root)
    later.put(k, b"y")
    assert (dead.exists(), alive.exists(), later.get(k)) == (False, True, b"y")


def test_entries_are_not_listed_for_each_that_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []
    files_of = caches._files
    monkeypatch.setattr(caches, "_files", lambda part: (listed.append(part), files_of(part))[1])
    cache, (k, *more) = Cache(tmp_path, size=16 * 160_000), keys("a")
    cache.put(k, bytes(104))
    assert len(listed) == 1
    for k in more[:49]:  # of 200 bytes each: 9,800 of the 10,000 that are a sixteenth of the share
        cache.put(k, bytes(104))
    assert len(listed) == 1
    for k in more[49:51]:
        cache.put(k, bytes(104))
    assert len(listed) == 2
    for i in range(100):
        cache.put(more[i % len(more)], bytes(9_904))
    assert cache.usage().bytes <= 160_000


def test_files_of_others_stay(tmp_path: Path) -> None:
    """Whoever names a directory that is in use must not lose what is there."""
    cache, k = Cache(tmp_path, size=0), keys("5")[0]
    others = [tmp_path / "5" / name for name in ("notes.txt", ".hidden", k[:-1], f"{k}.o")]
    others[0].parent.mkdir()
    for path in others:
        path.write_text("of somebody else")
        os.utime(path, (0, time.time() - 100_000))
    cache.put(k, b"x")
    assert cache.usage() == cache.clear() == Usage(0, 0)
    assert sorted(files(cache)) == sorted(others)


def test_a_directory_that_takes_nothing_is_no_failure(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.root is not None
    a, b = keys("c")[0], keys("d")[0]
    (cache.root / "c").write_text("in the way")
    cache.put(a, b"x")
    assert cache.get(a) is None

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.put(b, b"x")
    assert cache.get(b) is None
    assert files(cache) == [cache.root / "c"]  # nothing half written either


BUSY = """
import hashlib, random, sys
from pathlib import Path
from renorm.driver.cache import Cache
cache, rng = Cache(Path(sys.argv[1]), size=16 * 20_000), random.Random(int(sys.argv[2]))
held = {hashlib.sha256(b"%d" % i).hexdigest(): b"%d" % i * (i + 1) for i in range(200)}
found = 0
for _ in range(3000):
    key = rng.choice(list(held))
    if rng.random() < 0.5:
        cache.put(key, held[key])
    else:
        got = cache.get(key)
        assert got in (None, held[key]), (key, got)
        found += got is not None
    if rng.random() < 0.01:
        cache.clear()
assert found
"""


def test_processes_share_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUSY, str(tmp_path)]
    both = [subprocess.Popen([*command, str(i)], cwd=ROOT, stderr=subprocess.PIPE) for i in range(2)]
    assert [p.communicate(timeout=100)[1] for p in both] == [b"", b""]
    assert [p.returncode for p in both] == [0, 0]


# --- which directory --------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (caches.SWITCH, caches.DIRECTORY, caches.SIZE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_the_directory_is_the_users(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert caches.default().root == asked / "home" / ".cache" / "renorm"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/do/not/count")
    assert caches.default().root == asked / "home" / ".cache" / "renorm"
    monkeypatch.setenv("XDG_CACHE_HOME", str(asked / "shared"))
    assert caches.default().root == asked / "shared" / "renorm"
    monkeypatch.setenv(caches.DIRECTORY, str(asked / "own"))
    monkeypatch.setenv(caches.SIZE, "3")
    chosen = caches.default()
    assert (chosen.root, chosen.size) == (asked / "own", 3 << 20)
    assert (asked / "own").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv(caches.SWITCH, "0")
    assert caches.default().root is None


def test_a_directory_that_is_not_safe_is_not_used(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = asked / "own"
    monkeypatch.setenv(caches.DIRECTORY, str(own))
    own.mkdir()
    own.chmod(0o770)
    assert "others may write" in caches.default().off
    own.chmod(0o755)
    assert caches.default().off == ""
    monkeypatch.setattr(os, "geteuid", lambda: own.stat().st_uid + 1)
    assert "belongs to another user" in caches.default().off
    monkeypatch.setenv(caches.DIRECTORY, str(Path(__file__) / "below a file"))
    assert "no directory" in caches.default().off
    for text in ("much", "-1", "1.5", "9" * 5000):
        monkeypatch.setenv(caches.SIZE, text)
        assert "not a number of MiB" in caches.default().off


def test_without_a_directory_nothing_is_kept() -> None:
    nothing = Cache(None, off="because")
    nothing.put(key("x"), b"x")
    assert nothing.get(key("x")) is None
    assert nothing.usage() == nothing.clear() == Usage(0, 0)
