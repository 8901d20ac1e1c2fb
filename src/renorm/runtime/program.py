"""A compiled program as data: what the runtime needs to run a network, and nothing about how it was made.

A program is a list of steps, one per kernel launch. A step names its code (a machine-code object cut into phases) and
one address per kernel parameter. An address is symbolic until a module is built:

    input i, output i    start of an array that the caller gives, plus a byte offset
    weight, arena        start of the weights or of the arena, plus a byte offset

A program may be open: then extents, and what follows from them, are `Dim`s over its symbols, which `bind` replaces by
integers. Two more arguments are in its steps:

    buffer i             start of a buffer in the arena, wherever `Buffer.above` lets it lie, plus a byte offset
    extent               no address: an integer, which the kernel takes where an address would be

Everything here is immutable, checked by `Program.verify`, and goes to JSON and back without loss (core.records).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from reprlib import repr as short
from types import MappingProxyType

from renorm.core import dtypes
from renorm.core.conditions import Condition
from renorm.core.dims import Dim, Sym, Symbol, format_shape, integer, static, symbols_of
from renorm.core.errors import InvalidArtifact, InvalidInput
from renorm.core.extents import LARGEST, LONGEST, Evaluation
from renorm.core.inputs import fixed_extents, format_elements, given_extents, given_symbols
from renorm.core.lazy import cached_property
from renorm.runtime import launches
from renorm.runtime.checks import Check
from renorm.runtime.launches import GPU, Launch
from renorm.runtime.report import Report

ALIGNMENT = 64  # bytes: a cache line, and the widest vector; weights and buffers in the arena start at multiples of it
KINDS = ("input", "output", "weight", "arena", "buffer", "extent")
PIECE = 30_000  # ns that a thread takes at a time: far above what taking costs, far below what a time slice lasts
PIECES = 8  # a phase of fewer is split evenly: there is little to give away
_MOST_AXES = 64  # NumPy's


@dataclass(frozen=True)
class TensorSpec:
    """An input or an output: its name in the source model, its dtype (a name of core.dtypes), its shape.

    deciding: the extents that an input's elements are, in row-major order, where these decide shapes.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    deciding: tuple[Dim, ...] = field(default=(), kw_only=True)

    @property
    def nbytes(self) -> int:
        return prod(static(self.shape)) * dtypes.itemsize(self.dtype)

    def __str__(self) -> str:
        return f"{self.name} {dtypes.short(self.dtype)}{format_shape(self.shape)}{format_elements(self.deciding)}"


@dataclass(frozen=True)
class Weight(TensorSpec):
    """A constant in the weights: `offset` bytes from their start, a multiple of ALIGNMENT.

    shape: as it is stored (packed).
    """

    offset: int


@dataclass(frozen=True)
class Argument:
    """An address.

    kind: one of KINDS. at: index of the input, output or buffer; for weight and arena the byte offset; for extent the
    integer. offset: further bytes.
    """

    is_row = True  # in JSON, since there are many

    kind: str
    at: Dim
    offset: Dim = 0


@dataclass(frozen=True)
class Above:
    """Byte `end` of a buffer, one of those in front of another, is not above byte `begin` of the other one."""

    is_row = True

    buffer: int
    end: Dim
    begin: Dim = 0


@dataclass(frozen=True)
class Buffer:
    """Bytes in the arena of an open program: they lie at the lowest multiple of ALIGNMENT that `above` allows."""

    is_row = True

    size: Dim
    above: tuple[Above, ...] = ()

    @property
    def ends(self) -> tuple[Dim, ...]:
        """Return the bytes of others, and its own, of which `above` speaks."""
        return tuple(d for a in self.above for d in (a.end, a.begin))


