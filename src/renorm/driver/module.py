"""Modules with what compiling made beside the code: the graph after the passes, and each kernel as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache as cached
from typing import TYPE_CHECKING, Any, Union

from renorm.codegen import kernels as codes
from renorm.codegen import llvm
from renorm.codegen.abi import CompiledKernel
from renorm.core.errors import InvalidInput, UnsupportedOp, suggest
from renorm.core.inputs import fixed_extents
from renorm.core.lazy import cached_property
from renorm.core.limits import DEFAULT, Limits
from renorm.core.lru import Latest
from renorm.core.target import Target
from renorm.driver.background import Served, Specializer
from renorm.driver.bounds import OpenBounds
from renorm.driver.readings import Readings
from renorm.graph.counts import counted_symbols
from renorm.graph.ir import Graph, Value
from renorm.runtime.arrays import elements_of, shape_of, view_of
from renorm.runtime.artifact import Encoded
from renorm.runtime.external import ExternalCode
from renorm.runtime.gpu.arrays import is_on_gpu
from renorm.runtime.gpu.module import GpuModule
from renorm.runtime.module import Module, Shapes, Sized, Stage
from renorm.runtime.openmp import ParallelRegion
from renorm.runtime.program import Program, TensorSpec
from renorm.runtime.report import KernelRecord, Report
from renorm.runtime.signing import Key
from renorm.runtime.state import State
from renorm.runtime.weights import Weights

if TYPE_CHECKING:
    from renorm.tir.nodes import Kernel

# How many specialisations of one network are kept; the one not used for the longest time goes first.
SPECIALIZATIONS = 8


class KernelText:
    """A kernel, to be read. Code from the cache came without its texts: they are made when somebody asks.

    lower: makes the loops. structure: of the loops that were compiled (codegen.structural_hash).
    """

    def __init__(self, name: str, lower: Callable[[], Kernel], structure: str, target: Target):
        self.name, self.target, self._lower, self._structure = name, target, lower, structure

    @cached_property
    def kernel(self) -> Kernel:
        """The loop program. Raises InvalidInput where that is no longer the one that was compiled."""
        kernel = self._lower()
        if codes.structure(kernel, self.target) != self._structure:
            raise InvalidInput(
                f"the text of kernel {self.name!r} is not that of its code any more",
                ["its code came from the cache, and an op was overridden since"],
                "compile again",
            )
        return kernel

    @property
    def loops(self) -> str:
        """The loop program as text."""
        return str(self.kernel)

    @cached_property
    def _compiled(self) -> CompiledKernel:
        return codes.compile_kernel(self.kernel, self.target)

    @property
    def llvm(self) -> str:
        """LLVM IR as it was generated."""
        return self._compiled.llvm

    @property
    def asm(self) -> str:
        """Assembly of the target."""
        return llvm.assembly(self._compiled, self.target)

    @property
    def spills(self) -> int:
        """Return how many instructions of hot loops move vector registers to or from the stack: 0 where tiles fit
        them."""
        return self._compiled.spills

    @property
    def source(self) -> str:
        """The text of the code generator: LLVM IR on a CPU, CUDA C on a GPU."""
        return self.llvm


class ExternalText:
    """A kernel that code of another package runs, to be read: that package says what its text is."""

    def __init__(self, name: str, code: ExternalCode):
        self.name, self._code = name, code

    @property
    def source(self) -> str:
        """The text of the target's code generator."""
        return self._code.source

    def _refuse(self, what: str) -> str:
        raise InvalidInput(
            f"kernel {self.name!r} has no {what}: {type(self._code).__name__} runs it, not code of renorm",
            do=f"read m.kernel({self.name!r}).source",
        )

    loops = property(lambda self: self._refuse("loops"))
    llvm = property(lambda self: self._refuse("LLVM IR"))
    asm = property(lambda self: self._refuse("assembly"))
    spills = 0


