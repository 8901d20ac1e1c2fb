"""renorm bench: how long a network takes, beside other runtimes if asked."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from renorm.cli import network, output
from renorm.cli.options import compiling, model, seed, verb
from renorm.driver.measure import measure, peer


@verb("bench")
@model
@click.option("--against", default="", metavar="NAMES", help="Runtimes to measure beside renorm: ort,openvino.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="How often they take turns.")
@click.option("--seconds", type=float, default=2.0, show_default=True, help="How long each of them runs in all.")
@seed
@compiling
def command(
    model: Path, against: str, rounds: int, seconds: float, seed: int, options: dict[str, Any], as_json: bool
) -> output.Outcome:
    """Measures the latency of MODEL (.onnx or .renorm) on random inputs: median, 90th percentile, spread."""
    opened, inputs = network.with_inputs(model, options, seed, as_json)
    positional = list(inputs.values())
    runs = {"renorm": lambda: opened.run(*positional)}
    for name in filter(None, against.split(",")):
        runs[name] = peer(name, model, inputs, opened.threads)
    found = measure(runs, rounds=rounds, seconds=seconds)
    if not as_json:
        rows = [(t.name, t.median, t.p90, t.least, f"{t.spread:.1%}", t.calls) for t in found]
        columns = ("runtime", "median", "p90", "least", "spread", "calls")
        output.table(f"{model.name}, {opened.threads} threads, ms per call", columns, rows)
    shapes = {n: list(a.shape) for n, a in inputs.items()}
    return output.Outcome({"threads": opened.threads, "shapes": shapes, "latency_ms": [asdict(t) for t in found]})
