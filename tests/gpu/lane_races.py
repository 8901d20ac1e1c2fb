"""Races between threads that run side by side: what tir.interpret_gpu.Shadow notes of each access, for many at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
_PHASES, _THREADS = 20, 10  # bits of a stamp: of the barriers that a block has passed, of a thread
_PHASE = -1 << _THREADS


def stamps(blocks: Ints, phases: Ints, threads: Ints) -> Ints:
    """Return what threads mark their accesses with."""
    return (((blocks << _PHASES) | phases) << _THREADS) | threads


def block_and_thread(stamp: int) -> tuple[int, int]:
    return stamp >> (_PHASES + _THREADS), stamp & ((1 << _THREADS) - 1)


class Race(NamedTuple):
    """An access that races. at: which of those that were noted. theirs: the stamp of the other access."""

    at: int
    theirs: int
    did: str


def _first(clashes: Any, stamps: Ints, did: str) -> Race | None:
    if not clashes.any():
        return None
    at = int(clashes.argmax())
    return Race(at, int(stamps[at]), did)


class LaneShadow:
    """The last write of each cell, and two reads of it: the last, and another of the same phase or of another block.
    is_of_block: no other block has these cells."""

    def __init__(self, size: int, is_of_block: bool):
        self._written, self._read, self._read_too = (np.full(size, -1) for _ in range(3))
        self._is_of_block = is_of_block

    def _foreign(self, stamps: Ints, mine: Ints) -> Any:
        """Return where a stamp is of another block."""
        if self._is_of_block:
            return np.zeros(stamps.size, bool)
        return (stamps >= 0) & (stamps >> (_PHASES + _THREADS) != mine >> (_PHASES + _THREADS))

    def _clashes(self, stamps: Ints, mine: Ints) -> Any:
        """Return where nothing orders an access with an earlier one: it is another thread's of the same phase, or
        another block's."""
        in_phase = (stamps >= mine & _PHASE) & (stamps != mine)
        return in_phase if self._is_of_block else in_phase | self._foreign(stamps, mine)

    def reads(self, index: Ints, mine: Ints) -> Race | None:
        """Note reads of cells, and return one that races."""
        old = self._read[index]
        if (old == mine).all():
            return None
        written = self._written[index]
        if race := _first(self._clashes(written, mine), written, "wrote"):
            return race
        self._read[index] = mine
        lost = self._read[index] != mine  # another thread reads the same cell now
        clashed = self._clashes(old, mine)
        if lost.any() or clashed.any():
            kept = self._foreign(self._read_too[index], mine)  # what is of another block stays, or comes last
            foreign = self._foreign(old, mine)
            elsewhere = lost & self._foreign(self._read[index], mine)
            for which, other in ((clashed & ~foreign, old), (lost, mine), (foreign, old)):
                chosen = which & ~kept
                self._read_too[index[chosen]] = other[chosen]
            self._read_too[index[elsewhere]] = mine[elsewhere]
        return None

    def writes(self, index: Ints, mine: Ints) -> Race | None:
        """Note writes of cells, and return one that races."""
        for before, did in ((self._written, "wrote"), (self._read, "read"), (self._read_too, "read")):
            found = before[index]
            if race := _first(self._clashes(found, mine), found, did):
                return race
        self._written[index] = mine
        found = self._written[index]
        return _first(found != mine, found, "wrote")
