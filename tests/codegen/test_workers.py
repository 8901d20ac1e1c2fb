"""Kernels compiled in several processes: the same code in the same order, whatever becomes of the others."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from renorm.codegen import llvm, structural_hash, workers
from renorm.codegen.abi import CompiledKernel
from renorm.core import sources
from renorm.core.errors import InvalidLoops
from renorm.core.target import Target
from renorm.tir import parse
from renorm.tir.nodes import Kernel

HOST = Target()


def kernel(i: int, bound: str = "") -> Kernel:
    """b = a * (i + 0.5). bound: an axis of a GPU that runs the loop."""
    at = f"// attr [iter_var(i, , {bound})] thread_extent = {i + 8}" if bound else f"parallel (i, 0, {i + 8}) {{"
    body = f"{at} b[i] = (a[i]*{i}.5f)"
    body += "" if bound else " }"
    return parse.parse(f"kernel k{i}(a: float32[{i + 8}], b: float32[{i + 8}]) -> (b) {{\n{body}\n}}")


KERNELS = [kernel(i) for i in range(10)]


@pytest.fixture(scope="module")
def expected() -> list[CompiledKernel]:
    return [llvm.compile_kernel(k, HOST) for k in KERNELS]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process compiles slowly, so that others have their share, and starts others at once."""

    def compile_kernel(*arguments: Any) -> CompiledKernel:
        time.sleep(0.12)
        return fast(*arguments)

    fast = llvm.compile_kernel
    monkeypatch.setattr(llvm, "compile_kernel", compile_kernel)
    monkeypatch.setattr(workers, "KERNEL", 10.0)


def settle() -> None:
    """Waits until sources that have just been written count as known: without that no worker is used."""
    while not structural_hash.SOURCES:
        time.sleep(0.1)
        structural_hash.SOURCES = sources.digest.__wrapped__("core", "expr", "tir", "codegen")


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process compiles nothing before a worker has asked for work, however long that takes to start."""

    def lend(work: Any) -> int | None:
        asked.set()
        return original(work)

    def compile_kernel(*arguments: Any) -> CompiledKernel:
        asked.wait(100)
        asked.set()  # none will come: wait no more
        return fast(*arguments)

    asked, original, fast = threading.Event(), workers._Work._lend, llvm.compile_kernel
    monkeypatch.setattr(workers._Work, "_lend", lend)
    settle()
    monkeypatch.setattr(llvm, "compile_kernel", compile_kernel)
    monkeypatch.setattr(workers, "KERNEL", 10.0)


def code(compiled: list[CompiledKernel]) -> list[Any]:
    return [(c.name, c.object, c.phases, c.accesses, c.workspace, c.scratch) for c in compiled]


@pytest.mark.usefixtures("joined")
def test_several_processes_give_the_same_code(expected: list[CompiledKernel]) -> None:
    told = list[int]()
    compiled, processes = workers.compile_all(KERNELS, HOST, 3, told.append)
    assert code(compiled) == code(expected)
    assert processes > 1
    assert told == sorted(told)


def test_little_work_starts_nothing(expected: list[CompiledKernel], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "start", None)
    compiled, processes = workers.compile_all(KERNELS[:5], HOST, 64)
    assert (code(compiled), processes) == (code(expected[:5]), 1)
    assert workers.compile_all([], HOST, 64) == ([], 1)


GREETING = f"""
import sys
from renorm.codegen import worker
requests, answers = sys.stdin.buffer, sys.stdout.buffer
worker.send(answers, {structural_hash.SOURCES!r}.encode())
"""
WORKERS = {
    "dies at once": "",
    "dies at work": GREETING + "worker.receive(requests)",
    "answers nonsense": GREETING + "worker.receive(requests); worker.send(answers, b'{}\\nobject')",
    "stops halfway": GREETING + "worker.receive(requests); answers.write(b'\\xff' * 9); answers.flush()",
    "fails at everything": GREETING + "while worker.receive(requests): worker.send(answers, b'')",
    "does not answer": GREETING + "import time; time.sleep(100)",
    "never greets": "import time; time.sleep(100)",
    "runs other sources": GREETING.replace(repr(structural_hash.SOURCES), "'other'") + "raise SystemExit",
}


@pytest.mark.parametrize("program", WORKERS)
@pytest.mark.usefixtures("slow")
def test_nothing_is_lost(program: str, expected: list[CompiledKernel], monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[subprocess.Popen[bytes]]()

    def start() -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([sys.executable, "-c", WORKERS[program]], stdin=pipe, stdout=pipe))
        return started[-1]

    monkeypatch.setattr(workers, "start", start)
    monkeypatch.setattr(workers, "PATIENCE", 0.5)
    compiled, _ = workers.compile_all(KERNELS, HOST, 2)
    assert code(compiled) == code(expected)
    assert [p.returncode is not None for p in started] == [True]  # it is gone, whatever it did


def test_where_no_process_can_be_started_this_one_does_it(
    expected: list[CompiledKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "KERNEL", 10.0)
    for program in ("", "/usr/bin/env", "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", program)
        compiled, processes = workers.compile_all(KERNELS[:3], HOST, 2)
        assert (code(compiled), processes) == (code(expected[:3]), 1)


@pytest.mark.usefixtures("slow")
def test_the_first_error_is_raised_here() -> None:
    bad = [*KERNELS[:4], kernel(70, "threadIdx.x"), *KERNELS[4:], kernel(71, "threadIdx.y")]
    with pytest.raises(InvalidLoops, match="k70"):
        workers.compile_all(bad, HOST, 2)


# Nothing guards the main part of this script: a worker that imported it would start workers of its own
SCRIPT = """
import multiprocessing, threading
from tests.codegen.test_workers import HOST, KERNELS, settle
from renorm.codegen import llvm, workers

print("script", flush=True)
settle()
fast, lend, asked = llvm.compile_kernel, workers._Work._lend, threading.Event()
expected = [fast(k, HOST).object for k in KERNELS]
workers.KERNEL, workers._Work._lend = 10.0, lambda work: (asked.set(), lend(work))[1]
llvm.compile_kernel = lambda *a: (asked.wait(100), asked.set(), fast(*a))[2]

def work():
    asked.clear()
    compiled, processes = workers.compile_all(KERNELS, HOST, 2)
    print([c.object for c in compiled] == expected, processes, flush=True)

thread = threading.Thread(target=work)
thread.start()
thread.join()
child = multiprocessing.get_context("fork").Process(target=work, daemon=True)  # may have no children of multiprocessing
child.start()
child.join()
"""


def test_scripts_threads_and_daemons_may_start_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", f"import runpy, sys; sys.path[:0] = {[str(root), str(root / 'src')]}; "]
    command[-1] += f"runpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.split("\n") == ["script", "True 2", "True 2", ""]
