"""renorm cache: how much compiled code is kept on disk, and where."""

from __future__ import annotations

from dataclasses import asdict

import click

from renorm.cli import output
from renorm.cli.options import verb
from renorm.driver import cache


@verb("cache")
@click.option("--clear", is_flag=True, help="Remove everything that is kept.")
def command(clear: bool) -> output.Outcome:
    """Shows how much compiled code is kept for the next compilation, where, and how much there may be."""
    kept = cache.default()
    found = kept.clear() if clear else kept.usage()
    if kept.root is None:
        output.line(f"there is no cache: {kept.off}")
    else:
        done = "removed from" if clear else "in"
        held, most = output.bytes_text(found.bytes), output.bytes_text(kept.size)
        output.line(f"{found.entries} entries, {held} {done} {kept.root} (at most {most})")
    root = None if kept.root is None else str(kept.root)
    data = {"directory": root, "off": kept.off, "at_most": kept.size, "cleared": clear, **asdict(found)}
    return output.Outcome(data)
