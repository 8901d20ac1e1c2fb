"""A compiled network that runs."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from renorm.core.dims import static
from renorm.core.errors import Cancelled, InvalidInput, InvalidTarget, TimeLimit
from renorm.core.limits import DEFAULT, Limits
from renorm.runtime import artifact, external, layout, loader
from renorm.runtime import threads as teams
from renorm.runtime.arrays import (
    Array,
    Slot,
    address,
    bind,
    bind_out,
    deciding_elements,
    elements_of,
    handed_out,
    shapes_of,
    written_in,
)
from renorm.runtime.checks import Check, judge
from renorm.runtime.cpu import obstacles
from renorm.runtime.external import Entry, ExternalCode
from renorm.runtime.launches import GPU
from renorm.runtime.openmp import ParallelRegion
from renorm.runtime.program import Program, TensorSpec
from renorm.runtime.report import Report
from renorm.runtime.signing import Key
from renorm.runtime.stages import stages
from renorm.runtime.state import State, Version, arrays_of, beyond
from renorm.runtime.table import Context, Launches, Recording, Word, Workplace
from renorm.runtime.weights import Source, Weights

if TYPE_CHECKING:
    from renorm.runtime.piecewise import PiecewiseModule

# ns of work that one thread does: below the first, sharing it out takes longer than it saves; below the second, waking
# a thread that sleeps does, which takes some 100 us of the caller's time on a virtual machine
WORTH_SHARING, WORTH_WAKING = 60_000, 250_000
TABLES = 128  # for how many combinations of extents a module keeps what runs need; the oldest goes first

Shapes = Mapping[str, tuple[int, ...]]  # or elements, by the names of inputs


class Sized:
    """What runs of a stage for the same extents share: what they are called with and give, the table, and the values of
    open extents. begin: the record that they begin with. keeps: whether steps have run whose results they read.
    threads: that are put to work; is_short: a run takes less than waking one. other: a module for these extents alone,
    that runs in place of the open one; None: there is none. calls: how often they were called, and seen: of how many
    such modules this is none, where somebody counts."""

    other: Module | None = None
    calls = seen = 0

    def __init__(
        self, program: Program, stage: Stage, checks: Sequence[Check], threads: int, values: Mapping[str, int]
    ):
        """program: the whole one."""
        self.values, self.launches, self.checks = values, (launches := stage.launches.table(values)), checks
        self.begin, self.keeps = launches.steps[stage.done], stage.keeps
        slots = [Slot(spec, shape) for spec, shape in zip((*program.inputs, *program.outputs), launches.shapes)]
        outputs = slots[len(program.inputs) :]
        self.inputs, self.outputs = slots[: len(program.given)], outputs[: len(program.results)]
        self.written, self.checked = outputs[: program.guards.stop], program.guards
        is_small = 0 < launches.nanoseconds < WORTH_SHARING
        self.threads = 1 if launches.is_serial or is_small else threads
        self.is_short = 0 < launches.nanoseconds < WORTH_WAKING


class Stage:
    """Steps that run for extents which are told before: those up to the next counts, or the last ones.

    program: of these steps, or the whole one, of which `done` steps have run. keeps: whether they read what others have
    written. counts: what is there then, each with its place among the outputs. sizes: what runs need, by the shapes of
    inputs and the elements that are told before; fixed: the same for all, where nothing is open.
    """

    def __init__(
        self,
        program: Program,
        launches: Launches,
        counts: Sequence[tuple[int, TensorSpec]] = (),
        done: int = 0,
        keeps: bool = False,
    ):
        self.program, self.launches, self.counts, self.done, self.keeps = program, launches, counts, done, keeps
        self.sizes = dict[tuple[tuple[int, ...], ...], Sized]()
        self.fixed: Sized | None = None


class Held(NamedTuple):
    """State as one run has it: the version that it reads, what `State.changes` was then, and where it writes what that
    becomes."""

    version: Version
    changes: int
    after: Sequence[Array]

    def addresses(self, inputs: Sequence[Array], results: Sequence[Array]) -> list[int]:
        """Return what a run is called with that reads these inputs and writes these results."""
        return [address(a) for a in (*inputs, *self.version.arrays, *results, *self.after)]


STATELESS = Held(Version(()), layout.UNTIED, ())


Reached = tuple[Sized, list[Array], Sequence[Array], "Workplace | None"]
"""A run whose counts are there: what it needs, the arrays that it reads, counts among them, those that steps may have
written which have run, and where; None where none had to."""


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
        self._state = state if isinstance(state, State) else State(program.state, arrays_of(program.state, state))
        self._threads = teams.resolve(threads)
        self._idle = list[Workplace]()  # list.append and list.pop are atomic
        self._cancels, self._counted = Word(), count(1)
        arch = platform.machine()
        self._obstacles = obstacles(program.machine, arch)
        self._fixed: Sized | None = None  # of a program that is not open, and runs here
        self._only: Sized | None = None  # the same where no input decides anything
        self._given = program.given
        self._decides = any(spec.deciding for spec in self._given)
        if not self._obstacles:
            self._image = loader.load(objects, arch)
            self._entries = self._external_entries()
            counts = list(enumerate(program.inputs[len(program.given) :][: len(program.counts)], len(program.results)))
            self._count_shapes = {spec.name: static(spec.shape) for _, spec in counts}
            self._stages = list[Stage]()
            for p, end in zip(parts, sorted(set(program.counts))):
                there = [count for ready, count in zip(program.counts, counts) if ready == end]
                self._stages.append(Stage(p, self._launches(p), there, keeps=bool(self._stages)))
            done = max(program.counts, default=0)
            self._last = Stage(program, self._launches(program), done=done, keeps=bool(parts))
            self._stages.append(self._last)
            if not program.typical:
                self._fixed = self._last.fixed = Sized(
                    program, self._last, program.checks, teams.working(self._threads), {}
                )
                self._only = None if self._decides or parts else self._fixed
            region = threads if isinstance(threads, ParallelRegion) else None
            useful = teams.working(self._threads) if self._fixed is None else self._fixed.threads
            self._team = teams.team(useful, walker, arch, region)

    @property
    def runs_here(self) -> bool:
        """Return whether this machine can run it."""
        return not self._obstacles

    def _launches(self, program: Program) -> Launches:
        return Launches(program, self._image, self._entries, self._weights)

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

    def _sized(self, stage: Stage, values: Mapping[str, int]) -> Sized | Module:
        """Return what runs of a stage need where the symbols of its program have these values; or the module that runs
        in place of this one. Raises LimitExceeded where that is more memory than is allowed."""
        program = stage.program
        checks = program.bind(values).checks if program.typical and program.checks else program.checks
        sized = Sized(self.program, stage, checks, teams.working(self._threads), values)
        if program.typical:
            arena, results = sized.launches.arena_bytes, sum(s.nbytes for s in sized.outputs)
            between = ("bytes", arena + program.weight_bytes, f"{arena} between kernels, and weights")
            self._limits.check(self.name, [between, ("bytes", results, "outputs")])
        return sized

    def _sized_at(self, stage: Stage, shapes: Shapes, elements: Shapes) -> Sized | Module:
        """Return what a run of a stage needs on inputs of these shapes and elements, or the module that runs in place
        of this one. Raises InvalidInput where an extent, or an element that decides shapes, is not what it may be, or
        what another input says."""
        key = (*shapes.values(), *elements.values())
        found = stage.sizes.get(key)
        if found is None:
            values = stage.program.values({**shapes, **self._count_shapes}, elements)
            found = stage.fixed or self._sized(stage, values)
            if isinstance(found, Sized):  # whoever made a module keeps it as long as it is worth it
                _keep(stage.sizes, key, found)
        return found

    def _reach(
        self, args: Sequence[Any], named: Mapping[str, Any], cancels: int, limit: teams.Limit | None, held: Held
    ) -> Reached | Module | None:
        """Run the steps in front of counts, if there are any, and read these. Return what is known then, or the module
        that runs in place of this one; None where the state is another one by now."""
        if (only := self._only) is not None:
            return only, bind(self.name, only.inputs, args, named), (), None
        if self._obstacles:
            do = "save it, and load it on a machine of that kind"
            raise InvalidTarget(f"{self.name} was compiled for another machine", self._obstacles, do)
        shapes = shapes_of(self.name, self._given, args, named)
        elements = elements_of(self.name, self._given, args, named) if self._decides else {}
        inputs: list[Array] = []
        written: list[Array] = []
        counts: list[Array] = []
        place = None
        for stage in self._stages:
            sized = self._sized_at(stage, shapes, elements)
            if isinstance(sized, Module):
                if place is not None:
                    self._idle.append(place)
                return sized
            inputs = inputs or bind(self.name, sized.inputs, args, named)
            if stage is self._last:
                return sized, [*inputs, *counts], written, place
            place = place or self._taken()
            written = written_in(sized.written, written)
            counts = written[len(sized.outputs) : len(sized.outputs) + len(self._count_shapes)]
            if not self._run(place, sized, held.addresses([*inputs, *counts], written), cancels, limit, held.changes):
                self._idle.append(place)
                return None
            elements = {**elements, **{spec.name: deciding_elements(spec, written[i]) for i, spec in stage.counts}}
        raise AssertionError("the last stage ends a run")

    def _reached(self, args: Sequence[Any], named: Mapping[str, Any]) -> Reached | Module:
        """As `_reach`, for who does not go on from there."""
        while (reached := self._reach(args, named, self._cancels.value, None, self._held())) is None:
            pass
        if not isinstance(reached, Module) and (place := reached[-1]) is not None:
            self._idle.append(place)
        return reached

    def extents(self, /, *args: Any, **named: Any) -> Mapping[str, int]:
        """Return the values that open extents have in a run on these inputs, given as for `run`."""
        reached = self._reached(args, named)
        if isinstance(reached, Module):
            return {**reached.program.dims, **reached.extents(*args, **named)}
        return reached[0].values

    def serving(self, /, *args: Any, **named: Any) -> Module:
        """Return the module whose kernels run on these inputs, given as for `run`: this one, or one for their shapes
        alone."""
        reached = self._reached(args, named)
        return reached.serving(*args, **named) if isinstance(reached, Module) else self

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
        cancels, limit = self._cancels.value, None if timeout is None else teams.Limit(timeout)
        while True:
            held = self._held()
            reached = self._reach(args, named, cancels, limit, held)
            if isinstance(reached, Module):
                return reached.run(*args, out=out, timeout=timeout, **named)
            if reached is None:
                continue
            sized, inputs, begun, place = reached
            given = () if out is None else bind_out(self.name, sized.outputs, out)
            written = written_in(sized.written, begun, given, inputs)
            if self._call(place or self._taken(), sized, inputs, written, cancels, limit, held):
                return handed_out(out, given, written[: len(sized.outputs)])

    __call__ = run

    def cancel(self) -> None:
        """Ends the runs of this module that are in flight, in whichever threads: they raise Cancelled. Runs that are
        called later are not affected. May be called from any thread and from handlers of signals."""
        self._cancels.value = next(self._counted)

    def evaluate(self, arrays: Sequence[Array]) -> list[Array]:
        """Return what one run makes of the inputs and, after them, a state: the outputs, and after them what the
        state becomes. That of the module is neither read nor changed."""
        given, after = arrays[len(arrays) - self.program.states :], self._state.fresh()
        held = Held(Version(tuple(given)), layout.UNTIED, after)
        cancels = self._cancels.value
        reached = self._reach(arrays[: len(self.inputs)], {}, cancels, None, held)
        if isinstance(reached, Module):
            return reached.evaluate(arrays)
        assert reached is not None
        sized, inputs, begun, place = reached
        results = written_in(sized.written, begun)
        place = place or self._taken()
        self._run(place, sized, held.addresses(inputs, results), cancels)
        self._idle.append(place)
        return [*results, *after]

    def _held(self) -> Held:
        """Return the state that a run has which begins now."""
        if not self.program.states:
            return STATELESS
        changes = self._state.changes.value  # before the version: one that comes between is noticed
        return Held(self._state.version, changes, self._state.fresh())

    def _call(
        self,
        place: Workplace,
        sized: Sized,
        inputs: Sequence[Array],
        results: Sequence[Array],
        cancels: int,
        limit: teams.Limit | None,
        held: Held,
    ) -> bool:
        """One run that writes to `results`, and replaces the state. place: where what it reads may lie. False: the
        state is another one by now."""
        is_done = self._run(place, sized, held.addresses(inputs, results), cancels, limit, held.changes)
        self._idle.append(place)
        if not is_done:
            return False
        judge(self.name, sized.checks, results[sized.checked])
        if held is STATELESS:
            return True
        if not self._state.replace(held.version, held.after):
            return False
        for spec, old, new in zip(self._state.specs, held.version.arrays, held.after):
            beyond(new, old, f"{self.name}: {spec.name}", stacklevel=4)
        return True

    def as_torch(self: Any) -> Any:
        """Return the module as a torch.nn.Module, whose programs PyTorch compiles and exports as one call."""
        return import_module("renorm.torch.compiled").as_module(self)

    def as_keras(self: Any) -> Any:
        """Return the module as a layer of Keras, which must run on the backend torch."""
        return import_module("renorm.keras.compiled").as_layer(self)

    def run_at(self, addresses: list[int]) -> None:
        """Runs the network, whose extents are fixed, once on memory at these addresses: of inputs and state, then of
        outputs and the state after. That there is what the program says, and that nothing is written over what is read,
        is the caller's to know."""
        assert self._fixed is not None
        place = self._taken()
        self._run(place, self._fixed, addresses, self._cancels.value)
        self._idle.append(place)

    def _run(
        self,
        place: Workplace,
        sized: Sized,
        addresses: list[int],
        cancels: int,
        limit: teams.Limit | None = None,
        changes: int = layout.UNTIED,
    ) -> bool:
        """cancels, changes: what these words were when the run was called, and when the state was read. False: the
        state is another one by now, the run was in vain."""
        context = place.contexts.get(sized.launches) or self._context(place, sized)
        context.bases[:] = addresses
        return self._walk(context, cancels, limit, changes)

    def _walk(
        self, context: Context, cancels: int, limit: teams.Limit | None = None, changes: int = layout.UNTIED
    ) -> bool:
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

    def _context(self, place: Workplace, sized: Sized) -> Context:
        threads = min(sized.threads, self._team.threads)
        context = place.context(sized.launches, threads, sized.is_short, sized.keeps)
        context.limit(sized.begin, sized.launches.steps[-1])
        return context

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

    def _own_context(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Context, tuple[int, ...]]:
        """One that no other call takes, of all steps, bound to these inputs and to fresh results, and where its steps
        are. Its runs change no state."""
        reached = self._reached(args, named)
        if isinstance(reached, Module):
            raise InvalidInput(f"{self.name}: kernels for these extents alone run in its place", do="ask serving(...)")
        sized, read, _, _ = reached
        inputs = [*read, *self._state.copy().values()]
        results = [*(s.allocate() for s in sized.written), *self._state.fresh()]
        context = self._context(self._workplace(), sized)
        context.limit(0, sized.launches.steps[-1])
        context.hold((*inputs, *results))
        return context, sized.launches.steps

    def parts(self) -> tuple[Program, tuple[bytes, ...], bytes, bytes]:
        """Return the parts of which another process makes an equal module, that has neither external code nor state."""
        return self.program, self._objects, self._weights.tobytes(), self._walker

    def encoded(self, key: Key | None = None) -> artifact.Encoded:
        """Return the artifact that `save` writes. Raises InvalidArtifact where external code cannot be saved."""
        code = [e if isinstance(e, bytes) else external.saved(e, self.name) for e in self._externals]
        state = [a.tobytes() for a in self._state.copy().values()]
        weights = self._weights.arrays
        return artifact.encoded(self.program, self._walker, self._objects, weights, code, state, key)

    def save(self: Any, path: str | os.PathLike[str], key: Key | None = None) -> str:
        """Writes the module, with its state as it is, to one file, which `renorm.load` reads, and returns the digest by
        which `load` knows it again: 64 hexadecimal digits. An old file is replaced at once, or not at all.

        key: a private key of Ed25519, a file in PEM or its content, which signs the file (runtime.signing).
        Raises InvalidArtifact where it cannot be written, or has external code that cannot be saved.
        """
        return artifact.store(path, self.encoded(key))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle and copy keep: the artifact that `save` writes."""
        return of_bytes, (bytes(self.encoded()),)

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
) -> Module | PiecewiseModule:
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
    A network in parts (runtime.steps) has no one program, and is called in the same way.
    Raises InvalidArtifact for a file that cannot be read, is damaged, of another version, for another machine, or
    refused, OutOfMemory where there is no memory for it.
    """

    def opened(digest: str | None, key: Key | None, place: tuple[int, int]) -> Module | PiecewiseModule:
        said = artifact.inspect(path, digest, key, place)[1] if artifact.is_plan(path, place) else None
        if not isinstance(said, artifact.PlanManifest):
            return held(artifact.read(path, verify, digest, key, mapped, place), threads, limits)
        modules = [[opened(one.digest, None, (one.begin, one.size)) for one in of] for of in said.held]
        parts: Any = import_module("renorm.runtime.piecewise")
        return parts.held(path, said.plan, modules, threads, limits)

    return opened(digest, key, (0, 0))


def of_bytes(data: bytes) -> Module | PiecewiseModule:
    """Return the module of an artifact that is no file: what `__reduce__` kept. Raises as `load`."""
    with open(os.memfd_create("module"), "wb") as file:  # whose pages stay while the module maps them
        file.write(data)
        file.flush()
        return load(f"/proc/self/fd/{file.fileno()}")


def held(content: artifact.Artifact, threads: int | None = None, limits: Limits = DEFAULT) -> Module:
    """Return the module of what a file holds."""
    kind = import_module("renorm.runtime.gpu.module").GpuModule if content.program.machine.arch == GPU else Module
    c = content
    return kind(c.program, c.objects, c.weights, c.walker, threads, c.externals, c.state, limits)


def _keep(sizes: dict[tuple[tuple[int, ...], ...], Sized], key: tuple[tuple[int, ...], ...], sized: Sized) -> None:
    while len(sizes) >= TABLES:
        with suppress(KeyError, StopIteration, RuntimeError):  # another thread was faster
            del sizes[next(iter(sizes))]
    sizes[key] = sized
