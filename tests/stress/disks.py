"""Disks that are full, broken or read-only: a file is the old one or the whole new one, and one error says why."""

from __future__ import annotations

import errno
import io
import os
import random
import resource
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
from click.testing import CliRunner
from tests.frontends.models import model, running
from tests.stress.attack import attack

import renorm
from renorm.cli import main
from renorm.codegen.llvm import subtarget
from renorm.core import files
from renorm.driver.cache import DIRECTORY, SWITCH, Cache
from renorm.driver.draws import Draw, save_draws
from renorm.errors import RenormError
from renorm.frontends import onnx as onnx_files

OLD = b"what was there before"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def _fail(code: int) -> NoReturn:
    raise OSError(code, os.strerror(code))


class _Raw(io.FileIO):
    """A file on a disk that takes so many bytes more."""

    def __init__(self, path: str, mode: str, opener: Any, disk: _Disk):
        super().__init__(path, mode.replace("b", ""), opener=opener)
        self._disk = disk

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        taken = min(len(view), self._disk.left)
        self._disk.left -= taken
        return super().write(view[:taken]) if taken or not view else _fail(self._disk.code)

    def close(self) -> None:
        is_open = not self.closed
        super().close()
        if is_open and self._disk.at == "close":
            _fail(self._disk.code)


class _Disk:
    """Stands in the place of `os`, and of `open`, in renorm.core.files. at: which call fails with `code`; "write": that
    after `left` bytes."""

    def __init__(self, at: str, code: int, left: int):
        self.at, self.code, self.left = at, code, left if at == "write" else 1 << 60

    def opened(self, path: str, mode: str, opener: Any = None) -> Any:
        """Python's open."""
        raw = _Raw(path, mode, opener, self)
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    def __getattr__(self, name: str) -> Any:
        called: Any = getattr(os, name)
        if name != self.at:
            return called

        def refused(*_: Any, **__: Any) -> NoReturn:
            _fail(self.code)

        return refused


@contextmanager
def _broken(rng: random.Random) -> Generator[str]:
    """Inside, a disk fails at one of the calls that writing a file makes; gives what an error must say."""
    kind = rng.choice(("write", "write", "write", "open", "close", "fsync", "replace", "limit"))
    if kind == "limit":  # the system's own: no file grows beyond it
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(rng.choice((0, 1, 10 ** rng.uniform(0, 3)))), before[1]))
        try:
            yield os.strerror(errno.EFBIG)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return
    code = rng.choice((*FULL, errno.EROFS, errno.EACCES) if kind in ("open", "replace") else FULL)
    disk = _Disk(kind, code, int(10 ** rng.uniform(0, 3)))
    faked: Any = files
    faked.os, faked.open = disk, disk.opened
    try:
        yield os.strerror(code)
    finally:
        faked.os = os
        del faked.open


NETWORK = running(8, 3, 4)


def _command(*arguments: object) -> None:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"renorm {arguments}: {result.exception!r}") from result.exception
    if result.exit_code:
        assert result.exit_code in (2, 3, 4), result.output
        assert len([line for line in result.output.splitlines() if not line.startswith(" ")]) == 1, result.output
        raise RenormError(result.output)


@cache
def _compiled() -> Any:
    return renorm.compile(NETWORK, train_state=True)


def _state() -> dict[str, Any]:
    return {name: array * 0 + 7 for name, array in _compiled().state.items()}


_WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "a.renorm": lambda path, network: _compiled().save(path),
    "a.onnx": lambda path, network: renorm.optimize(network, path),
    "b.onnx": lambda path, network: onnx_files.write(renorm.read(NETWORK), path, inline_limit=10),
    "c.onnx": lambda path, network: renorm.write_state(network, _state(), path),
    "d.onnx": lambda path, network: _command("optimize", network, path),
    "a.npz": lambda path, network: _command("run", network, "--train-state", "-o", path),
    "a.dot": lambda path, network: _command("inspect", network, "--draw", path),
    "a.json": lambda path, network: _command("profile", network, "--train-state", "--repeats", 1, "--trace", path),
    "b.renorm": lambda path, network: _command("compile", network, "--train-state", "-o", path),
    "draws.npz": lambda path, network: save_draws(path, [Draw({"y": np.ones(100)})]),
}


