"""From a program to the table that the walker reads.

A `LaunchTable` is what all calls of a module share: where each phase's function is and what its arguments are relative
to. A `Context` is what one call in flight owns: an arena, scratch, and the table with addresses filled in. Addresses of
the caller's arrays change from call to call; the walker patches them in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.runtime import layout
from renorm.runtime.external import Entry
from renorm.runtime.loader import Image
from renorm.runtime.memory import Memory
from renorm.runtime.program import Program, align

_WORD = 8
_RECORD_WORDS = layout.RECORD // _WORD
_FEW = 8  # iterations, of which each may take long: it looks after each
_ARENA, _WEIGHT, _SCRATCH = -1, -2, -3  # bases that are fixed while a context lives; others index the caller's arrays

Word = ctypes.c_int64
_CONSTANT = Word()
Words = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class LaunchTable:
    """table: the records, ARGS being the index of a step's first slot. base, offset: what each slot points to.

    steps: first record of each step, and the end. is_serial: no phase has work for a second thread. arrays: inputs
    and outputs.
    """

    table: Words
    base: Words
    offset: Words
    steps: tuple[int, ...]
    is_serial: bool
    arrays: int
    arena_bytes: int
    scratch_bytes: int  # per thread
    counters: int  # phases of several iterations


def launch_table(program: Program, image: Image, entries: Sequence[Entry] = ()) -> LaunchTable:
    """Return the table of a verified program whose objects are loaded in `image`, and whose external code is called by
    `entries`.

    Raises InvalidArtifact for a phase that no object defines.
    """
    records, base, offset, steps = list[list[int]](), list[int](), list[int](), [0]
    counters = before = 0
    for step in program.steps:
        code = program.codes[step.code]
        first = len(base)
        for a in step.args:
            caller = a.at if a.kind == "input" else len(program.inputs) + a.at
            base.append(_ARENA if a.kind == "arena" else _WEIGHT if a.kind == "weight" else caller)
            offset.append(a.offset + (a.at if base[-1] < 0 else 0))
        if code.scratch:
            base.append(_SCRATCH)
            offset.append(0)
        for k, extent in enumerate(code.phases):
            if extent == 0:
                continue
            barrier = bool(records) and (step.waits[k] if step.waits else True)
            chunk = code.chunks[k] if code.chunks and extent > 1 else 0
            flags = layout.BARRIER * barrier + layout.FOREIGN * code.is_external
            function = entries[code.object].address if code.is_external else image.address(code.object, f"phase{k}")
            piece = chunk or (1 if extent < _FEW else extent)
            records.append([function, first * _WORD, extent, chunk, flags, counters * _WORD, before, piece])
            counters += extent > 1
            before += extent
        steps.append(len(records))
    return LaunchTable(
        table=np.array(records, np.int64).reshape(-1, _RECORD_WORDS),
        base=np.array(base, np.int64),
        offset=np.array(offset, np.int64),
        steps=tuple(steps),
        is_serial=all(r[2] <= 1 for r in records),
        arrays=len(program.inputs) + len(program.outputs),
        arena_bytes=program.arena_bytes,
        scratch_bytes=max((c.scratch for c in program.codes), default=0),
        counters=counters,
    )


@dataclass(frozen=True)
class Recording:
    """The phases of threads in one run, in nanoseconds of one clock (time.perf_counter_ns).

    begin, end: of the run, as its caller saw it. parts: [threads, records, 2], when each thread began and ended its
    part of each phase; 0, 0 where it had none. steps: first record of each step, and the end.
    """

    begin: int
    end: int
    parts: Words
    steps: tuple[int, ...]


class Context:
    """Memory of one call in flight.

    address: for the walker. bases: where the caller's arrays are, inputs then outputs. cancels, version: words that end
    a run when they change. is_short: a run takes less than waking a thread.
    """

    def __init__(
        self,
        launches: LaunchTable,
        weights: int,
        threads: int,
        cancels: Word = _CONSTANT,
        version: Word = _CONSTANT,
        is_short: bool = False,
    ):
        self.arena = Memory(launches.arena_bytes)
        scratch = Memory(launches.scratch_bytes * threads)
        dynamic = np.flatnonzero(launches.base >= 0)
        row = align(launches.counters * _WORD, layout.LINE)
        counters = row // _WORD * threads
        parts = (
            layout.CONTEXT_WORDS,
            launches.arrays,
            launches.table.size,
            len(launches.base),
            len(dynamic) * 3,
            counters,
        )
        begins = np.cumsum([0, *(align(n * _WORD, layout.LINE) // _WORD for n in parts)]).tolist()
        # the table last written by Python, read by all threads
        self._memory, self._scratch = Memory(begins[-1] * _WORD), scratch
        words = self._memory.array.view(np.int64)
        context, self.bases, table, slots, patches, _ = (words[b : b + n] for b, n in zip(begins, parts))
        self.address = self._memory.address
        start = [self.address + b * _WORD for b in begins]

        table[:] = launches.table.reshape(-1)
        records = table.reshape(-1, _RECORD_WORDS)
        records[:, layout.ARGS // _WORD] += start[3]
        extent, chunk = (records[:, field // _WORD] for field in (layout.EXTENT, layout.CHUNK))
        chunk[:] = np.where((chunk == 0) & (extent > 1), -(-extent // threads), chunk)  # 0: a share at a time
        for base, address in ((_ARENA, self.arena.address), (_WEIGHT, weights), (_SCRATCH, scratch.address)):
            fixed = launches.base == base
            slots[fixed] = launches.offset[fixed] + address
        patch = patches.reshape(-1, 3)
        patch[:, 0] = start[3] + dynamic * _WORD
        patch[:, 1] = launches.base[dynamic]
        patch[:, 2] = launches.offset[dynamic]
        words_at = [ctypes.addressof(w) for w in (cancels, version)]
        context[:] = (
            *(start[2], len(launches.table), start[4], len(dynamic), start[1], start[5], row, 0),
            *(threads, is_short, *words_at, 0),
        )
        self._words, self._table, self._watched = context, start[2], (cancels, version)

    def hold(self, arrays: Sequence[Words]) -> None:
        """Makes the next runs read and write these arrays."""
        self.bases[:] = [a.ctypes.data for a in arrays]
        self._held = tuple(arrays)

    def limit(self, first: int, end: int) -> None:
        """Makes the next runs walk records [first, end) only."""
        self._words[0] = self._table + first * layout.RECORD
        self._words[1] = end - first

    def record(self, threads: int) -> Words:
        """[threads, records, 2, 2]: where the next runs write when each thread began and ended its part of each record,
        in seconds and nanoseconds. To be held while they run."""
        times = np.zeros((threads, int(self._words[1]), 2, 2), np.int64)
        self._words[layout.TIMES // _WORD] = times.ctypes.data
        return times
