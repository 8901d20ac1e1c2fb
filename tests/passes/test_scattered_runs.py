"""Scatters of known runs of slices become concatenations; others stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.core.dims import Sym, Symbol
from renorm.graph.ir import Graph
from renorm.passes import pipeline


def replaced(x: Any, i: Any, u: Any) -> Any:
    y = x.copy()
    y[i[:, 0]] = u
    return y


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("run", "left"),
    [
        ([0, 1], ["slice", "concat"]),
        ([2, 3, 4], ["slice", "slice", "concat"]),
        ([-2, -1], ["slice", "concat"]),
        ([3], ["slice", "slice", "concat"]),
        (list(range(7)), []),
        ([2, 4], ["scatter_nd"]),
        ([4, 3], ["scatter_nd"]),
        ([2, 2], ["scatter_nd"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("open_rows", [False, True])
def test_runs(run: list[int], left: list[str], open_rows: bool) -> None:
    i = np.array(run)[:, None]
    x, u = normal(7, 3, 5), normal(len(run), 3, 5)
    g = Graph("runs")
    rows = Sym(Symbol("rows", 1, 9)) if open_rows else 3
    a, b = g.input("x", "float32", (7, rows, 5)), g.input("u", "float32", (len(run), rows, 5))
    g.outputs = [ops.relu(ops.scatter_nd(a, i, b))]
    optimized, _ = pipeline.optimize(g.copy(), for_export=True)
    assert [n.op.name for n in optimized.nodes] == [*left, "relu"]
    np.testing.assert_array_equal(renorm.compile(g).run(x, u)[0], np.maximum(replaced(x, i, u), 0))


def test_runs_beyond_the_end_stay() -> None:
    g = Graph("beyond")
    x, u = g.input("x", "float32", (7, 3)), g.input("u", "float32", (2, 3))
    g.outputs = [ops.scatter_nd(x, np.array([[6], [7]]), u)]
    optimized, _ = pipeline.optimize(g, for_export=True)
    assert [n.op.name for n in optimized.nodes] == ["scatter_nd"]


def test_reductions_stay() -> None:
    g = Graph("added")
    x, u = g.input("x", "float32", (7, 3)), g.input("u", "float32", (2, 3))
    g.outputs = [ops.scatter_nd(x, np.array([[2], [3]]), u, reduction="add")]
    optimized, _ = pipeline.optimize(g, for_export=True)
    assert [n.op.name for n in optimized.nodes] == ["scatter_nd"]


def test_transposes_around_go() -> None:
    """x[:, :, 2:4] = u, as torch.onnx writes it."""
    g, perm = Graph("along the last axis"), (2, 0, 1)
    x, u = normal(3, 4, 7), normal(3, 4, 2)
    a, b = g.input("x", "float32", x.shape), g.input("u", "float32", u.shape)
    turned = ops.scatter_nd(ops.transpose(a, perm=perm), np.array([[2], [3]]), ops.transpose(b, perm=perm))
    g.outputs = [ops.relu(ops.transpose(turned, perm=(1, 2, 0)))]
    optimized, _ = pipeline.optimize(g.copy(), for_export=True)
    assert [n.op.name for n in optimized.nodes] == ["slice", "slice", "concat", "relu"]
    y = x.copy()
    y[:, :, 2:4] = u
    np.testing.assert_array_equal(renorm.compile(g).run(x, u)[0], np.maximum(y, 0))
