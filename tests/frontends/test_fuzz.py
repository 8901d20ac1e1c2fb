"""Damaged files of every format, what was found with them, and whether a run of `fuzz` would find anything."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.frontends import fuzz, fuzz_outcome
from tests.frontends.fuzz_traces import Traces
from tests.frontends.models import model

import renorm
from renorm.errors import InvalidModel, OutOfMemory

ROOT = Path(__file__).parents[2]
LIBRARIES = {"keras": ("keras", "torch", "h5py"), "h5": ("keras", "torch", "h5py"), "pt2": ("torch",)}
FILES = {"onnx": 120, "tflite": 120, "circle": 120, "keras": 30, "h5": 30, "pt2": 10}


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--guided",)], ids=["drawn", "guided"])
@pytest.mark.parametrize("form", FILES)
def test_damaged_files_are_read_or_refused(form: str, options: tuple[str, ...], tmp_path: Path) -> None:
    for library in LIBRARIES.get(form, ()):
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    command = [sys.executable, "-m", "tests.frontends.fuzz", "--format", form, "--files", str(FILES[form])]
    command += ["--seed", "5", "--jobs", "1", "--results", str(tmp_path), *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{form}: {FILES[form]} files" in ended.stdout
    assert "read" in ended.stdout
    assert "InvalidModel" in ended.stdout


@pytest.mark.parametrize("path", sorted(fuzz.FINDINGS.glob("*")), ids=lambda path: path.name)
def test_what_was_found(path: Path) -> None:
    library = {".keras": "h5py", ".h5": "h5py", ".pt2": "torch"}.get(path.suffix)
    if library is not None:
        pytest.importorskip(library, reason=f"{library} is not installed")
    found = fuzz_outcome.outcome(path, is_computed=True)
    assert not found.fault, found.fault


# --- a run finds what must not be -------------------------------------------------------------------------------------


def _slow(*given: Any, **named: Any) -> Any:
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass


def _raising(error: Exception) -> Any:
    def read(*given: Any, **named: Any) -> Any:
        raise error

    return read


def _short_of_memory(*given: Any, **named: Any) -> Any:
    raise InvalidModel("held.onnx: it is damaged") from MemoryError()


@pytest.mark.parametrize(
    ("read", "place"),
    [
        (_raising(TypeError("no")), "TypeError at"),
        (_raising(OutOfMemory("held.onnx: no memory")), "OutOfMemory at"),
        (_raising(renorm.errors.InternalError("held.onnx: of its own")), "InternalError at"),
        (_raising(InvalidModel("it is damaged")), "unnamed, InvalidModel at"),
        (_short_of_memory, "InvalidModel at"),
        (_slow, "slow, read"),
    ],
)
def test_findings(read: Any, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(renorm, "read", read)
    monkeypatch.setattr(fuzz_outcome, "SECONDS", 0.1)
    found = fuzz_outcome.outcome(tmp_path / "held.onnx")
    assert found.fault
    assert found.place.startswith(place)


_PROCESSES = """
import os
import renorm
from tests.frontends import fuzz_processes

def endless(path, **named):
    while True:
        pass

def greedy(path, **named):
    return bytes(2 * fuzz_processes.MEMORY)

fuzz_processes.MOST_SECONDS = 0.5
for read in (endless, greedy, lambda path, **named: os.abort(), lambda path, **named: None):
    renorm.read = read
    print(fuzz_processes.judged(b"", "onnx", False).kind)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="addresses are limited where Linux tells how many there are")
def test_processes_that_hang_crash_or_take_all_memory() -> None:
    ended = subprocess.run([sys.executable, "-c", _PROCESSES], cwd=ROOT, capture_output=True, text=True, check=False)
    kinds = ended.stdout.splitlines()
    assert kinds == ["not done after 0 s", "MemoryError", "crash (-6)", "read"], ended.stderr


def test_an_error_that_names_the_file_is_no_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(renorm, "read", _raising(InvalidModel("held.onnx: it is damaged")))
    assert fuzz_outcome.outcome(tmp_path / "held.onnx") == fuzz_outcome.Outcome("InvalidModel")


def test_lines_that_are_new(tmp_path: Path) -> None:
    traces, path = Traces(), tmp_path / "m.onnx"
    news = list[bool]()
    for text in ("y = Neg(x)", "y = Neg(x)", "y = Softmax<axis = 0>(x)"):
        path.write_bytes(model(f"g (float[2, 3] x) => (float[2, 3] y) {{ {text} }}").SerializeToString())
        with traces:
            renorm.read(path)
        news.append(bool(traces.new))
    assert news == [True, False, True]


def test_a_file_is_made_smaller_as_long_as_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fuzz_outcome.Outcome("TypeError", "no", "TypeError at")

    def judged(content: bytes, form: str, is_computed: bool) -> fuzz_outcome.Outcome:
        return found if b"Softmax" in content else fuzz_outcome.Outcome("read")

    monkeypatch.setattr(fuzz, "judged", judged)
    content = model("g (float[2, 3] x) => (float[2, 3] y) { z = Neg(x) y = Softmax(z) }").SerializeToString()
    small = fuzz.reduced(content, "onnx", found)
    assert b"Softmax" in small
    assert len(small) < 25 < len(content)
