"""renorm inspect: what is in a model, and what becomes of each of its normalizations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from renorm.cli import network, output
from renorm.cli.options import FILE, bound, compiling, model, trusting, verb
from renorm.core.errors import InvalidInput
from renorm.core.files import replacing
from renorm.core.inputs import format_elements
from renorm.driver.compile import planned
from renorm.driver.host_part import named
from renorm.driver.planned import PlannedPart
from renorm.graph import drawing
from renorm.runtime import artifact
from renorm.runtime.program import Program
from renorm.runtime.report import NormRecord, Report
from renorm.runtime.steps import Plan
from renorm.training.conventions import CONVENTIONS, Convention
from renorm.training.settings import Settings, settings_of


@verb("inspect")
@model
@click.option("--graph", "with_graph", is_flag=True, help="Print the graph after the passes, cut into kernels.")
@click.option("--names", "with_names", is_flag=True, help="Print which tensors have other names now, or are gone.")
@click.option("--refusals", "with_refusals", is_flag=True, help="Print every rewrite that did not fire, and why.")
@click.option(
    "--draw",
    type=FILE,
    help="Write the graph after the passes as a drawing: .dot or .gv for Graphviz, .mmd for Mermaid.",
)
@click.option(
    "--convention",
    type=click.Choice(tuple(CONVENTIONS)),
    help="Print momentum, epsilon and running variance of batch norms also as this library means them.",
)
@bound
@trusting
@compiling
def command(
    model: Path,
    with_graph: bool,
    with_names: bool,
    with_refusals: bool,
    draw: Path | None,
    convention: str | None,
    bound: dict[str, Any] | None,
    options: dict[str, Any],
    trust: dict[str, Any],
) -> output.Outcome:
    """Prints ops, kernels and memory of MODEL (a model or a .renorm), and of each normalization its fate, where it went
    and why, its error (~: estimated), how much weights grew, and how many times they fit into float16."""
    held, parts, plan = None, list[PlannedPart](), None
    if model.suffix == ".renorm":
        held = _Held(*artifact.programs(model, **trust))
        report = Report.of_parts([p.report for p in held.programs]) if held.plan else held.programs[0].report
    else:
        network.refuse_trust(model, trust)
        options.pop("threads")
        parts, plan = planned(model, inputs=bound, **options)
        report = Report.of_parts([p.report for p in parts]) if plan else parts[0].report
    sources, graphs = [g for p in parts for g in p.sources], [g for p in parts for g in p.graphs]
    if draw:
        if len(graphs) != 1:
            what = "is an artifact" if held else f"runs in {len(graphs)} parts"
            raise InvalidInput(f"{model.name} {what}, and has no graph to draw", do="draw a network that is one graph")
        drawn = drawing.text(graphs[0], draw.suffix).encode()
        with replacing(draw) as file:
            file.write(drawn)
    ops = Counter(n.op.name for p in parts for n in p.nodes)
    if parts:
        output.line(f"{plan.name if plan else parts[0].name}: {ops.total()} nodes, {len(report.kernels)} kernels")
    for source in sources if plan is None else ():
        for side, values in (("input", source.inputs), ("output", source.outputs)):
            for v in values:
                output.line(f"  {side} {v.name}: {v.type}{format_elements(v.deciding)}")
    if plan is not None:
        for side, specs in (("input", plan.inputs), ("output", plan.results)):
            for v in specs:
                output.line(f"  {side} {v}")
        output.line(f"  it runs in {len(parts)} parts: {plan.obstacle.splitlines()[0]}")
        rows = [
            (p.name, p.by or "its types are known once the network runs", len(p.nodes), len(p.report.kernels), _ops(p))
            for p in parts
        ]
        output.table("parts", ("part", "run by", "nodes", "kernels", "ops"), rows)
        for why in dict.fromkeys(p.why for p in parts if p.why):
            output.line(f"the host runs {', '.join(p.name for p in parts if p.why == why)}, because {why}")
    if held:
        for line in held.lines():
            output.line(line)
    output.table("ops", ("op", "nodes"), ops.most_common())
    norms_table(report.norms)
    settings = [s for source in sources for s in settings_of(source)]
    if parts:
        settings_table(settings, convention)
    near = [(n.name, n.kind, n.reason, ", ".join(n.nodes)) for n in report.near_norms]
    output.table("nearly normalizations, left in pieces", ("node", "resembles", "reason", "nodes"), near)
    # kernels of one kind are numbered
    kinds = Counter((re.sub(r"_\d+$", "", k.name), k.target or "-") for k in report.kernels)
    rows = [(name, launches, target) for (name, target), launches in kinds.most_common()]
    output.table("kernels", ("kernel", "launches", "external code of"), rows)
    if report.precisions:
        rows = [(p.name, p.node, p.dtype, p.elements, p.reason) for p in report.precisions]
        output.table("values between kernels", ("value", "node", "as", "elements", "why not in fewer digits"), rows)
        output.line(report.arithmetic)
    memory = report.memory
    if memory.weights or memory.arena:
        output.line(f"memory: {output.memory_text(memory)}")
    if report.run.phases:
        output.line(f"run: {report.run}")
    for line in report.verified.lines if report.verified else ():
        output.line(line)
    for diagnosis in report.diagnoses:
        output.line(f"diagnosis: {diagnosis}")
    for assumption in report.assumptions:
        output.line(f"assumption: {assumption}")
    if with_names:
        output.table("tensors", ("in the model", "now"), [(k, v or "-") for k, v in report.names.items() if k != v])
    if with_refusals:
        output.table("refusals", ("rewrite", "node", "reason"), report.refusals)
    for graph in graphs if with_graph else ():
        output.line(str(graph))
    data: dict[str, Any] = {"ops": dict(ops), "report": report.to_json()} | (held.to_json() if held else {"state": []})
    if plan is not None:
        data |= {"parts": [p.to_json() for p in parts], "obstacle": plan.obstacle}
    if parts:
        data["batch_norms"] = [
            s.to_json() | ({convention: s.translated(convention)} if convention else {}) for s in settings
        ]
    return output.Outcome(data | ({"graph": "\n".join(map(str, graphs))} if with_graph and graphs else {}))


def _ops(part: PlannedPart) -> str:
    return named([f"{op} {n}" if n > 1 else op for op, n in Counter(n.op.name for n in part.nodes).most_common()])


@dataclass(frozen=True)
class _Held:
    """The manifest of an artifact as text; nothing of it is loaded. plan: of a network in parts, whose programs all are
    for one machine."""

    header: artifact.Header
    plan: Plan | None
    programs: Sequence[Program]

    def to_json(self) -> dict[str, Any]:
        first = self.programs[0]
        results = [str(s) for s in first.results] if self.plan is None else [name for name, _ in self.plan.outputs]
        parts = {} if self.plan is None else {"parts": [{"name": name} for name in self.plan.names]}
        return parts | {
            "digest": self.header.digest,
            "is_signed": self.header.is_signed,
            "machine": {"arch": first.machine.arch, "cpu": first.machine.cpu, "features": list(first.machine.features)},
            "inputs": [str(s) for s in (first.given if self.plan is None else self.plan.inputs)],
            "outputs": results,
            "state": [str(s) for s in first.state],
            "loaders": [e.loader for p in self.programs for e in p.externals],
        }

    def lines(self) -> list[str]:
        said, first = self.to_json(), self.programs[0]
        name, kernels = (self.plan or first).name, sum(len(p.steps) for p in self.programs)
        lines = [
            f"{name}: {kernels} kernels, an artifact for {first.machine.arch} {first.machine.cpu}",
            f"  digest {self.header.digest}, {'signed' if self.header.is_signed else 'not signed'}",
        ]
        if self.plan is not None:
            lines.append(f"  it runs in {len(self.plan.names)} parts: {self.plan.obstacle.splitlines()[0]}")
        lines += [f"  requires {', '.join(first.machine.features)}"] if first.machine.features else []
        lines += [f"  {side[:-1]} {text}" for side in ("inputs", "outputs") for text in said[side]]
        lines += [f"  state {text}" for text in said["state"]]
        return lines + [f"  external code, loaded by {name!r}" for name in dict.fromkeys(said["loaders"])]


def norms_table(norms: Sequence[NormRecord]) -> None:
    """One row per normalization of the source model, and which constants would not survive in float16."""
    rows = [
        (n.name, n.kind, n.fate, _into(n), _error(n), _times(n.growth), _times(n.headroom), _told(n)) for n in norms
    ]
    columns = ("node", "kind", "fate", "into", "error", "weights grew", "float16 holds", "reason [rules]")
    output.table("normalizations", columns, rows)
    for n in norms:
        if n.float16:
            output.line(f"float16: {n.name}: {n.float16}")


def settings_table(settings: Sequence[Settings], convention: str | None) -> None:
    """The training parameters of batch norms, in the convention of the file and in the one that is asked for."""
    rows = list[tuple[Any, ...]]()
    for s in settings:
        own = s.convention
        mode = "the batch's (training)" if s.is_training else "stored ones"
        variance = "unbiased" if own.corrected else "population"
        rows.append((_named(s.nodes), mode, *_running(own, s.momentum), variance, s.epsilon))
        if convention and convention != own.name:
            t = s.translated(convention)
            rows.append(("", "", *_running(CONVENTIONS[convention], t["momentum"]), t["running_var"], t["epsilon"]))
    columns = ("batch norms", "statistics", "convention", "momentum", "new running =", "running variance", "epsilon")
    output.table("batch norms in training", columns, rows)
    shown = [s.convention.name for s in settings] + ([convention] if settings and convention else [])
    for name in dict.fromkeys(shown):
        output.line(f"by default {CONVENTIONS[name]}")


def _named(nodes: Sequence[str]) -> str:
    """Return how many, and the first of them."""
    return f"{len(nodes)}: {', '.join(nodes[:3])}{', ...' if len(nodes) > 3 else ''}"


def _running(convention: Convention, momentum: float | None) -> tuple[str, str, str]:
    """Name of the convention, momentum in its sense, and the sum that it stands for."""
    if momentum is None:
        return convention.name, "-", "given when it runs"
    batch = convention.batch_weight(momentum)
    return convention.name, _number(momentum), f"{_number(1 - batch)} * old + {_number(batch)} * batch"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _into(norm: NormRecord) -> str:
    through = f" through {', '.join(norm.through)}" if norm.through else ""
    return (", ".join(norm.into) or "-") + through


def _told(norm: NormRecord) -> str:
    raised = f"raised from {', '.join(norm.raised)}" if norm.raised else ""
    rules = f"[{', '.join(norm.rules)}]" if norm.rules else ""
    return " ".join(filter(None, ("; ".join(filter(None, (raised, norm.reason))), rules)))


def _error(norm: NormRecord) -> str:
    """Measured, or estimated (~), of the largest result."""
    if norm.error is None:
        return "-"
    return f"{'~' if norm.max_error is None else ''}{norm.error:.1e}"


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.3g}x"
