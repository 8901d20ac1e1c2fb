"""A program in the memory of a device: its launches in graphs, and calls of external code between them.

    graph -> wait -> read operands -> external code -> write results -> graph ...    all in the order of one stream

External code is of the host: its operands and results lie in memory there that all calls of a program share.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from renorm.core import dtypes
from renorm.core.dims import integer, static
from renorm.core.locks import Lock, Rank
from renorm.runtime.arrays import Array
from renorm.runtime.external import Caller
from renorm.runtime.gpu.device import Call, Device
from renorm.runtime.gpu.times import LaunchTime, timer
from renorm.runtime.memory import Memory
from renorm.runtime.program import Argument, Program, Step, TensorSpec, align

PER_THREAD = 2  # the handle of the default stream of each thread: another one in each

Bases = Mapping[tuple[str, int], int]  # addresses of inputs and outputs, by ("input", number)


@dataclass(frozen=True)
class _Place:
    """Where an argument is. kind, index: of an input or output; "" where `offset` is its address."""

    kind: str
    index: int
    offset: int

    def address(self, bases: Bases) -> int:
        return (bases[self.kind, self.index] if self.kind else 0) + self.offset


class _Launches:
    """Launches one after the other, one graph."""

    def __init__(self, device: Device):
        self._device = device
        self.names, self.functions, self.calls = list[str](), list[str](), list[Call]()
        self._places = list[tuple[int, int, _Place]]()  # launch, position: arguments that are known when a run begins
        self._bound = list[list[int]]()
        self._graph: Any = None

    def add(self, kernel: str, name: str, call: Call, places: Sequence[_Place]) -> None:
        """Put one more launch at the end. call: without arguments."""
        args = tuple(0 if p.kind else p.offset for p in places)
        self._places += [(len(self.calls), i, p) for i, p in enumerate(places) if p.kind]
        self.names.append(kernel)
        self.functions.append(name)
        self.calls.append(replace(call, args=args))
        self._bound.append(list(args))

    def begin(self, bases: Bases, stream: int) -> None:
        """Begin all of them."""
        graph, changed = self._graph, set[int]()
        self._graph = None  # where this is interrupted, another one is made
        for launch, position, place in self._places:
            address = place.address(bases)
            if self._bound[launch][position] != address:
                self._bound[launch][position] = address
                changed.add(launch)
        if graph is None:
            graph = self._device.graph(self._calls())
        else:
            for launch in sorted(changed):
                graph.update(launch, self._bound[launch])
        self._graph = graph
        graph.launch(stream)

    def times(self, repeats: int) -> list[LaunchTime]:
        """Return the times of each launch alone, on the addresses of the last run."""
        found, resources = list[LaunchTime](), getattr(self._device, "resources", None)
        for kernel, name, call in zip(self.names, self.functions, self._calls()):
            graph = self._device.graph([call])
            spent = timer(self._device)(lambda graph=graph: graph.launch(0), repeats)
            own, registers = resources(call.function) if resources else (0, None)
            shape = call.grid, call.block, call.shared + own
            found.append(LaunchTime(kernel, tuple(sorted(spent)), name, *shape, registers))
        return found

    def _calls(self) -> list[Call]:
        return [replace(c, args=tuple(args)) for c, args in zip(self.calls, self._bound)]

    def close(self) -> None:
        if self._graph is not None:
            with suppress(Exception):  # the device may be lost
                self._graph.close()


class _Outside:
    """A call of external code, on arrays of the host."""

    def __init__(self, device: Device, kernel: str, caller: Caller, places: Sequence[_Place], memory: Memory):
        self._device, self._kernel, self._caller = device, kernel, caller
        specs = (*caller.external.inputs, *caller.external.outputs)
        held = list(zip(_arrays(specs, memory), places, strict=True))
        count = len(caller.external.inputs)
        self._inputs, self._outputs = held[:count], held[count:]
        self._seconds = list[float]()

    def begin(self, bases: Bases, stream: int, is_timed: bool = False) -> None:
        """Wait for the launches before it, run the code, and begin to write what it made."""
        if is_timed:
            self._device.wait(stream)
        since = time.perf_counter()
        for x, place in self._inputs:
            if x.nbytes:
                self._device.read(x, place.address(bases), stream)
        self._device.wait(stream)
        self._caller.call([x.view() for x, _ in self._inputs], [y.view() for y, _ in self._outputs])
        for y, place in self._outputs:
            if y.nbytes:
                self._device.write(place.address(bases), y, stream)
        if is_timed:
            self._device.wait(stream)
            self._seconds.append(time.perf_counter() - since)

    def times(self) -> list[LaunchTime]:
        """Return the times of runs that were timed since this was asked last."""
        spent, self._seconds = self._seconds, list[float]()
        return [LaunchTime(self._kernel, tuple(sorted(spent)))]


def _arrays(specs: Sequence[TensorSpec], memory: Memory) -> list[Array]:
    """Return arrays in the memory, one behind the other."""
    offsets = accumulate((align(s.nbytes) for s in specs), initial=0)
    held = (memory.array[at : at + s.nbytes].view(dtypes.numpy_dtype(s.dtype)) for s, at in zip(specs, offsets))
    return [flat.reshape(static(s.shape)) for flat, s in zip(held, specs)]


class Use(Lock):
    """The lock of a module that is loaded, or runs, from the begin of that to the end. External code in it may take any
    other, and a module is loaded and run to be verified while others wait for it: rings are found where they wait."""

    __slots__ = ()

    def __init__(self, name: str):
        super().__init__(name, Rank.EXTERNAL)

    def _check_order(self) -> None:
        """Any order will do."""


class Loaded:
    """A program in the memory of a device. Raises OutOfMemory, and gives back what it took."""

    def __init__(
        self,
        device: Device,
        program: Program,
        objects: Sequence[bytes],
        weights: Sequence[Array],
        callers: Sequence[Caller] = (),
    ):
        """callers: of Program.externals."""
        self.device, self.program = device, program
        self._held, self._parts = list[int](), list[_Launches | _Outside]()
        # at the end of the program while Python and the driver are still whole, which __del__ would not wait for
        self.close = weakref.finalize(self, _give_back, device, self._parts, self._held)
        self._last, self._mark = 0, None  # the stream of the last run, and where that ends: its arena is used till then
        self._bases: Bases = {}  # of the last run
        self.lock = Use(f"{program.name or 'a module'} on {device.name}")
        try:
            self._load(objects, weights, callers)
        except BaseException:
            self.close()
            raise

    def _load(self, objects: Sequence[bytes], weights: Sequence[Array], callers: Sequence[Caller]) -> None:
        program = self.program
        self.weights, self.arena = self._take(program.weight_bytes), self._take(program.arena_bytes)
        at = self.weights
        for part in weights:
            self.device.write(at, part, 0)
            at += part.nbytes
        specs = [("input", i, s) for i, s in enumerate(program.inputs)]
        specs += [("output", i, s) for i, s in enumerate(program.outputs)]
        self._specs = {(kind, i): s for kind, i, s in specs}
        self._staging = dict[tuple[str, int], int]()
        self._libraries = [self.device.load(o) for o in objects]
        sizes = (sum(align(s.nbytes) for s in (*e.inputs, *e.outputs)) for e in program.externals)
        memory = Memory(max(sizes, default=0))
        for step in program.steps:
            places, code = [self._place(a) for a in step.args], program.codes[step.code]
            if code.is_external:
                self._parts.append(_Outside(self.device, step.kernel, callers[code.object], places, memory))
            else:
                self._add(step, places)
        self.device.wait(0)

    def _add(self, step: Step, places: Sequence[_Place]) -> None:
        code = self.program.codes[step.code]
        for launch in code.launches:
            last = self._parts[-1] if self._parts else None
            if not isinstance(last, _Launches):
                self._parts.append(last := _Launches(self.device))
            function = self.device.function(self._libraries[code.object], launch.function)
            (x, y, z), (i, j, k) = launch.grid, launch.block
            call = Call(function, (x, y, z), (i, j, k), (), launch.shared)
            last.add(step.kernel, launch.function, call, [places[a] for a in launch.args])

    def _place(self, a: Argument) -> _Place:
        at, offset = integer(a.at), integer(a.offset)
        if a.kind in ("input", "output"):
            return _Place(a.kind, at, offset)  # known when a run begins
        return _Place("", 0, {"weight": self.weights, "arena": self.arena}[a.kind] + at + offset)

    def _take(self, nbytes: int) -> int:
        address = self.device.allocate(max(1, nbytes))
        self._held.append(address)
        return address

    def staging(self, kind: str, i: int) -> int:
        """Return memory for an input or output of the host, which is kept."""
        if (kind, i) not in self._staging:
            self._staging[kind, i] = self._take(align(self._specs[kind, i].nbytes))
        return self._staging[kind, i]

    @property
    def nbytes(self) -> int:
        """Return the bytes of weights, arena and staging."""
        staged = sum(align(self._specs[key].nbytes) for key in list(self._staging))
        return self.program.weight_bytes + self.program.arena_bytes + staged

    def launch(self, bases: Bases, stream: int) -> None:
        """Begin all launches where inputs and outputs are at these addresses; external code among them is done when
        this returns. Raises what it raises: then nothing that was begun goes on, and nothing behind it has begun."""
        self._bases = bases
        for part in self._parts:
            part.begin(bases, stream)

    def enter(self, stream: int) -> None:
        """Have a stream wait for the run before, which uses the arena, where that is on another one."""
        if self._mark is not None and (stream != self._last or stream == PER_THREAD):
            self.device.after(self._mark, stream)

    def leave(self, stream: int) -> None:
        """Note that a run ends here."""
        self._last, self._mark = stream, self.device.mark(self._mark, stream)

    def times(self, repeats: int) -> list[LaunchTime]:
        """Return the times of each launch, and of external code, after a run, on its inputs. Raises InvalidTarget where
        the device tells no times."""
        timer(self.device)
        outside = [p for p in self._parts if isinstance(p, _Outside)]
        for part in outside:
            part.times()  # of a call that failed
        for _ in range(repeats if outside else 0):
            for part in self._parts:  # all of them: external code is given what it reads in a run
                part.begin(self._bases, 0, True) if isinstance(part, _Outside) else part.begin(self._bases, 0)
        return [t for p in self._parts for t in (p.times(repeats) if isinstance(p, _Launches) else p.times())]

    def whole(self, repeats: int) -> list[float]:
        """Return the seconds of runs on what lies on the device, from the first launch to the end of the last one."""
        return timer(self.device)(lambda: self.launch(self._bases, 0), repeats)


def _give_back(device: Device, parts: Sequence[_Launches | _Outside], held: list[int]) -> None:
    """Give back all memory of the device."""
    for part in parts:
        if isinstance(part, _Launches):
            part.close()
    while held:
        device.free(held.pop())
