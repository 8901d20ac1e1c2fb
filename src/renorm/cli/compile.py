"""renorm compile: a model file becomes an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import renorm
from renorm.cli import output
from renorm.cli.options import compiling, model, verb
from renorm.cli.progress import progress


@verb("compile")
@model
@click.option(
    "-o", "--output", "path", type=click.Path(path_type=Path), help="The artifact; default: MODEL with .renorm."
)
@compiling
def command(model: Path, path: Path | None, options: dict[str, Any], as_json: bool) -> output.Outcome:
    """Compiles MODEL (.onnx) into an artifact that `renorm run` and renorm.load run without the compiler."""
    path = path or model.with_suffix(".renorm")
    with progress(f"compiling {model.name}", as_json) as tell:
        module = renorm.compile(model, progress=tell, **options)
    module.save(path)
    report = module.report
    if not as_json:
        seconds = sum(report.seconds.values())
        output.line(f"{path}: {len(report.kernels)} kernels, {output.bytes_text(path.stat().st_size)}, {seconds:.1f} s")
    return output.Outcome({"artifact": str(path), "report": report.to_json()})
