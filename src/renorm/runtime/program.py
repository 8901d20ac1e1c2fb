"""A compiled program as data: what the runtime needs to run a network, and nothing about how it was made.

A program is a list of steps, one per kernel launch. A step names its code (a machine-code object cut into phases) and
one address per kernel parameter. An address is symbolic until a module is built:

    input i, output i    start of an array that the caller gives, plus a byte offset
    weight, arena        start of the weights or of the arena, plus a byte offset

Everything here is immutable, checked by `Program.verify`, and goes to JSON and back without loss (core.records).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from reprlib import repr as short

from renorm.core import dtypes
from renorm.core.errors import InvalidArtifact
from renorm.runtime.checks import Check
from renorm.runtime.report import Report

ALIGNMENT = 64  # bytes: a cache line, and the widest vector; weights and buffers in the arena start at multiples of it
KINDS = ("input", "output", "weight", "arena")
LARGEST = 1 << 47  # bytes, elements, iterations: what a process can address on either architecture
_MOST_AXES = 64  # NumPy's


@dataclass(frozen=True)
class TensorSpec:
    """An input or an output: its name in the source model, its dtype (a name of core.dtypes), its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * dtypes.itemsize(self.dtype)

    def __str__(self) -> str:
        return f"{self.name} {dtypes.short(self.dtype)}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Weight(TensorSpec):
    """A constant in the weights: `offset` bytes from their start, a multiple of ALIGNMENT.

    shape: as it is stored (packed).
    """

    offset: int


@dataclass(frozen=True)
class Argument:
    """An address.

    kind: one of KINDS. at: index of the input or output; for weight and arena the byte offset. offset: further bytes.
    """

    is_row = True  # in JSON, since there are many

    kind: str
    at: int
    offset: int = 0


@dataclass(frozen=True)
class Code:
    """Code of one kernel. object: index of its ELF object, whose symbols phase0, phase1, ... are the phases; where it
    is_external, index into Program.externals, and there is one phase of one iteration.

    phases: trip count of each phase. chunks: iterations that a thread takes at a time, per phase; where it is 0 (or
    nothing) each thread has its even share and no thread takes work from another.
    scratch: bytes that each thread needs, a multiple of ALIGNMENT; the runtime passes their address after the
    arguments when not 0.
    """

    object: int
    phases: tuple[int, ...]
    scratch: int = 0
    chunks: tuple[int, ...] = ()
    is_external: bool = False


