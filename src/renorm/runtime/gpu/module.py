"""A compiled network that runs on a GPU: weights and an arena in its memory, its launches one graph.

    run = write inputs -> graph of all launches -> read outputs        all in the order of one stream

External code runs on the host, between two graphs (runtime.gpu.loaded).

Arrays of the GPU are read and written where they lie: the launches that touch them are given their addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from renorm.core.errors import InvalidInput, InvalidTarget
from renorm.core.lazy import cached_property
from renorm.runtime.arrays import Array, Slot, bind, bind_out
from renorm.runtime.checks import judge
from renorm.runtime.gpu import device as devices
from renorm.runtime.gpu.arrays import Borrowed, DeviceArray, borrow, is_on_gpu
from renorm.runtime.gpu.loaded import Loaded, Use
from renorm.runtime.gpu.times import LaunchTime, timer
from renorm.runtime.launches import ALIGNED, GPU
from renorm.runtime.module import Module
from renorm.runtime.state import beyond
from renorm.runtime.table import Recording

LEGACY = 1  # the handle of the default stream, which other libraries call 0


class GpuModule(Module):
    """A compiled network on a GPU. As Module; arrays of the GPU are taken, too, and `stream` says in whose order."""

    device_index = 0

    def on(self, index: int) -> Self:
        """Have it run on the GPU of this number, before its first run; return it. Raises InvalidInput."""
        if isinstance(index, bool) or not isinstance(index, int) or index < 0 or self._in_memory is not None:
            facts = [f"it is on cuda({self.device_index}), and has run"] if self._in_memory else []
            raise InvalidInput(f"{self.name}: device {index!r}", facts or ["expected the number of a GPU, from 0 on"])
        self.device_index = index
        return self

    def __init__(self, *args: Any, **named: Any):
        super().__init__(*args, **named)
        self._loading = Use(f"{self.name} on a GPU")
        self._in_memory: Loaded | None = None

    @property
    def _loaded(self) -> Loaded:
        """What it has on the device, from the first run on."""
        if self._in_memory is None:
            with self._loading:
                self._in_memory = self._in_memory or self._load()
        return self._in_memory

    def _load(self) -> Loaded:
        program = self.program
        if program.machine.arch != GPU:
            raise InvalidTarget(f"{self.name} holds no code for GPUs")
        device = devices.device(program.machine.cpu, self.device_index)
        if device.arch != program.machine.cpu:
            do = f'compile with target="cuda -arch={device.arch}"'
            facts = [f"cuda({self.device_index}) is {device.name}, {device.arch}", f"expected {program.machine.cpu}"]
            raise InvalidTarget(f"{self.name} was compiled for another GPU", facts, do)
        return Loaded(device, program, self._objects, self._weights.arrays, self._external_entries())

    @cached_property
    def _slots(self) -> tuple[list[Slot], list[Slot]]:
        """What inputs and outputs must be."""
        return [Slot(s) for s in self.inputs], [Slot(s) for s in self.outputs]

    @property
    def runs_here(self) -> bool:
        """Return whether a GPU of that architecture is there."""
        try:
            return devices.device(self.program.machine.cpu, self.device_index).arch == self.program.machine.cpu
        except InvalidTarget:
            return False

    @property
    def device_bytes(self) -> int:
        """Return the bytes of the device's memory that it holds: weights, arena, and staging of arrays of the host."""
        return self._loaded.nbytes

    def run(
        self, /, *args: Any, out: Any = None, timeout: float | None = None, stream: int | None = None, **named: Any
    ) -> list[Any]:
        """Run the network once and return its outputs in order.

        args, named: as for Module.run, in memory of the host, or of this GPU by __dlpack__ (these C-contiguous). out:
        likewise, one array per output or None. Without it results are arrays of the host, and, where an input is on the
        GPU, DeviceArrays. stream: a handle of the driver (torch.cuda.current_stream().cuda_stream): the run is in its
        order, and where all arrays are on the GPU `run` returns before it is done, with external code when the last of
        that is done; None: it returns when all is done.
        Raises InvalidInput, InvalidTarget without a GPU, OutOfMemory, and UserCodeError where external code fails:
        nothing of the run goes on then. External code runs other modules, not the one that called it.
        """
        if timeout is not None:
            raise InvalidInput(f"{self.name}: a run on a GPU has no time limit", [f"timeout={timeout!r}"])
        if stream is not None and (isinstance(stream, bool) or not isinstance(stream, int) or stream < 0):
            do = "pass the handle of a stream: torch.cuda.current_stream().cuda_stream"
            raise InvalidInput(f"{self.name}: stream={stream!r}", do=do)
        loaded = self._loaded
        order = 0 if stream is None else stream or LEGACY
        with loaded.lock:
            return self._run_in_order(loaded, args, named, out, order, stream is None)

    __call__ = run

    def run_at(self, addresses: list[int], stream: int = 0) -> None:
        """As Module.run_at, on memory of this GPU, in the order of a stream: outputs are aligned to what a thread
        accesses at once, inputs need not be. It returns when the run has begun."""
        loaded, stream, count = self._loaded, stream or LEGACY, len(self.program.inputs)
        with loaded.lock:
            loaded.enter(stream)
            bases = {("output", i): address for i, address in enumerate(addresses[count:])}
            try:
                for i, (spec, address) in enumerate(zip(self.program.inputs, addresses)):
                    bases["input", i] = self._aligned(loaded, i, address, spec.nbytes, stream)
                loaded.launch(bases, stream)
            finally:
                loaded.leave(stream)

    def _run_in_order(
        self, loaded: Loaded, args: Sequence[Any], named: Mapping[str, Any], out: Any, stream: int, is_awaited: bool
    ) -> list[Any]:
        device, states = loaded.device, self.program.states
        loaded.enter(stream)
        handle = stream or device.stream
        inputs = self._bound(args, named, handle, not is_awaited)
        given = self._given_out(out, handle, not is_awaited)
        while True:
            changes = self._state.version if states else None
            after = self._state.fresh() if states else []
            held = [*inputs, *(changes.arrays if changes else ())]
            results = self._results(inputs, given, after, 0 if is_awaited else stream)
            self._begin(loaded, held, results, stream)
            if is_awaited or not all(isinstance(x, (Borrowed, DeviceArray)) for x in (*held, *results)):
                device.wait(stream)
            if not changes:
                break
            if self._state.replace(changes, after):
                for spec, old, new in zip(self._state.specs, changes.arrays, after):
                    beyond(new, old, f"{self.name}: {spec.name}", stacklevel=4)
                break
        if self.program.checks:
            told = [y for y in results[self.program.guards] if isinstance(y, np.ndarray)]
            judge(self.name, self.program.checks, told)
        return _handed_out(out, given, results[: len(self._slots[1])])

    def _begin(
        self,
        loaded: Loaded,
        held: Sequence[Array | Borrowed],
        results: Sequence[Array | Borrowed | DeviceArray],
        stream: int,
    ) -> None:
        """Give a run to a stream: of inputs, with the state behind them, to outputs, with the state after."""
        bases = {("input", i): self._written(loaded, i, x, stream) for i, x in enumerate(held)}
        for i, y in enumerate(results):
            bases["output", i] = _usable(y, held) or loaded.staging("output", i)
        try:
            loaded.launch(bases, stream)
            self._copied_out(loaded, results, bases, stream)
        finally:
            loaded.leave(stream)

    def evaluate(self, arrays: Sequence[Array]) -> list[Array]:
        """As Module.evaluate, on arrays of the host."""
        loaded, results = self._loaded, [*(Slot(s).allocate() for s in self.outputs), *self._state.fresh()]
        held = [*self._bound(arrays[: len(self.inputs)], {}, 0, False), *arrays[len(self.inputs) :]]
        with loaded.lock:
            loaded.enter(0)
            self._begin(loaded, held, results, 0)
            loaded.device.wait(0)
        return results

    def _bound(
        self, args: Sequence[Any], named: Mapping[str, Any], handle: int, is_ready: bool
    ) -> list[Array | Borrowed]:
        slots = self._slots[0]
        if not any(is_on_gpu(x) for x in (*args, *named.values())):
            return list(bind(self.name, slots, args, named))
        names = [s.spec.name for s in slots]
        values = {**dict(zip(names, args)), **named}
        found, problems = list[Array | Borrowed](), list[str]()
        if len(args) > len(slots):
            problems.append(f"{len(args)} arrays by position, expected at most {len(slots)}")
        problems += [f"input {n} is given by position and by name" for n in names[: len(args)] if n in named]
        problems += [f"{n!r} is not an input" for n in named if n not in names]
        for slot in slots:
            name = slot.spec.name
            if not is_on_gpu(value := values.get(name)):
                found += bind(self.name, [slot], [] if value is None else [value], {})
                continue
            found.append(view := borrow(value, handle, is_ready))
            if problem := view.mismatch(slot, self.device_index):
                problems.append(f"input {name}: {problem}")
        if problems:
            raise InvalidInput(f"{self.name}: the arrays given do not fit its inputs", problems)
        return found

    def _given_out(self, out: Any, handle: int, is_ready: bool) -> list[Array | Borrowed | None]:
        if out is None:
            return []
        values, slots = out if isinstance(out, (list, tuple)) else [out], self._slots[1]
        if not any(is_on_gpu(x) for x in values):
            return list(bind_out(self.name, slots, out))
        found = [borrow(x, handle, is_ready) if is_on_gpu(x) else x for x in values]
        problems = [f"out has {len(found)} arrays, expected {len(slots)}"] * (len(found) != len(slots))
        for slot, x in zip(slots, found):
            if isinstance(x, Borrowed) and (problem := x.mismatch(slot, self.device_index)):
                problems.append(f"output {slot.spec.name}: {problem}")
            elif x is not None and not isinstance(x, Borrowed):
                problems.append(f"output {slot.spec.name}: on the host, others are on the GPU")
        there = [(slot.spec.name, x) for slot, x in zip(slots, found) if isinstance(x, Borrowed)]
        for i, (name, x) in enumerate(there):
            problems += [f"outputs {other} and {name} share memory" for other, y in there[:i] if _share(x, y)]
        if problems:
            raise InvalidInput(f"{self.name}: the arrays of out= do not fit its outputs", problems)
        return found

    def _results(
        self,
        inputs: Sequence[Array | Borrowed],
        given: Sequence[Array | Borrowed | None],
        after: Sequence[Array],
        stream: int = 0,
    ) -> list[Array | Borrowed | DeviceArray]:
        """Return what a run writes: what the caller gave, or fresh arrays, of the GPU where an input is on it."""
        count = len(self._slots[1])
        whole: list[Array | Borrowed | DeviceArray] = [x for x in given if x is not None]
        if len(whole) == count == len(self.program.outputs):
            return whole
        is_device = any(isinstance(x, Borrowed) for x in inputs)
        found = list[Array | Borrowed | DeviceArray]()
        for i, spec in enumerate(self.program.outputs[: len(self.program.outputs) - len(after)]):
            there = given[i] if i < len(given) else None
            if there is not None:
                found.append(there)
            elif is_device and i < count:
                found.append(DeviceArray(spec, self.device_index, self._loaded.device, stream))
            else:
                found.append(Slot(spec).allocate())
        return [*found, *after]

    def _written(self, loaded: Loaded, i: int, x: Array | Borrowed, stream: int) -> int:
        """Return where the device has an input."""
        if isinstance(x, Borrowed):
            return self._aligned(loaded, i, x.address, x.nbytes, stream)
        at = loaded.staging("input", i)
        if x.nbytes:
            loaded.device.write(at, x, stream)
        return at

    def _aligned(self, loaded: Loaded, i: int, address: int, nbytes: int, stream: int) -> int:
        """Return where an input of the GPU is that a launch may read: there, or where it is copied to."""
        if address % ALIGNED == 0 or not nbytes:
            return address
        at = loaded.staging("input", i)
        loaded.device.copy(at, address, nbytes, stream)
        return at

    def _copied_out(
        self,
        loaded: Loaded,
        results: Sequence[Array | Borrowed | DeviceArray],
        bases: Mapping[tuple[str, int], int],
        stream: int,
    ) -> None:
        for i, y in enumerate(results):
            at = bases["output", i]
            if isinstance(y, (Borrowed, DeviceArray)):
                if y.address != at and y.nbytes:
                    loaded.device.copy(y.address, at, self.program.outputs[i].nbytes, stream)
            elif y.nbytes:
                loaded.device.read(y, at, stream)

    def extents(self, /, *args: Any, **named: Any) -> Mapping[str, int]:
        """Return no values: extents of a module for a GPU are fixed."""
        return {}

    def serving(self, /, *args: Any, **named: Any) -> Module:
        """Return this module: it runs whatever fits its inputs."""
        return self

    def exclusive(self, /, *args: Any, **named: Any) -> Callable[[int | None], None]:
        raise InvalidTarget(f"{self.name}: steps on a GPU are not run one at a time", do="kernel_times(...) times each")

    def recorded(self, /, *args: Any, repeats: int = 1, **named: Any) -> list[Recording]:
        raise InvalidTarget(f"{self.name}: no threads are recorded on a GPU", do="kernel_times(...) times each launch")

    def kernel_times(self, /, *args: Any, repeats: int = 10, **named: Any) -> list[tuple[str, float]]:
        """Return the seconds of each launch by itself, the median of `repeats`, by the name of its kernel, after a run
        on these inputs; of external code in runs, with its copies. Needs a device that tells time."""
        return [(t.kernel, t.median) for t in self.launch_times(*args, repeats=repeats, **named)[0]]

    def launch_times(self, /, *args: Any, repeats: int = 10, **named: Any) -> tuple[list[LaunchTime], list[float]]:
        """Return what `kernel_times` measures, with all there is to know of launches; and the seconds of runs from the
        first launch to the end of the last one. Raises InvalidTarget where the device tells no times."""
        loaded = self._loaded
        timer(loaded.device)
        with loaded.lock:
            results = self._run_in_order(loaded, args, named, None, 0, True)
            found = loaded.times(repeats), loaded.whole(repeats)
            del results  # to which the launches wrote
            return found


def _usable(y: Array | Borrowed | DeviceArray, inputs: Sequence[Array | Borrowed]) -> int:
    """Return the address of an output that launches may write to; 0 where it is on the host, is not aligned, or shares
    memory with an input, before the last of which the memory plan may have it written."""
    if not isinstance(y, (Borrowed, DeviceArray)) or y.address % ALIGNED:
        return 0
    return 0 if any(isinstance(x, Borrowed) and _share(x, y) for x in inputs) else y.address


def _share(x: Borrowed | DeviceArray, y: Borrowed | DeviceArray) -> bool:
    """Return whether two arrays of the GPU have a byte in common."""
    return x.address < y.address + y.nbytes and y.address < x.address + x.nbytes


def _handed_out(out: Any, given: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Return what a caller gets: the objects that it gave, or fresh arrays."""
    if out is None:
        return list(results)
    values = list(out) if isinstance(out, (list, tuple)) else [out]
    return [y if x is None else x for x, y in zip(values, results)]
