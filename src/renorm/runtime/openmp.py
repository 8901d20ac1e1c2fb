"""Threads that an OpenMP library of this process has: what a network of another library's tensors can run on.

After a parallel region the threads of libgomp spin for some milliseconds (GOMP_SPINCOUNT), so that the next region
finds them awake. Threads of ours that wake meanwhile compete with them for cores. Inside of a region they are ours.

Each thread that enters regions has a team of its own there, whose members are made at its first one. Where one of them
cannot be made, the library ends the process: so a thread asks before, and has them made at once (`Entrance`).
"""

from __future__ import annotations

import ctypes
import threading
import time
from functools import cache
from math import inf
from typing import Any, NamedTuple

from renorm.core.locks import Leaf
from renorm.core.room import are_there

AGAIN_S = 1.0  # until a thread that was refused asks again
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
_NOTHING = ctypes.CDLL(None).free  # does nothing with a null pointer
_making = Leaf("threads that OpenMP makes")


class ParallelRegion(NamedTuple):
    """A parallel region of an OpenMP library.

    threads: how many it asks for, its caller included; there may be fewer, as in a region within a region. The library
    starts and ends threads when regions change in size, so all should have one size. parallel: address of
    GOMP_parallel; number: address of omp_get_thread_num. LLVM's and Intel's libraries have both, too.
    """

    threads: int
    parallel: int
    number: int


class Entrance(threading.local):
    """Whether a thread may enter regions of the OpenMP library that has GOMP_parallel at an address. size: of the
    region that it entered last."""

    def __init__(self, parallel: int) -> None:
        self.size, self._refused, self._parallel = 1, -inf, _PARALLEL(parallel)

    def admits(self, threads: int) -> bool:
        """Return whether the system gives the threads that a region of so many needs and the last one had not; where it
        does, they are there. There must be room for twice as many: those that are made to find out may be counted for
        some microseconds more."""
        if threads > self.size:
            now = time.monotonic()
            if now < self._refused + AGAIN_S:
                return False
            with _making:  # two threads that ask at once would both be told of the same room
                if not are_there(2 * (threads - 1)):
                    self._refused = now
                    return False
                self._parallel(ctypes.cast(_NOTHING, ctypes.c_void_p), None, threads, 0)
        self.size = threads
        return True


@cache
def entrance(parallel: int) -> Entrance:
    """Return that of the library which has GOMP_parallel at this address."""
    return Entrance(parallel)


@cache
def region(threads: int, user: str) -> ParallelRegion | None:
    """Of the OpenMP library that the shared library `user`, a loaded file, calls; None where it calls none.

    Symbols are looked for where the dynamic linker does: in what the process sees globally, then in what `user` needs.
    """
    for scope in (None, user):
        try:
            library = ctypes.CDLL(scope)
            functions = library.GOMP_parallel, library.omp_get_thread_num
        except (OSError, AttributeError):
            continue
        parallel, number = (address(f) for f in functions)
        # another library's numbers would be 0 in all threads
        return ParallelRegion(threads, parallel, number) if _base(parallel) == _base(number) else None
    return None


class _Symbol(ctypes.Structure):
    """Dl_info of <dlfcn.h>."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    )


def address(function: Any) -> int:
    """Return where a foreign function begins; 0 for None."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _base(address: int) -> int | None:
    """Return where the library begins that this address is in."""
    found = _Symbol()
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found))
    return found.base
