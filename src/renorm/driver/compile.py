"""renorm.compile: a model becomes a graph, the graph is optimised and cut into kernels, the kernels become machine
code.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from renorm.core.collector import collection_put_off
from renorm.core.dims import Sym, format_facts, is_static, symbols_of
from renorm.core.errors import (
    InvalidArtifact,
    InvalidExpression,
    InvalidGraph,
    InvalidInput,
    InvalidLoops,
    InvalidSchedule,
    InvalidTarget,
    OperandError,
    RenormError,
    UnsupportedOp,
    UserCodeError,
)
from renorm.core.floating import standard_environment
from renorm.core.inputs import given_symbols
from renorm.core.limits import DEFAULT, Limits
from renorm.core.locks import check_imports
from renorm.core.machine import Machine
from renorm.core.stated import STATED, Stated, Undecided
from renorm.core.target import Target
from renorm.driver import bounds, checks, state, undecided
from renorm.driver import cache as caches
from renorm.driver.assemble import assemble
from renorm.driver.background import Specializer
from renorm.driver.glue import glued
from renorm.driver.hosted import HostedModule
from renorm.driver.kernels import Compiler, Progress, machine_for, walker
from renorm.driver.module import AnyReadings, CompiledGpuModule, CompiledModule, OpenModule, SpecializingModule
from renorm.driver.options import Options, options_of
from renorm.driver.planned import CODE, PlannedModule, PlannedPart, planned_parts
from renorm.driver.readings import Readings
from renorm.driver.weights import SharedConstants
from renorm.frontends import exported, read
from renorm.frontends.outline import Hosted, Typed
from renorm.graph.conditions import Settled, settled
from renorm.graph.counting import cut, untold
from renorm.graph.counts import counted_symbols, follow_from_extents, stages
from renorm.graph.deciding import undecided as undecided_operands
from renorm.graph.ir import Graph, Group
from renorm.ops.identity import Identity
from renorm.passes import pipeline
from renorm.passes.aliasing import alias_values
from renorm.passes.constants import FixStaticOperands
from renorm.passes.context import Context, check_keep
from renorm.runtime.openmp import ParallelRegion
from renorm.runtime.report import KernelRecord, Report
from renorm.runtime.steps import Plan


def compile(
    model: Any,
    *,
    target: str | Target = "llvm",
    opt_level: int = 3,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    keep: Sequence[str] = (),
    threads: int | ParallelRegion | None = None,
    verify: bool = False,
    precision: str = "fast",
    train_state: bool = False,
    checked: bool = False,
    specializations: int = 0,
    progress: Progress | None = None,
    limits: Limits = DEFAULT,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    device: int = 0,
) -> CompiledModule | SpecializingModule:
    """Return a module that runs the model as machine code.

    model: a path to a .onnx, .tflite, .circle, .pt2, .keras or .h5 file, which must not change meanwhile, the bytes of
    one of the first three, an onnx.ModelProto, a torch.export.ExportedProgram, a torch.nn.Module with `args`, a
    keras.Model, or a Graph. args, kwargs, dynamic_shapes: what torch.export.export takes to export a module. target:
    "llvm" (this machine), "llvm -mcpu=haswell", ... opt_level: 0 nothing but lowering; 1 + constants and dead code; 2 +
    folding and fusing; 3 + layouts and algorithms. shapes: input name to shape, for inputs with symbolic extents, which
    numbers fix; what is said of others are facts: ("n", 3, "16*h", "16*w") are equal extents and multiples, "1..64"
    lies between, "?" is open. Without numbers for all the module specialises on each new shape it is called with.
    inputs: input name to elements, which are constants then: {"sr": 16000}; where they decide more than extents (axes,
    branches) and are not given, the module compiles for each new combination in a call. keep: names of ops or nodes
    that must not be unpacked or folded (also RENORM_KEEP, comma separated). threads: None means as many as this
    process may use. verify: compare each rewrite with the graph before it, and revert it where it differs.
    precision: "exact" switches algorithms off that round differently (Winograd's convolutions; opt_level 3 has
    them). "bfloat16" lets memory hold weights, and values between kernels, in bfloat16; sums, norms and what
    `report.precisions` names stay float32, and so do inputs and outputs. "tf32" rounds what a GPU's tensor cores
    multiply, and nothing on other targets. train_state: the running statistics of
    norms in training mode are state of the module (`m.state`), which each run reads and, once it has succeeded,
    replaces. checked: a run raises InvalidInput that names nodes and indices where an index is outside its axis, or
    an integer is divided by zero; otherwise there is some number. specializations: for how many shapes that come
    often, where extents are open, kernels of their own are compiled in the background. progress: called with
    (stage, done, of). limits: what the model may ask for, checked before it is allocated or run. device: the number
    of the GPU that runs it, where the target is one.

    Raises UnsupportedOp, InvalidModel, LimitExceeded, InvalidTarget, InvalidInput, UserCodeError.
    """
    options = options_of(target, opt_level, keep, threads, verify, precision, progress, limits)
    if isinstance(specializations, bool) or not isinstance(specializations, int) or specializations < 0:
        raise InvalidInput(f"specializations is {specializations!r}", ["expected a whole number, 0 or more"])
    for name, given in (("shapes", shapes), ("inputs", inputs)):
        if not isinstance(given or {}, Mapping):
            raise InvalidInput(f"{name} is {given!r}", ["expected what is said of each input, by its name"])
    options = replace(options, checked=checked, specializations=specializations, device=device)
    if args is not None or kwargs is not None:
        with collection_put_off():
            model = exported(model, args or (), kwargs, dynamic_shapes)

    return _decided(model, options, shapes, inputs, train_state)


def _decided(
    model: Any,
    options: Options,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    train_state: bool = False,
) -> CompiledModule | SpecializingModule:
    """Return the module of a model, of which elements of inputs, or data, may decide more than extents."""

    def known(elements: Mapping[str, Any]) -> CompiledModule | SpecializingModule:
        try:
            return _compiled(model, options, shapes, {**(inputs or {}), **elements}, train_state)
        except Hosted as error:
            if error.outline is None or train_state:
                raise
            own = replace(options, shared=options.shared or SharedConstants(), is_final=_is_final(model, options))
            return HostedModule(error.outline, lambda piece: _decided(piece, own), options.threads, options.limits)

    try:
        return known({})
    except Undecided as error:
        if train_state:  # of which there would be one for each
            raise
        return undecided.DecidingModule(error, known)


def _compiled(
    model: Any,
    options: Options,
    shapes: Mapping[str, Sequence[Stated]] | None,
    inputs: Mapping[str, Any],
    train_state: bool,
) -> CompiledModule | SpecializingModule:
    """Return the module of a model. Raises Undecided where elements of inputs have to be known."""
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    with collection_put_off():
        if isinstance(model, Typed):
            graph = model.read(inputs, options.limits)
        else:
            graph = read(model, shapes=shapes, inputs=inputs, is_mapped=True, limits=options.limits)
        obstacle: RenormError | None = None  # what no kernel is told
        try:
            undecided.require(graph)
        except Undecided as error:
            if not isinstance(model, Typed) or model.types is None:
                raise
            obstacle = error  # each call of a piece brings other elements
        whole, held = state.hold(graph) if train_state else (graph, state.held(graph))
        graph = _with_operands(whole)
        try:
            graph = cut(graph, len(held or ()))
        except _CLOSED as error:  # data are no extents
            obstacle = obstacle or error
    clock.stop("read")
    if options.specializations and (counted := sorted(counted_symbols(graph))):
        asked = f"specializations={options.specializations}"
        raise InvalidInput(f"{asked}, and data decide extents of {graph.name}", counted, "compile it without")
    options = replace(options, state=held, is_final=_is_final(model, options))
    sizes = {s: d for s, d in graph.metadata.get(STATED, {}).items() if isinstance(d, int)}
    is_open = {v.name: not is_static(v.shape) for v in graph.inputs}
    if obstacle is not None:
        return _glued(graph, whole, options, seconds, obstacle)
    if not given_symbols(graph.inputs):
        try:
            return specialize(graph, sizes, options, seconds)
        except _CLOSED as error:
            if not untold(graph):
                raise
            return _glued(graph, whole, options, seconds, error)
    if shapes and any(is_open.values()) and not any(is_open.get(name) for name in shapes):
        symbols = {s for v in graph.inputs for d in v.shape for s in symbols_of(d)}
        raise InvalidInput(
            f"shapes= leaves extents of {graph.name} open: {', '.join(sorted(symbols))}",
            [f"{v.name}: {v.type}" for v in graph.inputs if is_open[v.name]],
            "give the shapes of these inputs too ('?' for an extent that stays open), or none at all",
        )
    check_keep(graph, options.keep)
    for v in graph.constants.values() if graph is not model else ():  # the file may change until they are needed
        v.data = np.array(v.data)
    for name in whole.constants.keys() & graph.constants.keys() if whole is not model else ():
        whole.constants[name].data = graph.constants[name].data
    options = replace(options, shared=options.shared or SharedConstants())
    readings = Readings(graph, lambda network: _for_any_extents(network, options))
    return _for_any_extents(graph, options, seconds, readings, whole)


def _is_final(model: Any, options: Options) -> bool:
    """Return whether nothing more will be told of the extents of a model's inputs before a run."""
    if not isinstance(model, Typed):
        return True
    return options.is_final if model.types is None else all(is_static(v.shape) for v in model.types.values())


