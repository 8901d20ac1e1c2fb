"""How targets are found, and what the command line shows of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_verbs import FIXED, MODEL, run, run_json

import renorm
from renorm.targets import PROVIDED, find

MINE = """
import renorm
def never(group):
    return "not today"
mine = renorm.Target("mine", base="llvm", supports=["conv"], codegen=never)
other = 3
"""


def test_targets_that_come_with_renorm_are_found_by_name() -> None:
    for name in PROVIDED:
        assert find(name).kind == name
        assert find(name) is find(name)
    with pytest.raises(renorm.errors.InvalidTarget, match="tandem"):
        find("tandm")
    with pytest.raises(renorm.errors.InvalidTarget, match="cannot read"):
        find("llvm -mcpu:a=b")
    with pytest.raises(renorm.errors.InvalidTarget, match="'tandem' takes no options"):
        find("tandem -mcpu=haswell")


def test_a_target_is_found_where_it_is_imported_from(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "my_targets.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find("my_targets:mine").kind == "mine"
    shown = run("inspect", MODEL, *FIXED, "--target", "my_targets:mine", "--refusals").stdout
    assert "not today" in shown
    for text, words in [("my_targets:other", "is int"), ("my_targets:none", "'none'"), ("no.where:mine", "No module")]:
        with pytest.raises(renorm.errors.InvalidTarget, match=words):
            find(text)


def test_the_command_line_compiles_for_it_and_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "m.renorm"
    report = run_json("compile", MODEL, "-o", path, *FIXED, "--target", "tandem")["report"]
    external = [k for k in report["kernels"] if k["target"] == "tandem"]
    assert external
    assert all(k["work"]["flops"] > 0 for k in external)
    assert {n["fate"] for n in report["norms"] if n["kind"] == "batch_norm"} >= {"unit"}
    for shown in (run("inspect", path).stdout, run("inspect", MODEL, *FIXED, "--target", "tandem").stdout):
        lines = [line for line in shown.splitlines() if "fused_conv2d_batch_norm" in line]
        assert any("tandem" in line for line in lines)
    names = [k["kernel"] for k in run_json("profile", path, "--repeats", 2)["launches"]]
    assert names == [k["name"] for k in report["kernels"]]
