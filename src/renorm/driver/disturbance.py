"""What others took of the cores while something was measured: the hypervisor (steal time), and other processes.

As Linux counts it in /proc, in hundredths of a second; elsewhere, and of shorter times, nothing is known. What shares a
core with a virtual machine, or holds its clock down, nobody counts: how fast cores multiply tells of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

STEAL, OTHERS = 0.02, 0.05  # shares of the time of all cores: what was measured beside more is disturbed
SLOWED = 0.15  # of the speed of cores
_LEAST = 20  # ticks of all cores together, below which their shares are too coarse


@dataclass(frozen=True)
class Disturbance:
    """Shares of the time of all cores that the hypervisor gave to other machines, and that other processes took.
    slowed: how much slower cores were when they were slowest than when they were fastest."""

    steal: float
    others: float
    slowed: float = 0.0

    @property
    def is_large(self) -> bool:
        return self.size > 1

    @property
    def size(self) -> float:
        """Relative to what is allowed."""
        return max(self.steal / STEAL, self.others / OTHERS, self.slowed / SLOWED)

    def __str__(self) -> str:
        slowed = f", cores slowed by {self.slowed:.0%} for a while" if self.slowed else ""
        return f"steal {self.steal:.1%}, other processes {self.others:.1%}{slowed}"


class Watch:
    """Counts from where it is made. processes: whose time is not that of others; so is that of this process."""

    def __init__(self, processes: Sequence[int]):
        self._processes = (os.getpid(), *processes)
        self._begin = self._counted()

    def disturbance(self) -> Disturbance | None:
        """Return what others took since then; None where that is not known."""
        total, steal, busy, own = (b - a for a, b in zip(self._begin, self._counted(), strict=True))
        return Disturbance(steal / total, max(0, busy - own) / total) if total >= _LEAST else None

    def _counted(self) -> tuple[int, int, int, int]:
        """Return ticks of the cores that this process may use: in all, steal, busy, and of its processes."""
        cores, rows = {f"cpu{i}" for i in os.sched_getaffinity(0)}, list[list[int]]()
        with suppress(OSError):
            for line in Path("/proc/stat").read_text().splitlines():
                name, *ticks = line.split()
                if name in cores:
                    rows.append([int(t) for t in ticks[:8]])  # what follows is counted in these, too
        user, nice, system, idle, waiting, hard, soft, steal = (
            (sum(column) for column in zip(*rows)) if rows else [0] * 8
        )
        busy = user + nice + system + hard + soft
        return busy + idle + waiting + steal, steal, busy, sum(map(_ticks, self._processes))


def _ticks(process: int) -> int:
    """Return what a process has used; 0 of one that is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])  # utime and stime, of all its threads
    return 0