def _with_operands(graph: Graph) -> Graph:
    """Return the graph where operands that ops must be told, and that follow from numbers, are constants: which they
    are to be before it is told what data decide. The same one where all are known."""
    if not any(True for node in graph.nodes for _ in undecided_operands(node)):
        return graph
    made = graph.copy()
    FixStaticOperands().run(made, Context())
    return made


def _for_any_extents(
    source: Graph,
    options: Options,
    before: Mapping[str, float] | None = None,
    readings: AnyReadings | None = None,
    whole: Graph | None = None,
) -> CompiledModule | SpecializingModule:
    """Return a module for all extents of a network, at once where it can be. whole: the network before it was cut at
    counts, which may be known once shapes are."""
    planned = replace(options, verify=False)  # which needs arrays, hence shapes

    def specialized(extents: Mapping[str, int]) -> CompiledModule:
        return specialize(source, extents, options)

    def known(extents: Mapping[str, int]) -> CompiledModule:
        assert whole is not None
        return specialize(whole, extents, options)

    def analyze() -> Report:
        return optimized(source, {}, planned)[1]

    try:
        return _for_all_data(_opened(source, options, before or {}, readings), source, whole, options)
    except _CLOSED as error:
        if (counted := counted_symbols(source)) and whole is not None and follow_from_extents(source):
            return SpecializingModule(whole, known, analyze, options.state, str(error))
        if counted or (whole is not None and untold(source)):
            return _glued(source, whole, options, before, error)
        return SpecializingModule(source, specialized, analyze, options.state, str(error), readings)


