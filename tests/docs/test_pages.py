"""What pages say twice, or of the code, is what the code says."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.codegen.test_math import PROMISED

import renorm
import renorm.cli
from renorm.cli.group import VERBS
from renorm.runtime.report import FATES
from renorm.training.conventions import CONVENTIONS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "SECURITY.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").glob("*.md"),
    ]
)


def rows(page: str, heading: str) -> list[list[str]]:
    """Cells of the table whose first column is headed so."""
    text = (ROOT / page).read_text()
    table = text.split(f"\n| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in table]


def test_the_primitives_are_those_of_the_docstrings() -> None:
    script = ROOT / "scripts" / "schedules_page.py"
    assert subprocess.run([sys.executable, script, "--check"]).returncode == 0, f"run {script}"


def test_errors_of_functions_are_those_that_are_tested() -> None:
    assert {n: (float(a), float(b)) for n, a, b in rows("docs/semantics.md", "function")} == PROMISED


def test_exit_codes() -> None:
    told = re.findall(r"^ +(\d+) +\S", inspect.getdoc(renorm.cli) or "", re.MULTILINE)
    assert [r[0] for r in rows("docs/using.md", "exit code")] == told


def test_verbs_and_options_and_fates() -> None:
    verbs = re.findall(r"`([a-z]+)", "".join(f"`{r[0]}" for r in rows("docs/using.md", "verb")))
    assert set(verbs) == set(VERBS)
    options = [n for n in inspect.signature(renorm.compile).parameters if n != "progress"]
    assert {r[0] for r in rows("docs/using.md", "option of `renorm.compile`")} == set(options)
    assert {r[0] for r in rows("docs/using.md", "fate")} == set(FATES)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    links = {link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link}
    missing = [link for link in links if not (page.parent / link).exists()]
    paths = set(re.findall(r"`((?:[a-z_]+/)+[\w.-]*)`", text))
    bases = (ROOT, ROOT / "src" / "renorm")
    missing += [p for p in paths if not any((base / p).exists() for base in bases)]
    assert not missing


def test_conventions_are_those_of_the_code() -> None:
    for name, running, momentum, variance, epsilon in rows("docs/batch-norm.md", "convention"):
        found = str(CONVENTIONS[name])
        said = f"{name}: running = {running}, momentum {momentum}, running variance {variance}"
        assert found.startswith(said), found
        assert found.endswith(f", epsilon {epsilon}"), found
    assert len(rows("docs/batch-norm.md", "convention")) == len(CONVENTIONS)
