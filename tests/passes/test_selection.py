"""Passes by name: chosen ones run, in order, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from tests.frontends.models import model

import renorm
from renorm.cli import main
from renorm.driver.optimize import passes
from renorm.errors import InvalidInput
from renorm.passes import pipeline, selection
from renorm.passes.rewriting import ApplyRules


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal((4, c, 3, 3)).astype(np.float32) for c in (3, 4))
    body = """net (float[1, 3, 9, 8] x) => (float[1, 4, 5, 4] y)
    { a = Conv(x, w) b = BatchNormalization(a, s, s, s, s) c = Conv(b, v) d = Mul(c, k) y = Add(d, k) }"""
    k, s = rng.standard_normal((4, 1, 1)).astype(np.float32), np.arange(1, 5, dtype=np.float32)
    onnx.save(model(body, w=w, v=v, s=s, k=k), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def optimize(*arguments: Any, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["optimize", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output + result.stderr
    return result.output


def test_only_the_chosen_ones_run(path: Path):
    out = path.with_name("out.onnx")
    renorm.optimize(path, out, passes=["FoldMul"])
    assert [n.op_type for n in onnx.load(out).graph.node] == ["Conv", "BatchNormalization", "Conv", "Add"]
    renorm.optimize(path, out, passes=["fold-add", "fold_batch_norm"])  # Add takes the Mul in front of it along
    assert [n.op_type for n in onnx.load(out).graph.node] == ["Conv", "Conv"]
    renorm.optimize(path, out, passes=["FoldMul", "FoldBatchNorm"])
    assert [n.op_type for n in onnx.load(out).graph.node] == ["Conv", "Conv", "Add"]


def test_each_pass_is_told_with_the_graph_before_and_after(path: Path):
    seen = list[tuple[str, str, str]]()
    names = ["FoldBatchNorm", "FoldSub", "FoldMul"]
    renorm.optimize(path, path.with_name("out.onnx"), passes=names, watch=lambda *told: seen.append(told))
    assert [name for name, _, _ in seen] == names
    assert [before != after for _, before, after in seen] == [True, False, True]
    assert seen[0][2] == seen[1][1]
    assert "batch_norm(" in seen[0][1]
    assert "batch_norm(" not in seen[0][2]
    everything = list[str]()
    renorm.optimize(path, path.with_name("out.onnx"), watch=lambda name, *_: everything.append(name))
    assert everything[-1] == "RemoveDeadCode"


def test_the_command_prints_what_changes_and_is_quiet_where_nothing_does(path: Path):
    out = path.with_name("out.onnx")
    printed = optimize(path, out, "--passes", "FoldSub,FoldBatchNorm")
    assert printed.startswith("graph net(")
    assert "FoldSub: nothing changes\n--- before FoldBatchNorm\n" in printed
    assert [line for line in printed.splitlines() if line.startswith("-  %b: ")]
    told = json.loads(optimize(path, out, "--passes", "FoldInFront(conv),FoldMul", "--json"))["passes"]
    assert [p["pass"] for p in told] == ["FoldInFront(conv)", "FoldMul"]
    assert "passes" not in json.loads(optimize(path, out, "--json"))


def test_every_listed_pass_has_a_name_that_chooses_it_and_says_what_it_does(path: Path):
    listed = passes()
    models = [one for _, one in pipeline.MODEL]
    assert {"FoldBatchNorm", "FoldInFront", "RemoveDeadCode"} <= set(listed)
    for name, said in listed.items():
        assert "->" in said, name
        ((_, one),) = selection.choose([name.upper()], models)
        assert selection.algebra(one) == said
        assert name in optimize("--list-passes")
    ((_, one),) = selection.choose(["FoldInFront"], models)
    assert isinstance(one, ApplyRules)
    assert len(one.rules) == len([n for n in selection.named(models) if n.startswith("FoldInFront(")])


def test_an_unknown_name_is_told_its_nearest(path: Path):
    with pytest.raises(InvalidInput) as error:
        renorm.optimize(path, path.with_name("out.onnx"), passes=["FoldBatchNorms", "nothing", "FoldMul"])
    assert error.value.headline == "no pass is called 'FoldBatchNorms', 'nothing'"
    assert "FoldBatchNorm" in error.value.facts[0]
    optimize(path, path.with_name("out.onnx"), "--passes", "FoldConstant", code=2)
    assert not path.with_name("out.onnx").exists()
