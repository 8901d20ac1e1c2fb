"""Read how much of the machine's CPUs and memory control groups (version 1 or 2) leave to this process.

A group's limit holds for those below it, so that the least of all counts. Membership is told by /proc/self/cgroup, a
path as the host sees it: in a container without a cgroup namespace only the root of its own groups is mounted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from renorm.core.host import read

MEMBERSHIP, ROOT = "/proc/self/cgroup", "/sys/fs/cgroup"


def cpus(membership: str = MEMBERSHIP, root: str = ROOT) -> float | None:
    """CPUs; None: no limit."""
    found = list[float]()
    for group, is_unified in _groups("cpu", membership, root):
        if is_unified:
            quota, _, period = (read(f"{group}/cpu.max") or "max").partition(" ")
        else:
            quota, period = read(f"{group}/cpu.cfs_quota_us") or "-1", read(f"{group}/cpu.cfs_period_us") or ""
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def memory(membership: str = MEMBERSHIP, root: str = ROOT) -> int:
    """Bytes, at most those of the machine."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group, is_unified in _groups("memory", membership, root):
        limit = read(f"{group}/{'memory.max' if is_unified else 'memory.limit_in_bytes'}") or ""
        found += [int(limit)] if limit.isdecimal() else []
    return min(found)


def _groups(controller: str, membership: str, root: str) -> Iterator[tuple[str, bool]]:
    """Directories of the groups that the process is in, and whether they are of version 2."""
    for line in (read(membership) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = f"{root}/{controller}" if controllers else root
        group = f"{top}/{path.strip('/')}".rstrip("/")
        while group != top:
            yield group, not controllers
            group = group.rpartition("/")[0]
        yield top, not controllers
