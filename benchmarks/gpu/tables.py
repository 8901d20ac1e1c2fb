"""Tables of plain text, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows under a head, in columns; numbers to the right."""
    texts = [list(head), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    is_number = [all(not isinstance(row[i], str) for row in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join(t.rjust(w) if n else t.ljust(w) for t, w, n in zip(row, widths, is_number)).rstrip() for row in texts
    )


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.2g}" if abs(cell) < 1e-2 and cell else f"{cell:.3f}" if abs(cell) < 10 else f"{cell:.1f}"
    return "-" if cell is None else str(cell)
