"""From a program to the table that the walker reads.

A `LaunchTable` is what all calls of a module share that have the same extents: where each phase's function is and what
its arguments are relative to. `Launches` makes them. A `Workplace` is what one call in flight owns: an arena, scratch,
and a `Context` for each table that it was used for, in which addresses are filled in. Addresses of the caller's arrays
change from call to call; the walker patches them in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Dim, Sym, integer
from renorm.core.errors import InvalidArtifact, InvalidInput
from renorm.core.extents import LARGEST, LONGEST
from renorm.runtime import layout
from renorm.runtime.external import Entry
from renorm.runtime.loader import Image
from renorm.runtime.memory import Memory
from renorm.runtime.program import PIECES, Argument, Program, align, iterations, place
from renorm.runtime.weights import Weights

_WORD = 8
_RECORD_WORDS = layout.RECORD // _WORD
_FEW = 8  # iterations, of which each may take long: it looks after each
# bases that are fixed while a context lives; others index the caller's arrays. Of an integer it is 0
_ARENA, _WEIGHT, _SCRATCH, _EXTENT = -1, -2, -3, -4
_BASES = {"arena": _ARENA, "weight": _WEIGHT, "extent": _EXTENT}

Word = ctypes.c_int64
_CONSTANT = Word()
Words = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class LaunchTable:
    """table: the records, ARGS being the index of a step's first slot. base, offset: what each slot points to.

    steps: first record of each step, and the end. is_serial: no phase has work for a second thread. shapes: of inputs
    and outputs. nanoseconds: as of the program.
    """

    table: Words
    base: Words
    offset: Words
    steps: tuple[int, ...]
    is_serial: bool
    shapes: tuple[tuple[int, ...], ...]
    arena_bytes: int
    scratch_bytes: int  # per thread
    counters: int  # phases of several iterations
    nanoseconds: int


class _Column:
    """Numbers of which some are open."""

    def __init__(self, dims: Sequence[Dim], index: Mapping[Sym, int]):
        self._fixed = np.array([0 if isinstance(d, Sym) else d for d in dims], np.int64)
        self._open = np.array([i for i, d in enumerate(dims) if isinstance(d, Sym)], np.intp)
        self._values = np.array([index[d] for d in dims if isinstance(d, Sym)], np.intp)

    def at(self, values: Words) -> Words:
        found = self._fixed.copy()
        found[self._open] = values[self._values]
        return found


class Launches:
    """The launch tables of a verified program whose objects are loaded in `image`, whose external code is called by
    `entries`, and whose weights are in one array where none are given: of an open program one for all values of its
    symbols.

    Raises InvalidArtifact for a phase that no object defines.
    """

    def __init__(self, program: Program, image: Image, entries: Sequence[Entry] = (), weights: Weights | None = None):
        self._program = program
        slots, first = list[tuple[int, Dim, Dim, int]](), [0]  # base, at, offset, buffer
        positive, written, concerns = list[Dim](), list[Dim](), list[tuple[int, int]]()  # the last: phases of the step
        phases, extents = list[tuple[int, int, int, bool, int, int]](), list[Dim]()
        costs = list[float]()
        for step in program.steps:
            code, args = program.codes[step.code], len(slots) * _WORD
            positive += [p.extent for p in step.positive]
            written += [p.written for p in step.positive]
            concerns += [(first[-1], first[-1] + len(code.phases))] * len(step.positive)
            slots += [self._slot(a) for a in step.args]
            if isinstance(code.scratch, Sym) or code.scratch:
                slots.append((_SCRATCH, 0, 0, -1))
            flags = layout.FOREIGN * code.is_external
            for k in range(len(code.phases)):
                function = entries[code.object].address if code.is_external else image.address(code.object, f"phase{k}")
                chunk = iterations(code.costs[k]) if code.costs else code.chunks[k] if code.chunks else 0
                least = PIECES * chunk if code.costs else 2  # iterations from which they are taken in chunks
                phases.append((function, args, flags, step.waits[k] if step.waits else True, chunk, least))
            extents += code.phases
            costs += code.costs
            first.append(len(phases))
        index = program.evaluation.index
        fields = np.array(phases, np.int64).reshape(-1, 6).T
        self._function, self._args, self._flags, self._waits, self._chunk, self._least = fields
        self._extents, self._costs, self._first = _Column(extents, index), np.array(costs), np.array(first)
        self._base, self._buffer = (np.array([s[i] for s in slots], np.intp) for i in (0, 3))
        self._at, self._offset = (_Column([s[i] for s in slots], index) for i in (1, 2))
        self._apart = np.zeros(len(slots), np.int64)  # bytes
        if weights is not None and len(weights.arrays) > 1:
            is_weight = self._base == _WEIGHT
            self._apart[is_weight] = weights.distances([integer(s[1]) for s in slots if s[0] == _WEIGHT])
        self._tensors = [(t.shape, dtypes.itemsize(t.dtype)) for t in (*program.inputs, *program.outputs)]
        self._scratch = tuple({c.scratch for c in program.codes})
        self._positive, self._written, self._concerns = _Column(positive, index), _Column(written, index), concerns
        self._sizes = _Column([b.size for b in program.buffers], index)
        above = [a for b in program.buffers for a in b.above]
        self._ends, self._begins = _Column([a.end for a in above], index), _Column([a.begin for a in above], index)
        self._others = [[a.buffer for a in b.above] for b in program.buffers]

    def _slot(self, a: Argument) -> tuple[int, Dim, Dim, int]:
        match a.kind:
            case "input":
                return integer(a.at), 0, a.offset, -1
            case "output":
                return len(self._program.inputs) + integer(a.at), 0, a.offset, -1
            case "buffer":
                return _ARENA, 0, a.offset, integer(a.at)
            case _:
                return _BASES[a.kind], a.at, a.offset, -1

    def table(self, values: Mapping[str, int]) -> LaunchTable:
        """Return the table for these values of the symbols. Raises InvalidInput where sizes that follow from them are
        none, or reach outside of what they are in."""
        program, index = self._program, self._program.evaluation.index
        held = program.evaluation.at(values)
        known = np.array(held, np.int64)

        def of(dim: Dim) -> int:
            return held[index[dim]] if isinstance(dim, Sym) else dim

        extent, offset = self._extents.at(known), self._at.at(known) + self._offset.at(known)
        is_sound = True
        for i in np.flatnonzero(missing := self._positive.at(known) <= 0):
            begin, end = self._concerns[i]
            extent[begin:end] = 0
        if missing.any():
            is_sound = not self._lacks(known)
        arena = program.arena_bytes
        if self._others:
            sizes, gaps = self._sizes.at(known).tolist(), self._ends.at(known) - self._begins.at(known)
            places, arena = place(sizes, self._others, gaps.tolist())
            offset += np.array([*places, 0] if arena <= LARGEST else [0] * (len(places) + 1))[self._buffer]
        shapes = tuple(tuple(map(of, shape)) for shape, _ in self._tensors)
        scratch = max((align(of(s)) for s in self._scratch), default=0)
        if program.typical:
            nbytes = [prod(shape) * size for shape, (_, size) in zip(shapes, self._tensors)]
            most = [*nbytes, LONGEST, 0, program.weight_bytes, arena]  # by base
            is_sound = (
                is_sound
                and min((d for shape in shapes for d in shape), default=0) >= 0
                and all(0 <= n <= LARGEST for n in (*most, scratch, int(extent.sum())))
                and bool((extent >= 0).all() and ((offset >= 0) & (offset <= np.array(most)[self._base])).all())
            )
            if not is_sound:
                raise self._misfit(values)

        offset += self._apart
        spent = round(float(self._costs @ extent)) if program.typical else program.nanoseconds
        live = np.flatnonzero(extent)  # a phase of no iterations hands its barrier on
        extent = extent[live]
        barrier = np.diff(np.cumsum(self._waits)[live], prepend=0) > 0
        barrier[:1] = False
        many = extent > 1
        chunk = np.where(many & (extent >= self._least[live]), self._chunk[live], 0)
        piece = np.where(chunk > 0, chunk, np.where(extent < _FEW, 1, extent))
        flags = self._flags[live] + layout.BARRIER * barrier
        taken, before = (np.cumsum(many) - many) * _WORD, np.cumsum(extent) - extent
        fields = (self._function[live], self._args[live], extent, chunk, flags, taken, before, piece)
        return LaunchTable(
            table=np.stack(fields, 1) if len(live) else np.empty((0, _RECORD_WORDS), np.int64),
            base=self._base,
            offset=offset,
            steps=tuple(np.searchsorted(live, self._first).tolist()),
            is_serial=not many.any(),
            shapes=shapes,
            arena_bytes=arena,
            scratch_bytes=scratch,
            counters=int(many.sum()),
            nanoseconds=spent,
        )

    def lacks(self, values: Mapping[str, int]) -> bool:
        """Return whether a kernel has something to do, and an extent that it takes to be positive is not."""
        return self._lacks(np.array(self._program.evaluation.at(values), np.int64))

    def _lacks(self, known: Words) -> bool:
        return bool(((self._positive.at(known) <= 0) & (self._written.at(known) > 0)).any())

    def _misfit(self, values: Mapping[str, int]) -> InvalidInput:
        told = ", ".join(f"{name} is {value}" for name, value in values.items())
        facts = ["sizes do not fit what they are in"]
        try:
            objects = 1 + max((c.object for c in self._program.codes), default=0)
            self._program.bind(values).verify(objects, self._program.weight_bytes)
        except (InvalidArtifact, InvalidInput) as error:
            facts = list(error.facts)
        return InvalidInput(f"{self._program.name or 'the program'} cannot run where {told}", facts)


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
    """A table with addresses, for runs that follow each other.

    address: for the walker. arena: its memory. bases: where the caller's arrays are, inputs then outputs. cancels,
    version: words that end a run when they change. is_short: a run takes less than waking a thread.
    """

    def __init__(
        self,
        launches: LaunchTable,
        weights: int,
        threads: int,
        cancels: Word = _CONSTANT,
        version: Word = _CONSTANT,
        is_short: bool = False,
        arena: Memory | None = None,
        scratch: Memory | None = None,
    ):
        self.arena = Memory(launches.arena_bytes) if arena is None else arena
        scratch = Memory(launches.scratch_bytes * threads) if scratch is None else scratch
        dynamic = np.flatnonzero(launches.base >= 0)
        row = align(launches.counters * _WORD, layout.LINE)
        counters = row // _WORD * threads
        parts = (
            layout.CONTEXT_WORDS,
            len(launches.shapes),
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
        fixed = np.array([0, scratch.address, weights, self.arena.address])  # by base, from its end
        slots[:] = launches.offset
        slots += np.where(launches.base < 0, fixed[np.minimum(launches.base, -1)], 0)
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


class Workplace:
    """What one call in flight owns: an arena and private memory of threads, as large as the largest table that it was
    used for needs, and contexts of the last `most` tables."""

    def __init__(self, weights: int, cancels: Word, version: Word, most: int):
        self._weights, self._words, self._most = weights, (cancels, version), most
        self._arena, self._scratch, self.contexts = Memory(0), Memory(0), dict[LaunchTable, Context]()

    def context(self, launches: LaunchTable, threads: int, is_short: bool, keeps: bool = False) -> Context:
        """Make a context, or return the one that is there. keeps: whether the arena holds what is still to be read.
        Raises OutOfMemory."""
        if (found := self.contexts.get(launches)) is not None:
            return found
        if self._arena.nbytes < launches.arena_bytes or self._scratch.nbytes < launches.scratch_bytes * threads:
            self.contexts.clear()  # they have the addresses of memory that goes
            arena, scratch = self._arena.nbytes, self._scratch.nbytes
            held = self._arena.array if keeps else None
            self._arena = self._scratch = Memory(0)  # before there is more
            self._arena = Memory(max(arena, launches.arena_bytes))
            self._scratch = Memory(max(scratch, launches.scratch_bytes * threads))
            if held is not None:
                self._arena.array[: len(held)] = held
        while len(self.contexts) >= self._most:
            del self.contexts[next(iter(self.contexts))]
        words = (*self._words, is_short, self._arena, self._scratch)
        self.contexts[launches] = found = Context(launches, self._weights, threads, *words)
        return found
