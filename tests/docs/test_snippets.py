"""The programs in the documentation run as they stand: the Python blocks of a page in order, in one process, in a
directory with a `model.onnx`; then, in the same directory, its blocks of commands (`sh`), but those behind a comment
`<!-- not run: why -->`. Blocks of other languages are text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from renorm.cli.group import VERBS

pytestmark = pytest.mark.usefixtures("kept_code")

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
WARNINGS = "error,ignore:__array__ implementation:DeprecationWarning"  # Keras' own, of NumPy's protocol for copies

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

COMMANDS = re.compile(r"^(?:<!-- not run[^:]*: (.+) -->\n)?```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The page's blocks of commands, without those that give a reason not to be run."""
    return [block[2] for block in COMMANDS.finditer(page.read_text()) if not block[1]]


def program(page: Path) -> str:
    """The page's python blocks, each at the line where it stands, so that a traceback names lines of the page."""
    text = page.read_text()
    lines: list[str] = []
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        lines += [""] * (line - len(lines)) + block[1].splitlines()
    return "\n".join(lines)


@pytest.mark.parametrize("page", [p for p in PAGES if program(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_page(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for package in ("torch", "keras"):
        if re.search(rf"^(import|from) {package}\b", program(page), re.MULTILINE) and not find_spec(package):
            pytest.skip(f"{page.name} needs {package}, which is not installed")
    shutil.copy(ROOT / "examples" / "digits" / "model.onnx", tmp_path)  # the `model.onnx` that pages speak of
    (tmp_path / "page.py").write_text(program(page))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": WARNINGS}
    result = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, f"{page.name}:\n{result.stderr}"
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    for block in commands(page):
        shell = ["bash", "-euxc", 'renorm() { python -m renorm "$@"; }\n' + block]
        result = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, f"{page.name}:\n{result.stdout}{result.stderr}"
    for drawn in tmp_path.glob("*.mmd"):  # a picture on a page is what its program draws
        text = page.read_text()
        block = re.search(rf"<!-- {drawn.name} -->\n```mermaid\n(.*?)```\n", text, re.DOTALL)
        assert block, f"{page.name} has no mermaid block after <!-- {drawn.name} -->"
        if request.config.getoption("--update-golden"):
            page.write_text(text[: block.start(1)] + drawn.read_text() + text[block.end(1) :])
        else:
            assert block[1] == drawn.read_text(), f"{page.name} draws another {drawn.name}: --update-golden"


def test_the_readme_has_programs() -> None:
    assert program(ROOT / "README.md")
    assert commands(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_is_to_be_typed_stands_in_a_block_that_runs(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(r"^ *```(\w+)$", text, re.MULTILINE)) <= {"python", "sh", "text", "mermaid"}
    verbs = "|".join(VERBS)
    typed = re.compile(
        rf"^ *(?:\$ |renorm (?:{verbs}) |python -?\w|pip install |mpiexec |torchrun |>>> )", re.MULTILINE
    )
    assert not typed.search(COMMANDS.sub("", BLOCK.sub("", text)))


def test_the_readme_names_two_commands_for_a_fresh_machine() -> None:
    section = (ROOT / "README.md").read_text().split("## Try it", 1)[1].split("\n## ", 1)[0]
    commands = [line for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]
    assert [c.split("#")[0].strip() for c in commands] == ["scripts/demo", "scripts/test"]
