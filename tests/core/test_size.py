"""Rooms and files that grow beyond what they may have are named."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

spec = importlib.util.spec_from_file_location("size", Path(__file__).parents[2] / "scripts" / "size.py")
assert spec is not None
assert spec.loader is not None
size: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(size)


def test_what_has_more_lines_than_it_may_is_named(tmp_path: Path) -> None:
    files = {
        "target.py": 3,
        "ops/add.py": 4,
        "ops/schedules/cpu.py": 7,
        "te/lower.py": 9,
        "te/new/deep.py": 2,
        "cli/a.py": 1,
    }
    for name, lines in files.items():
        path = tmp_path / "src" / "renorm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n" * lines)
    found = size.lines_of(tmp_path)
    budget = {"goal": 20, "files": {"file": 8, "op": 3}, "rooms": {".": 3, "ops": 10, "te": 20, "tir": 5}}
    assert size.excesses(found, budget) == [
        "cli has no budget",
        "ops: 11 lines, its budget is 10; raise it in budget.toml with a reason",
        "src/renorm/ops/add.py: 4 lines, the cap is 3",
        "src/renorm/te/lower.py: 9 lines, the cap is 8",
        "there is no room tir",
    ]
    assert [line.split() for line in size.table(found, budget)[1:4]] == [
        ["ops", "2", "11", "10", "-1"],
        ["te", "2", "11", "20", "9"],
        [".", "1", "3", "3", "0"],
    ]
    assert size.table(found, budget)[-1] == "goal 20: 6 lines too many"
    text = 'goal = 99\n[rooms]\nops = 10  # a reason\nte = 20\n"." = 9\n'
    assert size.lowered(found, text) == 'goal = 99\n[rooms]\nops = 10  # a reason\nte = 11\n"." = 3\n'


def test_the_budget_names_every_room() -> None:
    assert set(size.lines_of(size.ROOT)) == set(size.tomllib.loads(size.BUDGET.read_text())["rooms"])