def place(sizes: Sequence[int], others: Sequence[Sequence[int]], gaps: Iterable[int]) -> tuple[list[int], int]:
    """Return where buffers lie, and the size of the arena: -1 where a buffer has a negative one.

    others: of each the buffers of Buffer.above; gaps: of all of these in order, how far above the beginning of the
    other one its own beginning is at least.
    """
    offsets, most, left = list[int](), 0, iter(gaps)
    for size, row in zip(sizes, others):
        at = 0
        for other, gap in zip(row, left):
            if offsets[other] + gap > at:
                at = offsets[other] + gap
        at = -(-at // ALIGNMENT) * ALIGNMENT
        offsets.append(at)
        if at + size > most:
            most = at + size
    return offsets, align(most) if min(sizes, default=0) >= 0 else -1


@dataclass(frozen=True)
class Code:
    """Code of one kernel. object: index of its ELF object, whose symbols phase0, phase1, ... are the phases; where it
    is_external, index into Program.externals, and there is one phase of one iteration.

    phases: trip count of each phase. chunks: iterations that a thread takes at a time, per phase; where it is 0 (or
    nothing) each thread has its even share and no thread takes work from another. costs: in an open program, about how
    many nanoseconds an iteration of each phase takes, in place of chunks (`iterations`).
    scratch: bytes that each thread needs, a multiple of ALIGNMENT; the runtime passes their address after the
    arguments when not 0. launches: on a GPU, what each phase is.
    """

    object: int
    phases: tuple[Dim, ...]
    scratch: Dim = 0
    chunks: tuple[int, ...] = ()
    is_external: bool = False
    costs: tuple[float, ...] = ()
    launches: tuple[Launch, ...] = ()


def iterations(nanoseconds: float) -> int:
    """Return how many iterations a thread takes at a time, of a phase that has PIECES times as many or more. Fewer are
    shared out evenly. nanoseconds: of one."""
    return max(1, ceil(PIECE / max(nanoseconds, 0.1)))


@dataclass(frozen=True)
class External:
    """Code of one kernel that another package runs (runtime.external). loader: the name of what makes the code
    of what was saved of it; "" where it cannot be saved. inputs, outputs: what it is called with."""

    loader: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Positive:
    """An extent of a step, which is not run where it is not positive: it has nothing to do then. written: how many
    elements it has to write all the same; where there are any, the program does not run."""

    is_row = True

    extent: Dim
    written: Dim = 0


@dataclass(frozen=True)
class Step:
    """One launch.

    kernel: its name; code: index into Program.codes; args: kernel parameters in order, then workspaces, then extents.
    waits: for each phase, whether all threads must have finished what stands before it in the program; nothing: all
    must. positive: extents from which, in an open program, follows whether it is run.
    """

    kernel: str
    code: int
    args: tuple[Argument, ...]
    waits: tuple[bool, ...] = ()
    positive: tuple[Positive, ...] = ()


@dataclass(frozen=True)
class Machine:
    """The machine that the code runs on.

    arch: "x86_64", "aarch64", or GPU. cpu: of a GPU what a target names as its architecture, "sm_90". features: LLVM's
    names of the CPU features that the code may use, without sign.
    """

    arch: str
    cpu: str = ""
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Requirement:
    """A condition on extents, without which a node has no result."""

    condition: Condition
    node: str

    def __str__(self) -> str:
        return f"node {self.node!r} needs {self.condition}"


@dataclass(frozen=True)
class Program:
    """A whole compiled network.

    nanoseconds: about how long one thread takes; 0 where nobody knows. name: of the source model. dims: extents of
    symbolic dims that were fixed when it was compiled. typical: of those that are open, the values for which memory was
    planned and times were estimated. buffers: the arena of an open program. conditions: what its extents must fulfil.
    states: how many of the last inputs are state: as many of the last outputs, of the same types, are what they become.
    checks: of each there are two outputs in front of those. counts: for each of the last inputs in front of the state
    that is what an output behind the results is, in the same order, how many steps come before it is there; their
    elements are extents of the steps behind (runtime.stages).
    """

    machine: Machine
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    codes: tuple[Code, ...]
    steps: tuple[Step, ...]
    arena_bytes: int = 0
    weight_bytes: int = 0
    weights: tuple[Weight, ...] = ()
    nanoseconds: int = 0
    report: Report = field(default_factory=Report)
    name: str = ""
    dims: Mapping[str, int] = field(default_factory=dict[str, int])
    externals: tuple[External, ...] = ()
    states: int = 0
    checks: tuple[Check, ...] = ()
    typical: Mapping[str, int] = field(default_factory=dict[str, int])
    buffers: tuple[Buffer, ...] = ()
    conditions: tuple[Requirement, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def given(self) -> tuple[TensorSpec, ...]:
        """The inputs that a caller gives."""
        return self.inputs[: max(0, len(self.inputs) - self.states - len(self.counts))]

    @property
    def state(self) -> tuple[TensorSpec, ...]:
        """The inputs that are state."""
        return self.inputs[len(self.inputs) - self.states :]

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The outputs that are the network's."""
        behind = self.states + 2 * len(self.checks) + len(self.counts)
        return self.outputs[: max(0, len(self.outputs) - behind)]

    @property
    def guards(self) -> slice:
        """Return where among the outputs those stand that `checks` are told by: two for each, in front of the state."""
        return slice(len(self.results) + len(self.counts), len(self.outputs) - self.states)

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """Its symbols, with what is known of each."""
        return tuple(sorted(given_symbols(self.inputs)))

    def values(
        self, shapes: Mapping[str, Sequence[int]], elements: Mapping[str, Sequence[int]] = MappingProxyType({})
    ) -> dict[str, int]:
        """Return what symbols are where inputs have these shapes, and those that decide shapes these elements. Raises
        InvalidInput that names every contradiction, and symbols that nothing tells."""
        known = self.inputs[: len(self.inputs) - self.states]
        try:
            found = fixed_extents(known, shapes, self.name, elements)
        except (ZeroDivisionError, OverflowError) as error:  # an extent that is a quotient, and not of any number
            raise InvalidInput(f"the shapes given do not fit {self.name}", [str(error)]) from error
        if missing := [name for name in self.typical if name not in found]:
            raise InvalidInput(f"{self.name}: nothing tells the extent {', '.join(missing)}", list(map(str, known)))
        values = {name: found[name] for name in self.typical}
        self._require(values)
        return values

    def _require(self, values: Mapping[str, int]) -> None:
        """Raises InvalidInput that names all conditions which do not hold where symbols have these values."""
        if not self.conditions:
            return
        held, index = self.evaluation.at(values), self.evaluation.index
        broken = list[str]()
        for r in self.conditions:
            left, right = (held[index[d]] if isinstance(d, Sym) else d for d in (r.condition.left, r.condition.right))
            if not (left <= right if r.condition.relation == "<=" else left == right):
                broken.append(f"{r}, where they are {left} and {right}")
        if broken:
            told = ", ".join(f"{name} is {value}" for name, value in values.items())
            raise InvalidInput(f"{self.name} has no result where {told}", broken)

    @cached_property
    def evaluation(self) -> Evaluation:
        """How all open extents of the program are reckoned from values of its symbols."""
        return Evaluation(self.typical, self.extents())

    def extents(self) -> Iterator[Dim]:
        """Yield all that may be open."""
        for spec in (*self.inputs, *self.outputs):
            yield from given_extents(spec)
        for code in self.codes:
            yield from (*code.phases, code.scratch)
        for step in self.steps:
            for a in step.args:
                yield from (a.at, a.offset)
            for p in step.positive:
                yield from (p.extent, p.written)
        for buffer in self.buffers:
            yield buffer.size
            for a in buffer.above:
                yield from (a.end, a.begin)
        for check in self.checks:
            yield from check.extents
        for r in self.conditions:
            yield from (r.condition.left, r.condition.right)

    def bind(self, values: Mapping[str, int]) -> Program:
        """Return the program for these values of its symbols, which has integers only: to be verified before it runs.
        Raises InvalidInput."""
        if values.keys() != self.typical.keys():
            facts = [f"{', '.join(values) or 'none'}, expected {', '.join(self.typical) or 'none'}"]
            raise InvalidInput(f"{self.name}: values for other symbols than it has", facts)
        held, index = self.evaluation.at(values), self.evaluation.index

        def of(dim: Dim) -> int:
            return held[index[dim]] if isinstance(dim, Sym) else dim

        others = [[a.buffer for a in b.above] for b in self.buffers]
        gaps = (of(a.end) - of(a.begin) for b in self.buffers for a in b.above)
        offsets, arena = place([of(b.size) for b in self.buffers], others, gaps)

        def spec(s: TensorSpec) -> TensorSpec:
            return replace(s, shape=tuple(map(of, s.shape)), deciding=tuple(map(of, s.deciding)))

        def argument(a: Argument) -> Argument:
            if a.kind == "buffer":
                return Argument("arena", offsets[integer(a.at)], of(a.offset))
            return Argument(a.kind, of(a.at), of(a.offset))

        def step(s: Step) -> Step:
            args = tuple(map(argument, s.args))
            missing = [p for p in s.positive if of(p.extent) <= 0]
            if needed := [p.extent for p in missing if of(p.written) > 0]:
                facts = [f"kernel {s.kernel!r} needs {extent}, which is {of(extent)}" for extent in needed]
                raise InvalidInput(f"{self.name}: an extent is not positive", facts)
            return Step(s.kernel, s.code + len(self.codes) * bool(missing), args, s.waits)

        steps = tuple(map(step, self.steps))
        codes = [_bound(c, of) for c in self.codes]
        codes += [replace(c, phases=(0,) * len(c.phases), chunks=()) for c in codes]  # of steps that have nothing to do
        used = {s.code for s in steps}
        codes = tuple(c if i in used else replace(c, phases=(0,) * len(c.phases)) for i, c in enumerate(codes))
        codes = codes if max(used, default=0) >= len(self.codes) else codes[: len(self.codes)]
        costs = [c.costs for c in self.codes] * 2
        spent = sum(c * integer(n) for s in steps for c, n in zip(costs[s.code], codes[s.code].phases))
        return replace(
            self,
            inputs=tuple(map(spec, self.inputs)),
            outputs=tuple(map(spec, self.outputs)),
            codes=codes,
            steps=steps,
            checks=tuple(replace(c, extents=tuple(map(of, c.extents))) for c in self.checks),
            arena_bytes=arena if self.buffers else self.arena_bytes,
            nanoseconds=round(spent) if self.typical else self.nanoseconds,
            dims={**self.dims, **values},
            typical={},
            buffers=(),
            conditions=(),
        )

    def verify(self, objects: int, weight_bytes: int, externals: int = 0) -> None:
        """Raises InvalidArtifact that names everything in the program that contradicts itself: of an open one, for the
        typical values of its symbols. For others, the sizes that follow from them are still to be looked at.

        objects, externals: how many of them there are. weight_bytes: how many bytes of weights there are.
        """
        self._refuse(self._open_problems())
        if self.typical:
            try:
                fixed = self.bind(self.typical)
            except InvalidInput as error:
                self._refuse([str(error)])
                raise
            return fixed.verify(objects, weight_bytes, externals)
        self._refuse(self._impossible())  # sizes first: the rest computes with them
        problems = list[str]()

        def require(ok: bool, problem: str) -> None:
            if not ok:
                problems.append(problem)

        require(self.weight_bytes == weight_bytes, f"weights: {weight_bytes} bytes, expected {self.weight_bytes}")
        require(len(self.externals) == externals, f"{externals} external codes, expected {len(self.externals)}")
        require(self.nanoseconds >= 0, f"a run of {self.nanoseconds} ns")
        for group, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            require(len({t.name for t in tensors}) == len(tensors), f"{group}: names are not distinct")
        known = 0 <= self.states <= min(len(self.inputs), len(self.outputs))
        require(known, f"{self.states} inputs are state, of {len(self.inputs)} inputs and {len(self.outputs)} outputs")
        counted = self.outputs[len(self.results) :][: len(self.counts)]
        read = self.inputs[len(self.given) :][: len(self.counts)]
        for i, (before, after) in enumerate(zip(counted, read)):
            same = (before.dtype, before.shape) == (after.dtype, after.shape)
            require(same and dtypes.is_int(before.dtype), f"count {i} is {before}, and read as {after}")
        are_there = len(counted) == len(read) == len(self.counts) and all(
            0 <= c <= len(self.steps) for c in self.counts
        )
        require(are_there, f"counts {short(self.counts)}, of {len(self.steps)} steps, {len(self.inputs)} inputs")
        of_checks = self.outputs[self.guards]
        require(len(of_checks) == 2 * len(self.checks), f"{len(of_checks)} outputs for {len(self.checks)} checks")
        for i, spec in enumerate(of_checks[: 2 * len(self.checks)]):
            check = self.checks[i // 2]
            sound = len(check.axes) == len(check.extents) and spec.shape == (max(1, len(check.axes)),)
            require(sound and spec.dtype == "int64", f"check of node {check.node!r}: {spec}")
        for before, after in zip(self.state, self.outputs[len(self.outputs) - self.states :]) if known else ():
            same = (before.dtype, before.shape) == (after.dtype, after.shape)
            require(same, f"state {before} becomes {after}")
        for w in self.weights:
            inside = 0 <= w.offset <= self.weight_bytes - w.nbytes
            require(
                inside, f"weight {w.name!r}: {w.nbytes} bytes at {w.offset} reach outside {self.weight_bytes} bytes"
            )
            require(w.offset % ALIGNMENT == 0, f"weight {w.name!r}: offset {w.offset} is no multiple of {ALIGNMENT}")
        for i, code in enumerate(self.codes):
            known = len(self.externals) if code.is_external else objects
            require(0 <= code.object < known, f"code {i}: object {code.object}, there are {known}")
            alone = not code.is_external or (code.phases == (1,) and not code.scratch)
            require(alone, f"code {i}: external code has one phase of one iteration, not {code.phases}")
            require(integer(code.scratch) % ALIGNMENT == 0, f"code {i}: scratch {code.scratch}")
            sound = len(code.chunks) in (0, len(code.phases))
            require(sound, f"code {i}: chunks {code.chunks} for phases {code.phases}")
            expected = len(code.phases) if self.machine.arch == GPU and not code.is_external else 0
            given = min((len(s.args) for s in self.steps if s.code == i), default=0)
            problems += launches.problems(f"code {i}", code.launches, expected, given)
        # the first offset that is outside: one past the end is legal, for tensors without elements
        ends = {"weight": self.weight_bytes, "arena": self.arena_bytes}
        specs = {"input": self.inputs, "output": self.outputs}
        iterations = 0
        for step in self.steps:
            known = 0 <= step.code < len(self.codes)
            require(known, f"kernel {step.kernel!r}: code {step.code}, there are {len(self.codes)}")
            phases = static(self.codes[step.code].phases) if known else ()
            iterations += sum(phases)
            if step.waits and known and len(step.waits) != len(phases):
                problems.append(f"kernel {step.kernel!r}: {len(step.waits)} waits for {len(phases)} phases")
            problems += self._misfits(step)
            for position, a in enumerate(step.args):
                where, at, offset = f"kernel {step.kernel!r}, argument {position}", integer(a.at), integer(a.offset)
                if a.kind in specs:
                    known = 0 <= at < len(specs[a.kind])
                    require(known, f"{where}: {a.kind} {at}, there are {len(specs[a.kind])}")
                    end = specs[a.kind][at].nbytes if known else offset
                    require(0 <= offset <= end, f"{where}: byte {offset} of {a.kind} {at}, which has {end}")
                elif a.kind == "extent":
                    require(0 <= at <= LONGEST and not offset, f"{where}: an extent of {at}, at most {LONGEST}")
                elif a.kind in ends:
                    byte = at + offset
                    require(0 <= byte <= ends[a.kind], f"{where}: byte {byte} of {a.kind}, which has {ends[a.kind]}")
                else:
                    problems.append(f"{where}: kind {a.kind!r}, known: {', '.join(KINDS)}")
        require(iterations <= LARGEST, f"{iterations} iterations, at most {LARGEST}")  # the walker counts them
        self._refuse(problems)

    def _open_problems(self) -> list[str]:
        """What is open and cannot be, or is open in a program without symbols."""
        unknown = {name for dim in self.extents() for name in symbols_of(dim)} - self.typical.keys()
        of_report = (d for k in self.report.kernels for d in (k.work.flops, k.work.bytes, *k.extents))
        unknown |= {name for d in of_report for name in symbols_of(d)} - self.typical.keys() - self.dims.keys()
        found = [f"{name!r} is not a symbol of the program" for name in sorted(unknown)]
        fixed = [e for c in self.externals for s in (*c.inputs, *c.outputs) for e in s.shape]
        fixed += [e for s in (*self.weights, *self.state) for e in s.shape]
        fixed += [a.at for s in self.steps for a in s.args if a.kind not in ("arena", "weight", "extent")]
        fixed += [c.object for c in self.codes] + [s.code for s in self.steps]
        found += [f"{e} must be fixed" for e in fixed if isinstance(e, Sym)]
        found += [f"elements {short(s.deciding)} of {s}" for s in self.inputs if not _may_decide(s)]
        relations = {r.condition.relation for r in self.conditions} - {"==", "<="}
        found += [f"a condition {short(relation)}" for relation in sorted(relations)]
        if not self.typical:
            found += [f"a condition on {r.condition}" for r in self.conditions]
            found += [f"kernel {s.kernel!r}: {p}" for s in self.steps for p in s.positive]
            found += ["it has buffers, or costs, and no symbols"] * any((self.buffers, *(c.costs for c in self.codes)))
            return found
        found += ["external code in an open program"] * bool(self.externals)
        for i, buffer in enumerate(self.buffers):
            found += [f"buffer {i} above {a.buffer}" for a in buffer.above if not 0 <= a.buffer < i]
        for i, code in enumerate(self.codes):
            is_sound = len(code.costs) == len(code.phases) and all(0 <= c <= LARGEST for c in code.costs)
            found += [f"code {i}: costs {short(code.costs)}, chunks {short(code.chunks)}"] * (
                not is_sound or any(code.chunks)
            )
        for step in self.steps:
            places = [a.at for a in step.args if a.kind == "buffer"]
            found += [f"kernel {step.kernel!r}: buffer {a}" for a in places if a not in range(len(self.buffers))]
            found += [f"kernel {step.kernel!r}: code {step.code}"] * (not 0 <= step.code < len(self.codes))
        if found:
            return found
        try:
            at = self.evaluation.at(self.typical)

            def of(told: Iterable[Dim]) -> list[int]:
                return [at[self.evaluation.index[e]] if isinstance(e, Sym) else e for e in told]

            known = self.inputs[: len(self.inputs) - self.states]
            shapes = {spec.name: of(spec.shape) for spec in known}
            if (values := self.values(shapes, {spec.name: of(spec.deciding) for spec in known})) != self.typical:
                return [f"extents {short(values)}, expected {short(self.typical)}"]
        except InvalidInput as error:
            return [str(error)]
        return []

    def _impossible(self) -> list[str]:
        """Tensors, sizes and counts that cannot be, whatever else the program says."""
        found = list[str]()
        externals = (s for e in self.externals for s in (*e.inputs, *e.outputs))
        for tensor in (*self.inputs, *self.outputs, *self.weights, *externals):
            if tensor.dtype not in dtypes.BY_NAME:
                found.append(f"{tensor.name!r}: {tensor.dtype!r} is not a dtype")
            elif len(tensor.shape) > _MOST_AXES or min(static(tensor.shape), default=0) < 0:
                found.append(f"{tensor.name!r}: shape {short(tensor.shape)}")
            # NumPy, too, counts an empty tensor as if it had elements
            elif prod(max(1, d) for d in static(tensor.shape)) * dtypes.itemsize(tensor.dtype) > LARGEST:
                found.append(f"{tensor.name!r}: shape {short(tensor.shape)} is more than {LARGEST} bytes")
        sizes = {"arena": (self.arena_bytes,), "weights": (self.weight_bytes,)}
        for i, code in enumerate(self.codes):
            sizes |= {f"code {i}: scratch": (integer(code.scratch),), f"code {i}: phases": static(code.phases)}
            sizes[f"code {i}: chunks"] = code.chunks
        for what, numbers in sizes.items():
            if not 0 <= min(numbers, default=0) <= max(numbers, default=0) <= LARGEST:
                found.append(f"{what} {short(numbers)}, expected 0 to {LARGEST}")
        return found

    def _refuse(self, problems: list[str]) -> None:
        if problems:
            shown = problems[:20] + ([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])
            raise InvalidArtifact(f"program {self.name!r} contradicts itself", shown, "compile the model again")

    def _misfits(self, step: Step) -> list[str]:
        """Return what is wrong with the arguments of external code, whose extents say how far it reads and writes."""
        code = self.codes[step.code] if 0 <= step.code < len(self.codes) else None
        if code is None or not code.is_external or not 0 <= code.object < len(self.externals):
            return []
        external = self.externals[code.object]
        count = len(external.inputs) + len(external.outputs)
        if count != len(step.args):
            return [f"kernel {step.kernel!r}: {len(step.args)} arguments, external code takes {count}"]
        sizes = {"weight": self.weight_bytes, "arena": self.arena_bytes}
        tensors = {"input": self.inputs, "output": self.outputs}
        found = list[str]()
        for i, (a, spec) in enumerate(zip(step.args, (*external.inputs, *external.outputs))):
            at, offset = integer(a.at), integer(a.offset)
            held = tensors[a.kind][at : at + 1] if a.kind in tensors and at >= 0 else ()
            size = sum(t.nbytes for t in held) if a.kind in tensors else sizes.get(a.kind, 0) - at
            if offset + spec.nbytes > size:
                found.append(f"kernel {step.kernel!r}, argument {i}: {spec} reaches outside {size} bytes of {a.kind}")
        return found


def _may_decide(spec: TensorSpec) -> bool:
    """Return whether an input has the elements that it is said to have."""
    if not spec.deciding:
        return True
    is_fixed = all(isinstance(e, int) for e in spec.shape)
    return is_fixed and prod(static(spec.shape)) == len(spec.deciding) and spec.dtype in dtypes.BY_NAME


def _bound(code: Code, of: Callable[[Dim], int]) -> Code:
    phases, pieces = tuple(map(of, code.phases)), map(iterations, code.costs)
    chunks = tuple(piece if n >= PIECES * piece else 0 for n, piece in zip(phases, pieces)) or code.chunks
    return Code(code.object, phases, align(of(code.scratch)), chunks, code.is_external)


def align(size: int, to: int = ALIGNMENT) -> int:
    """`size` rounded up to a multiple of `to`."""
    return -(-size // to) * to
