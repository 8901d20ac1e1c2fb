"""renorm compile: a model file becomes an artifact."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

import renorm
from renorm.cli import output
from renorm.cli.options import FILE, bound, checked, compiling, model, train_state, verb
from renorm.cli.progress import progress
from renorm.core.errors import InvalidInput


@verb("compile")
@model
@click.option("-o", "--output", "path", type=FILE, help="The artifact; default: MODEL with .renorm.")
@click.option("--sign", metavar="FILE", help="Sign the artifact with this private key of Ed25519, in PEM.")
@bound
@train_state
@checked
@compiling
def command(
    model: Path, path: Path | None, sign: str | None, bound: dict[str, Any] | None, options: dict[str, Any]
) -> output.Outcome:
    """Compiles MODEL (any file that renorm reads) into an artifact that `renorm run` and renorm.load run without the
    compiler."""
    path = path or model.with_suffix(".renorm")
    if path.exists() and path.samefile(model):
        raise InvalidInput(f"{path} is the model itself", do="give the artifact another name (--output)")
    with progress(f"compiling {model.name}") as tell:
        module = renorm.compile(model, inputs=bound, progress=tell, **options)
    since = time.perf_counter()
    digest = module.save(path, sign)
    report = module.report
    seconds = {**report.seconds, "write": round(time.perf_counter() - since, 4)}
    code, size = report.code, output.bytes_text(path.stat().st_size)
    output.line(f"{path}: {len(report.kernels)} kernels, {size}, {sum(seconds.values()):.2f} s")
    output.line(f"  digest {digest}")
    output.line("  " + ", ".join(f"{stage} {spent:.2f} s" for stage, spent in seconds.items()))
    output.line(f"  {output.memory_text(report.memory)}")
    output.line(f"  {report.run}")
    if module.state:
        output.line(f"  state: {', '.join(module.state)}")
    made = f"{code.compiled} compiled in {code.processes} processes" if code.compiled else "none compiled"
    cached = f"{code.unique - code.compiled} from the cache ({code.cache})"
    output.line(f"  {code.unique} different kernels: {made}, {cached}")
    if code.refused:
        output.line(f"  {code.refused} lowered again for fewer registers, because their hot loops spilled")
    for line in report.verified.lines if report.verified else ():
        output.line(f"  {line}")
    for kernel in report.kernels:
        if kernel.spills:
            nodes = ", ".join(kernel.nodes)
            output.line(f"  {kernel} ({nodes}): no tile of its schedule does with the registers")
    return output.Outcome(
        {
            "artifact": str(path),
            "digest": digest,
            "seconds": seconds,
            "state": [*module.state],
            "report": report.to_json(),
        }
    )
