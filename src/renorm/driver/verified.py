"""verify=True: compiled code is compared with the interpreter, which cannot see what passes only annotate.

Layouts, places in memory and fusion change no node; whether kernels keep to them shows when they run. Where results
differ these passes are left out, one more each time, until they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from renorm.core.difference import relative_error
from renorm.core.dims import Symbol
from renorm.core.errors import InvalidTarget, RenormError, VerificationError
from renorm.driver.module import CompiledModule
from renorm.graph import interpret
from renorm.graph.counts import counted_symbols
from renorm.graph.external import external_values
from renorm.graph.ir import Graph, Group, Value
from renorm.graph.typical import typical_sizes
from renorm.passes.probe import EXTENTS, evaluate_on_random_inputs, nearest, open_extents
from renorm.passes.sensitivity import Sensitivity
from renorm.runtime.external import Calls, watched
from renorm.runtime.report import OutputRecord, VerifiedRecord

Array = np.ndarray[Any, Any]

Compiled = TypeVar("Compiled", bound=CompiledModule)
_ROWS = 7  # more than a tile of a product has, which is 6 at most where vectors are of eight floats
_MORE = (2, 5, 3, 7)  # by which open extents are apart
UNSEEN = ("ChooseLayouts", "aliasing", "Fuse")  # in the order in which they are left out
ROUNDING = "ChoosePrecision"  # left out last


def verified(source: Graph, make: Callable[[tuple[str, ...]], Compiled], passes: Sequence[str] = UNSEEN) -> Compiled:
    """Return what `make` compiles without the fewest passes that must be left out to give the results of `source`,
    where extents are open at several values of these. What is left out stands among the report's refusals;
    `report.verified` says what was compared, and what was not. passes: names, in the order in which they are
    left out.

    Raise VerificationError where the results differ without any of them, InvalidTarget where the network cannot be
    computed with any open extents that are tried.
    """
    probes = _probes(source)
    first = ""
    for left_out in range(len(passes) + 1):
        module = make(tuple(passes[:left_out]))
        if not module.runs_here:
            required = module.program.machine
            said = f"the compiled code, which is for {required.arch} {required.cpu}".rstrip()
            return _reported(module, VerifiedRecord(unchecked=(f"{said}, and this machine cannot run it",)))
        records, reason = list[VerifiedRecord](), None
        for probe in probes:
            record, reason = probe.compare(module)
            records.append(record)
            if reason is not None:  # larger ones take longer
                break
        record = _all_of(records)
        if reason is None:
            refused = (passes[left_out - 1], source.name, f"reverted: compiled, {first}")
            return _reported(module, record, [refused] if left_out else [])
        first = first or reason
    raise VerificationError(
        f"{source.name}: compiled, it gives other results than the interpreter",
        [first, f"also without {', '.join(passes)}"],
        "report this with the model; `renorm check MODEL` names the first node that differs",
    )


def unseen(precision: str, is_gpu: bool) -> tuple[str, ...]:
    """Return passes that change no node, or round on purpose, in the order in which they are left out. is_gpu: whether
    tensor cores multiply what a network itself holds in 16 bits."""
    return UNSEEN if precision in ("fast", "exact") and not is_gpu else (*UNSEEN, ROUNDING)


class _Probe:
    """Random inputs of a network, and its definition on them. sizes: of open extents."""

    def __init__(self, source: Graph, sizes: Mapping[str, int]):
        self._source, self.sizes = source.copy(sizes) if sizes else source, sizes
        self._inputs, values = evaluate_on_random_inputs(self._source)
        self._definition = Sensitivity(self._source.outputs, self._source.nodes, values)

    def compare(self, module: CompiledModule) -> tuple[VerifiedRecord, str | None]:
        """Return what was compared, and a sentence where something differs."""
        with watched() as calls:
            found = module.evaluate([*self._inputs.values()])
        if calls:
            return _compare_around_external_code(module.graph, self._source, self._inputs, found, calls)
        inputs = dict(zip((v.name for v in module.graph.inputs), self._inputs.values(), strict=True))
        definition = self._definition.of_compiled(module.graph, inputs)
        record, reason = _compare(self._source.outputs, found, definition)
        if not self.sizes:
            return record, reason
        where = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        return replace(record, extents=(where,)), reason and f"where {where}: {reason}"


def _probes(source: Graph) -> list[_Probe]:
    """Return what code is held against: of open extents the least with which the network can be computed, somewhat more
    of each, so that no two are equal, and a third of what is typical, or _ROWS, with which tiles have tails."""
    counted = counted_symbols(source)  # which follow from inputs
    symbols, found = [s for s in open_extents(source) if s not in counted], list[_Probe]()
    if not symbols:
        return [_Probe(source, {})]
    error: RenormError | None = None
    for extent in sorted(EXTENTS):
        try:
            found.append(_Probe(source, {str(s): nearest(s, extent) for s in symbols}))
        except RenormError as failed:
            error = failed
            continue
        more = {str(s): nearest(s, extent + _MORE[i % len(_MORE)]) for i, s in enumerate(symbols)}
        tails = {str(s): nearest(s, n) for s, n in zip(symbols, _thirds(source, symbols, extent))}
        for sizes in (more, tails):
            if all(sizes != probe.sizes for probe in found):
                with suppress(RenormError):  # extents that contradict each other
                    found.append(_Probe(source, sizes))
        return found
    with suppress(RenormError):  # conditions between extents may leave none that are alike
        return [_Probe(source, {name: n for name, n in typical_sizes(source).items() if name not in counted})]
    assert error is not None
    facts = [str(error), f"tried {', '.join(map(str, sorted(EXTENTS)))} for {', '.join(symbols)}"]
    raise InvalidTarget(f"verify finds no open extents with which {source.name} can be computed", facts) from error


def _thirds(source: Graph, symbols: Sequence[Symbol], least: int) -> list[int]:
    typical = typical_sizes(source)
    return [max(least, _ROWS, typical[s] // 3 | 1) for s in symbols]


def _all_of(records: Sequence[VerifiedRecord]) -> VerifiedRecord:
    """Return the largest errors of outputs, and all that was compared."""
    outputs = tuple(max(found, key=lambda o: o.error) for found in zip(*(r.outputs for r in records), strict=True))
    unchecked = dict.fromkeys(said for r in records for said in r.unchecked)
    return VerifiedRecord(outputs, tuple(unchecked), tuple(e for r in records for e in r.extents))


def _reported(module: Compiled, record: VerifiedRecord, refused: Sequence[tuple[str, str, str]] = ()) -> Compiled:
    """Return the module with the record in its report, where guards, which no caller sees, are no outputs."""
    outputs, report = list(record.outputs), module.program.report
    del outputs[module.program.guards]
    record = replace(record, outputs=tuple(outputs))
    report = replace(report, verified=record, refusals=(*report.refusals, *refused))
    module.program = replace(module.program, report=report)
    return module


def _compare(
    results: Sequence[Value], found: Sequence[Array], definition: Sensitivity
) -> tuple[VerifiedRecord, str | None]:
    """Return what was compared, and a sentence where something differs. definition: of `results`."""
    records, reason = list[OutputRecord](), None
    for i, (v, array) in enumerate(zip(results, found, strict=True)):
        difference = definition.judge(i, array)
        records.append(OutputRecord(v.name, difference.error, definition.tolerances[i], difference.unchecked))
        if not difference.agrees:
            reason = reason or difference.sentence(f"output {v.name!r}", v.dtype)
    return VerifiedRecord(tuple(records)), reason


def _compare_around_external_code(
    graph: Graph, source: Graph, inputs: Mapping[str, Array], found: Sequence[Array], calls: Calls
) -> tuple[VerifiedRecord, str | None]:
    """Return the same for a network parts of which external code runs, which may have a number format of its own: what
    it reads is compared, and what the network makes of that which it wrote. How far that is from its definition is
    reported.

    graph: after the passes. calls: what external code read and wrote, in the order of the launches.
    """
    groups = [g for g in graph.launches if g.external]
    known = interpret.known(graph, [*inputs.values()])
    read = list[tuple[Value, Array]]()
    for group, (operands, results) in zip(groups, calls, strict=True):
        assert group.external is not None
        reads, writes = external_values(group, group.external)
        read += zip(reads, operands, strict=True)
        known |= zip(writes, map(interpret.widen, results), strict=True)
    ours = [n for n in graph.nodes if not any(n in g.nodes for g in groups)]
    results = [*graph.outputs, *(v for v, _ in read)]
    definition = Sensitivity(results, ours, known)
    record, reason = _compare(results, [*found, *(a for _, a in read)], definition)
    records = [replace(record.outputs[i], name=v.name) for i, v in enumerate(source.outputs)]
    return VerifiedRecord(tuple(records), tuple(_external_error(g, definition.plain) for g in groups)), reason


def _external_error(group: Group, values: Mapping[Value, Array]) -> str:
    """Return how far external code is from the definition of its nodes."""
    defined = dict(values)
    interpret.compute(group.nodes, defined)
    error = max(relative_error(values[v], defined[v]) for v in group.nodes[-1].outputs)
    nodes = ", ".join(n.name for n in group.nodes)
    return f"external code of kernel {group.name!r} ({nodes}); it is {error:.2g} of its largest result off"
