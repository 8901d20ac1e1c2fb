"""Networks with open extents, through all passes: shapes are known, and what is left computes the same at any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests import any_size
from tests.any_size import NAMES, drawn
from tests.frontends import onnx_runtime

from renorm.core.dims import symbols_of
from renorm.core.errors import RenormError
from renorm.driver.compile import analyze
from renorm.frontends import read
from renorm.graph import interpret, verify
from renorm.graph.conditions import conditions_of
from renorm.graph.ir import Graph
from renorm.graph.parse import parse


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of them; made by another process, for torch warns while it exports."""
    pytest.importorskip("torch")
    return any_size.export(tmp_path_factory.mktemp("any_size"))


def unknown(graph: Graph) -> list[str]:
    """Return values whose extents are not those of the inputs' symbols."""
    symbols = {s for v in graph.inputs for d in v.shape for s in symbols_of(d)}
    return [repr(v) for v in graph.values() if any(symbols_of(d) - symbols for d in v.shape)]


@pytest.mark.parametrize("name", NAMES)
def test_reading_knows_all_extents(name: str, exported: Path) -> None:
    assert unknown(read(exported / f"{name}.onnx")) == []


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_passes_are_right_at_any_size(name: str, level: int, exported: Path) -> None:
    path, rng = exported / f"{name}.onnx", np.random.default_rng(level)
    graph, _ = analyze(path, opt_level=level)
    assert unknown(graph) == []
    assert {n.op.name for n in graph.nodes} & {"shape", "size"} == set()
    assert str(parse(str(graph), {v.name: v.data for v in graph.constants.values() if v.data is not None})) == str(
        graph
    )
    session = onnx_runtime.session(path)
    for _ in range(3):
        sizes, inputs = drawn(name, rng)
        expected = onnx_runtime.run(session, inputs)
        fixed = graph.copy(sizes)
        verify.verify(fixed)
        for computed in (interpret.run(graph, inputs), interpret.run(fixed, inputs)):
            for a, b in zip(computed, expected, strict=True):
                np.testing.assert_allclose(
                    a, b, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(b).max())), err_msg=str(sizes)
                )


def test_sizes_that_break_a_condition_are_those_that_cannot_be(exported: Path) -> None:
    """Whatever the graph refuses at numbers breaks a condition of the open one."""
    for name, sizes in (
        (
            "detector",
            [{"N": 1, "H": h, "W": w} for h, w in ((32, 64), (33, 32), (16, 32), (64, 31), (48, 48), (96, 32))],
        ),
        ("text_line", [{"N": 1, "W": w} for w in range(10)]),
        ("speech_encoder", [{"N": 2, "T": t} for t in (0, 1, 2, 119, 120, 121, 200)]),
        ("sentence_encoder", [{"N": 2, "L": length} for length in (0, 1, 47, 48, 49)]),
    ):
        graph = read(exported / f"{name}.onnx")
        conditions, broken = conditions_of(graph), 0
        for numbers in sizes:
            try:
                graph.copy(numbers)
            except RenormError:
                assert not all(c.holds(numbers) for c in conditions), (name, numbers)
                broken += 1
            else:
                assert all(c.holds(numbers) for c in conditions), (name, numbers)
        assert 0 < broken < len(sizes)
