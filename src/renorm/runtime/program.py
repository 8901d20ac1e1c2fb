"""A compiled program as data: what the runtime needs to run a network, and nothing about how it was made.

A program is a list of steps, one per kernel launch. A step names its code (a machine-code object cut into phases) and
one address per kernel parameter. An address is symbolic until a module is built:

    input i, output i    start of an array that the caller gives, plus a byte offset
    weight, arena        start of the weights or of the arena, plus a byte offset

Everything here is immutable, checked by `Program.verify`, and goes to JSON and back without loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod
from typing import Any

from renorm.core import dtypes
from renorm.core.dataclass import dataclass
from renorm.core.errors import InvalidArtifact, RenormError
from renorm.runtime.report import Report

ALIGNMENT = 64  # bytes: a cache line, and the widest vector; weights and buffers in the arena start at multiples of it
KINDS = ("input", "output", "weight", "arena")


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
class Weight:
    """A constant in the weights: `offset` bytes from their start, a multiple of ALIGNMENT.

    shape: as it is stored (packed).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * dtypes.itemsize(self.dtype)


@dataclass(frozen=True)
class Argument:
    """An address.

    kind: one of KINDS. at: index of the input or output; for weight and arena the byte offset. offset: further bytes.
    """

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
    """Code of one kernel that another package runs (runtime.external). loader: "package.module:function", which makes
    the code of what was saved of it; "" where it cannot be saved. inputs, outputs: what it is called with."""

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
    """What the code runs on.

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
    last outputs, of the same types, are what they become.
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

    @property
    def state(self) -> tuple[TensorSpec, ...]:
        """The inputs that are state."""
        return self.inputs[len(self.inputs) - self.states :]

    def to_json(self) -> dict[str, Any]:
        """Plain data; an argument is written as a list, since there are many."""
        return {
            "name": self.name,
            "machine": {"arch": self.machine.arch, "cpu": self.machine.cpu, "features": list(self.machine.features)},
            "inputs": [_spec_json(s) for s in self.inputs],
            "outputs": [_spec_json(s) for s in self.outputs],
            "codes": [
                {
                    "object": c.object,
                    "phases": list(c.phases),
                    "scratch": c.scratch,
                    "chunks": list(c.chunks),
                    "is_external": c.is_external,
                }
                for c in self.codes
            ],
            "externals": [
                {
                    "loader": e.loader,
                    "inputs": [_spec_json(s) for s in e.inputs],
                    "outputs": [_spec_json(s) for s in e.outputs],
                }
                for e in self.externals
            ],
            "steps": [
                {
                    "kernel": s.kernel,
                    "code": s.code,
                    "args": [[a.kind, a.at, a.offset] for a in s.args],
                    "waits": list(s.waits),
                }
                for s in self.steps
            ],
            "arena_bytes": self.arena_bytes,
            "weight_bytes": self.weight_bytes,
            "nanoseconds": self.nanoseconds,
            "weights": [{**_spec_json(w), "offset": w.offset} for w in self.weights],
            "report": self.report.to_json(),
            "dims": dict(self.dims),
            "states": self.states,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Program:
        """The inverse of `to_json`. Raises InvalidArtifact when a field is missing or of another type."""
        try:
            machine = data["machine"]
            return Program(
                machine=Machine(str(machine["arch"]), str(machine["cpu"]), tuple(map(str, machine["features"]))),
                inputs=tuple(_spec(s) for s in data["inputs"]),
                outputs=tuple(_spec(s) for s in data["outputs"]),
                codes=tuple(
                    Code(
                        _int(c["object"]),
                        _ints(c["phases"]),
                        _int(c["scratch"]),
                        _ints(c["chunks"]),
                        _bool(c["is_external"]),
                    )
                    for c in data["codes"]
                ),
                externals=tuple(
                    External(str(e["loader"]), tuple(map(_spec, e["inputs"])), tuple(map(_spec, e["outputs"])))
                    for e in data["externals"]
                ),
                steps=tuple(
                    Step(
                        str(s["kernel"]),
                        _int(s["code"]),
                        tuple(Argument(str(k), _int(i), _int(o)) for k, i, o in s["args"]),
                        tuple(_bool(w) for w in s["waits"]),
                    )
                    for s in data["steps"]
                ),
                arena_bytes=_int(data["arena_bytes"]),
                weight_bytes=_int(data["weight_bytes"]),
                weights=tuple(Weight(str(w["name"]), *_type(w), _int(w["offset"])) for w in data["weights"]),
                nanoseconds=_int(data["nanoseconds"]),
                report=Report.from_json(data["report"]),
                name=str(data["name"]),
                dims={str(k): _int(v) for k, v in data["dims"].items()},
                states=_int(data["states"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, RenormError) as error:
            raise InvalidArtifact(
                "the manifest does not describe a program",
                [f"{type(error).__name__}: {error}"],
                "compile the model again",
            ) from error

    def verify(self, objects: int, weight_bytes: int, externals: int = 0) -> None:
        """Raises InvalidArtifact that names everything in the program that contradicts itself.

        objects, externals: how many of them there are. weight_bytes: how many bytes of weights there are.
        """
        problems = list[str]()

        def require(ok: bool, problem: str) -> None:
            if not ok:
                problems.append(problem)

        require(self.weight_bytes == weight_bytes, f"weights: {weight_bytes} bytes, expected {self.weight_bytes}")
        require(len(self.externals) == externals, f"{externals} external codes, expected {len(self.externals)}")
        require(self.arena_bytes >= 0, f"arena: {self.arena_bytes} bytes")
        require(self.nanoseconds >= 0, f"a run of {self.nanoseconds} ns")
        for tensor in (*self.inputs, *self.outputs):
            require(min(tensor.shape, default=0) >= 0, f"{tensor}: negative extent")
        for group, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            require(len({t.name for t in tensors}) == len(tensors), f"{group}: names are not distinct")
        known = 0 <= self.states <= min(len(self.inputs), len(self.outputs))
        require(known, f"{self.states} inputs are state, of {len(self.inputs)} inputs and {len(self.outputs)} outputs")
        for before, after in zip(self.state, self.outputs[len(self.outputs) - self.states :]) if known else ():
            same = (before.dtype, before.shape) == (after.dtype, after.shape)
            require(same, f"state {before} becomes {after}")
        for w in self.weights:
            inside = min(w.shape, default=0) >= 0 and 0 <= w.offset <= self.weight_bytes - w.nbytes
            require(
                inside, f"weight {w.name!r}: {w.nbytes} bytes at {w.offset} reach outside {self.weight_bytes} bytes"
            )
            require(w.offset % ALIGNMENT == 0, f"weight {w.name!r}: offset {w.offset} is no multiple of {ALIGNMENT}")
        for i, code in enumerate(self.codes):
            known = len(self.externals) if code.is_external else objects
            require(0 <= code.object < known, f"code {i}: object {code.object}, there are {known}")
            alone = not code.is_external or (code.phases == (1,) and not code.scratch)
            require(alone, f"code {i}: external code has one phase of one iteration, not {code.phases}")
            require(min(code.phases, default=0) >= 0, f"code {i}: negative extent in {code.phases}")
            require(code.scratch >= 0 and code.scratch % ALIGNMENT == 0, f"code {i}: scratch {code.scratch}")
            sound = len(code.chunks) in (0, len(code.phases)) and min(code.chunks, default=0) >= 0
            require(sound, f"code {i}: chunks {code.chunks} for phases {code.phases}")
        # the first offset that is outside: one past the end is legal, for tensors without elements
        ends = {"weight": self.weight_bytes, "arena": self.arena_bytes}
        specs = {"input": self.inputs, "output": self.outputs}
        for step in self.steps:
            require(
                0 <= step.code < len(self.codes),
                f"kernel {step.kernel!r}: code {step.code}, there are {len(self.codes)}",
            )
            if step.waits and 0 <= step.code < len(self.codes):
                phases = len(self.codes[step.code].phases)
                known = len(step.waits) == phases
                require(known, f"kernel {step.kernel!r}: {len(step.waits)} waits for {phases} phases")
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
        if problems:
            shown = problems[:20] + ([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])
            raise InvalidArtifact(f"program {self.name!r} contradicts itself", shown, "compile the model again")

    def _misfits(self, step: Step) -> list[str]:
        """What is wrong with the arguments of external code, whose extents say how far it reads and writes."""
        code = self.codes[step.code] if 0 <= step.code < len(self.codes) else None
        if code is None or not code.is_external or not 0 <= code.object < len(self.externals):
            return []
        external = self.externals[code.object]
        specs = (*external.inputs, *external.outputs)
        if len(specs) != len(step.args):
            return [f"kernel {step.kernel!r}: {len(step.args)} arguments, external code takes {len(specs)}"]
        sizes = {"weight": self.weight_bytes, "arena": self.arena_bytes}
        tensors = {"input": self.inputs, "output": self.outputs}
        found = list[str]()
        for i, (a, spec) in enumerate(zip(step.args, specs)):
            held = tensors[a.kind][a.at : a.at + 1] if a.kind in tensors and a.at >= 0 else ()
            size = sum(t.nbytes for t in held) if a.kind in tensors else sizes.get(a.kind, 0) - a.at
            if min(spec.shape, default=0) < 0 or a.offset + spec.nbytes > size:
                found.append(f"kernel {step.kernel!r}, argument {i}: {spec} reaches outside {size} bytes of {a.kind}")
        return found


def align(size: int, to: int = ALIGNMENT) -> int:
    """`size` rounded up to a multiple of `to`."""
    return -(-size // to) * to


def _spec_json(spec: TensorSpec | Weight) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}


def _type(data: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    return dtypes.lookup(data["dtype"]).name, _ints(data["shape"])


def _spec(data: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(str(data["name"]), *_type(data))


def _int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(_int(v) for v in values)