def _for_all_data(made: CompiledModule, source: Graph, whole: Graph | None, options: Options) -> CompiledModule:
    """Return the module of a network, which then has another one run calls in which data decide what is no extent.
    whole: as in _for_any_extents."""
    if isinstance(made, OpenModule) and whole is not None and counted_symbols(source) and not options.state:
        error = InvalidInput("what data decide is no extent")
        own = replace(options, is_final=True)
        made.otherwise = lambda: _glued(source, whole, own, None, error, is_counted=False)
    return made


def _glued(
    source: Graph,
    whole: Graph | None,
    options: Options,
    before: Mapping[str, float] | None,
    error: RenormError,
    is_counted: bool = True,
) -> SpecializingModule:
    """Return what `driver.glue` makes of a network. whole: before it was cut at counts. Raises UnsupportedOp where
    it has state, which no part of it may replace alone."""
    if options.state:
        raise UnsupportedOp(
            f"{source.name} has state, and does not compile where what data decide is open",
            [f"state: {', '.join(options.state)}", str(error)],
            "compile it without train_state, or return what the program updates as a result",
        )
    own = replace(options, shared=options.shared or SharedConstants())

    def beginning(graph: Graph) -> CompiledModule | SpecializingModule | None:
        try:
            source = cut(graph)
            readings = Readings(source, lambda network: _for_any_extents(network, own))
            if not given_symbols(source.inputs):
                return specialize(source, {}, own, before)
            for v in source.constants.values():  # as in _compiled
                v.data = np.array(v.data)
            if counted_symbols(source):
                return _for_all_data(_opened(source, own, before or {}, readings), source, graph, own)
            return _for_any_extents(source, own, before, readings)
        except _CLOSED:
            return None

    return glued(
        source, whole and _with_operands(whole), own, beginning, partial(_decided, options=own), error, is_counted
    )


