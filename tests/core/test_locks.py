"""The registry of locks: waiting, order, interrupts, forks; and that there are no locks beside it."""

from __future__ import annotations

import _imp
import ast
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.stress._children import in_child

import renorm
from renorm.core import locks
from renorm.core.locks import Leaf, Lock, Rank, Turn
from renorm.errors import InternalError, ReentrancyError

# What makes somebody wait, and where else than in the registry it stands: why
WAITING = {
    *(
        ("threading", name)
        for name in ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier")
    ),
    *(("_thread", name) for name in ("allocate_lock", "RLock", "LockType")),
    ("functools", "cached_property"),  # in Python 3.11 it has a lock, for all objects of a class
}
ELSEWHERE = {
    "core/locks.py": "the registry",
    "driver/background.py": "an event that callers wait for guards no data, and a child of fork() has one of its own",
    "training/coalescing.py": "semaphores that hand the turn from thread to thread guard no data",
}


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """What tests of other rooms switch on would come before what is asked here."""
    monkeypatch.setattr(locks, "strict", False)


def lock(rank: Rank = Rank.EXCHANGE, name: str = "the state") -> Lock:
    return Lock(name, rank)


def in_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def all_end(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def held(guard: Any) -> Generator[threading.Event]:
    """Inside, another thread has the lock, until the event is set."""
    has, go = threading.Event(), threading.Event()

    def hold() -> None:
        with guard:
            has.set()
            go.wait()

    thread = in_thread(hold)
    has.wait()
    try:
        yield go
    finally:
        go.set()
        thread.join()


def true_in_child(function: Callable[[], bool]) -> None:
    """Asserts that `function` is true in a child of fork(), in time."""

    def check() -> None:
        assert function()

    in_child(check, 20)


def test_nobody_else_takes_it_meanwhile():
    guard, inside, most = lock(), [], []

    def work() -> None:
        for _ in range(200):
            with guard:
                inside.append(1)
                most.append(len(inside))
                time.sleep(0)
                inside.pop()

    all_end(*[in_thread(work) for _ in range(4)])
    assert set(most) == {1}
    assert len(most) == 800


def test_the_same_thread_gets_an_error_and_the_lock_stays_whole():
    guard = lock()
    with guard:
        with pytest.raises(ReentrancyError, match="the state is in use by a call that waits"), guard:
            pass
        assert not guard.take()
        assert not in_another_thread(guard.take)
    assert guard.take()
    guard.release()


def in_another_thread(function: Callable[[], bool]) -> bool:
    found = list[bool]()
    in_thread(lambda: found.append(function())).join()
    return found[0]


def test_a_ring_of_threads_gets_an_error_in_one_of_them():
    a, b = lock(name="a"), lock(name="b")
    both, errors, ended = threading.Barrier(2), [], []

    def work(first: Lock, second: Lock) -> None:
        with first:
            both.wait()
            try:
                with second:
                    ended.append(1)
            except ReentrancyError as error:
                errors.append(error)

    all_end(in_thread(lambda: work(a, b)), in_thread(lambda: work(b, a)))
    assert errors
    assert len(errors) + len(ended) == 2


def test_a_ring_through_a_thread_that_waits_in_order():
    low, high = lock(Rank.EXCHANGE, name="low"), lock(Rank.MAKING, name="high")
    both, errors = threading.Barrier(2), []

    def up() -> None:
        with low:
            both.wait()
            with high:
                pass

    def down() -> None:
        with high:
            both.wait()
            try:
                with low:
                    pass
            except ReentrancyError as error:
                errors.append(error)

    all_end(in_thread(up), in_thread(down))
    assert len(errors) == 1


def test_a_turn_is_one_threads_and_whoever_would_wait_for_ever_goes_in():
    turn, inside, most = Turn("code of others"), list[int](), list[int]()

    def work() -> None:
        inside.append(0)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()

    all_end(*[in_thread(lambda: turn.call(work)) for _ in range(5)])
    assert most == [1] * 5
    turn.call(turn.call, turn.call, work)
    assert most == [1] * 6
    with pytest.raises(ReentrancyError, match="its own"):
        turn.call(turn.call, raises, ReentrancyError("its own"))
    assert in_another_thread(lambda: turn.take() and not turn.release())


def raises(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_turn_of_a_thread_that_waits_for_what_this_one_makes(monkeypatch, is_strict: bool):
    """One is in code of others and waits for a module; who makes that runs the code of others."""
    monkeypatch.setattr(locks, "strict", is_strict)
    turn, making, both, done = Turn("code of others"), lock(Rank.MAKING), threading.Barrier(2), list[str]()

    def needs() -> None:
        both.wait()
        with making:
            done.append("made")

    def makes() -> None:
        with making:
            both.wait()
            turn.call(done.append, "called")

    all_end(in_thread(lambda: turn.call(needs)), in_thread(makes))
    assert done == ["called", "made"]


def test_out_of_order_it_waits_where_nobody_waits_for_it():
    outer, wanted = lock(Rank.MAKING), lock(Rank.EXCHANGE)
    with held(wanted) as go:
        threading.Timer(0.2, go.set).start()
        with outer, wanted:
            assert go.is_set()


def test_a_handler_waits_for_no_ring():
    """The main thread holds `mine`; another has `theirs` and waits for `mine`; a handler in the main thread wants
    `theirs`."""
    mine, theirs, errors = lock(Rank.MAKING, name="mine"), lock(Rank.EXCHANGE, name="theirs"), []

    def other() -> None:
        with theirs:
            ready.set()
            with mine:
                pass

    def handler(*_: object) -> None:
        try:
            with theirs:
                pass
        except ReentrancyError as error:
            errors.append(error)

    before, ready = signal.signal(signal.SIGUSR1, handler), threading.Event()
    try:
        with mine:
            thread = in_thread(other)
            ready.wait()
            time.sleep(0.05)
            signal.raise_signal(signal.SIGUSR1)
        all_end(thread)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(errors) == 1


def test_an_interrupt_while_waiting_leaves_nothing_behind():
    guard, main = lock(Rank.MAKING), threading.main_thread().ident
    assert main is not None
    with held(guard):
        for outer in (None, lock(), lock(Rank.MAKING)):  # waits in all three ways
            threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt), outer or nullcontext(), guard:
                pass
            assert not locks._waiting
            assert outer is None or outer.take()
    assert guard.take()


def interrupted(call: Callable[[], object]) -> Iterator[int]:
    """Calls with an interrupt when a function of the registry begins, or at one of its lines, one after the other until
    there is none left; gives the number of each line."""

    def trace(frame, event, arg):
        if frame.f_code.co_filename != locks.__file__:
            return None
        if event in ("call", "line"):
            seen.append(frame.f_lineno)
            if len(seen) == at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    for at in range(1, 1000):
        seen = list[int]()
        sys.settrace(trace)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        if len(seen) < at:
            assert at > 3
            return
        yield seen[-1]


def test_an_interrupt_at_any_line_of_taking_it_leaves_it_free():
    guard = lock()

    def take() -> None:
        with guard:
            pass

    for line in interrupted(take):
        assert guard.take(), f"interrupted at line {line}"
        guard.release()


def test_an_interrupt_behind_what_takes_it_leaves_it_free():
    """It comes between native calls: with the lock taken, and nobody who would give it back."""

    class Interrupted(Leaf):
        def acquire(self, blocking=True, timeout=-1.0):
            super().acquire(blocking, timeout)
            raise KeyboardInterrupt

    guard = Interrupted("what is taken without waiting")
    with pytest.raises(KeyboardInterrupt):
        guard.take()
    assert not guard._is_owned()


def test_an_interrupt_at_any_line_of_a_fork_leaves_nothing_taken():
    """In a process of its own: each of some hundred forks copies the tables of its parent's pages."""
    call = [sys.executable, "-c", f"from {__name__} import interrupted_forks; interrupted_forks()"]
    done = subprocess.run(call, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def interrupted_forks() -> None:
    """Runs in a process of its own."""
    sys.unraisablehook, locks.strict = lambda _: None, True  # Python prints what hooks raise
    leaf = Leaf("what forks take")

    def fork() -> None:
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)

    for line in interrupted(fork):
        assert not locks._held(), f"interrupted at line {line}"
        assert not _imp.lock_held(), f"interrupted at line {line}"
        assert in_another_thread(lambda: leaf.take() and not leaf.release())
        assert not vars(logging)["_lock"]._is_owned()


def test_order_is_checked_where_tests_ask_for_it(monkeypatch):
    monkeypatch.setattr(locks, "strict", True)
    low, high = lock(Rank.EXCHANGE), lock(Rank.MAKING, name="the team")
    with low, high:
        pass
    with (
        pytest.raises(InternalError, match=r"the state \(EXCHANGE\) is taken inside of the team \(MAKING\)"),
        high,
        low,
    ):
        pass
    assert in_another_thread(low.take)


def test_locks_that_nobody_refers_to_are_forgotten():
    gc.collect()
    before = len(locks._locks())
    kept = [lock() for _ in range(10)]
    assert len(locks._locks()) == before + 10
    kept.clear()
    gc.collect()
    assert len(locks._locks()) == before


def test_a_child_has_what_other_threads_held():
    guard = lock()
    with held(guard):
        true_in_child(guard.take)
        assert not guard.take()  # the thread of the parent goes on
    assert guard.take()


def test_a_child_goes_on_with_what_the_thread_that_forked_held():
    guard, waits = lock(), Leaf("the state")

    def is_held_and_given_back() -> bool:
        had = guard._is_owned() and waits._is_owned()
        guard.__exit__(None, None, None)
        waits.__exit__(None, None, None)
        return had and guard.take() and waits.take()

    with guard, waits:
        true_in_child(is_held_and_given_back)
        assert guard._is_owned()
        assert waits._is_owned()
    assert in_another_thread(guard.take)
    assert in_another_thread(waits.take)


def test_a_fork_waits_for_what_is_in_between():
    guard, begun, whole = Leaf("the state"), threading.Event(), [True]

    def change() -> None:
        with guard:
            whole[0] = False
            begun.set()
            time.sleep(0.2)
            whole[0] = True

    thread = in_thread(change)
    begun.wait()
    true_in_child(lambda: whole[0] and guard.take())
    thread.join()
    assert guard.take()


def test_a_fork_waits_no_longer_than_it_must(monkeypatch):
    monkeypatch.setattr(locks, "FORK_PATIENCE_S", 0.1)
    guard = Leaf("the state")
    with held(guard):
        true_in_child(guard.take)
    assert guard.take()


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """The module `beside`, whose import has begun in another thread: go: it goes on; end: what it calls last."""
    events = SimpleNamespace(begun=threading.Event(), go=threading.Event(), end=lambda: None)
    monkeypatch.setitem(sys.modules, "its_events", events)
    monkeypatch.syspath_prepend(tmp_path)
    text = "import its_events as e\ne.begun.set()\ne.go.wait()\ne.end()\ndone = True\n"
    (tmp_path / "beside.py").write_text(text)
    monkeypatch.setattr(locks, "_given_up", set())
    thread = in_thread(lambda: import_module("beside"))
    events.begun.wait()
    yield events
    events.go.set()
    thread.join()
    sys.modules.pop("beside", None)


def test_a_fork_waits_for_imports_of_other_threads(beside):
    threading.Timer(0.1, beside.go.set).start()
    true_in_child(lambda: import_module("beside").done)


def test_what_is_imported_can_take_what_forks_take(beside):
    leaf = Leaf("what an import needs")

    def end() -> None:
        with leaf:
            logging.getLogger("of a module")

    beside.end = end
    threading.Timer(0.1, beside.go.set).start()
    begin = time.monotonic()
    true_in_child(lambda: True)
    assert time.monotonic() - begin < locks.FORK_PATIENCE_S / 2


def test_a_fork_waits_once_for_an_import_without_an_end(beside, monkeypatch):
    monkeypatch.setattr(locks, "FORK_PATIENCE_S", 0.1)
    true_in_child(lambda: True)
    monkeypatch.setattr(locks, "FORK_PATIENCE_S", 60.0)
    begin = time.monotonic()
    true_in_child(lambda: True)
    assert time.monotonic() - begin < 30


def test_a_fork_waits_for_who_is_about_to_import():
    """Between asking for the lock of a module and taking it, where nobody has it."""
    about, done = threading.Event(), threading.Event()

    def ask() -> None:
        lock = import_module("importlib._bootstrap")._get_module_lock("of no module")
        about.set()
        time.sleep(0.1)
        lock.acquire()
        done.set()
        lock.release()

    thread = in_thread(ask)
    about.wait()
    true_in_child(done.is_set)
    thread.join()


def test_locks_of_another_library(monkeypatch):
    monkeypatch.setattr(locks, "_adopted", [])
    locks.adopt(guard := threading.RLock())
    with held(guard) as go:
        threading.Timer(0.2, go.set).start()
        true_in_child(lambda: guard.acquire(blocking=False))
    assert guard.acquire(blocking=False)


def test_no_lock_is_made_beside_the_registry():
    source = Path(renorm.__file__).parent
    found = set[str]()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(ast.Name(module), name) if (module, name) in WAITING:
                    pass
                case ast.ImportFrom(module=module, names=names) if any((module, n.name) in WAITING for n in names):
                    pass
                case _:
                    continue
            found.add(path.relative_to(source).as_posix())
    assert found == set(ELSEWHERE)
