"""Ranks in processes: messages of any length over collectives of one length, and who is missing when one does not end.

A collective of MPI or torch.distributed takes arrays of equal length on all ranks, and ranks that are at different
layers have messages of different length. So a message travels in a frame: its length (8 bytes), and as much of it as
the frame has room for. All ranks give a frame the same room, because it follows from what all have seen: the longest
message that ever came after the one before. Where a message is longer (in the first step of a training, at most), all
ranks see this from the lengths, and a second collective carries the rest. From the second step on an exchange is one
collective.

A collective is started and then asked for, so that waiting can end. Who gives up calls the roll: it tells all ranks,
they answer, and who does not within GRACE seconds is missing. A rank that waits when it is called gives up too.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from renorm.core.errors import SynchronizationError
from renorm.training.communicators import Communicator, first_line, listed, missing, places

Bytes = NDArray[np.uint8]
GRACE = 2.0  # seconds that ranks have to answer the roll
_SMALLEST = 4096  # bytes: what takes no longer to send than less does; statistics of 160 channels
_LISTEN = 0.1  # seconds between looks whether another rank has given up
_SPIN = 1e-3  # seconds without sleep, which takes some 60 us at least; other ranks of this core go on meanwhile
_MOST_ROOMS = 10_000  # of them remembered: a training has as many as it has layers


class Collective(Protocol):
    """A collective under way."""

    def is_done(self) -> bool:
        """Return whether the frames of all ranks are here. Never waits."""
        ...

    def frames(self) -> Bytes:
        """[rank, byte], once it is done. Raises what the engine raises for a rank that it lost."""
        ...


class Framed(Communicator):
    """Ranks in processes. A subclass starts a collective over frames of equal length, and calls the roll."""

    _engine: str  # its name, for errors

    def __init__(self, rank: int, size: int, timeout: float):
        super().__init__(rank, size, timeout)
        self._rooms: dict[bytes, int] = {}
        self._before = b""
        self._ended = time.monotonic()  # the exchange before

    @abstractmethod
    def start(self, frame: Bytes) -> Collective:
        """Start sending `frame` to all ranks; its length is the same on all."""

    @abstractmethod
    def call(self) -> None:
        """Tell all ranks that this one has given up waiting."""

    @abstractmethod
    def present(self) -> set[int]:
        """Return the ranks that have called so far."""

    def exchange(self, message: bytes, timeout: float) -> Sequence[bytes]:
        until = time.monotonic() + timeout
        room = max(_SMALLEST, self._rooms.get(self._before, 0))
        frames = self._collect(_frame(message, room), message, until, timeout)
        lengths = frames[:, :8].copy().view("<u8")[:, 0].tolist()
        longest = max(lengths)
        parts = [frames[:, 8:]]
        if longest > room:
            rest = np.zeros(longest - room, np.uint8)
            rest[: max(0, len(message) - room)] = np.frombuffer(message, np.uint8)[room:]
            parts.append(self._collect(rest, message, until, timeout))
        whole = np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
        messages = [row[:length].tobytes() for row, length in zip(whole, lengths, strict=True)]
        if len(self._rooms) >= _MOST_ROOMS:
            self._rooms.clear()
        self._rooms[self._before] = max(room, longest)
        self._before = first_line(messages[0])
        self._ended = time.monotonic()
        return messages

    def _collect(self, frame: Bytes, message: bytes, until: float, timeout: float) -> Bytes:
        """Return the frames of all ranks. Raises SynchronizationError that names who is missing."""
        try:
            collective = self.start(frame)
            # what others sent before they gave up may still complete it; they can have done so only after their timeout
            is_late = time.monotonic() - self._ended > self.timeout / 2
            if self._wait(collective, until) and not (is_late and self.present()):
                return collective.frames()
            engine = ""
        except Exception as error:  # each engine has its own
            engine = f"{self._engine} says: {' '.join(str(error).split())[:500]}"
        raise self._roll_call(places(message), timeout, engine)

    def _wait(self, collective: Collective, until: float) -> bool:
        """Return whether the collective ended; not in time, or another rank has given up: False."""
        started = time.monotonic()
        listen = started + _LISTEN
        while not collective.is_done():
            now = time.monotonic()
            if now < started + _SPIN:
                os.sched_yield()
                continue
            if now >= listen:
                if now >= until or self.present():
                    return False
                listen = min(until, now + _LISTEN)
            time.sleep(min(1e-3, 0.1 * (now - started)))
        return True

    def _roll_call(self, where: str, timeout: float, engine: str) -> SynchronizationError:
        until = time.monotonic() + GRACE
        others = set(range(self.size)) - {self.rank}
        present: set[int] = set()
        called_by = self._quietly(self.present)
        self._quietly(self.call)
        while not others <= present and time.monotonic() < until:
            time.sleep(0.01)
            present |= self._quietly(self.present)
        facts = [engine] if engine else []
        if absent := sorted(others - present):
            if called_by:
                facts.append(f"{listed(sorted(called_by))} had given up waiting before")
            return missing(absent, where, timeout, facts)
        return SynchronizationError(
            f"ranks lost each other at {where}, though all are there",
            [*facts, f"{listed(sorted(called_by) or [self.rank])} gave up waiting first"],
            "a rank that came late needs a longer timeout= of the communicator",
        )

    def _quietly(self, ask: Any) -> set[int]:
        """Return the answer of `ask`; nothing where the engine is broken."""
        try:
            return set(ask() or ())
        except Exception:
            return set()


def _frame(message: bytes, room: int) -> Bytes:
    frame = np.zeros(8 + room, np.uint8)
    frame[:8] = np.frombuffer(np.array([len(message)], "<u8").tobytes(), np.uint8)
    part = np.frombuffer(message, np.uint8)[:room]
    frame[8 : 8 + len(part)] = part
    return frame
