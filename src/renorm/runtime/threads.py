"""How many threads run a network, and the teams of threads that do.

A team of T threads is T - 1 workers and whoever calls `run`. Workers are threads that enter the walker once, without
the interpreter's lock, and stay there: between runs they wait in native code. There is one team for each T (and each
version of the walker) in a process, shared by all modules; one run at a time has it. Modules with different T have
different teams and run at once. There are never more threads in a team than cores: they would only wait for each other.
While teams that run at once have more together, threads that wait go to sleep soon.

An exception may come between any two instructions of Python: an interrupt, whatever handlers of signals raise, what
another thread sends. So nothing here is taken that would have to be given back, and nothing is counted: who has the
team, how deep a thread is in walks, how many threads are busy and which numbers workers have is kept by the walker, in
native code, to which no exception comes.

Workers start at the first run. They are sent home when the interpreter exits; a child of fork() starts workers of its
own. Where no thread can be started, a run is walked by those there are: slower, with the same results.

Who works for a library that has OpenMP's threads may give a region of those (runtime.openmp) for a number: its team has
no workers, and each run is a parallel region. Without go a child of fork(), since libgomp hangs there, and a thread for
which the system does not give what a region needs, since libgomp then ends the process: they run on a team of ours.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from functools import cache
from numbers import Real

from renorm.core import cgroups
from renorm.core.errors import InvalidInput
from renorm.core.host import read
from renorm.core.room import require_for_thread
from renorm.runtime import layout, loader
from renorm.runtime.memory import Memory
from renorm.runtime.openmp import AGAIN_S, ParallelRegion, entrance

MOST = 1024  # more threads than this are taken for a mistake
VARIABLE = "RENORM_NUM_THREADS"
# Nanoseconds before a thread that waits goes to sleep. To wake it takes 50 to 100 us; a virtual machine also gives up
# the core, and may come back on another one, with cold caches: kernels then took 1.1 to 1.4 of their time.
# PATIENT: until the others of its run are as far. IDLE: until the next run, which in a loop comes sooner. With a fifth
# of both, unet took 46 ms and a tenth of its runs 60 or more, not 45 and 46. Who waits gives way to other processes.
# HASTY: where another thread of a team may want the core.
PATIENT, IDLE, HASTY = 5_000_000, 1_000_000, 1_000
HOME_S = 1.0  # that the end of the process waits for workers


def resolve(threads: int | ParallelRegion | None) -> int:
    """`threads`, or the default where it is None. Raises InvalidInput unless it is between 1 and MOST."""
    if threads is None:
        return default()
    if isinstance(threads, ParallelRegion):
        threads = threads.threads
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MOST:
        raise InvalidInput(f"threads={threads!r}", [f"expected an integer from 1 to {MOST}, or None for the default"])
    return threads


class Limit:
    """A time limit, of a call that begins now. deadline: in nanoseconds of time.monotonic_ns."""

    def __init__(self, seconds: float):
        if not isinstance(seconds, Real) or not seconds >= 0:  # NaN is not either
            raise InvalidInput(f"timeout={seconds!r}", ["expected a number of seconds, or None for no limit"])
        self.seconds = seconds
        self.deadline = min(layout.FOREVER, time.monotonic_ns() + int(min(seconds, 1e9) * 1e9))

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0, self.deadline - time.monotonic_ns()) / 1e9


def working(threads: int) -> int:
    """Return how many of `threads` are put to work: one per core at most."""
    return min(threads, _cores())


def default() -> int:
    """RENORM_NUM_THREADS; without it one thread per core that this process may use, cgroup quotas included."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return _cores()
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise InvalidInput(f"{VARIABLE}={text!r}", [f"expected an integer from 1 to {MOST}"])
    return int(text)


def _cores() -> int:
    """As many as this process may use now: modules that are made after a change of affinity, or a fork, know of it."""
    if sys.platform != "linux":  # where nothing runs, but modules for other machines are made
        return os.cpu_count() or 1
    return _cores_of(frozenset(os.sched_getaffinity(0)), os.getpid())


@cache
def _cores_of(cpus: frozenset[int], process: int) -> int:
    quota = cgroups.cpus()
    # a thread per core: two hardware threads of one core share its multipliers
    cores = {read(f"/sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list") or str(c) for c in cpus}
    # rounded down: a team that is stopped halfway through each period waits for its slowest member at every barrier
    return max(1, min(len(cores), MOST, int(quota) if quota is not None else MOST))