def optimized(source: Graph, sizes: Mapping[str, int], options: Options) -> tuple[Graph, Report]:
    """Return the graph after the passes, cut into kernels, and the report but for memory and times. Symbols that
    `sizes` does not fix stay open."""
    graph = source.copy(sizes)
    bounds.check(graph, options.limits)
    graph, report = pipeline.optimize(
        graph,
        level=options.level,
        keep=options.keep,
        target=options.target,
        verify=options.verify,
        precision=options.precision,
        without=options.without,
    )
    _materialize_outputs(graph)
    stages(graph)
    if options.level >= 2 and "aliasing" not in options.without:
        alias_values(graph, options.target)
    records = (
        KernelRecord(g.name, tuple(n.name for n in g.nodes), target=options.target.kind if g.external else "")
        for g in graph.launches
    )
    return graph, replace(report, kernels=tuple(records))


def analyze(
    model: Any,
    *,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    **others: Any,
) -> tuple[Graph, Report]:
    """Compile without generating code: return the graph after the passes, cut into kernels, and the report as
    `compile` gives it but for memory and times.

    Extents that `shapes` does not fix are symbolic. others: target, opt_level, keep, verify, precision, limits.
    Arguments and errors are those of `compile`.
    """
    options = options_of(runs=False, **others)
    source = cut(_with_operands(read(model, shapes=shapes, inputs=inputs, limits=options.limits)))
    return optimized(source, {}, options)


def planned(
    model: Any,
    *,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    **others: Any,
) -> tuple[list[PlannedPart], Plan | None]:
    """Return what `compile` would make of a model, without code: its parts, and the plan by which they run; one part,
    and None, where it is one program. Arguments and errors are those of `analyze`."""
    options = replace(options_of(runs=False, **others), is_planned=True)
    try:
        source = read(model, shapes=shapes, inputs=inputs, limits=options.limits)
    except Hosted:
        source = None
    if source is None or any(True for node in _with_operands(source).nodes for _ in undecided_operands(node)):
        made = _decided(model, options, shapes, inputs)
        if isinstance(made, HostedModule):
            return list(planned_parts(made)), made.plan
    assert source is not None
    graph, report = analyze(source, **others)
    return [PlannedPart(source.name, CODE, source.nodes, (source,), (graph,), report)], None


@standard_environment()
def specialize(
    source: Graph, sizes: Mapping[str, int], options: Options, before: Mapping[str, float] | None = None
) -> CompiledModule:
    """Compile `source` with its symbols fixed. before: seconds of what was done for it so far, by stage."""
    check_imports()
    if options.checked:
        source = source.copy(sizes)
        options = replace(options, checks=checks.add(source, len(options.state or ())))
    if options.verify and not options.is_planned:
        from renorm.driver.verified import unseen, verified  # what compares arrays, most compile without

        fixed = source.copy(sizes)
        bounds.check(fixed, options.limits)  # before arrays are drawn
        return verified(
            fixed,
            lambda without: _specialized(source, sizes, replace(options, without=without), before),
            unseen(options.precision, options.target.machine_target.is_gpu),
        )
    try:
        return _specialized(source, sizes, options, before)
    except InvalidLoops as error:  # what no proof is found for in a kernel of several nodes may be plain in theirs
        if options.level < 2 or "Fuse" in options.without:
            raise
        made = _specialized(source, sizes, replace(options, without=(*options.without, "Fuse")), before)
        if not options.is_planned:
            refused = "Fuse", source.name, f"reverted: {error.headline}"
            report = made.program.report
            made.program = replace(made.program, report=replace(report, refusals=(*report.refusals, refused)))
        return made


