"""Handlers that come in the middle of calls, forks in the middle of what other threads do, and first calls at once."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.frontends.models import model, running
from tests.stress._children import in_child

import renorm
from renorm import training
from renorm.codegen.llvm import machine
from renorm.core.target import Target
from renorm.driver import compile as compiling
from renorm.errors import InvalidLoops, ReentrancyError
from renorm.training import kernels

pytestmark = pytest.mark.usefixtures("kept_code")
ROOT = Path(__file__).parents[2]
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)


def doubling() -> Any:
    """A module that compiles for each shape, as where a kernel cannot be open."""
    with mock.patch.object(compiling, "_opened", side_effect=InvalidLoops("closed")):
        return renorm.compile(model("double (float[n, 8] x) => (float[n, 8] y) { y = Add (x, x) }"), threads=2)


def stateful() -> Any:
    return renorm.compile(running(4, 3), train_state=True)


@contextmanager
def handling(handler: Callable[[], object]) -> Generator[list[BaseException]]:
    """Inside, SIGUSR1 calls it; what it raises is collected."""
    raised = list[BaseException]()

    def called(*_: object) -> None:
        try:
            handler()
        except BaseException as error:
            raised.append(error)

    before = signal.signal(signal.SIGUSR1, called)
    try:
        yield raised
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_in_the_middle_of_a_run_reads_and_replaces_the_state():
    m, seen = stateful(), list[Any]()
    walk = m._walk

    def interrupted(*args: Any) -> Any:
        m._walk = walk
        signal.raise_signal(signal.SIGUSR1)
        return walk(*args)

    m._walk = interrupted
    with handling(lambda: (seen.append(m.state["m"]), m.state.update({"m": np.full(3, 5, np.float32)}))) as raised:
        m.run(np.ones((4, 3), np.float32))
    assert not raised
    np.testing.assert_array_equal(seen[0], 0)
    np.testing.assert_array_equal(m.state["m"], 5)  # what is set in the middle of a run is set after it


def interrupted(m: Any) -> None:
    """Has SIGUSR1 come in the middle of each specialisation."""
    specialize = m._made._specialize

    def made(sizes: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return specialize(sizes)

    m._made._specialize = made


def test_a_handler_in_the_middle_of_a_specialisation_runs_shapes_that_are_there():
    m = doubling()
    m.run(X)
    interrupted(m)
    with handling(lambda: np.testing.assert_array_equal(m.run(X)[0], X + X)) as raised:
        np.testing.assert_array_equal(m.run(X[:2])[0], X[:2] + X[:2])
    assert not raised


def test_a_handler_in_the_middle_of_a_specialisation_gets_an_error_for_the_same():
    m = doubling()
    interrupted(m)
    with handling(lambda: m.run(X)) as raised:
        np.testing.assert_array_equal(m.run(X)[0], X + X)
    assert [type(e) for e in raised] == [ReentrancyError]
    assert "double at a shape is in use" in str(raised[0])
    np.testing.assert_array_equal(m.run(X)[0], X + X)


def test_a_handler_in_the_middle_of_a_kernel_that_is_compiled_gets_an_error(monkeypatch):
    compiled = kernels.compiled

    def made(*key: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return compiled(*key)

    monkeypatch.setattr(kernels, "compiled", made)
    x = np.random.default_rng(3).standard_normal((5, 7))
    with handling(lambda: training.moments(x)) as raised:
        np.testing.assert_allclose(training.moments(x).mean, x.mean(0))
    assert [type(e) for e in raised] == [ReentrancyError]


@contextmanager
def meanwhile(hold: Callable[[Callable[[], None]], object]) -> Generator[None]:
    """Inside, a thread is where `hold` calls what it is given."""
    there, go = threading.Event(), threading.Event()

    def stay() -> None:
        there.set()
        go.wait()

    thread = threading.Thread(target=hold, args=(stay,), daemon=True)
    thread.start()
    assert there.wait(60)
    try:
        yield
    finally:
        go.set()
        thread.join()


def test_a_child_specialises_while_a_thread_of_its_parent_does():
    m = doubling()
    specialize = m._made._specialize

    def hold(stay: Callable[[], None]) -> None:
        def made(sizes: Any) -> Any:
            stay()
            return specialize(sizes)

        m._made._specialize = made
        m.run(X)

    def run() -> None:
        m._made._specialize = specialize
        np.testing.assert_array_equal(m.run(X)[0], X + X)

    with meanwhile(hold):
        in_child(run, 60)
    np.testing.assert_array_equal(m.run(X)[0], X + X)


def test_a_child_has_the_state_before_a_run_of_its_parent():
    m, x = stateful(), np.ones((4, 3), np.float32)
    walk = m._walk

    def hold(stay: Callable[[], None]) -> None:
        def walked(*args: Any) -> Any:
            stay()
            return walk(*args)

        m._walk = walked
        m.run(x)

    def run() -> None:
        m._walk = walk
        np.testing.assert_array_equal(m.state["m"], 0)
        m.run(x)
        np.testing.assert_array_equal(m.state["m"], 0.5)

    with meanwhile(hold):
        in_child(run, 60)
    np.testing.assert_array_equal(m.state["m"], 0.5)


def test_a_child_trains_while_a_thread_of_its_parent_compiles_a_kernel(monkeypatch):
    compiled, x = kernels.compiled, np.random.default_rng(4).standard_normal((6, 11))

    def hold(stay: Callable[[], None]) -> None:
        def made(*key: Any) -> Any:
            stay()
            return compiled(*key)

        monkeypatch.setattr(kernels, "compiled", made)
        training.moments(x)

    def run() -> None:
        monkeypatch.setattr(kernels, "compiled", compiled)
        np.testing.assert_allclose(training.moments(x).mean, x.mean(0))

    with meanwhile(hold):
        in_child(run, 60)


def test_a_fork_waits_until_llvm_returns():
    there = threading.Event()

    def hold() -> None:
        with machine.llvm.ffi.lib._lock:
            there.set()
            time.sleep(0.2)

    def compiles() -> None:
        machine.machine.cache_clear()
        machine.machine(Target())

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    there.wait()
    in_child(compiles, 60)
    thread.join()


_AT_ONCE = """
import os, sys, threading
os.environ["RENORM_CACHE"] = "0"
sys.setswitchinterval(1e-5)
import numpy as np, onnx
from tests.frontends.models import model
import renorm
double = model("double (float[3, 8] x) => (float[3, 8] y) { y = Add (x, x) }")
x = np.ones((3, 8))
def compiles():
    renorm.compile(double)
def trains():
    renorm.training.moments(x)
failed = []
def run(work):
    try: work()
    except BaseException as error: failed.append(error)
threads = [threading.Thread(target=run, args=(work,)) for work in (trains, compiles)]
for t in threads: t.start()
for t in threads: t.join()
assert not failed, failed
"""


def test_the_first_calls_of_several_threads_come_at_once():
    done = subprocess.run(
        [sys.executable, "-c", _AT_ONCE], cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_handler_in_the_middle_of_an_import_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would find half a module. Another thread that imports meanwhile is waited for by Python, where it matters."""
    (tmp_path / "half_of_it.py").write_text("import signal\nsignal.raise_signal(signal.SIGUSR1)\n")
    monkeypatch.setattr(renorm, "__path__", [*renorm.__path__, str(tmp_path)])
    with handling(lambda: doubling().run(X)) as raised:
        importlib.import_module("renorm.half_of_it")
    sys.modules.pop("renorm.half_of_it")
    assert [type(e) for e in raised] == [ReentrancyError]
    assert str(raised[0]).startswith("renorm.half_of_it is being imported by a call that waits for this one")
    np.testing.assert_array_equal(doubling().run(X)[0], 2 * X)
