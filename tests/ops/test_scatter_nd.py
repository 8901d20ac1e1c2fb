"""Rounds of scatters: together they look at indices about as often as there are elements, not once per line."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

import renorm
from renorm import ops, te
from renorm.graph.ir import Graph
from renorm.ops.scatter_nd import ScatterNd
from renorm.te.given_loops import ExternOp

SHAPES = [
    ((255, 12, 128, 1), (128, 1)),
    ((70000,), (50000, 1)),
    ((300, 400), (90000, 2)),
    ((40, 64, 20, 20), (9, 1)),
    ((20000, 3, 8), (500, 1)),
    ((3, 100000), (2, 1)),
]


@pytest.mark.parametrize(("shape", "indices"), SHAPES, ids=str)
def test_rounds_share_out_the_work(shape: tuple[int, ...], indices: tuple[int, ...]) -> None:
    updates = (*indices[:-1], *shape[indices[-1] :])
    given = [te.placeholder(d, dtype=t) for d, t in ((shape, "float32"), (indices, "int64"), (updates, "float32"))]
    op = ScatterNd().compute(*given).op
    assert isinstance(op, ExternOp)
    looks = int(op.axis[0].extent) * indices[0]
    assert looks <= 2 * (prod(shape) + prod(updates))


@pytest.mark.parametrize(("shape", "indices"), SHAPES, ids=str)
def test_large_arrays(shape: tuple[int, ...], indices: tuple[int, ...]) -> None:
    depth = indices[-1]
    at = np.stack([RNG.integers(0, n, indices[0]) for n in shape[:depth]], -1)
    x, u = (RNG.standard_normal(s).astype(np.float32) for s in (shape, (indices[0], *shape[depth:])))
    g = Graph("scatter")
    operands: list[Any] = [g.input(f"x{k}", a.dtype.name, a.shape) for k, a in enumerate((x, at, u))]
    g.outputs = [ops.scatter_nd(*operands, reduction="add")]
    expected = x.astype(np.float64)
    np.add.at(expected, tuple(at.T), u)
    np.testing.assert_allclose(renorm.compile(g).run(x, at, u)[0], expected, rtol=1e-5, atol=1e-5)
