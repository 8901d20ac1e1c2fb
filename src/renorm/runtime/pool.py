"""Memory for results, used again once nobody refers to it.

Most of the time of writing a large fresh array goes into page faults. So the memory of a result comes back when the
last array, view, or tensor of another library that was made of it is gone, and the next result of about that size is
put there. All modules of a process share one pool: what the layers of a network in training keep until its backward
pass is recycled as a whole.

What lies idle is bounded, in bytes and in time: what has not been used again for AGE seconds goes when the pool is used
next, and the sizes that were used least recently go first where it is too much.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.core.locks import Leaf

Array = np.ndarray[Any, Any]

_PAGE = 4096  # bytes, of the system or a part of one
AGE = 5.0  # seconds; a step of training may take that long


class _Lease(weakref.ref[Array]):
    """Whether somebody refers to `memory`."""

    __slots__ = ("memory",)
    memory: Array


class Pool:
    """Arrays whose memory is used again. most: idle bytes that are kept.

    Safe to use from several threads, and from finalizers and signal handlers: nobody waits for another. Who comes while
    the pool is in use gets new memory, and what is given back meanwhile is seen later.
    """

    def __init__(self, most: int):
        self.most = most
        self._lock = Leaf("memory for results")
        self._leases = dict[int, _Lease]()  # by identity: a lease that nobody refers to does not call back
        self._returned = deque[Array]()  # appending and taking are atomic
        self._idle = dict[int, list[tuple[float, Array]]]()  # by size, with the time since when; the latest are last
        self._idle_bytes, self._swept = 0, 0.0

    @property
    def idle_bytes(self) -> int:
        """How much memory it keeps that nobody uses."""
        self._settle()
        return self._idle_bytes

    def array(self, shape: Sequence[int], dtype: np.dtype[Any], nbytes: int) -> Array:
        """An array of `nbytes` that nobody else refers to and that begins on a page; its elements are undefined."""
        held = self._held(self._take(_rounded(nbytes)))
        return np.ndarray(shape, dtype, held)

    def _held(self, memory: Array) -> Array:
        """An array over `memory` that dies when nobody refers to it. It is the base of all views that are made of it:
        NumPy looks for the last array in a chain of bases, and the base of this one is none."""
        held = np.frombuffer(memory.data, np.uint8)
        lease = _Lease(held, self._give_back)
        lease.memory = memory
        self._leases[id(lease)] = lease
        return held

    def _take(self, size: int) -> Array:
        if self._lock.take():
            try:
                self._put_away()
                if kept := self._idle.pop(size, None):
                    memory = kept.pop()[1]
                    self._idle[size] = kept  # the latest now
                    self._idle_bytes -= memory.nbytes
                    return memory
            finally:
                self._lock.release()
        whole = np.empty(size + _PAGE, np.uint8)
        begin = -whole.ctypes.data % _PAGE
        return whole[begin : begin + size]

    def _give_back(self, lease: weakref.ref[Array]) -> None:
        found = self._leases.pop(id(lease), None)
        if found is not None:  # else it is of a process before fork()
            self._returned.append(found.memory)
            self._settle()

    def _settle(self) -> None:
        if self._lock.take():
            try:
                self._put_away()
            finally:
                self._lock.release()

    def _put_away(self) -> None:
        """Adds what came back to what is idle, and drops what is too much or too old. The caller holds the lock."""
        now = time.monotonic()
        while self._returned:
            memory = self._returned.popleft()
            kept = self._idle.pop(memory.nbytes, [])
            kept.append((now, memory))
            self._idle[memory.nbytes] = kept
            self._idle_bytes += memory.nbytes
        if now > self._swept + AGE / 8:
            self._swept = now
            for size in list(self._idle):
                while self._idle[size] and self._idle[size][0][0] < now - AGE:
                    self._drop(size)
                if not self._idle[size]:
                    del self._idle[size]
        while self._idle_bytes > self.most:
            size = next(iter(self._idle))
            if self._idle[size]:
                self._drop(size)
            else:
                del self._idle[size]

    def _drop(self, size: int) -> None:
        del self._idle[size][0]
        self._idle_bytes -= size


def _rounded(nbytes: int) -> int:
    """Whole pages, at most an eighth more, so that results of about one size share memory."""
    step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


RESULTS = Pool(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8)
"""What `Module.run` puts its results into."""
