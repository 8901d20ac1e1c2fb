"""Waiting for a word of the pool.

A thread that waits pauses for as long as the process says, before long giving way to whatever else wants its core, then
calls futex; whoever changes a word wakes only when somebody sleeps:

    waits                          advances (walk_system)
      sleepers += 1                  word += amount
      until word >= least:           if sleepers > 0:
        futex(WAIT, word)              futex(WAKE, word)
      sleepers -= 1

All of it is sequentially consistent, so that one of the two sees what the other wrote. Futex compares again before it
sleeps, the lower 32 bits alone, so what is added must change those: then a wake-up cannot be missed. Who has called a
run sleeps for a period at most, and looks whether the run is to end.
"""

from __future__ import annotations

from renorm.codegen.llvm.lanes import where
from renorm.codegen.llvm.routine import INT, ORDERED, RELAXED, Number, Pointer, Routine, Truth, Word, routine
from renorm.codegen.llvm.walk_call import Run, ends
from renorm.codegen.llvm.walk_system import MONOTONIC, WAIT, advance, clock, futex, give_way, pause
from renorm.runtime import layout

LOOKS = 32  # pauses between two looks at the clock: 350 ns on Sapphire Rapids
OWN = 20_000  # ns of waiting before each look gives way: threads of other processes are not counted in BUSY


@routine()
def wait(f: Routine, run: Run, word: Pointer, least: Number, sleepers: Pointer, patience: Number) -> None:
    """Return when the word is `least` or more, or when the run of this call is to end.

    patience: byte of the process's memory that has the nanoseconds after which to sleep, where no other thread may want
    the core.
    """
    process = run.pool.pointer(layout.PROCESS)
    moment, since, k = f.stack(layout.MOMENT), f.variable(0), f.variable(0)
    with f.forever():
        f.give(when=word.load_atomic(ORDERED) >= least)
        pause(f)
        k.value += 1
        with f.when((k.value & (LOOKS - 1)).equals(0)):
            now = clock(f, run.pool, MONOTONIC, moment)
            with f.when(k.value.equals(LOOKS)):
                since.value = now
            is_crowded = (process + layout.BUSY).load_atomic(RELAXED) > process.load(layout.CORES)
            waited = now - since.value
            f.stop(waited >= (process + where(is_crowded, f.word(layout.HASTY), patience)).load())
            with f.when(waited >= OWN):
                give_way(f, run.pool)

    sleepers.fetch_add(ORDERED, 1, INT)
    is_other = run.call.is_null
    period = where(is_other, f.null, process + layout.PERIOD)
    with f.forever():
        value = word.load_atomic(ORDERED)
        f.stop(value >= least)
        futex(f, run.pool, word, WAIT, value & 0xFFFFFFFF, period)
        with f.when(~is_other):
            f.stop(ends(f, run, True))
    sleepers.fetch_add(ORDERED, -1, INT)


def until(f: Routine, run: Run, least: Word) -> None:
    """Wait until `least` iterations of the run are done, or it is to end."""
    wait(f, run, run.pool + layout.DONE, least, run.pool + layout.WAITING, f.word(layout.PATIENT))


@routine()
def occupy(f: Routine, run: Run) -> Truth:
    """Make the team this call's, unless its run is to end before that; return whether it is."""
    free = run.pool + layout.FREE
    with f.forever():
        f.give(True, when=free.exchange(1, 0))
        wait(f, run, free, 1, run.pool + layout.QUEUED, f.word(layout.IDLE))
        f.stop(ends(f, run, False))
    return f.word(False)


def vacate(f: Routine, pool: Word) -> None:
    advance(f, pool, pool + layout.FREE, 1, pool + layout.QUEUED)
