"""renorm inspect: what is in a model, and what becomes of each of its normalizations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import renorm
from renorm.cli import output
from renorm.cli.options import compiling, model, verb
from renorm.driver.analysis import analyze
from renorm.runtime.report import NormRecord


@verb("inspect")
@model
@click.option("--graph", "with_graph", is_flag=True, help="Print the graph after the passes, cut into kernels.")
@click.option("--refusals", "with_refusals", is_flag=True, help="Print every rewrite that did not fire, and why.")
@compiling
def command(
    model: Path, with_graph: bool, with_refusals: bool, options: dict[str, Any], as_json: bool
) -> output.Outcome:
    """Prints ops, kernels and memory of MODEL (.onnx or .renorm), and the fate of each normalization with its
    reason."""
    source, graph = None, None
    if model.suffix == ".renorm":
        report = renorm.load(model).report
    else:
        source = renorm.read(model)
        options.pop("threads")
        graph, report = analyze(source, **options)
    ops = Counter(n.op.name for n in source.nodes) if source else Counter[str]()
    if not as_json:
        if source:
            output.line(f"{source.name}: {len(source.nodes)} nodes, {len(report.kernels)} kernels")
            for side, values in (("input", source.inputs), ("output", source.outputs)):
                for v in values:
                    output.line(f"  {side} {v.name}: {v.type}")
        output.table("ops", ("op", "nodes"), ops.most_common())
        norms_table(report.norms)
        kinds = Counter(re.sub(r"_\d+$", "", k.name) for k in report.kernels)  # kernels of one kind are numbered
        output.table("kernels", ("kernel", "launches"), kinds.most_common())
        memory = report.memory
        if memory.weights or memory.arena:
            output.line(f"memory: {output.memory_text(memory)}")
        if report.run.phases:
            output.line(f"run: {report.run}")
        for diagnosis in report.diagnoses:
            output.line(f"diagnosis: {diagnosis}")
        if with_refusals:
            output.table("refusals", ("rewrite", "node", "reason"), report.refusals)
        if with_graph and graph:
            output.line(str(graph))
    data = {"ops": dict(ops), "report": report.to_json()}
    return output.Outcome(data | ({"graph": str(graph)} if with_graph and graph else {}))


def norms_table(norms: Sequence[NormRecord]) -> None:
    """One row per normalization of the source model."""
    rows = [(n.name, n.kind, n.fate, ", ".join(n.into) or "-", n.reason) for n in norms]
    output.table("normalizations", ("node", "kind", "fate", "into", "reason"), rows)
