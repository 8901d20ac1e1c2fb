"""Ops whose results are as large as an operand says before they run: compiled once, for all that it may say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.core.dims import Sym
from renorm.driver.module import OpenModule
from renorm.graph.ir import Graph

pytestmark = pytest.mark.usefixtures("kept_code")


@pytest.fixture(scope="module")
def nonzero() -> Any:
    graph = Graph()
    x, count = graph.input("x", "float32", (Sym("N"), 5)), graph.input("count", "int64", (1,))
    graph.outputs = [ops.nonzero(x, count)]
    return renorm.compile(graph)


@pytest.mark.parametrize(("rows", "count"), [(3, 4), (1, 1), (7, 0), (5, 30), (40, 60)])
def test_nonzero(nonzero: Any, rows: int, count: int) -> None:
    assert type(nonzero) is OpenModule
    x = (RNG.integers(0, 2, (rows, 5)) * RNG.standard_normal((rows, 5))).astype(np.float32)
    found = np.stack(np.nonzero(x))[:, :count]
    expected = np.pad(found, ((0, 0), (0, count - found.shape[1])))
    (result,) = nonzero.run(x=x, count=np.array([count]))
    np.testing.assert_array_equal(result, expected)
