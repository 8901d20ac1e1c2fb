"""Memory that the system does not give: an error that says for what and how many bytes, before anything has begun."""

from __future__ import annotations

import importlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.frontends.models import model, running
from tests.limited import without_threads
from tests.stress._children import in_child

import renorm
from renorm.codegen.llvm import machine, subtarget
from renorm.core import room
from renorm.core.dims import Sym
from renorm.core.target import parse
from renorm.driver import weights
from renorm.errors import LimitExceeded, OutOfMemory
from renorm.graph.ir import Graph
from renorm.runtime.arrays import Slot
from renorm.runtime.memory import Memory
from renorm.runtime.program import TensorSpec

NETWORK = model("m (float[4, 8] x) => (float[4, 8] y) { y = MatMul (x, w) }", w=np.eye(8, dtype=np.float32))
X = np.ones((4, 8), np.float32)


def test_what_the_system_gives() -> None:
    assert room.is_there(1 << 20)
    assert not room.is_there(1 << 62)
    assert issubclass(OutOfMemory, MemoryError)
    with pytest.raises(OutOfMemory, match=r"no memory for this\n  4,611,686,018,427,387,904 bytes"):
        room.require(1 << 62, "no memory for this")


def test_threads_that_the_system_gives() -> None:
    before = len(os.listdir("/proc/self/task"))
    assert room.are_there(0)
    assert room.are_there(20)
    until = time.monotonic() + 5
    while len(os.listdir("/proc/self/task")) > before:
        assert time.monotonic() < until

    def attempt() -> None:
        without_threads()
        assert not room.are_there(1)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            room.start_thread(threading.Thread(target=lambda: None))

    in_child(attempt, 20)


def test_an_interrupt_leaves_no_thread_behind() -> None:
    """Signals that come meanwhile are handled when all have ended."""
    main = threading.main_thread().ident
    assert main is not None
    before = len(os.listdir("/proc/self/task"))

    def ask(delay: float) -> None:
        threading.Timer(delay, signal.pthread_kill, (main, signal.SIGINT)).start()
        while True:
            room.are_there(50)

    for delay in np.linspace(0, 0.02, 20):
        with pytest.raises(KeyboardInterrupt):
            ask(delay)
    until = time.monotonic() + 5
    while len(os.listdir("/proc/self/task")) > before:
        assert time.monotonic() < until


def test_a_thread_takes_a_stack_of_the_size_that_the_system_says() -> None:
    def attempt(stack: int) -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (stack, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        assert room._thread() == (16 << 20) + stack

    in_child(lambda: attempt(64 << 20), 20)
    in_child(lambda: attempt(1 << 20), 20)


def test_llvm_which_ends_the_process_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    text, host = "define void @f() { ret void }", parse("llvm")
    machine.emit_object(text, host, "k")
    monkeypatch.setattr(room, "is_there", lambda nbytes: False)
    with pytest.raises(OutOfMemory, match="no memory to compile kernel k"):
        machine.emit_object(text, host, "k")
    subtarget._subtarget.cache_clear()
    with pytest.raises(OutOfMemory, match="no memory for LLVM"):
        subtarget.subtarget(parse("llvm -mcpu=haswell"))


def test_llvm_is_loaded_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be needed late: where kernels came from the cache, by the first that did not."""
    monkeypatch.delitem(sys.modules, "llvmlite.binding")
    monkeypatch.delitem(sys.modules, "renorm.codegen.llvm.library")
    monkeypatch.setattr(room, "is_there", lambda nbytes: False)
    with pytest.raises(OutOfMemory, match="no memory to load LLVM"):
        importlib.import_module("renorm.codegen.llvm.library")


@pytest.mark.usefixtures("kept_code")
def test_no_thread_is_started_without_room_for_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python waits for ever for one that fails before its first statement."""
    monkeypatch.setattr(weights, "WORTH_A_THREAD", 0)
    monkeypatch.setenv("RENORM_NUM_THREADS", "4")
    monkeypatch.setattr(room, "is_there", lambda nbytes: nbytes != room.THREAD)
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread is started"))
    np.testing.assert_array_equal(renorm.compile(NETWORK).run(X)[0], X)


@pytest.mark.usefixtures("kept_code")
def test_what_only_makes_it_faster_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_KEPT", 1 << 62)
    np.testing.assert_array_equal(renorm.compile(NETWORK).run(X)[0], X)


def test_memory_of_a_run() -> None:
    with pytest.raises(OutOfMemory, match="between kernels\n  4,611,686,018,427,387,904 bytes"):
        Memory(1 << 62)
    with pytest.raises(OutOfMemory, match=r"no memory for y f32\[1073741824, 1073741824\]\n  4,611,686"):
        Slot(TensorSpec("y", "float32", (1 << 30, 1 << 30))).allocate()


def test_a_run_without_memory_leaves_state_and_out_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    m = renorm.compile(running(8, 3, 4), train_state=True)
    x = np.random.default_rng(0).standard_normal((8, 3, 4)).astype(np.float32)
    before, out = m.state.copy(), np.zeros_like(x)

    def refused(self: Memory, nbytes: int) -> None:
        raise room.out_of_memory("no memory", nbytes)

    monkeypatch.setattr(Memory, "__init__", refused)
    with pytest.raises(OutOfMemory):
        m.run(x, out=[out])
    assert all(np.array_equal(m.state[n], a) for n, a in before.items())
    assert not out.any()
    monkeypatch.undo()
    m.run(x, out=[out])
    assert out.any()


def test_a_result_that_is_too_large_is_refused_when_its_shape_is_known() -> None:
    g = Graph("grows")
    x = g.input("x", "float32", (Sym("N"), 1))
    g.outputs = [renorm.ops.add(x, np.zeros((1, 1000), np.float32))]
    m = renorm.compile(g, limits=renorm.Limits(bytes=1 << 20))
    with pytest.raises(
        LimitExceeded, match=r"bytes: 4,008,000, at most 1,048,576; most of .*\[1000, 1000\] of node 'add'"
    ):
        m.run(np.ones((1000, 1), np.float32))
    assert m.run(np.ones((2, 1), np.float32))[0].shape == (2, 1000)


@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_a_file_that_is_larger_than_memory_is_named(suffix: str, tmp_path: Path) -> None:
    (path := tmp_path / f"m.{suffix}").touch()
    os.truncate(path, 1 << 30)

    def attempt() -> None:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + (256 << 20), most))
        with pytest.raises(OutOfMemory, match=rf"m.{suffix}: no memory to read it\n  1,073,741,824 bytes"):
            renorm.read(path)

    in_child(attempt, 60)


def test_a_small_network_is_compiled_and_runs_in_400_mb(tmp_path: Path) -> None:
    """Of address space, all libraries in it."""
    onnx.save(NETWORK, tmp_path / "m.onnx")
    script = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
import numpy as np, renorm
print(renorm.compile({str(tmp_path / "m.onnx")!r}, threads=2).run(np.ones((4, 8), np.float32))[0].sum())
"""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "RENORM_NUM_THREADS": "4"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "32.0\n", done.stderr