@attack(limit_s=60, in_gate=4)
def writers(seed: int) -> None:
    """Where a write fails the old file is there, nothing else is, and one error says why."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        network, folder = Path(place, "network.onnx"), Path(place, "folder")
        onnx.save(NETWORK, network)
        _compiled()
        for name, write in rng.sample([*_WRITERS.items()], 4):
            folder.mkdir()
            path, is_new = folder / name, rng.random() < 0.3
            if not is_new:
                path.write_bytes(OLD)
            said = ""
            with _broken(rng) as reason:
                try:
                    write(path, network)
                except (OSError, RenormError) as error:
                    said = str(error)
            kept = {} if is_new else {name: OLD}
            if said:
                assert reason in said, said
                assert path.name in said, said
                assert {p.name: p.read_bytes() for p in folder.iterdir()} == kept, said
            else:  # all that it wrote fitted
                assert path.read_bytes() != OLD
                assert {p.name for p in folder.iterdir()} <= {path.name, f"{path.name}.data"}
            write(path, network)
            for p in folder.iterdir():
                p.unlink()
            folder.rmdir()


@attack(limit_s=60, in_gate=2)
def caches(seed: int) -> None:
    """A cache whose disk fails, on any call, fails no compilation, holds no half of an entry, and leaves nothing."""
    rng = random.Random(seed)
    before = {name: os.environ.get(name) for name in (DIRECTORY, SWITCH)}
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {DIRECTORY: name, SWITCH: "1"}
        try:
            for _ in range(3):
                n = rng.randrange(1, 64)
                x = np.random.default_rng(seed).standard_normal((n, 5)).astype(np.float32)
                body = f"affine (float[{n}, 5] x) => (float[{n}, 5] y) {{ a = Add (x, x) y = Relu (a) }}"
                with _broken(rng):
                    (found,) = renorm.compile(model(body)).run(x)
                np.testing.assert_array_equal(found, np.maximum(x + x, 0))
                entries = [p for p in Path(name).rglob("*") if p.is_file()]
                cache = Cache(Path(name))
                assert all(cache.get(p.name) is not None for p in entries), entries
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ |= {} if value is None else {name: value}


@attack(limit_s=60, in_gate=2)
def without_temporary_files(seed: int) -> None:
    """Where no directory takes temporary files, and no file descriptor is left, a network is compiled or one error."""
    rng = random.Random(seed)
    x = np.ones((3, rng.randrange(1, 9)), np.float32)
    negative = model(f"m (float[3, {x.shape[1]}] x) => (float[3, {x.shape[1]}] y) {{ y = Neg (x) }}")

    def none() -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    faked: Any = tempfile
    kept, held = faked._get_default_tempdir, tempfile.tempdir
    faked._get_default_tempdir, tempfile.tempdir = none, None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    here = len(os.listdir("/proc/self/fd")) - 1
    left = rng.choice((None, 0, 1, 2, 3, 5, 8, 13))
    try:
        if left is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (here + left, limit[1]))
        subtarget._subtarget.cache_clear()
        with nullcontext() if left is None else suppress(RenormError, OSError):
            np.testing.assert_array_equal(renorm.compile(negative, threads=2).run(x)[0], -x)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        faked._get_default_tempdir, tempfile.tempdir = kept, held
    assert len(os.listdir("/proc/self/fd")) - 1 <= here + 2  # imports may keep some
    os.write(2, b"")  # still open
    np.testing.assert_array_equal(renorm.compile(negative, threads=2).run(x)[0], -x)
