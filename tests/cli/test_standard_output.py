"""Standard output that is full or closed: one line says so, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from renorm.cli import main, output


@pytest.mark.parametrize("arguments", [["cache"], ["cache", "--json"], ["--help"], ["run", "--help"]])
def test_full(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w") as full, monkeypatch.context() as m:
        m.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            main(arguments, prog_name="renorm")
        with open(os.devnull, "w") as nothing:  # for what it holds still
            os.dup2(nothing.fileno(), full.fileno())
    assert ended.value.code == 2
    output.line("next")
    assert capfd.readouterr() == ("next\n", "InvalidInput: standard output: No space left on device\n")


def test_closed() -> None:
    script = "import sys; sys.stdout = None; from renorm.cli import main; main(['cache'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
