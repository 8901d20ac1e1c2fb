"""How many threads run a network, and the teams of threads that do.

A team of T threads is T - 1 workers and whoever calls `run`. Workers are Python threads that enter the walker once,
without the interpreter's lock, and stay there: between runs they wait in native code. There is one team for each T
(and each version of the walker) in a process, shared by all modules; a lock lets one run at a time use it. Modules
with different T have different teams and run at once. There are never more threads in a team than cores: they would
only wait for each other. While teams that run at once have more together, threads that wait go to sleep soon.

Workers start at the first run. They are sent home when the interpreter exits; a child of fork() starts workers of its
own. Where no thread can be started the caller walks alone: slower, with the same results.

Who works for a library that has OpenMP's threads may give a region of those (runtime.openmp) for a number: its team has
no workers, and each run is a parallel region. A child of fork() does without, since libgomp hangs there.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from renorm.core.errors import InvalidInput
from renorm.core.locks import Lock, Rank
from renorm.runtime import layout, loader
from renorm.runtime.memory import Memory
from renorm.runtime.openmp import Region

MOST = 1024  # more threads than this are taken for a mistake
VARIABLE = "RENORM_NUM_THREADS"
# Pauses before a thread that waits goes to sleep. About 40 us: longer than a gap between runs in a loop, shorter than
# what a scheduler gives a thread; about 1 us where another thread may want the core.
PATIENT, HASTY = 2000, 50
CLOSELY = 100_000  # ns between runs that follow each other: about as long as waking a thread takes


def resolve(threads: int | Region | None) -> int:
    """`threads`, or the default where it is None. Raises InvalidInput unless it is between 1 and MOST."""
    if threads is None:
        return default()
    if isinstance(threads, Region):
        threads = threads.threads
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MOST:
        raise InvalidInput(f"threads={threads!r}", [f"expected an integer from 1 to {MOST}, or None for the default"])
    return threads


def working(threads: int) -> int:
    """How many of `threads` are put to work: one per core at most."""
    return min(threads, _cores())


def default() -> int:
    """RENORM_NUM_THREADS; without it one thread per core that this process may use, cgroup quotas included."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return _cores()
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise InvalidInput(f"{VARIABLE}={text!r}", [f"expected an integer from 1 to {MOST}"])
    return int(text)


@cache
def _cores() -> int:
    cpus = os.sched_getaffinity(0)
    quota = cpu_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    # a thread per core: two hardware threads of one core share its multipliers
    cores = {_read(Path(f"/sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list")) or str(c) for c in cpus}
    # rounded down: a team that is stopped halfway through each period waits for its slowest member at every barrier
    return max(1, min(len(cores), MOST, int(quota) if quota is not None else MOST))


