"""What cannot be read of a file or written to one, noted node by node: one error names all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from renorm.core.errors import RenormError

_SHOWN = 100  # problems of one file that have a line of their own


@dataclass(frozen=True)
class Problem:
    """node: its name, "" where something else of the file is wrong. op: what the node applies, where its name does not
    say it. kind: by which nodes are counted."""

    error: RenormError
    node: str = ""
    op: str = ""
    kind: str = "others"

    def sentence(self, label: str) -> str:
        """Return what is wrong and where, for an error that begins with the file's label."""
        why, quoted = self.error.headline.removeprefix(f"{label}: "), f"node {self.node!r}"
        if not self.node:
            return why
        return f"{quoted}{f' ({self.op})' if self.op else ''}: {why.removeprefix(f'{quoted}: ')}"


def further(problems: Sequence[Problem], label: str) -> list[str]:
    """Return a line for each: thousands would hide what stands before them."""
    lines = [f"also: {p.sentence(label)}" for p in problems[:_SHOWN]]
    if kinds := Counter(p.kind for p in problems[_SHOWN:]):
        lines.append("and more: " + ", ".join(f"{kind} ({n})" for kind, n in kinds.items()))
    return lines


def together(problems: Sequence[Problem], label: str) -> RenormError:
    """Return the error of the first problem with a line for each of the others."""
    first = problems[0].error
    facts = [*first.facts, *further(problems[1:], label)]
    error = type(first)(f"{label}: {problems[0].sentence(label)}", facts, first.do)
    error.__cause__ = first
    return error
