"""The loops of a launch, run by all threads of many blocks at once with NumPy: what tir.interpret.run does thread by
thread, some hundred times as fast, in one order, and with the same checks.

A thread is a lane. Conditions that differ between lanes become masks, and so do loops whose rounds differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tests.gpu import lane_arithmetic as arithmetic
from tests.gpu.lane_expressions import LaneExpressions
from tests.gpu.lane_races import LaneShadow, Race, block_and_thread, stamps

from renorm.core import dtypes
from renorm.core.conversion import converted
from renorm.core.errors import InvalidLoops
from renorm.expr import rewrite
from renorm.expr.nodes import Load, Var
from renorm.tir import interpret
from renorm.tir.nodes import (
    BLOCK_AXES,
    THREAD_AXES,
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Prefetch,
    Produce,
    Seq,
    Stmt,
    Store,
    expressions,
    walk,
)
from renorm.tir.verify_gpu import launch_extents

Array = np.ndarray[Any, Any]
MOST_LANES = 1 << 15  # at once: what they compute with stays in the caches
_AXES = (*BLOCK_AXES, *THREAD_AXES)


def run(kernel: Kernel, arrays: Sequence[Array]) -> None:
    """Run a kernel that is one launch on flat arrays, one for each parameter; thread by thread where it has expressions
    that are vectors. Raises InvalidLoops."""
    every = (x for s in walk(kernel.body) for e in expressions(s) for x in rewrite.walk(e))
    if any(x.lanes > 1 for x in every):
        interpret.run(kernel, arrays)
        return
    asked = launch_extents(kernel.body)
    extents = [asked.get(a, 1) for a in _AXES]
    blocks, threads = prod(extents[:3]), prod(extents[3:])
    memory = {p: _Cells(p, a) for p, a in zip(kernel.params, arrays)}
    for cells in (memory[p] for p in memory if _stores(kernel, p)):
        same = [other for other in memory.values() if other.cells.ctypes.data == cells.cells.ctypes.data]
        shadow = LaneShadow(max(other.size for other in same), is_of_block=False)
        for other in same:
            other.shadow = other.shadow or shadow
    step = max(1, MOST_LANES // threads)
    with np.errstate(all="ignore"):
        for first in range(0, blocks, step):
            _Blocks(kernel, extents, range(first, min(first + step, blocks)), dict(memory)).run()


def _stores(kernel: Kernel, buffer: Buffer) -> bool:
    return any(isinstance(s, Store) and s.buffer is buffer for s in walk(kernel.body))


def _place(number: int, extents: list[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(number, extents))


class _Cells:
    """Memory of a buffer. base, stride: element i of a lane lies at base + i*stride; no base: the lanes share it all.
    written: which cells are; those of parameters all are, and None says so."""

    def __init__(self, buffer: Buffer, cells: Array, base: Array | None = None, stride: int = 1):
        assert isinstance(buffer.size, int)
        self.name, self.dtype, self.size = buffer.name, buffer.dtype, buffer.size
        self.cells, self.base, self.stride = cells, base, stride
        self.written = None if base is None else np.zeros(cells.size, bool)
        self.shadow: LaneShadow | None = None


class _Blocks(LaneExpressions):
    """Blocks that run side by side."""

    def __init__(self, kernel: Kernel, extents: list[int], blocks: range, memory: dict[Buffer, _Cells]):
        super().__init__(kernel.name)
        self._kernel, self._extents, self._memory = kernel, extents, memory
        self._threads = prod(extents[3:])
        self._count = len(blocks) * self._threads
        number = np.arange(self._count, dtype=np.int64)
        self._lane, self._block = number, number // self._threads
        places = [*np.unravel_index(self._block + blocks.start, extents[:3])]
        places += np.unravel_index(number % self._threads, extents[3:])
        self._axes = dict(zip(_AXES, places))
        self._first, self._phases = blocks.start, np.zeros(self._count, np.int64)
        self._mine = self._stamps()
        self._where: list[Var] = []

    def _stamps(self) -> Array:
        return stamps(self._block + self._first, self._phases, self._lane % self._threads)

    def run(self) -> None:
        self._stmt(self._kernel.body)

    # ---- statements

    def _stmt(self, s: Stmt) -> None:
        match s:
            case Seq(stmts=stmts):
                for x in stmts:
                    self._stmt(x)
            case Produce(body=body):
                self._stmt(body)
            case For():
                self._for(s)
            case Let(var=var, value=value, body=body):
                self._values[var] = np.copy(v) if isinstance(v := self._value(value), np.ndarray) else v
                self._stmt(body)
            case If():
                condition = self._value(s.condition)
                self._under(condition, lambda: self._stmt(s.then))
                if s.otherwise is not None:
                    self._under(np.logical_not(condition), lambda: self._stmt(s.otherwise or Seq(())))
            case Allocate():
                self._allocate(s.buffer)
                self._stmt(s.body)
            case Barrier():
                self._barrier()
            case Store():
                if s.predicate is None:
                    self._store(s)
                else:
                    self._under(self._value(s.predicate), lambda: self._store(s))
            case Prefetch():
                pass
            case _:
                raise TypeError(f"not a statement: {type(s).__name__}")

    def _for(self, s: For) -> None:
        start, extent = self._index(s.start), self._index(s.extent)
        self._where.append(s.var)
        if s.kind in _AXES:
            place = self._axes[s.kind]
            self._values[s.var] = place + start
            self._fixed_vars.add(s.var)
            all_run = self._extents[_AXES.index(s.kind)] <= extent
            self._under(True if all_run else place < extent, lambda: self._stmt(s.body))
        else:
            most = (
                int(np.max(extent, initial=0, where=True if self._mask is None else self._mask))
                if isinstance(extent, np.ndarray)
                else extent
            )
            for k in range(most):
                self._values[s.var] = start + k
                self._under(k < extent, lambda: self._stmt(s.body))
        self._where.pop()

    def _allocate(self, buffer: Buffer) -> None:
        assert isinstance(buffer.size, int)
        is_shared = buffer.is_shared or buffer.scope == "global"
        size = buffer.size * (self._count // self._threads if is_shared else self._count)
        base, stride = (self._block * buffer.size, 1) if is_shared else (self._lane, self._count)
        made = _Cells(buffer, np.zeros(size, dtypes.numpy_dtype(buffer.dtype)), base, stride)
        if is_shared:  # one piece of memory in all rounds of the loops around, though it is empty in each
            made.shadow = self._memory[buffer].shadow if buffer in self._memory else LaneShadow(size, is_of_block=True)
        self._memory[buffer] = made

    def _barrier(self) -> None:
        if self._mask is not None:
            here = self._mask.reshape(-1, self._threads).sum(1)
            if (wrong := (here != 0) & (here != self._threads)).any():
                at = int(wrong.argmax())
                block = _place(at + self._first, self._extents[:3])
                raise InvalidLoops(
                    f"kernel {self._kernel.name}: not all threads of block {block} reach the same barrier",
                    [f"{here[at]} of {self._threads} threads stop at one barrier"],
                )
        self._phases += 1 if self._mask is None else self._mask
        self._mine = self._stamps()

    def _store(self, s: Store) -> None:
        memory, index, value = self._memory[s.buffer], self._index(s.index), self._value(s.value)
        at = self._places(memory, index)
        if memory.shadow and (race := memory.shadow.writes(at, self._running(self._mine))):
            self._race(memory, at, race, "writes")
        value = self._running(value) if isinstance(value, np.ndarray) else np.asarray(value)
        memory.cells[at] = converted(value, memory.dtype)
        if memory.written is not None:
            memory.written[at] = True

    # ---- accesses

    def _running(self, x: Array) -> Array:
        """Return those of the lanes that run."""
        return x if self._mask is None else x[self._mask]

    def _places(self, memory: _Cells, index: Any) -> Any:
        """Return where in memory an element lies for each lane that runs; a slice where it is memory of their own."""
        is_one = not isinstance(index, np.ndarray)
        at = index if is_one else self._running(index)
        low, high = (at, at) if is_one else (at.min(), at.max())
        if low < 0 or high >= memory.size:
            wrong = 0 if is_one else int(((at < 0) | (at >= memory.size)).argmax())
            i = int(at if is_one else at[wrong])
            raise InvalidLoops(
                f"{memory.name}[{i}] is outside {memory.name}, which has {memory.size} elements", [self._at(wrong)]
            )
        if memory.base is None:
            return np.full(self._running(self._lane).size, at) if is_one else at
        if is_one and memory.stride > 1 and self._mask is None:
            return slice(at * memory.stride, (at + 1) * memory.stride)
        return self._running(memory.base) + at * memory.stride

    def _load(self, e: Load) -> Any:
        assert isinstance(e.source, Buffer)
        memory, index = self._memory[e.source], self._index(e.indices[0])
        if memory.base is None and memory.shadow is None and not isinstance(index, np.ndarray):
            self._places(memory, index)
            found = memory.cells[index : index + 1].astype(arithmetic.carrier(memory.dtype))[0]
            return int(found) if dtypes.is_int(memory.dtype) and memory.dtype != "uint64" else found
        at = self._places(memory, index)
        if memory.shadow and (race := memory.shadow.reads(at, self._running(self._mine))):
            self._race(memory, at, race, "reads")
        if memory.written is not None and not (known := memory.written[at]).all():
            lane = int(known.argmin())
            i = int(self._running(index)[lane]) if isinstance(index, np.ndarray) else index
            raise InvalidLoops(f"{memory.name}[{i}] is read before anything is written there", [self._at(lane)])
        found = memory.cells[at].astype(arithmetic.carrier(memory.dtype), copy=False)
        if self._mask is None:
            return found
        whole = np.zeros(self._count, found.dtype)
        whole[self._mask] = found
        return whole

    def _at(self, running: int) -> str:
        """Return the loop variables of a lane, by its number among those that run."""
        lane = int(self._running(self._lane)[running])
        values = ((v.name, x if isinstance(x := self._values[v], int) else int(x[lane])) for v in self._where)
        return "at " + (", ".join(f"{name} = {value}" for name, value in values) or "the root")

    def _race(self, memory: _Cells, at: Any, race: Race, verb: str) -> None:
        mine = int(self._running(self._mine)[race.at])
        (block, thread), (other_block, other) = (self._who(stamp) for stamp in (mine, race.theirs))
        whose = "that block" if block == other_block else f"block {other_block}"
        cell = int(at[race.at]) - (int(self._running(memory.base)[race.at]) if memory.base is not None else 0)
        raise InvalidLoops(
            f"kernel {self._kernel.name}: a race: thread {thread} of block {block} {verb} {memory.name}[{cell}], "
            f"which thread {other} of {whose} {race.did} with no order between",
            [self._at(race.at)],
        )

    def _who(self, stamp: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        block, thread = block_and_thread(stamp)
        return _place(block, self._extents[:3]), _place(thread, self._extents[3:])
