"""Compiled code held against the interpreter: what passes annotate, no interpreter of graphs can see.

Layouts, places in memory and fusion change no node; whether kernels keep to them shows when they run. Where results
differ these passes are left out, one more each time, until they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from renorm.core.comparison import difference
from renorm.core.errors import VerificationError
from renorm.core.tolerance import judge
from renorm.driver.module import CompiledModule
from renorm.graph import interpret
from renorm.graph.external import external_values
from renorm.graph.ir import Graph, Group, Value
from renorm.passes.probe import differing, drawn
from renorm.passes.sensitivity import Sensitivity, tolerances
from renorm.runtime.external import Calls, watched
from renorm.runtime.report import OutputRecord, VerifiedRecord

Array = np.ndarray[Any, Any]

UNSEEN = ("ChooseLayouts", "place", "Fuse")  # in the order in which they are left out


def verified(source: Graph, make: Callable[[tuple[str, ...]], CompiledModule]) -> CompiledModule:
    """Return what `make` compiles without passes, as few as give the results of `source`, which has fixed
    shapes. Those that were left out stand among the report's refusals, and `report.verified` has what was compared and
    what was not.

    Raises VerificationError where the results of every one differ.
    """
    inputs, values = drawn(source)
    defined = Sensitivity.of(source, inputs)
    first, without = "", tuple[str, ...]()
    while True:
        module = make(without)
        if not module.runs_here:
            required = module.program.machine
            said = f"the compiled code, which is for {required.arch} {required.cpu}".rstrip()
            return _told(module, VerifiedRecord(unchecked=(f"{said}, and this machine cannot run it",)))
        with watched() as calls:
            found = module.evaluate([*inputs.values()])
        if calls:
            told, reason = _beside_external_code(module.graph, source, inputs, found, calls)
        else:
            told, reason = _compared(source.outputs, found, [values[v] for v in source.outputs], defined)
        if reason is None:
            break
        first = first or reason
        if len(without) == len(UNSEEN):
            raise VerificationError(
                f"{source.name}: compiled, it gives other results than the interpreter",
                [first, f"also without {', '.join(UNSEEN)}"],
                "report this with the model; `renorm check MODEL` names the first node that differs",
            )
        without = UNSEEN[: len(without) + 1]
    if without:
        report = module.program.report
        refused = (without[-1], source.name, f"reverted: compiled, {first}")
        module.program = replace(module.program, report=replace(report, refusals=(*report.refusals, refused)))
    return _told(module, told)


def _told(module: CompiledModule, told: VerifiedRecord) -> CompiledModule:
    """Return the module with the record in its report, where guards, which no caller sees, are no outputs."""
    outputs = list(told.outputs)
    del outputs[module.program.guards]
    report = replace(module.program.report, verified=replace(told, outputs=tuple(outputs)))
    module.program = replace(module.program, report=report)
    return module


def _compared(
    outputs: Sequence[Value], found: Sequence[Array], expected: Sequence[Array], defined: Sensitivity
) -> tuple[VerifiedRecord, str | None]:
    """Return what was compared, and a sentence where something differs. defined: has the outputs as its first
    results."""
    records, reason = list[OutputRecord](), None
    pairs = zip(outputs, found, expected, tolerances(outputs), strict=True)
    for i, (v, ours, theirs, allowed) in enumerate(pairs):
        judged = judge(ours, interpret.narrow(theirs, v.dtype), allowed, defined.movements(i))
        records.append(OutputRecord(v.name, judged.error, allowed, judged.reservation))
        if not judged.agrees:
            reason = reason or differing(f"output {v.name!r}", judged, v.dtype)
    return VerifiedRecord(tuple(records)), reason


def _beside_external_code(
    graph: Graph, source: Graph, inputs: Mapping[str, Array], found: Sequence[Array], calls: Calls
) -> tuple[VerifiedRecord, str | None]:
    """The same for a network parts of which external code runs, which may have a number format of its own: what it
    reads is compared, and what the network makes of that which it wrote. How far that is from its definition is said.

    graph: after the passes. calls: what external code read and wrote, in the order of the launches.
    """
    groups = [g for g in graph.launches if g.external]
    given = {v: interpret.widen(a) for v, a in zip(graph.inputs, inputs.values(), strict=True)}
    given |= {v: interpret.widen(v.data) for v in graph.constants.values() if v.data is not None}
    read, written = list[tuple[Value, Array]](), dict[Value, Array]()
    for group, (operands, results) in zip(groups, calls, strict=True):
        assert group.external is not None
        reads, writes = external_values(group, group.external)
        read += zip(reads, operands, strict=True)
        written |= zip(writes, map(interpret.widen, results), strict=True)
    ours = [n for n in graph.nodes if not any(n in g.nodes for g in groups)]
    results = [*graph.outputs, *(v for v, _ in read)]
    defined = Sensitivity(ours, given | written, results)
    expected = [defined.plain[v] for v in results]
    told, reason = _compared(results, [*found, *(a for _, a in read)], expected, defined)
    records = [replace(told.outputs[i], name=v.name) for i, v in enumerate(source.outputs)]
    return VerifiedRecord(tuple(records), tuple(_measured(g, defined.plain) for g in groups)), reason


def _measured(group: Group, values: Mapping[Value, Array]) -> str:
    """How far external code is from what its nodes say."""
    defined = dict(values)
    for node in group.nodes:
        defined.update(zip(node.outputs, interpret.apply(node, defined)))
    error = max(difference(values[v], defined[v]) for v in group.nodes[-1].outputs)
    nodes = ", ".join(n.name for n in group.nodes)
    return f"external code of kernel {group.name!r} ({nodes}); it is {error:.2g} of its largest result off"
