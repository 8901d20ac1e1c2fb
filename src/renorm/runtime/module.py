"""A compiled network that runs."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import static
from renorm.core.errors import Cancelled, InvalidArtifact, InvalidInput, InvalidTarget, TimeLimit
from renorm.core.limits import DEFAULT, Limits
from renorm.runtime import artifact, external, layout, loader
from renorm.runtime import threads as teams
from renorm.runtime.arrays import (
    Array,
    Outputs,
    Slot,
    address,
    bind,
    bind_out,
    elements_of,
    handed_out,
    overlap,
    shapes_of,
)
from renorm.runtime.checks import Check, judge
from renorm.runtime.cpu import obstacles
from renorm.runtime.external import Entry, ExternalCode
from renorm.runtime.openmp import ParallelRegion
from renorm.runtime.program import Program, TensorSpec
from renorm.runtime.report import Report
from renorm.runtime.signing import Key
from renorm.runtime.stages import stages
from renorm.runtime.state import State, beyond
from renorm.runtime.table import Context, Launches, LaunchTable, Recording, Word, Workplace
from renorm.runtime.weights import Source, Weights

# ns of work that one thread does: below the first, sharing it out takes longer than it saves; below the second, waking
# a thread that sleeps does, which takes some 100 us of the caller's time on a virtual machine
WORTH_SHARING, WORTH_WAKING = 60_000, 250_000
TABLES = 128  # for how many combinations of extents a module keeps what runs need; the oldest goes first


T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]  # or elements, by the names of inputs


class _Limit:
    """A time limit, of a call that begins now. deadline: in nanoseconds of time.monotonic_ns."""

    def __init__(self, seconds: float):
        if not seconds >= 0:  # NaN is not either
            raise InvalidInput(f"timeout={seconds!r}", ["expected a number of seconds, or None for no limit"])
        self.seconds = seconds
        self.deadline = min(layout.FOREVER, time.monotonic_ns() + int(min(seconds, 1e9) * 1e9))

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0, self.deadline - time.monotonic_ns()) / 1e9


class Sized:
    """What calls of the same extents share: what they are called with and give, the table, and the values of open
    extents. threads: that are put to work; is_short: a run takes less than waking one. other: a module for these
    extents alone, that runs in place of the open one; None: there is none. calls: how often they were called, and seen:
    of how many such modules this is none, where somebody counts."""

    other: Module | None = None
    calls = seen = 0

    def __init__(
        self,
        program: Program,
        launches: LaunchTable,
        checks: Sequence[Check],
        threads: int,
        values: Mapping[str, int],
    ):
        self.values = values
        slots = [Slot(spec, shape) for spec, shape in zip((*program.inputs, *program.outputs), launches.shapes)]
        outputs = slots[len(program.inputs) :]
        results = len(program.results)
        self.inputs = slots[: len(program.given)]
        self.outputs, self.counted = outputs[:results], outputs[results:][: len(program.counts)]
        self.checked = outputs[program.guards]
        self.written = (*self.outputs, *self.counted, *self.checked)
        self.launches, self.checks = launches, checks
        is_small = 0 < launches.nanoseconds < WORTH_SHARING
        self.threads = 1 if launches.is_serial or is_small else threads
        self.is_short = 0 < launches.nanoseconds < WORTH_WAKING


class Stage:
    """The steps in front of counts. counts: what is there then, each with its place among the outputs. sizes: by the
    shapes of inputs and the elements that are told before; a module that runs in place of all steps, where there is one
    for these."""

    def __init__(self, program: Program, launches: Launches, counts: Sequence[tuple[int, TensorSpec]]):
        self.program, self.launches, self.counts = program, launches, tuple(counts)
        self.sizes = dict[tuple[tuple[int, ...], ...], Sized | Module]()


@dataclass(frozen=True)
class Reached:
    """A run whose counts are there. place: where it runs. inputs: what it reads, counts among them. outputs: what it
    writes."""

    sized: Sized
    place: Workplace
    inputs: list[Array]
    outputs: Outputs


class Module:
    """A compiled network in this machine's memory. Safe to call from several Python threads.

    program: what to run. objects: the ELF objects that its codes index. weights: the bytes that weight offsets count
    in (runtime.weights). walker: the object of codegen.llvm.walk. threads: how many run it, or whose; None: see
    runtime.threads. externals: the code of Program.externals, or what was saved of it. state: the arrays of
    Program.state, or what was saved of them, or the State of another module, which the two then share. limits: what a
    run of an open program may ask for, `bytes` of it.

    With one thread, calls from several Python threads run at once, each with an arena of its own. With more, they
    take turns.

    A program may be open: then each call has the extents that the shapes of its inputs say. What runs of the same
    extents share is kept for the last TABLES of them; code, weights and arenas are the same for all. Extents that
    data decide (Program.counts) are read once the steps in front of them have run; the rest runs for these, in the same
    arena.

    A module for another machine can be looked at and saved, not run.

    Raises InvalidArtifact when the parts contradict each other.
    """

    def __init__(
        self,
        program: Program,
        objects: Sequence[bytes],
        weights: Source | tuple[Array, ...] | Weights,
        walker: bytes,
        threads: int | ParallelRegion | None = None,
        externals: Sequence[ExternalCode | bytes] = (),
        state: State | Sequence[Array | bytes] = (),
        limits: Limits = DEFAULT,
    ):
        self._weights = weights if isinstance(weights, Weights) else Weights(weights)
        program.verify(len(objects), self._weights.nbytes, len(externals))
        parts = stages(program)
        for part in parts:
            part.verify(len(objects), self._weights.nbytes, len(externals))
        self.program, self._limits = program, limits
        self._objects, self._walker, self._externals = tuple(objects), walker, tuple(externals)
        self._state = state if isinstance(state, State) else State(program.state, _arrays(program.state, state))
        self._threads = teams.resolve(threads)
        self._idle = list[Workplace]()  # list.append and list.pop are atomic
        self._cancels, self._counted = Word(), count(1)
        arch = platform.machine()
        self._obstacles = obstacles(program.machine, arch)
        self._fixed: Sized | None = None  # of a program that is not open, and runs here
        self._only: Sized | None = None  # the same where no input decides anything
        self._stages, self._count_shapes = list[Stage](), dict[str, tuple[int, ...]]()  # the latter: shapes of counts
        self._decides = any(spec.deciding for spec in self.inputs)
        if not self._obstacles:
            self._image = loader.load(objects, arch)
            self._entries = self._external_entries()
            self._tables = Launches(program, self._image, self._entries, self._weights)
            self._sizes = dict[tuple[tuple[int, ...], ...], Sized]()  # by shapes of inputs, and elements that decide
            counts = list(enumerate(program.inputs[len(program.given) :], start=len(program.results)))
            self._count_shapes = {spec.name: static(spec.shape) for _, spec in counts[: len(program.counts)]}
            for p, end in zip(parts, sorted(set(program.counts))):
                launches = Launches(p, self._image, self._entries, self._weights)
                there = [count for ready, count in zip(program.counts, counts) if ready == end]
                self._stages.append(Stage(p, launches, there))
            if not program.typical:
                self._fixed = self._sized({})
                self._only = None if self._decides or self._stages else self._fixed
            region = threads if isinstance(threads, ParallelRegion) else None
            useful = teams.working(self._threads) if self._fixed is None else self._fixed.threads
            self._team = teams.team(useful, walker, arch, region)

    @property
    def runs_here(self) -> bool:
        """Return whether this machine can run it."""
        return not self._obstacles

    def _external_entries(self) -> tuple[Entry, ...]:
        kernels = {c.object: s.kernel for s in self.program.steps if (c := self.program.codes[s.code]).is_external}
        return tuple(
            Entry(external.load(of, e, self.name) if isinstance(e, bytes) else e, of, kernels.get(i, self.name))
            for i, (e, of) in enumerate(zip(self._externals, self.program.externals, strict=True))
        )

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.program.given

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.program.results

    @property
    def state(self) -> State:
        """Arrays that each run reads and replaces, by name; empty unless it was compiled with `train_state`."""
        return self._state

    @property
    def report(self) -> Report:
        return self.program.report

    @property
    def name(self) -> str:
        return self.program.name or "module"

    @property
    def threads(self) -> int:
        """Return how many threads run it at most: no more than there are cores, and one where there is little to do."""
        return self._threads

    def _sized(self, values: Mapping[str, int]) -> Sized:
        """Return what runs need where the symbols of the program have these values. Raises LimitExceeded where that is
        more memory than is allowed."""
        program = self.program
        checks = program.bind(values).checks if program.typical and program.checks else program.checks
        return self._within_limits(program, self._tables.table(values), checks, values)

    def _sized_stage(self, stage: Stage, values: Mapping[str, int]) -> Sized | Module:
        """As `_sized`, of the steps in front of counts; or the module that runs in place of this one."""
        return self._within_limits(stage.program, stage.launches.table(values), (), values)

    def _within_limits(
        self, program: Program, launches: LaunchTable, checks: Sequence[Check], values: Mapping[str, int]
    ) -> Sized:
        sized = Sized(program, launches, checks, teams.working(self._threads), values)
        if program.typical:
            arena, results = launches.arena_bytes, sum(s.nbytes for s in sized.outputs)
            between = ("bytes", arena + program.weight_bytes, f"{arena} between kernels, and weights")
            self._limits.check(self.name, [between, ("bytes", results, "outputs")])
        return sized

    def _sized_for(self, args: Sequence[Any], named: Mapping[str, Any]) -> Sized:
        """Return what a run on these arrays needs. Raises InvalidInput where an extent, or an element that decides
        shapes, is not what it may be, or what another input says."""
        return self._sized_at(*self._told(args, named))

    def _told(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Shapes, Shapes]:
        """Return the shapes of inputs, and the elements of those that decide shapes."""
        if self._obstacles:
            do = "save it, and load it on a machine of that kind"
            raise InvalidTarget(f"{self.name} was compiled for another machine", self._obstacles, do)
        shapes = shapes_of(self.name, self.inputs, args, named)
        return shapes, elements_of(self.name, self.inputs, args, named) if self._decides else {}

    def _sized_at(self, shapes: Shapes, elements: Shapes) -> Sized:
        key = (*shapes.values(), *elements.values())
        found = self._sizes.get(key)
        if found is None:
            values = self.program.values({**shapes, **self._count_shapes}, elements)
            found = self._fixed or self._sized(values)
            if found.other is not None:
                return found  # whoever made it keeps it as long as it is worth it
            _keep(self._sizes, key, found)
        return found

    def extents(self, /, *args: Any, **named: Any) -> Mapping[str, int]:
        """Return the values that open extents have in a run on these inputs, given as for `run`."""
        reached = self._reached(args, named)
        if isinstance(reached, Module):
            return {**reached.program.dims, **reached.extents(*args, **named)}
        return (reached.sized if reached else self._only or self._sized_for(args, named)).values

    def serving(self, /, *args: Any, **named: Any) -> Module:
        """Return the module whose kernels run on these inputs, given as for `run`: this one, or one for their shapes
        alone."""
        reached = self._reached(args, named)
        if isinstance(reached, Module):
            return reached.serving(*args, **named)
        return self if reached else (self._only or self._sized_for(args, named)).other or self

    def run(self, /, *args: Any, out: Any = None, timeout: float | None = None, **named: Any) -> list[Any]:
        """Runs the network once and returns its outputs in order.

        args, named: the inputs, by position or by name: NumPy arrays, or anything in CPU memory with __dlpack__, of
        exactly the dtype and shape that `inputs` says. Arrays that are not C-contiguous are copied.
        out: one array per output (or the array itself where there is one output) to write into: writable,
        C-contiguous, distinct; None in the place of an output asks for a fresh array. They may share memory with
        inputs. Without out all results are fresh arrays, which no later call touches.
        timeout: seconds after which the run ends, waiting for its turn included; None: it takes as long as it takes.
        Raises InvalidInput that lists everything that does not fit, InvalidTarget for a module for another machine,
        TimeLimit, Cancelled (see `cancel`), and what handlers of signals raise meanwhile, as for Ctrl-C. A run that
        ends before it is done leaves the state as it was; what is in `out` is undefined then.
        Warns (StatisticsWarning) of running statistics that leave the range of their dtype.
        """
        cancels, limit = self._cancels.value, None if timeout is None else _Limit(timeout)
        if self._stages:
            return self._run_counted(args, named, out, cancels, limit)
        sized = self._only or self._sized_for(args, named)
        if sized.other is not None:
            return sized.other.run(*args, out=out, timeout=timeout, **named)
        inputs = bind(self.name, sized.inputs, args, named)
        if out is None:
            results = [s.allocate() for s in sized.outputs]
            self._call(sized, inputs, results, cancels, limit)
            return results
        given = bind_out(self.name, sized.outputs, out)
        # the memory plan may write a result before it has read the last of an input: what overlaps is written
        # elsewhere first
        into = [
            s.allocate() if a is None or any(overlap(a, x) for x in inputs) else a for s, a in zip(sized.outputs, given)
        ]
        self._call(sized, inputs, into, cancels, limit)
        return handed_out(out, given, into)

    __call__ = run

    def _reach(
        self, args: Sequence[Any], named: Mapping[str, Any], cancels: int, limit: _Limit | None = None
    ) -> Reached | Module:
        """Run the steps in front of counts, and read these. Return what is known then, or the module that runs in place
        of this one."""
        shapes, told = self._told(args, named)
        elements, inputs, counts = dict(told), list[Array](), list[Array]()
        place, outputs, first = self._taken(), Outputs(len(self.program.outputs)), len(self.outputs)
        for stage in self._stages:
            key = (*shapes.values(), *elements.values())
            sized = stage.sizes.get(key)
            if sized is None:
                sized = self._sized_stage(stage, stage.program.values({**shapes, **self._count_shapes}, elements))
                _keep(stage.sizes, key, sized)
            if isinstance(sized, Module):
                self._idle.append(place)
                return sized
            inputs = bind(self.name, sized.inputs[: len(self.inputs)], args, named)
            written = outputs.of(sized.outputs)
            counts = written[first : first + len(self._count_shapes)]  # each is written in a stage, and read behind it
            self._launch(place, sized, (*inputs, *counts, *written), cancels, limit, keeps=stage is not self._stages[0])
            for i, spec in stage.counts:
                elements |= elements_of(self.name, [spec], [written[i]], {})
        sized = self._sized_at(shapes, elements)
        if sized.other is not None:
            self._idle.append(place)
            return sized.other
        return Reached(sized, place, [*inputs, *counts], outputs)

    def _reached(self, args: Sequence[Any], named: Mapping[str, Any]) -> Reached | Module | None:
        """As `_reach`, for who does not go on from there; None where there are no counts."""
        reached = self._reach(args, named, self._cancels.value) if self._stages else None
        if isinstance(reached, Reached):
            self._idle.append(reached.place)
        return reached

    def _run_counted(
        self, args: Sequence[Any], named: Mapping[str, Any], out: Any, cancels: int, limit: _Limit | None
    ) -> list[Any]:
        """As `run`, of a program with counts."""
        reached = self._reach(args, named, cancels, limit)
        if isinstance(reached, Module):
            return reached.run(*args, out=out, timeout=None if limit is None else limit.left, **named)
        sized, outputs = reached.sized, reached.outputs
        given = [None] * len(sized.outputs) if out is None else bind_out(self.name, sized.outputs, out)
        for i, a in enumerate(given):
            if a is not None and not any(overlap(a, x) for x in reached.inputs):
                outputs.offer(i, a)
        written = outputs.of(sized.written)
        self._launch(reached.place, sized, (*reached.inputs, *written), cancels, limit, max(self.program.counts))
        self._idle.append(reached.place)
        judge(self.name, sized.checks, written[len(sized.outputs) + len(sized.counted) :])
        return handed_out(out, given, written[: len(sized.outputs)])

    def _launch(
        self,
        place: Workplace,
        sized: Sized,
        arrays: Sequence[Array],
        cancels: int,
        limit: _Limit | None,
        first: int = 0,
        keeps: bool = True,
    ) -> None:
        """Run the steps from `first` on; keeps: in an arena in which others have run."""
        context = self._context(place, sized, keeps)
        context.bases[:] = [address(a) for a in arrays]
        context.limit(sized.launches.steps[first], sized.launches.steps[-1])
        self._walk(context, cancels, limit)

    def cancel(self) -> None:
        """Ends the runs of this module that are in flight, in whichever threads: they raise Cancelled. Runs that are
        called later are not affected. May be called from any thread and from handlers of signals."""
        self._cancels.value = next(self._counted)

    def evaluate(self, arrays: Sequence[Array]) -> list[Array]:
        """Return what one run makes of the inputs and, after them, a state: the outputs, and after them what the
        state becomes. That of the module is neither read nor changed."""
        count = len(self.inputs)
        sized, inputs = self._bound(arrays[:count], {})
        results = [*(s.allocate() for s in sized.written), *self._state.fresh()]
        held = arrays[len(arrays) - self.program.states :]
        self._run(sized, [address(a) for a in (*inputs, *held, *results)], self._cancels.value)
        return results

    def _call(
        self, sized: Sized, inputs: Sequence[Array], results: Sequence[Array], cancels: int, limit: _Limit | None
    ) -> None:
        """One run that writes to `results`, and replaces the state."""
        checked = [s.allocate() for s in sized.checked]
        results = [*results, *checked]
        if not self.program.states:
            self._run(sized, [address(a) for a in (*inputs, *results)], cancels, limit)
            judge(self.name, sized.checks, checked)
            return
        while True:
            changes, version, after = self._state.changes.value, self._state.version, self._state.fresh()
            addresses = [address(a) for a in (*inputs, *version.arrays, *results, *after)]
            if not self._run(sized, addresses, cancels, limit, changes):
                continue
            judge(self.name, sized.checks, checked)
            if self._state.replace(version, after):
                break
        for spec, old, new in zip(self._state.specs, version.arrays, after):
            beyond(new, old, f"{self.name}: {spec.name}", stacklevel=4)

    def run_at(self, addresses: list[int]) -> None:
        """Runs the network, whose extents are fixed, once on memory at these addresses: of inputs and state, then of
        outputs and the state after. That there is what the program says, and that nothing is written over what is read,
        is the caller's to know."""
        assert self._fixed is not None
        self._run(self._fixed, addresses, self._cancels.value)

    def _run(
        self,
        sized: Sized,
        addresses: list[int],
        cancels: int,
        limit: _Limit | None = None,
        changes: int = layout.UNTIED,
    ) -> bool:
        """cancels, changes: what these words were when the run was called, and when the state was read. False: the
        state is another one by now, the run was in vain."""
        place = self._taken()
        context = place.contexts.get(sized.launches) or self._context(place, sized)
        context.bases[:] = addresses
        is_done = self._walk(context, cancels, limit, changes)
        self._idle.append(place)
        return is_done

    def _walk(self, context: Context, cancels: int, limit: _Limit | None = None, changes: int = layout.UNTIED) -> bool:
        deadline = layout.FOREVER if limit is None else limit.deadline
        if self._entries:
            reason = external.walk(lambda: self._team.run(context.address, deadline, cancels, changes))
        else:
            reason = self._team.run(context.address, deadline, cancels, changes)
        if reason == layout.CANCELLED:
            raise Cancelled(f"a run of {self.name} was cancelled")
        if reason == layout.TIMED_OUT:
            assert limit is not None
            raise TimeLimit(f"a run of {self.name} was not done in {limit.seconds:g} s")
        return not reason

    def _taken(self) -> Workplace:
        try:
            return self._idle.pop()
        except IndexError:
            return self._workplace()

    def _workplace(self) -> Workplace:
        return Workplace(self._weights.address, self._cancels, self._state.changes, TABLES)

    def _context(self, place: Workplace, sized: Sized, keeps: bool = False) -> Context:
        return place.context(sized.launches, min(sized.threads, self._team.threads), sized.is_short, keeps)

    def exclusive(self, /, *args: Any, **named: Any) -> Callable[[int | None], None]:
        """A function that runs one step, by index (None: no step), for who wants to look at steps one at a time.

        The steps read the inputs given, as for `run`, and share one arena, which no other call uses.
        """
        context, steps = self._own_context(args, named)

        def run(step: int | None) -> None:
            context.limit(*((0, 0) if step is None else steps[step : step + 2]))
            self._walk(context, self._cancels.value)

        return run

    def recorded(self, /, *args: Any, repeats: int = 1, **named: Any) -> list[Recording]:
        """Return what each thread did when, in each of `repeats` runs on the inputs given as for `run`."""
        context, steps = self._own_context(args, named)
        times = context.record(self._team.threads)
        found = list[Recording]()
        for _ in range(repeats):
            times.fill(0)
            begin = time.perf_counter_ns()
            self._walk(context, self._cancels.value)
            end = time.perf_counter_ns()
            found.append(Recording(begin, end, times @ (10**9, 1), steps))
        return found

    def _bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sized, list[Array]]:
        """Return what a run on these arrays needs, and the arrays that it reads, counts among them."""
        reached = self._reached(args, named)
        if isinstance(reached, Module):
            raise InvalidInput(f"{self.name}: kernels for these extents alone run in its place", do="ask serving(...)")
        if reached is not None:
            return reached.sized, reached.inputs
        sized = self._only or self._sized_for(args, named)
        return sized, bind(self.name, sized.inputs, args, named)

    def _own_context(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Context, tuple[int, ...]]:
        """One that no other call takes, bound to these inputs and to fresh results, and where its steps are. Its runs
        change no state."""
        sized, bound = self._bound(args, named)
        inputs = [*bound, *self._state.copy().values()]
        results = [*(s.allocate() for s in sized.written), *self._state.fresh()]
        context = self._context(self._workplace(), sized)
        context.hold((*inputs, *results))
        return context, sized.launches.steps

    def parts(self) -> tuple[Program, tuple[bytes, ...], bytes, bytes]:
        """Return the parts of which another process makes an equal module, that has neither external code nor state."""
        return self.program, self._objects, self._weights.tobytes(), self._walker

    def save(self, path: str | os.PathLike[str], key: Key | None = None) -> str:
        """Writes the module, with its state as it is, to one file, which `renorm.load` reads, and returns the digest by
        which `load` knows it again: 64 hexadecimal digits. An old file is replaced at once, or not at all.

        key: a private key of Ed25519, a file in PEM or its content, which signs the file (runtime.signing).
        Raises InvalidArtifact where it cannot be written, or has external code that cannot be saved.
        """
        code = [e if isinstance(e, bytes) else external.saved(e, self.name) for e in self._externals]
        state = [a.tobytes() for a in self._state.copy().values()]
        return artifact.write(path, self.program, self._walker, self._objects, self._weights.arrays, code, state, key)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"<Module {self.name}: {inputs} -> {outputs}; {len(self.program.steps)} kernels, {self.threads} threads>"


