"""The last vector of a row of bfloat16 writes its own elements and nothing behind them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.graph.ir import Graph


@pytest.mark.parametrize("extent", [1, 2, 15, 17, 18, 31, 33, 49])
def test_nothing_is_written_behind_a_row(extent: int) -> None:
    g = Graph()
    g.outputs = [ops.relu(g.input("x", "bfloat16", (extent,)))]
    x = np.linspace(-2, 3, extent).astype(ml_dtypes.bfloat16)
    held = np.full(extent + 4, 7, ml_dtypes.bfloat16)
    renorm.compile(g).run(x, out=[held[:extent]])
    np.testing.assert_array_equal(held[:extent].astype(np.float32), np.maximum(x.astype(np.float32), 0))
    assert (held[extent:] == 7).all()
