"""Memory for results, used again once nobody refers to it.

Most of the time of writing a large fresh array goes into page faults. So the memory of a result comes back when the
last array, view, or tensor of another library that was made of it is gone, and the next result of about that size is
put there. All modules of a process share one pool: what the layers of a network in training keep until its backward
pass is recycled as a whole.

What lies idle is bounded, in bytes and in time: what has not been used again for AGE seconds goes when memory comes
back next, and what lies there longest goes first where it is too much.

There is no lock, and nothing is counted: what is idle lies in queues, which take and give in one step each.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from renorm.core import cgroups

Array = np.ndarray[Any, Any]

_PAGE = 4096  # bytes, of the system or a part of one
AGE = 5.0  # seconds; a step of training may take that long
_LITTLE = 64  # pieces of so much smaller than what is kept are looked through now and then, larger ones at once


class _Lease(weakref.ref[Array]):
    """Whether somebody refers to `memory`."""

    __slots__ = ("memory",)
    memory: Array


class Pool:
    """Arrays whose memory is used again. most: idle bytes that are kept.

    Safe to use from several threads, and from finalizers and signal handlers: nobody waits for another.
    """

    def __init__(self, most: int):
        self.most = most
        self._leases = dict[int, _Lease]()  # by identity: a lease that nobody refers to does not call back
        self._idle = dict[int, deque[tuple[float, Array]]]()  # by size, with the time since when; the latest are last
        self._swept = 0.0

    @property
    def idle_bytes(self) -> int:
        """Return how much memory it keeps that nobody uses."""
        self._sweep()
        return self._bytes()

    def _bytes(self) -> int:
        return sum(size * len(kept) for size, kept in list(self._idle.items()))

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
        try:
            return self._idle[size].pop()[1]
        except (KeyError, IndexError):  # there never was one; none is idle
            whole = np.empty(size + _PAGE, np.uint8)
            begin = -whole.ctypes.data % _PAGE
            return whole[begin : begin + size]

    def _give_back(self, lease: weakref.ref[Array]) -> None:
        memory, now = self._leases.pop(id(lease)).memory, time.monotonic()
        size = memory.nbytes
        self._idle.setdefault(size, deque()).append((now, memory))
        if size > self.most // _LITTLE or now > self._swept + AGE / 8:
            self._sweep()

    def _sweep(self) -> None:
        """Drops what is too much or too old, the oldest first."""
        self._swept = now = time.monotonic()
        while True:
            oldest, kept = now, None
            for queue in list(self._idle.values()):
                with suppress(IndexError):  # empty, or another thread was faster
                    if (since := queue[0][0]) < oldest or kept is None:
                        oldest, kept = since, queue
            if kept is None or (oldest >= now - AGE and self._bytes() <= self.most):
                return
            with suppress(IndexError):
                kept.popleft()


def _rounded(nbytes: int) -> int:
    """Whole pages, at most an eighth more, so that results of about one size share memory."""
    step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


RESULTS = Pool(cgroups.memory() // 8)  # of what this process may use
"""The memory of results of `Module.run`."""
