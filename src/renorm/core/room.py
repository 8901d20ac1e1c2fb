"""Ask what the system would still give this process, memory and threads, before what cannot do with less.

Where memory runs out, LLVM ends the process, and Python's Thread.start waits for ever for a thread that failed before
its first statement; libraries of OpenMP end it where a thread cannot be made. So all are called only where there is
room enough. The system gives pages when they are touched: to ask is two calls of it.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
import threading
from collections import deque
from itertools import chain, repeat, takewhile
from operator import itemgetter, not_

from renorm.core.errors import OutOfMemory

WORTH_A_THREAD = 1 << 20  # bytes of work from which one is started: the C library reserves 64 MiB for each
_UNLIMITED = 2 << 20  # bytes of a stack where the system sets no limit
_BEGINNING = 16 << 20  # bytes that a thread takes beside its stack until it waits


def _thread() -> int:
    """Return the bytes that a thread takes: a stack as the C library makes them, and what it needs to begin."""
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _BEGINNING + (_UNLIMITED if stack == resource.RLIM_INFINITY else stack)


THREAD = _thread()
_libc = ctypes.CDLL(None)
_SEMAPHORE = ctypes.c_long * 8  # sem_t takes half of that, or less


def is_there(nbytes: int) -> bool:
    """Return whether the system would give so many bytes now."""
    try:
        mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        return False
    return True


def require(nbytes: int, what: str) -> None:
    """Raise OutOfMemory, about `what`, where it would not."""
    if not is_there(nbytes):
        raise out_of_memory(what, nbytes)


def out_of_memory(what: str, nbytes: int) -> OutOfMemory:
    """Return the error that says for what there is no memory."""
    return OutOfMemory(
        what,
        [f"{nbytes:,} bytes, which the system does not give"],
        "raise what the process may take (ulimit -v, the memory of its control group), or ask for less at a time",
    )


def out_of_threads(what: str, threads: int) -> OutOfMemory:
    """Return the error that says for what there are no threads, which take memory, or numbers of the system."""
    return OutOfMemory(
        what,
        [f"{threads} threads beside the one that asks, which the system does not give"],
        "raise how many threads the process may have (ulimit -u, its control group), or ask for fewer: OMP_NUM_THREADS",
    )


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises RuntimeError where the system gives none, or no memory for it."""
    require_for_thread()
    try:
        thread.start()
    except MemoryError as error:
        raise RuntimeError("can't start new thread: no memory") from error


def require_for_thread() -> None:
    """Raise RuntimeError where there is no room for another thread, as Python does where there may be no more."""
    if not is_there(THREAD):
        raise RuntimeError("can't start new thread: no memory for its stack")


def are_there(threads: int) -> bool:
    """Return whether the system would give so many threads at once: it has to make them, since nothing tells how many
    there may be. They have ended on return."""
    handles, gate, results = [ctypes.c_ulong() for _ in range(threads)], _SEMAPHORE(), list[int]()
    _libc.sem_init(gate, 0, 0)
    made = map(_libc.pthread_create, map(ctypes.byref, handles), repeat(None), repeat(_libc.sem_wait), repeat(gate))
    steps = chain(
        map(results.append, takewhile(not_, made)),
        map(_libc.sem_post, repeat(gate, threads)),
        map(_libc.pthread_join, map(itemgetter(1), zip(results, handles)), repeat(None)),
    )
    deque(steps, maxlen=0)  # natively: no interrupt comes between the start of a thread and its end
    return len(results) == threads
