"""renorm check: whether compiled code computes what the model says."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import renorm
from renorm.cli import output
from renorm.cli.options import arrays, compiling, given, model, seed, verb
from renorm.cli.progress import progress
from renorm.core.comparison import random_inputs
from renorm.driver.compare import REFERENCES, TOLERANCE, compare


@verb("check")
@model
@given
@seed
@click.option("--reference", type=click.Choice(REFERENCES), default=None, help="Default: ort if it runs the model.")
@click.option("--tolerance", type=float, default=TOLERANCE, show_default=True, help="Of an output's largest value.")
@compiling
def command(
    model: Path,
    inputs: tuple[str, ...],
    seed: int,
    reference: str | None,
    tolerance: float,
    options: dict[str, Any],
    as_json: bool,
) -> output.Outcome:
    """Compares MODEL (.onnx) compiled by renorm with ONNX Runtime, or with the reference interpreter, on random inputs
    or given ones; names the first node that diverges. Says how far each layer that is computed by an algorithm which
    rounds differently is from its definition in float64. Exit code 1 if the outputs differ by more than the
    tolerance."""
    graph = renorm.read(model)
    held = arrays(inputs, [v.name for v in graph.inputs])
    shapes = {**(options.pop("shapes") or {}), **{n: a.shape for n, a in held.items()}}
    held = {**random_inputs(graph.inputs, seed, shapes), **held}
    with progress(f"checking {model.name}", as_json) as tell:
        found = compare(model, held, reference=reference, tolerance=tolerance, progress=tell, **options)
    if not as_json:
        rows = [(d.name, d.error, d.largest, "agrees" if d.error <= tolerance else "DIFFERS") for d in found.outputs]
        output.table(f"against {found.reference}", ("output", "relative error", "largest value", ""), rows)
        if found.roundings:
            layers = [(r.node, r.algorithm, r.l2, r.largest) for r in found.roundings]
            output.table("layers that round differently", ("node", "algorithm", "relative L2 error", "largest"), layers)
        if found.first:
            output.line(
                f"first diverging node: {found.first.name!r} ({found.first_op}), relative error {found.first.error:.3g}"
            )
    return output.Outcome(asdict(found) | {"agrees": found.agrees}, 0 if found.agrees else 1)
