"""Files are written whole or not at all, by one function."""

from __future__ import annotations

import ast
import errno
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from tests.frontends.models import model

import renorm
from renorm.cli import main
from renorm.core.files import TEMPORARY, replacing
from renorm.driver.draws import Draw, save_draws
from renorm.errors import RenormError
from renorm.frontends import onnx as onnx_files
from renorm.frontends.tflite import writer as tflite_writer

OLD = b"what was there before"

# Writers beside renorm.core.files: why
ELSEWHERE = {
    "driver/measure.py": "a folder of its own, which goes when the benchmark ends",
    "driver/worker.py": "into that folder",
    "driver/converted.py": "into a folder of that kind, by the converters of others",
    "codegen/worker.py": "pipes",
    "codegen/llvm/subtarget.py": "a file in memory",
    "runtime/module.py": "a file in memory, which a copy of a module maps",
}


@contextmanager
def disk_full_after(size: int) -> Generator[None]:
    """Inside, no file of this process grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_takes_the_place_of_the_old_one_when_it_is_whole(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(OLD)
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == OLD
        (other,) = set(os.listdir(tmp_path)) - {"a"}
        assert TEMPORARY.fullmatch(other)
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a"
    path.write_bytes(OLD)

    def write() -> None:
        with replacing(path) as file:
            file.write(b"part")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["a"]


def test_a_daemon_thread_that_is_lost_at_the_end_leaves_nothing(tmp_path):
    script = f"""
import os, sys, threading, time
from renorm.core.files import replacing
def save():
    while True:
        with replacing({str(tmp_path / "a")!r}) as file:
            file.write(b"new")
            time.sleep(1e-3)
            began.set()
began = threading.Event()
for _ in range(3):
    threading.Thread(target=save, daemon=True).start()
began.wait()
sys.exit(7)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")
    assert set(os.listdir(tmp_path)) <= {"a"}


def test_the_end_waits_for_a_file_that_is_being_begun(tmp_path):
    """Its thread comes back from the system when nobody would take the file away any more."""
    script = f"""
import atexit, os, sys, threading, time
atexit.register(time.sleep, 0.5)  # after what is registered later
from renorm.core import files
def slow(*arguments, open=os.open):
    if threading.current_thread() is not threading.main_thread():
        began.set()
        time.sleep(0.2)
    return open(*arguments)
def save():
    with files.replacing({str(tmp_path / "a")!r}) as file:
        time.sleep(10)
began = threading.Event()
os.open = slow
threading.Thread(target=save, daemon=True).start()
began.wait()
sys.exit(7)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")
    assert not os.listdir(tmp_path)


def test_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "new"):
            pass
        (tmp_path / "old").touch()
        (tmp_path / "old").chmod(0o604)
        with replacing(tmp_path / "old"):
            pass
        with replacing(tmp_path / "mine", mode=0o600):
            pass
    finally:
        assert os.umask(before) == 0o027
    assert [mode(tmp_path / name) for name in ("new", "old", "mine")] == [0o640, 0o604, 0o600]


def test_what_a_link_points_to_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "a", tmp_path / "b"
    target.write_bytes(OLD)
    link.symlink_to(target)
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_devices_and_pipes_are_written_as_they_are(tmp_path):
    read, write = os.pipe()
    with replacing(f"/dev/fd/{write}") as file:
        file.write(b"new")
    assert os.read(read, 9) == b"new"
    os.close(read)
    os.close(write)
    with pytest.raises(OSError, match="No space left") as error, replacing("/dev/full") as file:
        file.write(b"new")
    assert error.value.filename == "/dev/full"
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(OLD)
    with pytest.raises(OSError, match="too large") as error, disk_full_after(100), replacing(path) as file:
        file.write(bytes(200))
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(path))
    with pytest.raises(FileNotFoundError) as error, replacing(tmp_path / "no" / "a"):
        pass
    assert error.value.filename == str(tmp_path / "no" / "a")
    assert path.read_bytes() == OLD


def command(*arguments: object) -> None:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    if result.exit_code:
        raise OSError(result.output)


NETWORK = model(
    "small (float[4, 3] x) => (float[4, 3] y) { a = Relu (x) y = Add (a, c) }", c=np.ones((4, 3), np.float32)
)


def external(path: Path) -> None:
    onnx_files.write(renorm.read(NETWORK), path, inline_limit=10)


WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "a.renorm": lambda path, network: renorm.compile(network).save(path),
    "a.onnx": lambda path, network: renorm.optimize(network, path),
    "b.onnx": lambda path, network: external(path),
    "b.onnx.data": lambda path, network: external(path.with_suffix("")),
    "a.tflite": lambda path, network: tflite_writer.save(bytes(1000), path),
    "a.npz": lambda path, network: command("run", network, "-o", path),
    "a.dot": lambda path, network: command("inspect", network, "--draw", path),
    "a.json": lambda path, network: command("profile", network, "--repeats", 1, "--trace", path),
    "draws.npz": lambda path, network: save_draws(path, [Draw({"y": np.ones(100)})]),
}


@pytest.mark.usefixtures("kept_code")
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, name):
    network, folder = tmp_path / "network.onnx", tmp_path / "folder"
    onnx.save(NETWORK, network)
    renorm.compile(network)  # fills the cache, which shall not be what fails
    folder.mkdir()
    path = folder / name
    path.write_bytes(OLD)
    with pytest.raises((OSError, RenormError), match="too large"), disk_full_after(64):
        WRITERS[name](path, network)
    assert path.read_bytes() == OLD
    assert os.listdir(folder) == [name]
    WRITERS[name](path, network)
    assert path.read_bytes() != OLD


def writes(node: ast.AST) -> bool:
    """Whether it opens a file to write it, by name."""
    match node:
        case ast.Attribute(ast.Name("os"), "umask"):
            return True  # sets what all threads have
        case ast.Call(func=ast.Attribute(attr="write_text" | "write_bytes")):
            return True
        case ast.Call(func=ast.Attribute(attr="savez" | "savez_compressed"), args=[into, *_]):
            return not isinstance(into, ast.Name) or into.id not in ("file", "into")  # which somebody has opened
        case ast.Call(func=ast.Name("open") | ast.Attribute(attr="open" | "fdopen"), args=args, keywords=named):
            modes = [a.value for a in (*args, *(k.value for k in named)) if isinstance(a, ast.Constant)]
            return any(isinstance(m, str) and len(m) < 4 and set(m) & set("wxa+") for m in modes)
        case _:
            return False


def test_nothing_is_written_beside_it():
    source = Path(renorm.__file__).parent
    files = {p.relative_to(source).as_posix(): ast.parse(p.read_text()) for p in source.rglob("*.py")}
    found = {name for name, tree in files.items() if any(map(writes, ast.walk(tree)))}
    assert found == {"core/files.py", *ELSEWHERE}
