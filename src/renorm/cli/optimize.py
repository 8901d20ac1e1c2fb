"""renorm optimize: a model file becomes a model file with its norms folded."""

from __future__ import annotations

import re
from difflib import unified_diff
from pathlib import Path
from typing import Any

import click

import renorm
from renorm.cli import output
from renorm.cli.inspect import norms_table
from renorm.cli.options import FILE, bound, keep, limit, shape, verb, verify
from renorm.core.limits import Limits
from renorm.driver.optimize import passes as known_passes
from renorm.errors import InvalidInput


@verb("optimize")
@click.argument("model", metavar="MODEL", required=False, type=FILE)
@click.argument("path", metavar="OUT", required=False, type=FILE)
@click.option(
    "--opt-level", type=click.IntRange(1, 2), default=2, show_default=True, help="1: constants only; 2: norms too."
)
@click.option("--passes", metavar="A,B", help="Run these only, in this order, and print what each does.")
@click.option("--list-passes", is_flag=True, help="What --passes takes; without MODEL and OUT.")
@click.option("--reversible", is_flag=True, help="Keep in the file what `renorm unfold` needs to undo it.")
@bound
@shape
@keep
@verify
@limit
def command(
    model: Path | None,
    path: Path | None,
    opt_level: int,
    passes: str | None,
    list_passes: bool,
    reversible: bool,
    bound: dict[str, Any] | None,
    shapes: dict[str, Any] | None,
    keep: tuple[str, ...],
    limits: Limits,
    verify: bool,
) -> output.Outcome:
    """Writes MODEL to OUT with what can be folded folded: same format, versions and output names."""
    if list_passes:
        known = known_passes()
        output.table("passes", ("name", "what it does"), [*known.items()])
        return output.Outcome({"passes": known})
    if model is None or path is None:
        raise InvalidInput("MODEL or OUT is missing", do="renorm optimize MODEL OUT")
    names = [name.strip() for name in re.split(r",(?![^(]*\))", passes or "") if name.strip()]
    seen = list[dict[str, Any]]()

    def watch(name: str, before: str, after: str) -> None:
        _print_pass(name, before, after, is_first=not seen)
        seen.append({"pass": name, "before": before, "after": after})

    report = renorm.optimize(
        model,
        path,
        opt_level=opt_level,
        keep=keep,
        verify=verify,
        passes=names,
        reversible=reversible,
        watch=watch if names else None,
        shapes=shapes,
        inputs=bound,
        limits=limits,
    )
    norms_table(report.norms)
    output.line(f"{path}: {output.bytes_text(path.stat().st_size)}")
    return output.Outcome({"model": str(path), "report": report.to_json()} | ({"passes": seen} if names else {}))


def _print_pass(name: str, before: str, after: str, is_first: bool) -> None:
    """The graph as it was at first, and then what each pass changes in it."""
    if is_first:
        output.line(before)
    if before == after:
        output.line(f"{name}: nothing changes")
        return
    lines = unified_diff(before.splitlines(), after.splitlines(), f"before {name}", f"after {name}", lineterm="", n=1)
    for text in lines:
        output.line(text)
