"""renorm optimize: a model file becomes a model file with its norms folded."""

from __future__ import annotations

from pathlib import Path

import click

import renorm
from renorm.cli import output
from renorm.cli.inspect import norms_table
from renorm.cli.options import keep, model, verb, verify


@verb("optimize")
@model
@click.argument("path", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--opt-level", type=click.IntRange(1, 2), default=2, show_default=True, help="1: constants only; 2: norms too."
)
@keep
@verify
def command(
    model: Path, path: Path, opt_level: int, keep: tuple[str, ...], verify: bool, as_json: bool
) -> output.Outcome:
    """Writes MODEL to OUT with what can be folded folded: same format, versions and output names."""
    report = renorm.optimize(model, path, opt_level=opt_level, keep=keep, verify=verify)
    if not as_json:
        norms_table(report.norms)
        output.line(f"{path}: {output.bytes_text(path.stat().st_size)}")
    return output.Outcome({"model": str(path), "report": report.to_json()})
