"""renorm unfold: a folded model becomes the one that it was made of."""

from __future__ import annotations

from pathlib import Path

import click

import renorm
from renorm.cli import output
from renorm.cli.options import FILE, limit, model, verb
from renorm.core.limits import Limits


@verb("unfold")
@model
@click.argument("path", metavar="OUT", type=FILE)
@click.option("--partial", is_flag=True, help="Restore what can be, where MODEL was changed since.")
@limit
def command(model: Path, path: Path, partial: bool, limits: Limits) -> output.Outcome:
    """Writes to OUT the model that MODEL was made of by `renorm optimize --reversible`: norms, weights and names as
    they were, bit for bit. What was changed in MODEL since cannot be undone: it is an error, or with --partial stays
    and is named."""
    found = renorm.unfold(model, path, partial=partial, limits=limits)
    output.table("restored", ("operator", "name"), found.restored)
    output.table("left as it is", ("makes", "because"), found.left)
    output.line(f"{path}: {output.bytes_text(path.stat().st_size)}")
    return output.Outcome({"model": str(path), "restored": list(found.restored), "left": list(found.left)})
