#!/usr/bin/env python
"""Writes the reference part of docs/schedules.md: primitives, and what is absent; --check only compares."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from renorm.core.absent_names import ABSENT
from renorm.te.schedule import Schedule
from renorm.te.stage import Stage

PAGE = Path(__file__).parents[1] / "docs" / "schedules.md"
MARK = "<!-- what follows is written by scripts/schedules_page.py from docstrings and core/absent_names.py -->\n"


def page() -> str:
    """The page as it should be: its own text as it is, the primitives, and what is absent."""
    text, mark, _ = PAGE.read_text().partition(MARK)
    assert mark, f"{PAGE} has lost its mark"
    parts = [*_primitives(Stage, "s[T]"), *_primitives(Schedule, "s"), _absent()]
    return text + MARK + "".join(f"\n{p}\n" for p in parts)


def _primitives(owner: type, receiver: str) -> Iterator[str]:
    for name, member in vars(owner).items():
        told = inspect.getdoc(member)
        if inspect.isfunction(member) and not name.startswith("_") and told and "    " in told:
            parameters = [str(p) if p.kind is p.VAR_POSITIONAL else p.name for p in _parameters(member)]
            yield f"### `{receiver}.{name}({', '.join(parameters)})`\n\n{_markdown(told)}"


def _absent() -> str:
    rows = [f"| `{name}` | {instead} |" for name, instead in ABSENT.items()]
    told = "Names of TVM 0.6 to 0.8 that are not there. Each raises `AbsentName`, which says the same."
    return "\n".join(["## Absent", "", told, "", "| name | instead |", "|---|---|", *rows])


def _parameters(member: Any) -> list[inspect.Parameter]:
    given = list(inspect.signature(member).parameters.values())[1:]
    return [p.replace(annotation=p.empty) for p in given]


def _markdown(docstring: str) -> str:
    """Loops, which docstrings indent, as blocks of code."""
    blocks = []
    for block in docstring.split("\n\n"):
        code = block.startswith("    ")
        blocks.append(f"```text\n{textwrap.dedent(block)}\n```" if code else " ".join(block.split("\n")))
    return "\n\n".join(blocks)


if __name__ == "__main__":
    wanted = page()
    if "--check" in sys.argv[1:]:
        sys.exit(PAGE.read_text() != wanted)
    PAGE.write_text(wanted)
