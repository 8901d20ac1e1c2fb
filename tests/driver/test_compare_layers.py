"""What check says of layers that are computed by an algorithm which rounds differently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.random_numbers import RNG

from renorm import ops
from renorm.cli import main
from renorm.core.random_inputs import random_inputs
from renorm.driver.compare import compare
from renorm.frontends import onnx as onnx_frontend
from renorm.graph.ir import Graph
from renorm.ops.shared import winograd_weight
from renorm.ops.shared.winograd_weight import transformed_weight
from renorm.passes import convolution_cost


def network() -> Graph:
    g = Graph("two")
    y = g.input("x", "float32", (1, 16, 40, 40))
    for i in range(2):
        w = RNG.standard_normal((16, 16, 3, 3)).astype(np.float32)
        y = ops.relu(ops.conv(y, w, pads=(1, 1, 1, 1), name=f"conv{i}"))
    g.outputs = [y]
    return g


def inputs() -> dict[str, Any]:
    return random_inputs(network().inputs, seed=int(RNG.integers(1000)))


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cost at which small layers are computed by tiles."""
    monkeypatch.setattr(convolution_cost, "TRANSFORM", 0.0)
    monkeypatch.setattr(convolution_cost, "_memory", lambda nbytes, target: 0.0)


def test_each_layer_has_its_error() -> None:
    g, given = network(), inputs()
    found = compare(g, given, reference="interpreter")
    assert found.agrees
    assert [(r.node, r.algorithm) for r in found.roundings] == [(f"conv{i}", "winograd4_conv2d") for i in range(2)]
    assert all(1e-8 < r.l2 < 2e-6 and 1e-8 < r.largest < 4e-6 for r in found.roundings)
    assert compare(g, given, reference="interpreter", precision="exact").roundings == ()


def test_a_wrong_layer_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The definition is the direct convolution, not what the transformed weights say."""
    monkeypatch.setattr(winograd_weight, "transformed_weight", lambda w, *more: transformed_weight(w * 1.001, *more))
    found = compare(network(), inputs(), reference="interpreter", tolerance=1.0)
    assert [r.l2 == pytest.approx(1e-3, rel=0.5) for r in found.roundings] == [True, True]


def test_check_prints_the_errors(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    path.write_bytes(onnx_frontend.write(network()).SerializeToString())
    printed = CliRunner().invoke(main, ["check", str(path)])
    assert printed.exit_code == 0
    assert "conv1" in printed.output
    assert "winograd4_conv2d" in printed.output
    found = json.loads(CliRunner().invoke(main, ["check", str(path), "--json"]).stdout)
    assert [r["node"] for r in found["roundings"]] == ["conv0", "conv1"]
    exact = json.loads(CliRunner().invoke(main, ["check", str(path), "--json", "--precision", "exact"]).stdout)
    assert exact["roundings"] == []
