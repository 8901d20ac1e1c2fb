"""The programs in the documentation run as they stand: the blocks of a page in order, in one process, in an empty
directory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("kept_code")

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
    shutil.copy(ROOT / "examples" / "digits" / "model.onnx", tmp_path)  # the `model.onnx` that pages speak of
    (tmp_path / "page.py").write_text(program(page))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error"}
    result = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, f"{page.name}:\n{result.stderr}"
    for drawn in tmp_path.glob("*.svg"):  # a picture on a page is what its program draws
        kept = page.parent / page.stem / drawn.name
        if request.config.getoption("--update-golden"):
            kept.parent.mkdir(exist_ok=True)
            shutil.copy(drawn, kept)
        assert kept.read_text() == drawn.read_text(), f"{page.name} draws another {drawn.name}: --update-golden"


def test_the_readme_has_programs() -> None:
    assert program(ROOT / "README.md")


def test_the_readme_names_two_commands_for_a_fresh_machine() -> None:
    section = (ROOT / "README.md").read_text().split("## Try it", 1)[1].split("\n## ", 1)[0]
    commands = [line for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]
    assert [c.split("#")[0].strip() for c in commands] == ["scripts/demo", "scripts/test"]
