"""Ranks in the threads of one process: they meet in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from renorm.core.errors import SynchronizationError
from renorm.core.locks import condition
from renorm.core.room import start_thread
from renorm.training.communicators import TIMEOUT, Communicator, missing, places

_T = TypeVar("_T")


class Threads(Sequence[Communicator]):
    """n ranks in the threads of one process: a sequence of n communicators, one for each thread.

    timeout: seconds (default 300) that a rank waits for the others. A thread that has ended is noticed at once.
    """

    def __init__(self, n: int, *, timeout: float = TIMEOUT):
        if n < 1:
            raise SynchronizationError(f"Threads takes a number of ranks of at least 1, not {n}")
        room = _Room(n)
        self._ranks = [_Thread(room, rank, n, timeout) for rank in range(n)]
        self._room = room

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, index: Any) -> Any:
        return self._ranks[index]

    def run(self, function: Callable[[Communicator], _T]) -> list[_T]:
        """Call `function(comm)` on each rank in a thread of its own; what they return, in rank order.

        What a rank raises is raised here, and ends the waiting of the others. The first error that is not
        SynchronizationError is preferred, since those of the other ranks follow from it. Where the system gives no
        thread for a rank, the others do not wait for it, and a SynchronizationError says so.
        """
        results: list[Any] = [None] * len(self)
        errors: dict[int, BaseException] = {}

        def work(comm: Communicator) -> None:
            self._room.enter(comm.rank)
            try:
                results[comm.rank] = function(comm)
                self._room.leave(comm.rank, "has returned")
            except BaseException as error:
                errors[comm.rank] = error
                self._room.leave(comm.rank, f"raised {type(error).__name__}: {error}")

        self._room.reopen()
        for comm in self._ranks:
            comm.reopen()
        threads = [threading.Thread(target=work, args=(c,), name=f"rank {c.rank}", daemon=True) for c in self._ranks]
        started, refused = 0, None
        try:
            for thread in threads:
                start_thread(thread)
                started += 1
        except RuntimeError as error:
            refused = SynchronizationError(
                f"rank {started} of {len(self)} cannot start: the system gives no more threads",
                [str(error)],
                "use fewer ranks, or raise how many threads the process may have (ulimit -u, its control group)",
            )
            refused.__cause__ = error
            for rank in range(started, len(self)):  # nobody waits for it
                self._room.leave(rank, "could not start")
        for thread in threads[:started]:
            thread.join()
        if refused:
            raise refused
        if errors:
            order = sorted(errors, key=lambda rank: (isinstance(errors[rank], SynchronizationError), rank))
            raise errors[order[0]]
        return results


class _Room:
    """Where the ranks of one process meet: one slot for each, and a number that counts the exchanges."""

    def __init__(self, size: int):
        self._size = size
        self._change = condition("what ranks exchange")
        self._threads: dict[int, threading.Thread] = {}  # those of the ranks that have been here
        self.reopen()

    def reopen(self) -> None:
        """As it was before any rank came."""
        with self._change:
            self._slots: dict[int, bytes] = {}
            self._done: list[bytes] = []
            self._count = 0
            self._gone: dict[int, str] = {}
            self._lost: SynchronizationError | None = None
            self._threads.clear()

    def enter(self, rank: int) -> None:
        with self._change:
            self._threads[rank] = threading.current_thread()

    def leave(self, rank: int, why: str) -> None:
        with self._change:
            self._gone[rank] = why
            self._change.notify_all()

    def exchange(self, rank: int, message: bytes, timeout: float) -> list[bytes]:
        until = time.monotonic() + timeout
        with self._change:
            if self._lost is not None:
                raise self._lost
            self._threads[rank] = threading.current_thread()
            self._slots[rank] = message
            mine = self._count
            if len(self._slots) == self._size:
                # nobody can be at the next exchange before all have read this one: it needs their slots
                self._done = [self._slots[r] for r in range(self._size)]
                self._slots = {}
                self._count += 1
                self._change.notify_all()
                return self._done
            while self._count == mine and self._lost is None:
                self._look_round(rank, timeout, until)
                if self._lost is None:
                    self._change.wait(min(0.1, max(0.0, until - time.monotonic())))
            if self._count == mine and self._lost is not None:
                raise self._lost
            return self._done

    def _look_round(self, rank: int, timeout: float, until: float) -> None:
        absent = [r for r in range(self._size) if r not in self._slots]
        for r in absent:
            if r in self._threads and not self._threads[r].is_alive():
                self._gone.setdefault(r, "has ended")
        gone = [r for r in absent if r in self._gone]
        if gone or time.monotonic() >= until:
            known = [f"rank {r} {self._gone[r]}" for r in gone]
            self._lost = missing(gone or absent, places(self._slots[rank]), timeout, known)
            self._change.notify_all()


class _Thread(Communicator):
    def __init__(self, room: _Room, rank: int, size: int, timeout: float):
        super().__init__(rank, size, timeout)
        self._room = room

    def reopen(self) -> None:
        self._lost = None

    def exchange(self, message: bytes, timeout: float) -> Sequence[bytes]:
        return self._room.exchange(self.rank, message, timeout)
