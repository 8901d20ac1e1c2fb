"""How many threads: arguments, the environment variable, affinity, quotas of cgroups."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from renorm.errors import InvalidInput
from renorm.runtime import module, threads

WORKING = threads.working  # which tests replace


def test_argument(monkeypatch):
    assert threads.resolve(3) == 3
    for wrong in (0, -1, 1.5, "2", True, 5000):
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
    threads._cores.cache_clear()
    assert threads._cores() == 1
    threads._cores.cache_clear()


@pytest.fixture
def cgroups(tmp_path):
    """(text of /proc/self/cgroup, files of the file system) -> quota."""

    def quota(membership: str, **files: str) -> float | None:
        (tmp_path / "cgroup").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "fs" / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return threads.cpu_quota(tmp_path / "cgroup", tmp_path / "fs")

    return quota


def test_quota_of_version_2(cgroups):
    assert cgroups("0::/a/b\n") is None
    assert cgroups("0::/a/b\n", a__b__cpu_dot_max="max 100000\n") is None
    assert cgroups("0::/a/b\n", a__b__cpu_dot_max="250000 100000\n") == 2.5
    assert cgroups("0::/a/b\n", a__cpu_dot_max="150000 100000\n") == 1.5  # a parent's limit holds for its children
    assert cgroups("0::/elsewhere\n", cpu_dot_max="50000 100000\n") == 0.5


def test_quota_of_version_1(cgroups):
    line = "5:cpuset:/c\n4:cpu,cpuacct:/c\n"
    assert cgroups(line) is None
    assert cgroups(line, cpu__c__cpu_dot_cfs_quota_us="-1\n", cpu__c__cpu_dot_cfs_period_us="100000\n") is None
    assert cgroups(line, cpu__c__cpu_dot_cfs_quota_us="300000\n") == 3


def test_quota_bounds_the_default(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(1000, 1008)))
    for quota, expected in ((None, 8), (3.9, 3), (0.2, 1), (100.0, 8)):
        monkeypatch.setattr(threads, "cpu_quota", lambda *_, quota=quota: quota)
        threads._cores.cache_clear()
        assert threads._cores() == expected
    threads._cores.cache_clear()


def test_one_team_per_number_of_threads(walker):
    assert threads.team(2, walker, "x86_64") is threads.team(2, walker, "x86_64")
    assert threads.team(2, walker, "x86_64") is not threads.team(3, walker, "x86_64")


def test_where_no_thread_can_be_started_the_caller_walks_alone(mirrors, mirrored, monkeypatch, walker):
    m = mirrors(50, 4, 1000)
    started = []
    start = threading.Thread.start

    def scarce(self: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    x = np.arange(50, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 4))
    assert len(started) == 3
    assert not any(t.is_alive() for t in started)


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


def test_workers_that_sleep_are_woken_for_much_work_or_for_runs_that_follow_each_other(mirrors, mirrored, monkeypatch):
    x, now, woken = np.arange(50, dtype=np.float32), [10**9], list[bool]()
    monkeypatch.setattr(threads, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    for nanoseconds, expected in (
        (100_000, [False, True, True, False]),
        (module.WORTH_WAKING, [True] * 4),
        (0, [True] * 4),
    ):
        m = mirrors(50, 4, 3, nanoseconds=nanoseconds)
        walk = m._team._walk

        def watched(*arguments, walk=walk):
            woken.append(bool(arguments[3]))
            walk(*arguments)

        monkeypatch.setattr(m._team, "_walk", watched)
        monkeypatch.setattr(m._team, "_ended", 0)
        for pause in (10**9, 0, threads.CLOSELY - 1, threads.CLOSELY):
            now[0] += pause
            np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 4))
        monkeypatch.setattr(m._team, "_walk", walk)
        assert woken == expected
        woken.clear()


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
    assert not threads._busy
    assert threads._spins.value == threads.PATIENT


@pytest.mark.parametrize("spins", [0, 1])
def test_threads_that_sleep_at_once(mirrors, mirrored, monkeypatch, spins):
    monkeypatch.setattr(threads, "PATIENT", spins)
    monkeypatch.setattr(threads, "HASTY", spins)
    for count in (2, 3, 8):
        m = mirrors(64, 9, count, 2)
        for k in range(40):
            x = np.arange(64, dtype=np.float32) + k
            np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 9))


def test_two_runs_that_end_at_once_leave_threads_patient(monkeypatch):
    """While the first one counts who is busy, the second one ends, and says so."""
    busy = [2, 2]

    def cores():
        if busy:
            busy.clear()
            threads._hurry()
        return 3

    monkeypatch.setattr(threads, "_busy", busy)
    monkeypatch.setattr(threads, "_cores", cores)
    threads._hurry()
    assert threads._spins.value == threads.PATIENT