@dataclass(frozen=True)
class External:
    """Code of one kernel that another package runs (runtime.external). loader: the name of what makes the code
    of what was saved of it; "" where it cannot be saved. inputs, outputs: what it is called with."""

    loader: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Step:
    """One launch.

    kernel: its name; code: index into Program.codes; args: kernel parameters in order, then workspaces. waits: for
    each phase, whether all threads must have finished what stands before it in the program; nothing: all must.
    """

    kernel: str
    code: int
    args: tuple[Argument, ...]
    waits: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Machine:
    """The machine that the code runs on.

    arch: "x86_64" or "aarch64". features: LLVM's names of the CPU features that the code may use, without sign.
    """

    arch: str
    cpu: str = ""
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """A whole compiled network.

    nanoseconds: about how long one thread takes; 0 where nobody knows. name: of the source model. dims: extents of
    symbolic dims that were fixed when it was compiled. states: how many of the last inputs are state: as many of the
    last outputs, of the same types, are what they become. checks: of each there are two outputs in front of those.
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

    @property
    def state(self) -> tuple[TensorSpec, ...]:
        """The inputs that are state."""
        return self.inputs[len(self.inputs) - self.states :]

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The outputs that are the network's."""
        return self.outputs[: max(0, len(self.outputs) - self.states - 2 * len(self.checks))]

    @property
    def guards(self) -> slice:
        """Return where among the outputs those stand that `checks` are told by: two for each, in front of the state."""
        return slice(len(self.results), len(self.outputs) - self.states)

    def verify(self, objects: int, weight_bytes: int, externals: int = 0) -> None:
        """Raises InvalidArtifact that names everything in the program that contradicts itself.

        objects, externals: how many of them there are. weight_bytes: how many bytes of weights there are.
        """
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
            require(code.scratch % ALIGNMENT == 0, f"code {i}: scratch {code.scratch}")
            sound = len(code.chunks) in (0, len(code.phases))
            require(sound, f"code {i}: chunks {code.chunks} for phases {code.phases}")
        # the first offset that is outside: one past the end is legal, for tensors without elements
        ends = {"weight": self.weight_bytes, "arena": self.arena_bytes}
        specs = {"input": self.inputs, "output": self.outputs}
        iterations = 0
        for step in self.steps:
            known = 0 <= step.code < len(self.codes)
            require(known, f"kernel {step.kernel!r}: code {step.code}, there are {len(self.codes)}")
            phases = self.codes[step.code].phases if known else ()
            iterations += sum(phases)
            if step.waits and known and len(step.waits) != len(phases):
                problems.append(f"kernel {step.kernel!r}: {len(step.waits)} waits for {len(phases)} phases")
            problems += self._misfits(step)
            for position, a in enumerate(step.args):
                where = f"kernel {step.kernel!r}, argument {position}"
                if a.kind in specs:
                    known = 0 <= a.at < len(specs[a.kind])
                    require(known, f"{where}: {a.kind} {a.at}, there are {len(specs[a.kind])}")
                    end = specs[a.kind][a.at].nbytes if known else a.offset
                    require(0 <= a.offset <= end, f"{where}: byte {a.offset} of {a.kind} {a.at}, which has {end}")
                elif a.kind in ends:
                    byte = a.at + a.offset
                    require(0 <= byte <= ends[a.kind], f"{where}: byte {byte} of {a.kind}, which has {ends[a.kind]}")
                else:
                    problems.append(f"{where}: kind {a.kind!r}, known: {', '.join(KINDS)}")
        require(iterations <= LARGEST, f"{iterations} iterations, at most {LARGEST}")  # the walker counts them
        self._refuse(problems)

    def _impossible(self) -> list[str]:
        """Tensors, sizes and counts that cannot be, whatever else the program says."""
        found = list[str]()
        externals = (s for e in self.externals for s in (*e.inputs, *e.outputs))
        for tensor in (*self.inputs, *self.outputs, *self.weights, *externals):
            if tensor.dtype not in dtypes.BY_NAME:
                found.append(f"{tensor.name!r}: {tensor.dtype!r} is not a dtype")
            elif len(tensor.shape) > _MOST_AXES or min(tensor.shape, default=0) < 0:
                found.append(f"{tensor.name!r}: shape {short(tensor.shape)}")
            # NumPy, too, counts an empty tensor as if it had elements
            elif prod(max(1, d) for d in tensor.shape) * dtypes.itemsize(tensor.dtype) > LARGEST:
                found.append(f"{tensor.name!r}: shape {short(tensor.shape)} is more than {LARGEST} bytes")
        sizes = {"arena": (self.arena_bytes,), "weights": (self.weight_bytes,)}
        for i, code in enumerate(self.codes):
            sizes |= {f"code {i}: scratch": (code.scratch,), f"code {i}: phases": code.phases}
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
            held = tensors[a.kind][a.at : a.at + 1] if a.kind in tensors and a.at >= 0 else ()
            size = sum(t.nbytes for t in held) if a.kind in tensors else sizes.get(a.kind, 0) - a.at
            if a.offset + spec.nbytes > size:
                found.append(f"kernel {step.kernel!r}, argument {i}: {spec} reaches outside {size} bytes of {a.kind}")
        return found


def align(size: int, to: int = ALIGNMENT) -> int:
    """`size` rounded up to a multiple of `to`."""
    return -(-size // to) * to
