"""Blocks and threads of the loop interpreter: the order in which they run, and whether two of their accesses race.

Blocks run one after the other. A thread is a generator that stops at barriers: within a block, threads run in turns,
each up to its next barrier. Between two of its barriers a block is in one *phase*.

Two accesses race where one of them writes and nothing orders them: accesses of different blocks of a launch, or of
different threads of a block in one phase. That is found by who accessed each cell before, and so in every order alike:

    stamp    2 * phase * threads + thread, where phases are numbered through the launch, no two blocks sharing one; of
             what a thread has copied to memory of scope "staged" that plus threads, as if another one had stored it
    start    the stamps below it are those of other blocks; what lies from there to `now` came before a barrier
    now      thread 0 in the phase that runs; the stamps from there on are those of this phase

Of the reads of a cell two are enough: the last one, and one of another thread in the same phase, or of another block
where there was one. Whoever writes next races with one of the two if it races with any read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from math import prod
from random import Random
from typing import Any

from renorm.core.errors import InvalidLoops

_Place = tuple[int, ...]
Thread = Callable[..., Iterator[int]]
_NEVER = -1


def at_loops(loops: dict[str, int]) -> str:
    """Return in words where loops are, by the values of their variables."""
    return "at " + (", ".join(f"{name} = {value}" for name, value in loops.items()) or "the root")


class Launch:
    """A launch while it runs. extents: of blocks along x, y and z, and of threads. order: a seed of the order in which
    blocks run, and threads between barriers; 0: by their numbers, from the last thread on in every second block."""

    def __init__(self, kernel: str, extents: tuple[int, ...], order: int):
        self._kernel = kernel
        self._blocks, self._threads = extents[:3], extents[3:]
        self._random = Random(order) if order else None
        self._first: list[int] = []  # stamps that blocks began with
        self._begun: list[_Place] = []
        self.count = prod(self._threads)
        self.start = 0
        self.now = 0

    def run(self, thread: Thread) -> None:
        """Run all blocks. thread: called with its place in the grid, the memory of its block, and its number in it.
        Raises InvalidLoops for a barrier that not all threads of a block reach."""
        blocks = itertools.product(*(range(n) for n in self._blocks))
        for block in self._shuffled(list(blocks)) if self._random else blocks:
            self.start = self.now
            self._first.append(self.start)
            self._begun.append(block)
            memory: dict[tuple[int, ...], Any] = {}
            places = itertools.product(*(range(n) for n in self._threads))
            running = [thread(*block, *place, memory, number) for number, place in enumerate(places)]
            if not self._random and len(self._begun) % 2 == 0:
                running.reverse()
            self._block(block, running)

    def _block(self, block: _Place, running: list[Iterator[int]]) -> None:
        while True:
            reached = [next(t, None) for t in (self._shuffled(running) if self._random else running)]
            self.now += 2 * self.count
            if all(r is None for r in reached):
                return
            if len(set(reached)) > 1:
                places = [sum(r == place for r in reached) for place in dict.fromkeys(reached) if place is not None]
                raise InvalidLoops(
                    f"kernel {self._kernel}: not all threads of block {block} reach the same barrier",
                    [f"{count} of {len(reached)} threads stop at one barrier" for count in places],
                    do="move the barrier out of conditions and loops that differ between threads",
                )

    def _shuffled(self, things: list[Any]) -> list[Any]:
        assert self._random is not None
        self._random.shuffle(things)
        return things

    def race(self, shadow: Shadow, index: int, mine: int, verb: str, loops: dict[str, int]) -> bool:
        """Raise InvalidLoops for an access that `Shadow.reads` or `Shadow.writes` found to race."""
        theirs, did = shadow.other(index, mine, verb)
        block, thread = self._who(mine)
        other_block, other = self._who(theirs)
        who = f"thread {thread} of block {block}"
        if block == other_block:
            whom, do = f"thread {other} of that block {did}", "put a barrier between the two accesses"
        else:
            whom, do = f"thread {other} of block {other_block} {did}", "have one block access it, or split the launch"
        raise InvalidLoops(
            f"kernel {self._kernel}: a race: {who} {verb} {shadow.name}[{index}], which {whom} with no order between",
            [at_loops(loops)],
            do=do,
        )

    def _who(self, stamp: int) -> tuple[_Place, _Place]:
        """Return the block and the thread of a stamp."""
        block = next(b for first, b in zip(reversed(self._first), reversed(self._begun)) if first <= stamp)
        number, place = stamp % self.count, list[int]()
        for n in reversed(self._threads):
            number, at = divmod(number, n)
            place.insert(0, at)
        return block, tuple(place)


class Shadow:
    """Who wrote and read each cell of a buffer last, by stamps. An access that has its own stamp there needs no look:
    nobody else can have come between without a race."""

    def __init__(self, name: str, size: int, launch: Launch):
        self.name = name
        self.written = [_NEVER] * size
        self.read = [_NEVER] * size
        self._read_too = [_NEVER] * size
        self._launch = launch

    def reads(self, index: int, mine: int) -> bool:
        """Note a read, and return whether it is ordered behind what was written there."""
        last, launch = self.read[index], self._launch
        if last != mine:
            if last >= launch.now or 0 <= last < launch.start:
                before = self._read_too[index]
                if not 0 <= before < launch.start:  # a read of another block is never done with
                    self._read_too[index] = last
            self.read[index] = mine
        return not self._clashes(self.written[index], mine)

    def writes(self, index: int, mine: int) -> bool:
        """Note a write, and return whether it is ordered behind all accesses before it."""
        if any(self._clashes(s, mine) for s in (self.written[index], self.read[index], self._read_too[index])):
            return False
        self.written[index] = mine
        return True

    def other(self, index: int, mine: int, verb: str) -> tuple[int, str]:
        """Return the stamp of an access that one of `mine` races with, and what it did."""
        found = [(self.written[index], "wrote")]
        if verb == "writes":
            found += [(self.read[index], "read"), (self._read_too[index], "read")]
        return next((s, did) for s, did in found if self._clashes(s, mine))

    def _clashes(self, stamp: int, mine: int) -> bool:
        return stamp >= 0 and stamp != mine and not self._launch.start <= stamp < self._launch.now
