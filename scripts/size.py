"""Lines of each room against its budget, and of each file against its cap (scripts/budget.toml).

scripts/size              the table
scripts/size --check      exit status 1 where a room or a file has more than it may
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BUDGET = ROOT / "scripts" / "budget.toml"


def lines_of(root: Path) -> dict[str, dict[str, int]]:
    """The lines of each file below src/renorm, by room; files that are in none are in the room "."."""
    found: dict[str, dict[str, int]] = {}
    for path in sorted((root / "src" / "renorm").rglob("*.py")):
        room, *rest = path.relative_to(root / "src" / "renorm").parts
        lines = path.read_text().count("\n")
        found.setdefault(room if rest else ".", {})[str(path.relative_to(root))] = lines
    return found


def excesses(found: dict[str, dict[str, int]], budget: dict[str, Any]) -> list[str]:
    """Return a sentence for each room and each file above what it may have, and each room without a budget."""
    rooms, caps = budget["rooms"], budget["files"]
    said = [f"{room} has no budget" for room in found.keys() - rooms.keys()]
    said += [f"there is no room {room}" for room in rooms.keys() - found.keys()]
    for room, files in found.items():
        if (total := sum(files.values())) > rooms.get(room, total):
            said.append(f"{room}: {total} lines, its budget is {rooms[room]}; raise it in {BUDGET.name} with a reason")
        for file, lines in files.items():
            cap = caps["op"] if Path(file).parent.name == "ops" else caps["file"]
            if lines > cap:
                said.append(f"{file}: {lines} lines, the cap is {cap}")
    return sorted(said)


def table(found: dict[str, dict[str, int]], budget: dict[str, Any]) -> list[str]:
    """Return a line for each room, the largest first, and one for all."""
    rooms = {room: sum(files.values()) for room, files in found.items()}
    rows = [("room", "files", "lines", "budget", "left")]
    for room, lines in sorted(rooms.items(), key=lambda item: -item[1]):
        allowed = budget["rooms"].get(room, 0)
        rows.append((room, str(len(found[room])), f"{lines:,}", f"{allowed:,}", f"{allowed - lines:,}"))
    total, allowed, count = sum(rooms.values()), sum(budget["rooms"].values()), sum(map(len, found.values()))
    rows.append(("all", str(count), f"{total:,}", f"{allowed:,}", f"{allowed - total:,}"))
    return [f"{room:10} {files:>6} {lines:>7} {most:>7} {left:>6}" for room, files, lines, most, left in rows] + [
        f"goal {budget['goal']:,}: {total - budget['goal']:,} lines too many"
    ]


def lowered(found: dict[str, dict[str, int]], text: str) -> str:
    """Return the text of the budget, rooms without what they do not use."""

    def line(match: re.Match[str]) -> str:
        room = match[1].strip('"')
        used = sum(found[room].values()) if room in found else int(match[2])
        return f"{match[1]} = {min(used, int(match[2]))}"

    head, rooms = text.split("[rooms]")
    return head + "[rooms]" + re.sub(r"(\S+) = (\d+)", line, rooms)


if __name__ == "__main__":
    if "--lower" in sys.argv:
        BUDGET.write_text(lowered(lines_of(ROOT), BUDGET.read_text()))
    budget, found = tomllib.loads(BUDGET.read_text()), lines_of(ROOT)
    problems = excesses(found, budget)
    print("\n".join(problems if "--check" in sys.argv else [*table(found, budget), *problems]))
    sys.exit(bool(problems))
