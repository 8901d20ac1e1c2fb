"""renorm profile: how long each kernel of a network takes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from renorm.cli import network, output
from renorm.cli.options import compiling, model, seed, verb
from renorm.runtime.profile import profile


@verb("profile")
@model
@click.option("--repeats", type=click.IntRange(1), default=20, show_default=True, help="How often each kernel runs.")
@seed
@compiling
def command(model: Path, repeats: int, seed: int, options: dict[str, Any], as_json: bool) -> output.Outcome:
    """Measures every kernel launch of MODEL (.onnx or .renorm) on random inputs, in order, one at a time."""
    opened, inputs = network.with_inputs(model, options, seed, as_json)
    times = profile(opened, *inputs.values(), repeats=repeats)
    total = sum(t.seconds for t in times)
    if not as_json:
        rows = [(t.kernel, t.seconds * 1e6, t.fastest * 1e6, f"{t.seconds / (total or 1.0):.1%}") for t in times]
        title = f"{model.name}, {opened.threads} threads, us per launch, {total * 1e6:.0f} us in all"
        output.table(title, ("kernel", "median", "fastest", "share"), rows)
    return output.Outcome({"threads": opened.threads, "seconds": total, "launches": [asdict(t) for t in times]})
