"""How many threads: arguments, the environment variable, affinity, quotas of cgroups."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from tests.stress._children import in_child

from renorm.codegen.llvm import walk, walk_system
from renorm.core import cgroups
from renorm.errors import InvalidInput
from renorm.runtime import Memory, layout, module, threads

WORKING = threads.working  # which tests replace


def busy() -> int:
    """Threads of all runs in flight."""
    return threads._word(threads._process, layout.BUSY).value


def test_argument(monkeypatch):
    assert threads.resolve(3) == 3
    wrongs: list[Any] = [0, -1, 1.5, "2", True, 5000]
    for wrong in wrongs:
        with pytest.raises(InvalidInput, match="expected an integer from 1 to 1024"):
            threads.resolve(wrong)


def test_environment_variable(monkeypatch):
    monkeypatch.setenv("RENORM_NUM_THREADS", " 5 ")
    assert threads.resolve(None) == 5
    assert threads.resolve(2) == 2
    for wrong in ("0", "two", "-1", "1.5"):
        monkeypatch.setenv("RENORM_NUM_THREADS", wrong)
        with pytest.raises(InvalidInput, match="RENORM_NUM_THREADS='"):
            threads.resolve(None)
    monkeypatch.delenv("RENORM_NUM_THREADS")
    assert 1 <= threads.resolve(None) <= len(os.sched_getaffinity(0))


def test_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert threads._cores() == 1


@pytest.fixture(autouse=True)
def no_count_of_another_test():
    yield
    threads._cores_of.cache_clear()


def test_quota_bounds_the_default(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(1000, 1008)))
    for quota, expected in ((None, 8), (3.9, 3), (0.2, 1), (100.0, 8)):
        monkeypatch.setattr(cgroups, "cpus", lambda quota=quota: quota)
        threads._cores_of.cache_clear()
        assert threads._cores() == expected


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_change_of_affinity_is_seen(monkeypatch):
    monkeypatch.delenv("RENORM_NUM_THREADS", raising=False)
    monkeypatch.setattr(cgroups, "read", lambda path: None)  # a core each and no quota, whatever the machine
    threads._cores_of.cache_clear()
    before = os.sched_getaffinity(0)
    assert threads.default() == len(before)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert threads.default() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert threads.default() == len(before)


def test_a_child_asks_again(monkeypatch):
    """It may be in another group."""
    monkeypatch.delenv("RENORM_NUM_THREADS", raising=False)
    monkeypatch.setattr(cgroups, "cpus", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(1000, 1008)))
    assert threads.default() == 8

    def check():
        assert threads.default() == 3

    monkeypatch.setattr(cgroups, "cpus", lambda: 3.5)
    in_child(check, 20)
    assert threads.default() == 8


def test_one_team_per_number_of_threads(walker):
    assert threads.team(2, walker, "x86_64") is threads.team(2, walker, "x86_64")
    assert threads.team(2, walker, "x86_64") is not threads.team(3, walker, "x86_64")


def test_where_no_more_threads_can_be_started_those_there_are_walk(mirrors, mirrored, monkeypatch, walker):
    m, started = mirrors(50, 4, 1000), []
    start = threads.start_new_thread

    def scarce(*arguments):
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(start(*arguments))

    monkeypatch.setattr(threads, "start_new_thread", scarce)
    x = np.arange(50, dtype=np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 4))
    assert len(started) == 3
    m._team.close()
    np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 4))
    threads._teams.pop((1000, walker, None))


def test_workers_keep_what_they_are_in(walker):
    """Their code, and what they wait at: a team that nobody refers to is freed when the last of them has left."""
    team = threads.Team(3, walker, "x86_64")
    image, pool, stop = weakref.ref(team._image), team.pool, team._stop
    team._start()
    until = time.monotonic() + 30
    while team._entered.value < 2:
        assert time.monotonic() < until
        time.sleep(0.001)
    del team
    gc.collect()
    held = image()
    assert held is not None
    stop(pool.address)
    del held  # this thread is not in its code either
    while image() is not None:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_worker_too_many_finds_no_number(mirrors, mirrored):
    m = mirrors(50, 4, 3)
    team, x = m._team, np.arange(50, dtype=np.float32)
    m.run(x)
    until = time.monotonic() + 30
    while team._entered.value < 2:
        assert time.monotonic() < until
        time.sleep(0.001)
    for _ in range(10):
        team._work(team.pool.address)  # it would not return if it had one
        assert team._entered.value == 2
        np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 4))


def test_no_more_threads_work_than_there_are_cores(mirrors, mirrored, monkeypatch):
    monkeypatch.setattr(threads, "working", WORKING)
    x = np.arange(50, dtype=np.float32)
    for cores, working in ((1, 1), (3, 3), (64, 5)):
        monkeypatch.setattr(threads, "_cores", lambda cores=cores: cores)
        m = mirrors(50, 4, 5)
        assert (m.threads, m._team.threads) == (5, working)
        np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 4))


def test_little_work_is_done_by_one_thread(mirrors, mirrored, monkeypatch):
    monkeypatch.setattr(module, "WORTH_SHARING", 1000)
    x = np.arange(50, dtype=np.float32)
    for nanoseconds, working in ((0, 3), (1, 1), (999, 1), (1000, 3)):
        m = mirrors(50, 4, 3, nanoseconds=nanoseconds)
        assert m._team.threads == working
        np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 4))


def test_workers_that_sleep_are_woken_for_much_work_or_for_runs_that_follow_each_other(mirrors, mirrored, walker):
    """As far as the walker can tell: the clock and the system calls are a test's."""
    x, now, woken = np.arange(50, dtype=np.float32), [10**9], list[bool]()
    word = ctypes.c_int64

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(word * 2))
    def clock(_, moment):
        moment.contents[:] = divmod(now[0], 10**9)
        return 0

    @ctypes.CFUNCTYPE(word, word, ctypes.c_void_p, word, word)
    def syscall(number, address, operation, value):
        woken.append(operation == walk_system.WAKE and address == team.pool.address + layout.GENERATION)
        return 0

    for nanoseconds, expected in (
        (100_000, [False, True, True, False]),
        (module.WORTH_WAKING, [True] * 4),
        (0, [True] * 4),
    ):
        m = mirrors(50, 4, 3, nanoseconds=nanoseconds)
        m._team = team = threads.Team(3, walker, "x86_64")
        team._workers = 0  # one sleeps who is not there
        process = Memory(layout.PROCESS_BYTES)
        process.array[:] = threads._process.array
        for field, function in ((layout.CLOCK, clock), (layout.SYSCALL, syscall)):
            threads._word(process, field).value = ctypes.cast(function, ctypes.c_void_p).value or 0
        threads._word(team.pool, layout.PROCESS).value = process.address
        threads._word(team.pool, layout.PARKED).value = 1
        told = list[bool]()
        for pause in (10**9, 0, walk.CLOSELY - 1, walk.CLOSELY):
            now[0] += pause
            np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 4))
            told.append(any(woken))
            woken.clear()
        assert told == expected


