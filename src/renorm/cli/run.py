"""renorm run: runs a model or an artifact on arrays from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from renorm.cli import network, output
from renorm.cli.options import arrays, compiling, given, model, seed, verb
from renorm.core.comparison import random_inputs


@verb("run")
@model
@given
@click.option("-o", "--output", "path", type=click.Path(path_type=Path), help="A .npz file for the outputs, by name.")
@seed
@compiling
def command(
    model: Path, inputs: tuple[str, ...], path: Path | None, seed: int, options: dict[str, Any], as_json: bool
) -> output.Outcome:
    """Runs MODEL (.onnx or .renorm). Inputs that no --input gives are random."""
    opened = network.opened(model, options, as_json)
    names = [v.name for v in opened.inputs]
    held = arrays(inputs, names)
    drawn = [n for n in names if n not in held]
    if drawn:
        shapes = {**(options["shapes"] or {}), **{n: a.shape for n, a in held.items()}}
        held = {**random_inputs(opened.inputs, seed, shapes), **held}
    results = dict(zip((v.name for v in opened.outputs), opened.run(*[held[n] for n in names])))
    if path:
        np.savez(path, **results)
    rows = [(n, str(a.dtype), "x".join(map(str, a.shape)), *_extremes(a)) for n, a in results.items()]
    if not as_json:
        if drawn:
            output.line(f"random input: {', '.join(drawn)} (seed {seed})")
        output.table("outputs", ("name", "dtype", "shape", "least", "mean", "greatest"), rows)
    keys = ("name", "dtype", "shape", "min", "mean", "max")
    return output.Outcome({"random": drawn, "outputs": [dict(zip(keys, r)) for r in rows]})


def _extremes(array: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Least, mean and greatest element; NaN of an empty array."""
    if array.size == 0:
        return float("nan"), float("nan"), float("nan")
    wide = array.astype(np.float64)
    return float(wide.min()), float(wide.mean()), float(wide.max())
