"""Limits of control groups, read from files as the system has them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from renorm.core import cgroups

Ask = Callable[..., Any]


@pytest.fixture
def system(tmp_path: Path) -> Ask:
    """(what is asked, text of /proc/self/cgroup, files of the file system) -> answer."""

    def answer(ask: Ask, membership: str, **files: str) -> Any:
        (tmp_path / "cgroup").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "fs" / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return ask(tmp_path / "cgroup", tmp_path / "fs")

    return answer


def test_cpus_of_version_2(system: Ask) -> None:
    assert system(cgroups.cpus, "0::/a/b\n") is None
    assert system(cgroups.cpus, "0::/a/b\n", a__b__cpu_dot_max="max 100000\n") is None
    assert system(cgroups.cpus, "0::/a/b\n", a__b__cpu_dot_max="250000 100000\n") == 2.5
    assert (
        system(cgroups.cpus, "0::/a/b\n", a__cpu_dot_max="150000 100000\n") == 1.5
    )  # a parent's limit holds for its children
    assert system(cgroups.cpus, "0::/elsewhere\n", cpu_dot_max="50000 100000\n") == 0.5


def test_cpus_of_version_1(system: Ask) -> None:
    line = "5:cpuset:/c\n4:cpu,cpuacct:/c\n"
    assert system(cgroups.cpus, line) is None
    assert (
        system(cgroups.cpus, line, cpu__c__cpu_dot_cfs_quota_us="-1\n", cpu__c__cpu_dot_cfs_period_us="100000\n")
        is None
    )
    assert system(cgroups.cpus, line, cpu__c__cpu_dot_cfs_quota_us="300000\n") == 3


def test_memory_is_the_least_of_all(system: Ask) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert system(cgroups.memory, "0::/a/b\n") == machine
    assert system(cgroups.memory, "0::/a/b\n", a__b__memory_dot_max="max\n") == machine
    assert system(cgroups.memory, "0::/a/b\n", a__memory_dot_max="536870912\n") == 512 << 20
    line = "9:memory:/c\n"
    assert system(cgroups.memory, line, memory__memory_dot_limit_in_bytes="9223372036854771712\n") == machine
    assert system(cgroups.memory, line, memory__c__memory_dot_limit_in_bytes="1048576\n") == 1 << 20
