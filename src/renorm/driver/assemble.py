"""Kernels become a program: an address for every parameter, weights in one array, buffers in one arena."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from renorm.codegen.abi import CompiledKernel
from renorm.core.conditions import Condition
from renorm.core.dims import Dim, Shape, Sym, Symbol, bounds, integer, size, static
from renorm.core.limits import Limits
from renorm.driver import barriers
from renorm.driver.barriers import BoundKernel, Operand
from renorm.driver.buffers import Buffers
from renorm.driver.groups import KernelCall
from renorm.driver.lowering import Parameter
from renorm.driver.open_buffers import OpenBuffers, OpenRegion
from renorm.driver.weights import Constants, SharedConstants
from renorm.graph.counts import late_symbols
from renorm.graph.ir import Graph, Value
from renorm.graph.strided_region import StridedRegion
from renorm.passes import memory
from renorm.runtime.program import (
    Argument,
    Buffer,
    Code,
    External,
    Machine,
    Positive,
    Program,
    Requirement,
    Step,
    TensorSpec,
    align,
)
from renorm.runtime.report import MemoryRecord, Report, RunRecord
from renorm.runtime.weights import Weights


def assemble(
    graph: Graph,
    lowered: Sequence[KernelCall],
    compiled: Sequence[CompiledKernel],
    codes: Sequence[int],
    machine: Machine,
    limits: Limits,
    typical: Mapping[str, int] = MappingProxyType({}),
    conditions: Mapping[Condition, str] = MappingProxyType({}),
    shared: SharedConstants | None = None,
    counts: Sequence[int] = (),
) -> tuple[Program, Weights]:
    """Return the program and its weights. codes: for each step of `lowered`, the index of its kernel in `compiled`.
    typical: values of the symbols of a graph with open extents; conditions: what they must fulfil, and of which node.
    shared: constants of other modules of the same network. counts: of the graph, how many steps come before each.
    Raises LimitExceeded where they take more memory than is allowed."""
    constants = Constants()
    kernels = [compiled[code] for code in codes]
    if typical:
        held = _open_memory(graph, lowered, kernels, typical, late_symbols(graph, counts))
    else:
        held = _fixed_memory(graph, lowered, kernels)

    def operand(p: Parameter) -> Operand:
        buffer, region = held.region(p.value)
        if buffer.is_constant:
            at = Argument("weight", constants.place(replace(p, value=buffer)), region.offset)
        else:
            at = replace(held.where[buffer], offset=region.offset)
        return Operand(at, region)

    spaces = iter(held.spaces)
    launches: list[BoundKernel] = []
    for one, kernel in zip(lowered, kernels):
        operands = [operand(p) for p in (*one.reads, *(Parameter(v) for v in one.writes))]
        operands += [next(spaces) for _ in kernel.workspace]
        launches.append(BoundKernel(kernel, operands, one.extents))
    made = _Codes(compiled, bool(typical))
    waits = barriers.waits(launches, held.lives)
    steps = tuple(
        Step(
            one.name,
            made.index(code, launch),
            (*(o.at for o in launch.operands), *(Argument("extent", e) for e in one.extents)),
            wait,
            _positive(one, launch),
        )
        for one, code, launch, wait in zip(lowered, codes, launches, waits)
    )
    between = 0 if typical else held.size  # of open extents, which a call tells
    limits.check(graph.name, [("bytes", between + constants.nbytes, f"{between} between kernels, and weights")])
    stored = constants.stored(graph, shared)
    program = Program(
        machine=machine,
        inputs=_specs(graph.inputs),
        outputs=_specs(graph.outputs),
        codes=tuple(made.codes),
        externals=tuple(
            External(kernel.external.loader, _specs([p.value for p in one.reads]), _specs(one.writes))
            for one, kernel in zip(lowered, kernels)
            if kernel.external
        ),
        steps=steps,
        arena_bytes=0 if typical else held.size,
        weight_bytes=constants.nbytes,
        nanoseconds=sum(compiled[code].nanoseconds for code in codes),
        weights=tuple(constants.records),
        typical=dict(typical),
        buffers=held.buffers,
        conditions=tuple(Requirement(condition, node) for condition, node in conditions.items()),
        counts=tuple(counts),
    )
    usual = program.bind(typical) if typical else program
    run = RunRecord(
        sum(integer(n) > 0 for step in usual.steps for n in usual.codes[step.code].phases),
        sum(wait for step in steps for wait in step.waits),
        sum(chunk > 0 for step in usual.steps for chunk in usual.codes[step.code].chunks),
    )
    report = Report(memory=MemoryRecord(constants.nbytes, held.size, held.lower_bound), run=run)
    return replace(program, nanoseconds=usual.nanoseconds, report=report), stored


@dataclass(frozen=True)
class _Memory:
    """Where values lie. region: of a value in which buffer; where: the buffers that are no constants; spaces: arguments
    for workspaces, in the order of steps. size, lower_bound: of the arena, typically. buffers, lives: of open extents,
    as of a Program, and when they are alive."""

    region: Callable[[Value], tuple[Value, StridedRegion | OpenRegion]]
    where: dict[Value, Argument]
    spaces: list[Operand]
    size: int
    lower_bound: int
    buffers: tuple[Buffer, ...] = ()
    lives: list[tuple[int, int]] | None = None


def _fixed_memory(graph: Graph, lowered: Sequence[KernelCall], kernels: Sequence[CompiledKernel]) -> _Memory:
    buffers = Buffers(graph, lowered, kernels)
    lifetimes = buffers.lifetimes()
    spaces = [(step, size) for step, kernel in enumerate(kernels) for size in static(kernel.workspace)]
    plan = memory.plan([*lifetimes.values(), *([memory.Lifetime(size, step, step)] for step, size in spaces)])
    where = {v: Argument("arena", at) for v, at in zip(lifetimes, plan.offsets)}
    for_spaces = [
        Operand(Argument("arena", at), StridedRegion(0, size))
        for at, (_, size) in zip(plan.offsets[len(lifetimes) :], spaces)
    ]
    return _Memory(buffers.region, where | _ends(graph), for_spaces, plan.size, plan.lower_bound)


def _open_memory(
    graph: Graph,
    lowered: Sequence[KernelCall],
    kernels: Sequence[CompiledKernel],
    typical: Mapping[str, int],
    late: Mapping[Symbol, int],
) -> _Memory:
    buffers = OpenBuffers(graph, lowered, kernels)
    lifetimes = buffers.lifetimes()
    bound = [BoundKernel(kernel, (), one.extents) for one, kernel in zip(lowered, kernels)]
    spaces = [memory.OpenLifetime(b.of(size), i, i) for i, b in enumerate(bound) for size in b.kernel.workspace]
    held = [*lifetimes.values(), *spaces]
    plan = memory.plan_open([[one] for one in held], [one.bytes for one in held], typical, late)
    where = {v: Argument("buffer", at) for v, at in zip(lifetimes, plan.places)}
    for_spaces = [
        Operand(Argument("buffer", at), OpenRegion(0, one.bytes))
        for at, one in zip(plan.places[len(lifetimes) :], spaces)
    ]
    lives = [(0, 0)] * len(held)
    for place, one in zip(plan.places, held):
        lives[place] = one.first, one.last
    region, ends = buffers.region, _ends(graph)
    return _Memory(region, where | ends, for_spaces, plan.size, plan.lower_bound, plan.buffers, lives)


def _ends(graph: Graph) -> dict[Value, Argument]:
    inputs = {v: Argument("input", i) for i, v in enumerate(graph.inputs)}
    return inputs | {v: Argument("output", i) for i, v in enumerate(graph.outputs)}


class _Codes:
    """The codes of a program: one for each kernel, or for each kernel and what its extents stand for. Machine code and
    external code are counted apart."""

    def __init__(self, compiled: Sequence[CompiledKernel], is_open: bool):
        self.codes = list[Code]()
        self._compiled, self._is_open = compiled, is_open
        self._objects, counts = list[int](), [0, 0]
        self._places: dict[tuple[int, tuple[Dim, ...]], int] = {}
        for c in compiled:
            self._objects.append(counts[c.external is not None])
            counts[c.external is not None] += 1

    def index(self, code: int, launch: BoundKernel) -> int:
        """Return where the code of a launch is. code: the index of its kernel."""
        key = code, launch.extents
        if key not in self._places:
            self._places[key] = len(self.codes)
            kernel, phases = self._compiled[code], tuple(map(launch.of, launch.kernel.phases))
            chunks = () if self._is_open or kernel.launches else barriers.chunks(kernel)
            costs = tuple(float(a.nanoseconds) for a in kernel.accesses) if self._is_open else ()
            scratch = launch.of(kernel.scratch)
            scratch = align(scratch) if isinstance(scratch, int) else scratch
            external = kernel.external is not None
            codes = Code(self._objects[code], phases, scratch, chunks, external, costs, kernel.launches)
            self.codes.append(codes)
        return self._places[key]


def _positive(call: KernelCall, launch: BoundKernel) -> tuple[Positive, ...]:
    """Return which extents a kernel takes to be 1 at least. Where one is not, and divides the size of all that is
    written, there is nothing to write."""
    found = dict.fromkeys(map(launch.of, launch.kernel.positive))
    written: Dim = 0
    for v in call.writes:
        written = written + size(v.shape)
    return tuple(
        Positive(e, 0 if all(_divides(e, v.shape) for v in call.writes) else written) for e in found if bounds(e)[0] < 1
    )


def _divides(extent: Dim, shape: Shape) -> bool:
    """Return whether an extent is known to divide how many elements there are: a sum of several terms by being that of
    an axis."""
    return isinstance(extent, Sym) and (extent in shape or size(shape) % extent == 0)


def _specs(values: Sequence[Value]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(v.name, v.dtype, v.shape, deciding=v.deciding) for v in values)
