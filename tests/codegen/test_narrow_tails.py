"""The last vector of a row of narrow elements writes its own elements and nothing behind them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.graph.ir import Graph

EXTENTS = [1, 2, 15, 17, 18, 31, 33, 49, 65, 97, 113]
DTYPES: dict[str, Any] = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "uint8": np.uint8,
    "int8": np.int8,
    "int16": np.int16,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extent", EXTENTS)
def test_nothing_is_written_behind_a_row(dtype: str, extent: int) -> None:
    g = Graph()
    x = g.input("x", "float32", (extent,))
    g.outputs = [ops.cast(ops.relu(x), to=dtype)]
    given = np.arange(-2, extent - 2).astype(np.float32) % 90
    held = np.full(extent + 8, 7, DTYPES[dtype])
    renorm.compile(g).run(given, out=[held[:extent]])
    np.testing.assert_array_equal(held[:extent], np.maximum(given, 0).astype(DTYPES[dtype]))
    assert (held[extent:] == DTYPES[dtype](7)).all()