def load(
    path: str | os.PathLike[str],
    threads: int | None = None,
    verify: bool = True,
    digest: str | None = None,
    key: Key | None = None,
    mapped: bool = True,
    limits: Limits = DEFAULT,
) -> Module:
    """A module from a file that `Module.save` wrote; neither the compiler nor LLVM is imported. The file holds machine
    code: load only what you would run.

    verify: check the weights too, which reads all of them once; without it they are read from the file as they are
    needed.
    digest: what `save` returned: another file is refused. key: a public key of Ed25519, a file in PEM or its content:
    what its owner did not sign is refused. Both are checked before anything of the file is used.
    mapped: whether weights stay in the file, whose pages processes share, and which must not be changed in place, only
    replaced, as `save` does; without it they are read at once into memory of the module's own.
    External code is loaded by what is registered under the name in the file (runtime.external).
    limits: the bytes that a call of open extents may ask for; by default what this process may use.
    Raises InvalidArtifact for a file that cannot be read, is damaged, of another version, for another machine, or
    refused, OutOfMemory where there is no memory for it.
    """
    held = artifact.read(path, verify, digest, key, mapped)
    return Module(held.program, held.objects, held.weights, held.walker, threads, held.externals, held.state, limits)


def _keep(sizes: dict[tuple[tuple[int, ...], ...], T], key: tuple[tuple[int, ...], ...], sized: T) -> None:
    while len(sizes) >= TABLES:
        with suppress(KeyError, StopIteration, RuntimeError):  # another thread was faster
            del sizes[next(iter(sizes))]
    sizes[key] = sized


def _arrays(specs: Sequence[TensorSpec], state: Sequence[Array | bytes]) -> list[Array]:
    if len(state) != len(specs):
        raise InvalidArtifact(f"{len(state)} arrays of state, expected {len(specs)}")
    return [_array(s, a) if isinstance(a, bytes) else a for s, a in zip(specs, state)]


def _array(spec: TensorSpec, data: bytes) -> Array:
    if len(data) != spec.nbytes:
        raise InvalidArtifact(f"state {spec} has {len(data)} bytes, not {spec.nbytes}")
    return np.frombuffer(data, dtypes.numpy_dtype(spec.dtype)).reshape(static(spec.shape))
