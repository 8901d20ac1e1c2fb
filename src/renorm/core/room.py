"""Ask how much of its address space this process could still take, before what cannot do with less.

Where memory runs out, LLVM ends the process, and Python's Thread.start waits for ever for a thread that failed before
its first statement. So both are tried only where there is room enough. The system gives pages when they are touched: to
ask is two calls of it.
"""

from __future__ import annotations

import mmap

from renorm.core.errors import OutOfMemory

THREAD = 24 << 20  # bytes: a stack as the system makes them by default, and what a thread takes until it waits
WORTH_A_THREAD = 1 << 20  # bytes of work from which one is started: the C library reserves 64 MiB for each


def is_there(nbytes: int) -> bool:
    """Return whether the system would give so many bytes now."""
    try:
        mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        return False
    return True


def require(nbytes: int, what: str) -> None:
    """Raises OutOfMemory, about `what`, where it would not."""
    if not is_there(nbytes):
        raise out_of_memory(what, nbytes)


def require_for_thread() -> None:
    """Raises RuntimeError where there is no room for another thread, as Python does where there may be no more."""
    if not is_there(THREAD):
        raise RuntimeError("can't start new thread: no memory for its stack")


def out_of_memory(what: str, nbytes: int) -> OutOfMemory:
    """The error that says for what there is no memory."""
    return OutOfMemory(
        what,
        [f"{nbytes:,} bytes, which the system does not give"],
        "raise what the process may take (ulimit -v, the memory of its control group), or ask for less at a time",
    )
