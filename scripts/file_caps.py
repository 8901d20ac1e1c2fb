"""Files stay small: 600 lines, an op 200. Prints those that do not; exit status 1 if there is one."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE_CAP, OP_CAP = 600, 200  # lines


def too_long() -> list[str]:
    """Files above their cap."""
    found: list[str] = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        cap = OP_CAP if path.parent == ROOT / "src" / "renorm" / "ops" else FILE_CAP
        lines = len(path.read_text().splitlines())
        if lines > cap:
            found.append(f"{path.relative_to(ROOT)}: {lines} lines, the cap is {cap}")
    return found


if __name__ == "__main__":
    problems = too_long()
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(bool(problems))
