"""renorm restat: estimates the statistics of a model's batch norms anew, on data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from renorm.cli import output
from renorm.cli.options import FILE, OUTPUT, Finite, compiling, model, verb
from renorm.cli.progress import progress
from renorm.training.batches import Files
from renorm.training.reestimation import MEMORY, METHODS, restat


@verb("restat")
@model
@click.argument("data", nargs=-1, required=True, type=FILE)
@click.option("-o", "--output", "path", required=True, type=OUTPUT, help="The model that comes out.")
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default=METHODS[0],
    show_default=True,
    help="exact: a norm is measured after norms with their new statistics; one_pass: all at once, as in training.",
)
@click.option(
    "--batch-size", type=click.IntRange(1), default=None, help="Cut files into batches; default: a file is one."
)
@click.option(
    "--correction",
    type=click.IntRange(0, 1),
    default=0,
    show_default=True,
    help="1: the variance that is stored is M2 / (count - 1), not M2 / count.",
)
@click.option(
    "--memory",
    type=Finite(0),
    default=MEMORY / 2**30,
    show_default=True,
    metavar="GIB",
    help="For values between passes; without room for them, more is computed again.",
)
@compiling
def command(
    model: Path,
    data: tuple[Path, ...],
    path: Path,
    method: str,
    batch_size: int | None,
    correction: int,
    memory: float,
    options: dict[str, Any],
) -> output.Outcome:
    """Writes MODEL (.onnx) with the means and variances that its batch norms have on DATA: .npy files with the array of
    the only input, .npz files with one array per input, by name, and folders of such files. Nothing else of the file
    changes."""
    options |= {"correction": correction, "memory": int(memory * 2**30)}
    with progress(f"measuring {model.name}") as tell:
        found = restat(model, Files(data, batch_size), method=method, progress=tell, **options)
    found.write(path)
    rows = [
        (d.name, d.after, d.count, d.shift.value, d.ratios[0].value, d.ratios[1].value, f"{len(d.dead) or ''}")
        for d in found.layers
    ]
    columns = ("norm", "pass", "values", "mean moved by", "var / old, least", "greatest", "dead channels")
    output.table("drift; means in deviations", columns, rows)
    output.table("left as they are", ("norm", "because"), found.skipped)
    output.line(f"furthest: {found.worst.name}; {found.passage}")
    output.line(f"{path}: {output.bytes_text(path.stat().st_size)}")
    return output.Outcome({"model": str(path)} | found.to_json())