class CompiledModule(Module):
    """A module that was compiled in this process. graph: after the passes, kernel names on its groups."""

    def __init__(
        self,
        program: Program,
        objects: Sequence[bytes],
        weights: Weights,
        walker: bytes,
        threads: int | ParallelRegion | None,
        graph: Graph,
        texts: Mapping[str, KernelText | ExternalText],
        externals: Sequence[ExternalCode] = (),
        state: State | None = None,
        limits: Limits = DEFAULT,
    ):
        super().__init__(program, objects, weights, walker, threads, externals, state or (), limits)
        self.graph = graph
        self._texts = dict(texts)

    def kernel(self, name: str | KernelRecord) -> KernelText | ExternalText:
        """Return the kernel of that name, as in `report.kernels`; InvalidInput lists the nearest."""
        wanted = name.name if isinstance(name, KernelRecord) else str(name)
        if wanted not in self._texts:
            raise InvalidInput(f"there is no kernel {wanted!r}", [f"nearest: {suggest(wanted, self._texts)}"])
        return self._texts[wanted]


class CompiledGpuModule(CompiledModule, GpuModule):
    """The same for a GPU."""


class _Specializations:
    """Modules for the input shapes of one network, the latest few of which are kept."""

    def __init__(
        self,
        graph: Graph,
        states: int,
        specialize: Callable[[Mapping[str, int]], CompiledModule],
        readings: AnyReadings | None = None,
    ):
        self._name, self._specialize, self._readings = graph.name, specialize, readings
        self.inputs, self._counted = graph.inputs[: len(graph.inputs) - states], sorted(counted_symbols(graph))
        self._made = Latest[tuple[tuple[str, int], ...], CompiledModule](f"{graph.name} at a shape", SPECIALIZATIONS)

    def at(self, given: Mapping[str, Any]) -> CompiledModule:
        """Return the module for inputs of these shapes, or arrays, which those that decide shapes must be."""
        if self._counted:
            facts = [f"{s} is what data say" for s in self._counted]
            raise InvalidInput(f"{self._name} has no kernels for some shapes alone", facts, "call run")
        arrays = {n: a for n, a in given.items() if not _is_shape(a)}
        names = [v.name for v in self.inputs]
        problems = [f"{name!r} is not an input" for name in given if name not in names]
        problems += [f"input {v.name}: missing, expected {v.type}" for v in self.inputs if v.name not in given]
        problems += [
            f"input {v.name} decides shapes: give an array, not its shape"
            for v in self.inputs
            if v.deciding and v.name in given and v.name not in arrays
        ]
        if problems:
            raise InvalidInput(f"the inputs do not fit {self._name}", problems)
        shapes = {n: shape_of(a) if n in arrays else a for n, a in given.items()}
        specs = [_spec(v) for v in self.inputs if v.deciding]
        return self.told(shapes, elements_of(self._name, specs, (), arrays))

    def told(self, shapes: Shapes, elements: Shapes) -> CompiledModule:
        """Return the module for inputs of these shapes, and of these elements where they decide shapes."""
        try:
            return self.of(fixed_extents(self.inputs, shapes, self._name, elements))
        except InvalidInput:
            if self._readings is None or (other := self._readings.serving(shapes, elements)) is None:
                raise
        return other.specialized_at(shapes, elements) if isinstance(other, (OpenModule, SpecializingModule)) else other

    def of(self, sizes: Mapping[str, int]) -> CompiledModule:
        """Return the module where symbols have these values."""
        return self._made.made(tuple(sorted(sizes.items())), lambda: self._specialize(sizes))

    def last(self) -> CompiledModule | None:
        return self._made.last()

    def all(self) -> list[CompiledModule]:
        return self._made.all()


class _NoExtents(InvalidInput):
    """Say that data decide, in a call, what kernels cannot be told as an extent."""


