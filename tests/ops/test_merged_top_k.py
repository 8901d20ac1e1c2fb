"""Merges on a GPU give the order that NumPy gives: drawn shapes, with equal elements, NaN and infinities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler
from tests.random_numbers import RNG

import renorm
from renorm.core.dims import Sym
from renorm.core.errors import OperandError
from renorm.graph.ir import Graph


@pytest.fixture(autouse=True)
def host() -> None:
    host_device.register()


def kernels(module: Any) -> set[str]:
    return {k.name for k in module.report.kernels}


def drawn(*shape: int) -> Any:
    x = np.round(RNG.standard_normal(shape) * 20).astype(np.float32)
    x[RNG.random(shape) < 0.03] = np.nan
    x[RNG.random(shape) < 0.03] = np.inf
    return x


@needs_compiler
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("runs", [1, 2, 3, 7])
def test_order(runs: int, largest: bool) -> None:
    n = int(RNG.integers(64 * (runs - 1) + 1, 64 * runs + 1))
    k, axis = int(RNG.integers(1, n + 1)), int(RNG.integers(2))
    g, shape = Graph("sorted"), (3, n) if axis else (n, 3)
    g.outputs = list(renorm.ops.top_k(g.input("x", "float32", shape), np.array([k]), axis=axis, largest=largest))
    m, x = renorm.compile(g, target="cuda -arch=host"), drawn(*shape)
    assert kernels(m) == {"merged_top_k"}
    for found, expected in zip(m.run(x), g.nodes[0].op.reference(x, np.array([k])), strict=True):
        np.testing.assert_array_equal(found, expected)


@needs_compiler
@pytest.mark.parametrize("threshold", [None, 0.3])
def test_boxes(threshold: float | None) -> None:
    batch, classes, count = (int(RNG.integers(1, most)) for most in (3, 4, 150))
    g = Graph("kept")
    thresholds = [] if threshold is None else [np.array([threshold], np.float32)]
    given = g.input("boxes", "float32", (batch, count, 4)), g.input("scores", "float32", (batch, classes, count))
    most = np.array([int(RNG.integers(1, count + 1))])
    g.outputs = [renorm.ops.non_max_suppression(*given, most, np.array([0.4], np.float32), *thresholds)]
    m = renorm.compile(g, target="cuda -arch=host")
    assert kernels(m) == {"merged_top_k", "suppression_in_order"}
    boxes, scores = RNG.random((batch, count, 4)).astype(np.float32), drawn(batch, classes, count)
    (found,), (expected,) = m.run(boxes, scores), renorm.compile(g, target="llvm").run(boxes, scores)
    np.testing.assert_array_equal(found, expected)
    assert (found >= 0).any() or np.isnan(scores).all()


def test_how_many_elements_there_are_must_be_known() -> None:
    g = Graph("open")
    with pytest.raises(OperandError, match="k and the extent of axis -1 must be known"):
        renorm.ops.merged_top_k(g.input("x", "float32", (3, Sym("n"))), np.array([1]))