class Team:
    """`threads` threads that walk programs together.

    walker: the object of codegen.llvm.walk; arch: its architecture. region: whose threads they are; None: our own.
    """

    def __init__(self, threads: int, walker: bytes, arch: str, region: ParallelRegion | None = None):
        self.threads, self._walker, self._arch = threads, walker, arch
        self._image = loader.load([walker], arch)
        pointer, word = ctypes.c_void_p, ctypes.c_int64
        # it is entered with the interpreter's lock, which it gives back itself, so that it can have signals handled and
        # hand on what is raised there
        run = ctypes.PYFUNCTYPE(word, pointer, pointer, pointer, word, word, word)
        self._walk = run(self._image.address(0, layout.RUN))
        self._work = ctypes.CFUNCTYPE(None, pointer)(self._image.address(0, layout.WORK))
        self._stop = ctypes.CFUNCTYPE(None, pointer)(self._image.address(0, layout.STOP_WORK))
        self.start_over(region)

    def start_over(self, region: ParallelRegion | None = None) -> None:
        """Forgets workers, region and who has the team: what a child of fork() must do, in which no other threads
        exist."""
        pool = Memory(layout.POOL_BYTES)
        fields = {layout.PROCESS: _process.address, layout.THREADS: self.threads, layout.FREE: 1}
        if region is not None:
            fields |= {
                layout.PARALLEL: region.parallel,
                layout.NUMBER: region.number,
                layout.REGION: region.threads,
                layout.BODY: self._image.address(0, layout.JOIN),
            }
        for field, word in fields.items():
            _word(pool, field).value = word
        self.pool, self._region = pool, region
        self._entered, self._left = _word(pool, layout.ENTERED), _word(pool, layout.LEFT)
        self._workers = 0 if region else self.threads - 1
        self._asked = -AGAIN_S  # when workers were started, in seconds of time.monotonic()

    def run(self, context: int, deadline: int = layout.FOREVER, cancels: int = 0, version: int = layout.UNTIED) -> int:
        """Runs the context at this address with all threads of the team, once it is the caller's; a caller that is in
        a walk already walks alone. Gives 0, or why it ended before it was done (runtime.layout); raises what handlers
        of signals raise meanwhile.

        deadline: nanoseconds of time.monotonic_ns(). cancels, version: what the words were that the context names.
        """
        if (region := self._region) is not None and not entrance(region.parallel).admits(region.threads):
            return team(self.threads, self._walker, self._arch).run(context, deadline, cancels, version)
        if self._entered.value < self._workers:
            self._start()
        return self._walk(self.pool.address, context, _callers.address, deadline, cancels, version)

    def _start(self) -> None:
        """Starts the workers that are missing, in case they were not just started: one too many finds no number left,
        and ends."""
        now = time.monotonic()
        if now < self._asked + AGAIN_S:
            return
        self._asked = now
        try:
            for _ in range(self._workers - self._entered.value):
                require_for_thread()
                start_new_thread(_enter, (self._work, self._image, self.pool))
        except (RuntimeError, MemoryError):  # out of threads, or the interpreter is exiting
            pass

    def close(self) -> None:
        """Sends the workers home; runs that come later are walked by their caller alone."""
        self._workers = 0
        self._stop(self.pool.address)
        until = time.monotonic() + HOME_S
        while self._left.value < self._entered.value and time.monotonic() < until:
            time.sleep(1e-4)


def _enter(work: Callable[[int], None], image: loader.Image, pool: Memory) -> None:
    """A worker, which keeps the code that it is in and what it waits at, whoever forgets the team meanwhile."""
    work(pool.address)


def _word(memory: Memory, field: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(memory.address + field)


class _Callers(threading.local):
    """The words that the walker keeps of the thread that reads them, and their address."""

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * layout.CALLER_WORDS)()
        self.address = ctypes.addressof(self.words)
        self.see_who_is_main()

    def see_who_is_main(self) -> None:
        """Again after fork(), which makes any thread the main one."""
        self.words[layout.IS_MAIN // 8] = threading.get_ident() == threading.main_thread().ident


def _shared() -> Memory:
    """The process's memory for the walker, in which nobody is busy."""
    memory, library, python = Memory(layout.PROCESS_BYTES), ctypes.CDLL(None), ctypes.pythonapi
    functions = {
        layout.SYSCALL: library.syscall,
        layout.CLOCK: library.clock_gettime,
        layout.LEAVE: python.PyEval_SaveThread,
        layout.RETURN: python.PyEval_RestoreThread,
        layout.SIGNALS: python.PyErr_CheckSignals,
    }
    words = {layout.PATIENT: PATIENT, layout.IDLE: IDLE, layout.HASTY: HASTY, layout.PERIOD + 8: layout.PERIOD_NS}
    for field, word in words.items():
        _word(memory, field).value = word
    for field, function in functions.items():
        _word(memory, field).value = ctypes.cast(function, ctypes.c_void_p).value or 0
    return memory


_callers = _Callers()
_process = _shared()
_teams: dict[tuple[int, bytes, ParallelRegion | None], Team] = {}
_is_child = False  # of fork()
_left_behind = list[Memory]()  # what a walk that is around a fork goes on with


def team(threads: int, walker: bytes, arch: str, region: ParallelRegion | None = None) -> Team:
    """The team of this process with so many threads, those of `region` if there is one, and this walker."""
    _word(_process, layout.CORES).value = _cores()
    key = (threads, walker, None if _is_child or threads == 1 else region)
    found = _teams.get(key)
    return found or _teams.setdefault(key, Team(threads, walker, arch, key[2]))  # whichever thread is first


def _after_fork() -> None:
    global _process, _is_child
    _is_child = True
    _callers.see_who_is_main()
    _left_behind.append(_process)
    _process = _shared()
    _word(_process, layout.CORES).value = _cores()
    for each in _teams.values():
        _left_behind.append(each.pool)
        each.start_over()


def _at_exit() -> None:
    for each in list(_teams.values()):
        each.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