class OpenModule(CompiledModule):
    """A network with open extents that was compiled in this process, for all of them. otherwise: makes what runs calls
    in which data decide what is no extent; None: they are refused."""

    otherwise: Callable[[], SpecializingModule] | None = None

    def __init__(
        self,
        *parts: Any,
        specialize: Callable[[Mapping[str, int]], CompiledModule],
        source: Graph,
        limits: Limits,
        background: Specializer | None = None,
        readings: AnyReadings | None = None,
    ):
        """source, limits: what a run asks for, and may. background: makes modules for extents that come often.
        readings: modules for calls that have another result."""
        super().__init__(*parts, limits=limits)
        self._background, self._readings = background, readings
        self._specializations = _Specializations(self.graph, self.program.states, specialize, readings)
        self._bounds = OpenBounds(source, limits)
        self._other = Latest[str, SpecializingModule](f"{self.graph.name} on the host", 1)

    def run(self, /, *args: Any, out: Any = None, timeout: float | None = None, **named: Any) -> list[Any]:
        """As Module.run; where data decide what is no extent, the host computes what kernels are not told."""
        try:
            return super().run(*args, out=out, timeout=timeout, **named)
        except _NoExtents as error:
            if self.otherwise is None:
                raise
            try:
                return self._other.made("", self.otherwise).run(*args, out=out, timeout=timeout, **named)
            except (InvalidInput, UnsupportedOp) as failure:
                raise error from failure

    __call__ = run

    def specialized(self, /, **shapes: Any) -> CompiledModule:
        """Return a module for these input shapes alone, and for these arrays of inputs that decide shapes, compiled if
        it is not there yet. Raises ReentrancyError in a signal handler that interrupts its compilation."""
        return self._specializations.at(shapes)

    def specialized_at(self, shapes: Shapes, elements: Shapes) -> CompiledModule:
        """As `specialized`, for inputs of these shapes, and of these elements where they decide shapes."""
        return self._specializations.told(shapes, elements)

    @property
    def served(self) -> list[Served]:
        """Return which kernels answer calls of the latest extents, by how often these came where `compile` was asked to
        specialise: those that came most often first."""
        found = dict[tuple[tuple[str, int], ...], Served]()
        for sized in list(self._last.sizes.values()):
            by, failure = self._background.by(sized.values) if self._background else ("open", "")
            found[tuple(sized.values.items())] = Served(sized.values, sized.calls, by, failure)
        return sorted(found.values(), key=lambda one: -one.calls)

    def wait_specialized(self, timeout: float | None = None) -> bool:
        """Wait until no kernels are being compiled in the background; return whether that is so, at the latest after
        `timeout` seconds."""
        return self._background is None or self._background.wait(timeout)

    def cancel(self) -> None:
        """As Module.cancel, for the runs of all specialisations too."""
        super().cancel()
        others = [
            *(self._background.made.values() if self._background else ()),
            *(self._readings.all() if self._readings else ()),
            *self._other.all(),
        ]
        for module in (*others, *self._specializations.all()):
            module.cancel()

    def _sized_at(self, stage: Stage, shapes: Shapes, elements: Shapes) -> Sized | Module:
        try:
            found = super()._sized_at(stage, shapes, elements)
        except InvalidInput as error:
            is_told = stage is self._stages[0]
            known = {**shapes, **self._count_shapes}
            try:
                other = None if self._readings is None else self._readings.serving(known, elements)
                if isinstance(other, SpecializingModule):
                    other = other.specialized_at(shapes, elements)
            except (InvalidInput, UnsupportedOp):
                if is_told or self.otherwise is None:
                    raise
                other = None
            if other is not None:
                return other
            if is_told or self.otherwise is None:
                raise
            raise _NoExtents(error.headline, error.facts, error.do) from error
        if self._background is None or isinstance(found, Module):
            return found
        self._background.look(found)
        return found.other or found

    def _sized(self, stage: Stage, values: Mapping[str, int]) -> Sized | Module:
        if stage is self._last:
            self._bounds.check(values)
        try:
            return super()._sized(stage, values)
        except InvalidInput:
            if not stage.launches.lacks(values):
                raise
        # open kernels take extents to be positive, and have nothing else to do where that is not so: these do
        return self._specializations.of(values)


