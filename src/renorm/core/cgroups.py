"""Read how much of the machine's CPUs and memory control groups (version 1 or 2) leave to this process.

A group's limit holds for those below it, so that the least of all counts. Membership is told by /proc/self/cgroup, a
path as the host sees it: in a container without a cgroup namespace only the root of its own groups is mounted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MEMBERSHIP, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cpus(membership: Path = MEMBERSHIP, root: Path = ROOT) -> float | None:
    """CPUs; None: no limit."""
    found = list[float]()
    for group, is_unified in _groups("cpu", membership, root):
        if is_unified:
            quota, _, period = (read(group / "cpu.max") or "max").partition(" ")
        else:
            quota, period = read(group / "cpu.cfs_quota_us") or "-1", read(group / "cpu.cfs_period_us") or ""
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def memory(membership: Path = MEMBERSHIP, root: Path = ROOT) -> int:
    """Bytes, at most those of the machine."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group, is_unified in _groups("memory", membership, root):
        limit = read(group / ("memory.max" if is_unified else "memory.limit_in_bytes")) or ""
        found += [int(limit)] if limit.isdecimal() else []
    return min(found)


def read(path: Path) -> str | None:
    """The text of one of the system's small files; None where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _groups(controller: str, membership: Path, root: Path) -> Iterator[tuple[Path, bool]]:
    """Directories of the groups that the process is in, and whether they are of version 2."""
    for line in (read(membership) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controller if controllers else root
        group = top / path.strip("/")
        while group != top:
            yield group, not controllers
            group = group.parent
        yield top, not controllers
