"""Inputs that decide shapes, bound when compiling: what they decide is known, other extents stay open."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.frontends.models import model

import renorm

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("kept_code")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Reshape": ("g (float[N, 6] x, int64[3] s) => (float[A, B, C] y) { y = Reshape(x, s) }", {"s": [-1, 3, 2]}),
    "Slice": ("g (float[N, 6] x, int64[1] a, int64[1] b) => (float[A, B] y) "
              "{ y = Slice(x, a, b) }", {"a": [1], "b": [9]}),
    "Expand": ("g (float[N, 6] x, int64[3] s) => (float[A, B, C] y) { y = Expand(x, s) }", {"s": [3, 1, 1]}),
    "Tile": ("g (float[N, 6] x, int64[2] s) => (float[A, B] y) { y = Tile(x, s) }", {"s": [2, 3]}),
    "Range": ("g (float[N, 1] x, int64 a, int64 b, int64 d) => (float[A, B] y) "
              "{ i = Range(a, b, d) f = Cast <to = 1> (i) y = Mul(x, f) }", {"a": 7, "b": -2, "d": -2}),
    "ConstantOfShape": ("g (float[N, 1] x, int64[2] s) => (float[A, B] y) "
                        "{ z = ConstantOfShape <value = float[1] {2}> (s) y = Add(x, z) }", {"s": [1, 5]}),
}  # fmt: skip


@pytest.mark.parametrize("op", CASES)
def test_inputs_that_decide_shapes_are_bound(op: str) -> None:
    text, elements = CASES[op]
    m = model(text)
    del m.graph.output[0].type.tensor_type.shape.dim[:]
    m.graph.output[0].type.tensor_type.ClearField("shape")
    module = renorm.compile(m, inputs=elements, threads=1)
    assert [v.name for v in module.inputs] == ["x"]
    session = onnxruntime.InferenceSession(m.SerializeToString())
    bound = {name: np.asarray(given, np.int64) for name, given in elements.items()}
    for n in (1, 2, 5):
        x = np.arange(6 * n, dtype=np.float32).reshape(n, 6)[:, : int(str(module.inputs[0].shape[1]))]
        (expected,) = session.run(None, {"x": np.ascontiguousarray(x), **bound})
        np.testing.assert_array_equal(module.run(x)[0], expected)