class SpecializingModule:
    """A network with symbolic extents that cannot be compiled for all of them at once: it is for each new combination
    of input shapes, the latest few of which are kept. obstacle: why not."""

    def __init__(
        self,
        graph: Graph,
        specialize: Callable[[Mapping[str, int]], CompiledModule],
        analyze: Callable[[], Report],
        state: State | None = None,
        obstacle: str = "",
        readings: AnyReadings | None = None,
    ):
        self._graph, self.obstacle, self._readings = graph, obstacle, readings
        self._state = State((), ()) if state is None else state
        self._made = _Specializations(graph, len(self._state), specialize, readings)
        self._inputs = self._made.inputs
        self._planned = cached(analyze)

    @property
    def graph(self) -> Graph:
        """The network as it was read."""
        return self._graph

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(map(_spec, self._inputs))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(map(_spec, self.graph.outputs[: len(self.graph.outputs) - len(self._state)]))

    @property
    def state(self) -> State:
        """As Module.state; all specialisations have the same."""
        return self._state

    @property
    def report(self) -> Report:
        """Of the specialisation used last; before the first call what is known without shapes: all but memory and
        times."""
        last = self._made.last()
        return self._planned() if last is None else last.report

    def specialized(self, /, **shapes: Any) -> CompiledModule:
        """Return the module for these input shapes, and for these arrays of inputs that decide shapes, compiled if it
        is not there yet. Raises ReentrancyError in a signal handler that interrupts its compilation."""
        return self._made.at(shapes)

    def specialized_at(self, shapes: Shapes, elements: Shapes) -> CompiledModule:
        """As `specialized`, for inputs of these shapes, and of these elements where they decide shapes."""
        return self._made.told(shapes, elements)

    def run(
        self, /, *args: Any, out: Any = None, timeout: float | None = None, stream: int | None = None, **named: Any
    ) -> list[Any]:
        """As Module.run, or GpuModule.run, on the specialisation for the shapes of these arrays, whose compilation has
        no time limit."""
        given = {v.name: a for v, a in zip(self._inputs, args)} | named
        if stream is not None:
            named = {**named, "stream": stream}
        held = {
            v.name: tuple(given[v.name].shape)
            if is_on_gpu(given[v.name]) and not v.deciding
            else view_of(given[v.name])
            for v in self._inputs
            if v.name in given
        }
        for view in held.values():
            if isinstance(view, str):
                raise InvalidInput(view)
        return self._made.at(held).run(*args, out=out, timeout=timeout, **named)

    as_torch = Module.as_torch
    as_keras = Module.as_keras

    def cancel(self) -> None:
        """As Module.cancel, for the runs of all specialisations."""
        for module in (*self._made.all(), *(self._readings.all() if self._readings else ())):
            module.cancel()

    def kernel(self, name: str | KernelRecord) -> KernelText | ExternalText:
        """Return a kernel of the specialisation used last."""
        last = self._made.last()
        if last is None:
            raise InvalidInput(
                f"no kernel {str(name)!r}: nothing is compiled before the first call", do="call run, or specialized"
            )
        return last.kernel(name)

    def encoded(self, key: Key | None = None) -> Encoded:
        """Return the artifact of the only specialisation there is: an artifact has fixed shapes."""
        last, count = self._made.last(), len(self._made.all())
        if last is None or count != 1:
            raise InvalidInput(
                f"{self.graph.name} has symbolic extents and {count} specialisations, an artifact holds one",
                [repr(v) for v in self.graph.inputs],
                "compile with shapes=, or save the result of specialized(...)",
            )
        return last.encoded(key)

    save = Module.save


AnyReadings = Readings[Union[CompiledModule, SpecializingModule]]


def _is_shape(given: Any) -> bool:
    return isinstance(given, Sequence) and not hasattr(given, "__dlpack__")


def _spec(v: Value) -> TensorSpec:
    return TensorSpec(v.name, v.dtype, v.shape, deciding=v.deciding)
