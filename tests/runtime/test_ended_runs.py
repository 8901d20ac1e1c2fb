"""Runs that end before they are done: cancelled, out of time, by what a handler of a signal raises."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import pytest

from renorm.codegen.llvm import walk_system
from renorm.errors import Cancelled, InvalidInput, TimeLimit
from renorm.runtime import layout, openmp, threads
from renorm.runtime.memory import Memory
from renorm.runtime.module import Module

N, LENGTH = 1 << 20, 5000  # about half a millisecond a kernel: seconds
SOON = 1.0  # seconds; some ms, but other processes want the cores too
TEAMS = [1, 2, 3]


@pytest.fixture(params=[*TEAMS, "region"])
def long(request, mirrors) -> Module:
    """A network that takes seconds."""
    team = request.param
    if team == "region":
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        team = openmp.region(2, torch._C.__file__)
    return mirrors(N, LENGTH, team, 1 << 14)


@pytest.fixture
def short(mirrors):
    return lambda m: mirrors(100, 4, m._team._region or m.threads)


@contextmanager
def ends(error: type[BaseException], after: float) -> Generator[None]:
    """The block raises this, not long after so many seconds."""
    begin = time.monotonic()
    with pytest.raises(error):
        yield
    assert time.monotonic() - begin < after + SOON


def usable(m: Module, short, mirrored) -> None:
    """The team is free, and runs are right."""
    assert threads._word(m._team.pool, layout.FREE).value == 1
    assert threads._word(threads._process, layout.BUSY).value == 0
    small = short(m)
    for k in range(20):
        x = np.arange(100, dtype=np.float32) + k
        np.testing.assert_array_equal(small.run(x)[0], mirrored(x, 4))


@contextmanager
def alarm(after: float, handler) -> Generator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_time_limit(long, short, mirrored):
    x = np.zeros(N, np.float32)
    for limit in (0.1, 0, 1e-9):
        with ends(TimeLimit, limit):
            long.run(x, timeout=limit)
        usable(long, short, mirrored)
    with pytest.raises(TimeoutError):  # as Python calls it
        long.run(x, timeout=0.01)
    y = np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(short(long).run(y, timeout=float("inf"))[0], mirrored(y, 4))
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises(InvalidInput, match="timeout="):
            long.run(x, timeout=wrong)


def test_cancel(long, short, mirrored):
    x = np.zeros(N, np.float32)
    long.cancel()  # what comes later is not affected
    timer = threading.Timer(0.1, long.cancel)
    timer.start()
    with ends(Cancelled, 0.1):
        long.run(x)
    timer.join()
    usable(long, short, mirrored)


def test_a_worker_about_to_sleep_as_its_run_ends_does_not(mirrors, walker):
    """Between its look at what is done and the system call, the run ends: futex must find the word changed. The caller
    is in a phase of its own, and adds nothing of it."""
    library, word, found = ctypes.CDLL(None), ctypes.c_int64, list[bool]()
    caller = threading.get_ident()

    @ctypes.CFUNCTYPE(word, word, ctypes.c_void_p, word, word, ctypes.c_void_p, word, word)
    def syscall(number, address, operation, value, *rest):
        if address != done or operation == walk_system.WAKE:
            return library.syscall(*map(word, (number, address, operation, value)), ctypes.c_void_p(rest[0]), *rest[1:])
        if threading.get_ident() != caller:
            m.cancel()
            until = time.monotonic() + 30
            while (now := word.from_address(done).value) < 1 << 60 and time.monotonic() < until:
                time.sleep(0.001)
            found.append(now & 0xFFFFFFFF != value)
        return -1

    m, process = mirrors(N, LENGTH, 2), Memory(layout.PROCESS_BYTES)
    m._team = team = threads.Team(2, walker, "x86_64")
    process.array[:] = threads._process.array
    words: dict[int, int] = dict.fromkeys((layout.PATIENT, layout.IDLE, layout.HASTY), 0)
    words[layout.SYSCALL] = ctypes.cast(syscall, ctypes.c_void_p).value or 0
    for field, value in words.items():
        threads._word(process, field).value = value
    threads._word(team.pool, layout.PROCESS).value = process.address
    done = team.pool.address + layout.DONE
    for _ in range(10):
        with pytest.raises(Cancelled):  # when it is, is the worker's affair
            m.run(np.zeros(N, np.float32))
    team.close()
    assert len(found) > 5
    assert all(found)


def test_an_exception_of_a_handler(long, short, mirrored):
    def interrupt(*_):
        raise KeyboardInterrupt

    latencies = list[float]()
    for _ in range(5):
        begin = time.monotonic()
        with alarm(0.05, interrupt), ends(KeyboardInterrupt, 0.05):
            long.run(np.zeros(N, np.float32))
        latencies.append(time.monotonic() - begin - 0.05)
    assert min(latencies) < 0.05  # as long as nobody else wants the cores
    usable(long, short, mirrored)


def test_a_handler_that_returns_and_one_that_runs_a_network(long, short, mirrored):
    small, seen, x = short(long), list[bool](), np.arange(100, dtype=np.float32)

    def handle(*_):
        seen.append(np.array_equal(small.run(x)[0], mirrored(x, 4)))

    with alarm(0.05, handle), ends(TimeLimit, 0.3):
        long.run(np.zeros(N, np.float32), timeout=0.3)
    assert seen == [True]
    usable(long, short, mirrored)


def test_who_waits_for_the_team_can_be_called_off(mirrors):
    long, other = (mirrors(N, LENGTH, 2, 1 << 14) for _ in range(2))
    x, failed = np.zeros(N, np.float32), list[BaseException]()

    def run():
        try:
            long.run(x)
        except Cancelled as error:
            failed.append(error)

    holder = threading.Thread(target=run)
    holder.start()
    while threads._word(long._team.pool, layout.FREE).value:
        time.sleep(0.001)

    def interrupt(*_):
        raise KeyboardInterrupt

    with ends(TimeLimit, 0.05):
        other.run(x, timeout=0.05)
    timer = threading.Timer(0.05, other.cancel)
    timer.start()
    with ends(Cancelled, 0.05):
        other.run(x)
    with alarm(0.05, interrupt), ends(KeyboardInterrupt, 0.05):
        other.run(x)
    assert holder.is_alive()
    long.cancel()
    holder.join(30)
    assert len(failed) == 1


def test_one_long_phase_of_one_thread_is_cut(mirrors, mirrored):
    """What bounds the latency then is a piece, not the phase."""
    m = mirrors(1 << 22, 1, 1, 1 << 10)
    x = np.zeros(1 << 22, np.float32)
    np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 1))
    begin = time.monotonic()
    with pytest.raises(TimeLimit):
        m.run(x, timeout=1e-4)
    assert time.monotonic() - begin < SOON
    assert m._only.launches.table[0, layout.PIECE // 8] == 1 << 10


def test_the_runs_of_one_module_are_cancelled_and_no_others(mirrors):
    modules = [mirrors(N, LENGTH, 1, 1 << 14) for _ in range(2)]
    x, ended = np.zeros(N, np.float32), list[int]()

    def run(k: int) -> None:
        with pytest.raises(Cancelled):
            modules[k].run(x)
        ended.append(k)

    callers = [threading.Thread(target=run, args=(k,)) for k in (0, 1, 0)]
    for c in callers:
        c.start()
    time.sleep(0.1)
    modules[0].cancel()
    for c in (callers[0], callers[2]):
        c.join(30)
    assert ended == [0, 0]
    modules[1].cancel()
    callers[1].join(30)
    assert ended == [0, 0, 1]


def test_an_exception_for_another_thread_comes_when_the_run_is_over(mirrors, mirrored):
    m, x, ended = mirrors(N, 100, 2, 1 << 14), np.zeros(N, np.float32), list[type]()

    def run():
        try:
            while True:
                m.run(x)
        except Stop:
            ended.append(Stop)

    class Stop(Exception):
        pass

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.05)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stop)) == 1
    thread.join(60)
    assert ended == [Stop]
    np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 100))
