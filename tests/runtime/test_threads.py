"""How many threads: arguments, the environment variable, affinity, quotas of cgroups."""

from __future__ import annotations

import os

import pytest

from renorm.errors import InvalidInput
from renorm.runtime import threads


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
    import threading

    import numpy as np

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