def cpu_quota(membership: Path, root: Path) -> float | None:
    """CPUs that cgroups (version 1 or 2) allow a process, whose /proc/*/cgroup is `membership`; None: no limit."""
    limits = list[float]()
    for line in (_read(membership) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # the path is seen from the host: in a container without a cgroup namespace only the root is mounted
        group = root / path.strip("/") if not controllers else root / "cpu" / path.strip("/")
        top = root if not controllers else root / "cpu"
        while True:
            if not controllers:
                quota, _, period = (_read(group / "cpu.max") or "max").partition(" ")
            else:
                quota, period = _read(group / "cpu.cfs_quota_us") or "-1", _read(group / "cpu.cfs_period_us") or ""
            if quota.isdecimal() and period.isdecimal() and int(period):
                limits.append(int(quota) / int(period))
            if group == top:
                break
            group = group.parent
    return min(limits, default=None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


class Team:
    """`threads` threads that walk programs together.

    walker: the object of codegen.llvm.walk; arch: its architecture. region: whose threads they are; None: our own.
    """

    def __init__(self, threads: int, walker: bytes, arch: str, region: Region | None = None):
        self.threads = threads
        self._lock = Lock("a team of threads", Rank.TEAM)
        self._image = loader.load([walker], arch)
        pointer, word = ctypes.c_void_p, ctypes.c_int64
        # plain C calls: ctypes gives the interpreter's lock back while they run
        self._walk = ctypes.CFUNCTYPE(None, pointer, pointer, word, word)(self._image.address(0, layout.RUN))
        self._work = ctypes.CFUNCTYPE(None, pointer, word, word)(self._image.address(0, layout.WORK))
        self._stop = ctypes.CFUNCTYPE(None, pointer)(self._image.address(0, layout.STOP_WORK))
        self.start_over(region)

    def start_over(self, region: Region | None = None) -> None:
        """Forgets workers and region: what a child of fork() must do, in which no other threads exist."""
        self._pool = Memory(layout.POOL_BYTES)
        self._region = region
        library = ctypes.CDLL(None)
        fields = {
            layout.SPINS: ctypes.addressof(_spins),
            layout.SYSCALL: ctypes.cast(library.syscall, ctypes.c_void_p).value,
            layout.CLOCK: ctypes.cast(library.clock_gettime, ctypes.c_void_p).value,
        }
        if region is not None:
            fields |= {
                layout.PARALLEL: region.parallel,
                layout.NUMBER: region.number,
                layout.REGION: region.threads,
                layout.BODY: self._image.address(0, layout.JOIN),
            }
        for field, word in fields.items():
            ctypes.c_void_p.from_address(self._pool.address + field).value = word
        self._workers: list[threading.Thread] | None = None
        self._ended = 0  # when the last run did, in nanoseconds

    def turn(self) -> AbstractContextManager[Any]:
        """Inside of this block and `turns`, which goes first, the team is the caller's, where it has several threads.

        Inside of another block of the same thread, which external code, a finalizer or a signal handler may be, the
        caller gets no team and walks alone: it waits for nobody, since somebody may wait for what it holds.
        """
        return _NO_LOCK if self.threads == 1 or turns.depth > 1 else self._lock

    def run(self, context: int, is_short: bool = False) -> None:
        """Runs the context at this address with all threads that the caller's `turn` gives it.

        is_short: it takes less than waking a thread; those that sleep are woken only while runs follow each other.
        """
        if turns.depth > 1:
            self._walk(self._pool.address, context, 1, False)
            return
        threads = self._present()
        _busy.append(threads)
        _hurry()
        try:
            wake = not is_short or time.perf_counter_ns() - self._ended < CLOSELY
            self._walk(self._pool.address, context, threads, wake)
        finally:
            self._ended = time.perf_counter_ns()
            _busy.remove(threads)
            _hurry()

    def _present(self) -> int:
        """How many threads a run has: all, or the caller alone where no worker could be started."""
        if self._region is not None:
            return self.threads
        if self._workers is None:
            self._workers = self._start()
        return self.threads if len(self._workers) == self.threads - 1 else 1

    def _start(self) -> list[threading.Thread]:
        workers = list[threading.Thread]()
        try:
            for i in range(1, self.threads):
                arguments = (self._pool.address, i, self.threads)
                worker = threading.Thread(target=self._work, args=arguments, daemon=True, name=f"renorm-{i}")
                worker.start()
                workers.append(worker)
        except RuntimeError:  # out of threads, or the interpreter is exiting
            self._send_home(workers)
            return []
        return workers

    def _send_home(self, workers: list[threading.Thread]) -> None:
        if workers:
            self._stop(self._pool.address)
            for worker in workers:
                worker.join()

    def close(self) -> None:
        """Sends the workers home; runs that come later are walked by their caller alone.

        Leaves a team alone that is in use.
        """
        if self._lock.acquire(timeout=1.0):
            try:
                self._send_home(self._workers or [])
                self._workers = []
            finally:
                self._lock.release()


class _Turns(threading.local):
    """depth: how many blocks of `Team.turn` this thread is in. Each run enters it: what contextlib makes of a generator
    takes three times as long."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


turns = _Turns()
_NO_LOCK = nullcontext()
_busy: list[int] = []  # threads of each run in flight; appending, removing and adding up are atomic
_spins = ctypes.c_int32(PATIENT)
_teams: dict[tuple[int, bytes, Region | None], Team] = {}
_is_child = False  # of fork()


def team(threads: int, walker: bytes, arch: str, region: Region | None = None) -> Team:
    """The team of this process with so many threads, those of `region` if there is one, and this walker."""
    key = (threads, walker, None if _is_child or threads == 1 else region)
    # two threads may make one each: that which comes second is dropped, and has no workers yet
    return _teams.get(key) or _teams.setdefault(key, Team(threads, walker, arch, key[2]))


def _hurry() -> None:
    """Tells threads that wait how soon to sleep. Looks again after it has told them: meanwhile another run may have
    begun or ended."""
    while _spins.value != (now := PATIENT if sum(_busy) <= _cores() else HASTY):
        _spins.value = now


def _after_fork() -> None:
    global _is_child
    _is_child = True
    _busy.clear()
    _hurry()
    for each in _teams.values():
        each.start_over()


def _at_exit() -> None:
    for each in list(_teams.values()):
        each.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