@pytest.mark.parametrize("others", [(2,), (3,), (1, 4), (2, 3, 4)])
def test_teams_that_run_at_once(mirrors, mirrored, others):
    """More threads than cores: those that wait sleep soon, and wake."""
    x = np.arange(300, dtype=np.float32)
    wrong = list[int]()

    def work(m):
        for k in range(60):
            if not np.array_equal(m.run(x + k)[0], mirrored(x + k, 12)):
                wrong.append(k)

    callers = [threading.Thread(target=work, args=(mirrors(300, 12, n, 7),)) for n in (2, *others)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not wrong
    assert busy() == 0


def test_a_worker_waits_for_a_run_as_long_as_the_process_says(mirrors, walker):
    """Giving way to others meanwhile; then it sleeps."""
    library, word, numbers = ctypes.CDLL(None), ctypes.c_int64, list[int]()

    @ctypes.CFUNCTYPE(word, word, ctypes.c_void_p, word, word, ctypes.c_void_p)
    def syscall(number, address, operation, value, period):
        if not numbers or numbers[-1] != number:
            numbers.append(number)
        return library.syscall(*map(word, (number, address or 0, operation, value)), ctypes.c_void_p(period))

    m, process = mirrors(64, 9, 2, 2), Memory(layout.PROCESS_BYTES)
    m._team = team = threads.Team(2, walker, "x86_64")
    process.array[:] = threads._process.array
    own = {layout.CORES: 64, layout.IDLE: 200_000_000, layout.PATIENT: 10**12}
    own[layout.SYSCALL] = ctypes.cast(syscall, ctypes.c_void_p).value or 0
    for field, value in own.items():
        threads._word(process, field).value = value
    threads._word(team.pool, layout.PROCESS).value = process.address
    parked = ctypes.c_int32.from_address(team.pool.address + layout.PARKED)
    m.run(np.zeros(64, np.float32))
    begin, (sched_yield, futex) = time.monotonic(), (24, 202)
    while not (parked.value and numbers[-1] == futex) and time.monotonic() < begin + 30:
        time.sleep(0.001)
    spent = time.monotonic() - begin
    threads._word(process, layout.SYSCALL).value = threads._word(threads._process, layout.SYSCALL).value
    team.close()
    assert 0.15 < spent < 30
    assert numbers[-2:] == [sched_yield, futex]


@pytest.mark.parametrize("patience", [0, 1])
def test_threads_that_sleep_at_once(mirrors, mirrored, patience):
    pauses = [threads._word(threads._process, field) for field in (layout.PATIENT, layout.IDLE, layout.HASTY)]
    before = [p.value for p in pauses]
    for p in pauses:
        p.value = patience
    for count in (2, 3, 8):
        m = mirrors(64, 9, count, 2)
        for k in range(40):
            x = np.arange(64, dtype=np.float32) + k
            np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 9))
    for p, was in zip(pauses, before):
        p.value = was