def _specialized(
    source: Graph,
    sizes: Mapping[str, int],
    options: Options,
    before: Mapping[str, float] | None,
    network: Settled | None = None,
    readings: AnyReadings | None = None,
) -> CompiledModule:
    """network: of which the source is the graph, with guards where these are asked for, and extents stay open."""
    machine = options.target.machine_target
    seconds = dict(before or {})
    clock = _Clock(seconds)
    with collection_put_off():
        graph, report = optimized(source, sizes, options)
    clock.stop("passes")
    cache = caches.default()
    counts = stages(graph)
    compiler = Compiler(graph, options.target, cache, options.progress or silent)
    if not options.is_planned or counted_symbols(graph):  # which not every kernel can be told
        compiler.lower()
    if options.is_planned:
        compiler.check()
        return PlannedModule(source, graph, report)
    clock.stop("schedule")
    kernels, code = compiler.compile()
    native_entry = walker(machine, cache)
    required = machine_for(machine, cache)
    clock.stop("code")
    program, weights = assemble(
        *(graph, kernels.calls, kernels.compiled, kernels.codes, required, options.limits),
        typical=network.typical if network else {},
        conditions=network.conditions if network else {},
        shared=options.shared,
        counts=counts,
    )
    clock.stop("assemble")
    is_far = not machine.is_gpu and not Machine.of(machine).keeps(program.weight_bytes)
    records = kernels.records(report.kernels, is_far)
    full = replace(report, kernels=records, memory=program.report.memory, run=program.report.run, code=code)
    counted = counted_symbols(graph)
    told = (format_facts(Sym(s)) + ", counted" * (s in counted) for s in program.symbols)
    conditions = tuple(map(str, program.conditions))
    full = replace(full, seconds=seconds, extents=tuple(dict.fromkeys(told)), conditions=conditions)
    held = options.state or ()
    program = replace(program, report=full, name=graph.name, dims=dict(sizes), states=len(held))
    program = replace(program, checks=options.checks)
    objects = [c.object for c in kernels.compiled if not c.external]
    externals = [c.external for c in kernels.compiled if c.external]
    threads, texts = options.threads, kernels.texts
    parts = program, objects, weights, native_entry, threads, graph, texts, externals, options.state
    if machine.is_gpu:
        return CompiledGpuModule(*parts).on(options.device)
    if network is None:
        return CompiledModule(*parts)

    def others(extents: Mapping[str, int], progress: Progress | None = None) -> CompiledModule:
        own = replace(options, progress=progress or options.progress)
        if network.typical.keys() <= extents.keys():
            return specialize(network.graph, extents, own)
        return _opened(network.graph.copy(extents), own, {})  # counts are not there yet

    most = options.specializations
    background = Specializer(graph.name, others, most) if most else None
    return OpenModule(
        *parts,
        specialize=others,
        source=network.graph,
        limits=options.limits,
        background=background,
        readings=readings,
    )


# what is raised where a kernel, or a pass, needs numbers, and where typical ones give no result: the same with numbers
# says what else is wrong
_CLOSED = (
    *(InvalidArtifact, InvalidExpression, InvalidGraph, InvalidLoops, InvalidSchedule, InvalidTarget),
    *(OperandError, UserCodeError),
)


@standard_environment()
def _opened(
    source: Graph, options: Options, before: Mapping[str, float], readings: AnyReadings | None = None
) -> CompiledModule:
    """Compile `source` for all values of its symbols that it has results for, be it one. Raises one of _CLOSED where a
    part of it needs numbers."""
    check_imports()
    if options.target.machine_target.is_gpu:
        raise InvalidTarget("kernels for GPUs are made for known extents")
    network = settled(source)
    graph = network.graph
    if not network.typical and not counted_symbols(source):
        return specialize(graph, {}, options, before)
    if options.checked:
        graph = graph.copy()
        options = replace(options, checks=checks.add(graph, len(options.state or ())))
    if options.verify and not options.is_planned:
        from renorm.driver.verified import unseen, verified  # what compares arrays, most compile without

        return verified(
            graph,
            lambda without: _specialized(graph, {}, replace(options, without=without), before, network, readings),
            unseen(options.precision, options.target.machine_target.is_gpu),
        )
    return _specialized(graph, {}, options, before, network, readings)


class _Clock:
    def __init__(self, seconds: dict[str, float]):
        self._seconds, self._since = seconds, time.perf_counter()

    def stop(self, stage: str) -> None:
        now = time.perf_counter()
        self._seconds[stage] = round(now - self._since, 4)
        self._since = now


def silent(stage: str, done: int, of: int) -> None:
    """Tell nobody: what takes the place of a `Progress`."""


def _materialize_outputs(graph: Graph) -> None:
    """Give each output a result of its own: an input, a constant, or one that stands twice is copied by a kernel."""
    seen: set[int] = set()
    for i, v in enumerate(graph.outputs):
        if v.producer is None or id(v) in seen:
            copied = graph.apply(Identity(), [v], name=f"copy_{v.name}")
            graph.outputs[i] = copied
            graph.groups.append(Group(graph.fresh("copy"), [graph.nodes[-1]]))
            seen.add(id(copied))
        seen.add(id(v))
