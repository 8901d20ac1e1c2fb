"""Limits of control groups, read from files as the system has them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from renorm.core import cgroups

Ask = Callable[..., Any]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def system(tmp_path: Path) -> Ask:
    """(what is asked, text of /proc/self/cgroup, files of the file system) -> answer."""

    def answer(ask: Ask, membership: str, **files: str) -> Any:
        (tmp_path / "cgroup").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "fs" / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return ask(str(tmp_path / "cgroup"), str(tmp_path / "fs"))

    return answer


def test_cpus_of_version_2(system: Ask) -> None:
    assert system(cgroups.cpus, "0::/a/b\n") is None
    assert system(cgroups.cpus, "0::/a/b\n", a__b__cpu_dot_max="max 100000\n") is None
    assert system(cgroups.cpus, "0::/a/b\n", a__b__cpu_dot_max="250000 100000\n") == 2.5
    # a parent's limit holds for its children
    assert system(cgroups.cpus, "0::/a/b\n", a__cpu_dot_max="150000 100000\n") == 1.5
    assert system(cgroups.cpus, "0::/elsewhere\n", cpu_dot_max="50000 100000\n") == 0.5


def test_cpus_of_version_1(system: Ask) -> None:
    line = "5:cpuset:/c\n4:cpu,cpuacct:/c\n"
    assert system(cgroups.cpus, line) is None
    unlimited = {"cpu__c__cpu_dot_cfs_quota_us": "-1\n", "cpu__c__cpu_dot_cfs_period_us": "100000\n"}
    assert system(cgroups.cpus, line, **unlimited) is None
    assert system(cgroups.cpus, line, cpu__c__cpu_dot_cfs_quota_us="300000\n") == 3


def test_memory_is_the_least_of_all(system: Ask) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert system(cgroups.memory, "0::/a/b\n") == machine
    assert system(cgroups.memory, "0::/a/b\n", a__b__memory_dot_max="max\n") == machine
    assert system(cgroups.memory, "0::/a/b\n", a__memory_dot_max="536870912\n") == 512 << 20
    line = "9:memory:/c\n"
    assert system(cgroups.memory, line, memory__memory_dot_limit_in_bytes="9223372036854771712\n") == machine
    assert system(cgroups.memory, line, memory__c__memory_dot_limit_in_bytes="1048576\n") == 1 << 20


def test_pool_and_arena_keep_to_the_memory_of_the_group() -> None:
    """Of a process that is in a group with 256 MiB from the start: its files are put in the place of the system's."""
    script = """
from renorm.core import host
read, group = host.read, {"/proc/self/cgroup": "0::/a", "/sys/fs/cgroup/a/memory.max": f"{256 << 20}"}
host.read = lambda path: group.get(path) or read(path)
import numpy as np
from tests.frontends.models import model
import renorm
from renorm.errors import LimitExceeded
from renorm.runtime import pool
print(pool.RESULTS.most >> 20)
body = "between (float[8192, 1] x) => (float y) { a = Expand (x, s) b = Softmax <axis = 0> (a) y = ReduceSum (b) }"
try:
    renorm.compile(model(body, s=np.int64([8192, 16384])), threads=1)
except LimitExceeded as error:
    print(*error.facts)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    pool, arena = done.stdout.splitlines()
    assert pool == "32"
    assert re.fullmatch("bytes: .*, at most 268,435,456; .* between kernels, and weights", arena), arena
