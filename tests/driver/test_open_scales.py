"""Resize by scales that a network computes of sizes, as exporters write "to the size of another one": one module for
all sizes, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.frontends.models import model

import renorm
from renorm.driver.module import OpenModule

pytestmark = pytest.mark.usefixtures("kept_code")

SIZES = (
    "s = Shape(c) t = Shape(z) own = Slice(s, two, four) other = Slice(t, two, four)"
    " fs = Cast<to = 1>(own) ft = Cast<to = 1>(other) q = Div(ft, fs) by = Concat<axis = 0>(ones, q)"
)
OLD_SIZES = SIZES.replace("Slice(s, two, four)", "Slice<starts = [2], ends = [4]>(s)").replace(
    "Slice(t, two, four)", "Slice<starts = [2], ends = [4]>(t)"
)
CONSTANTS = "float[2] ones = {1, 1}, int64[1] two = {2}, int64[1] four = {4}"


def network(resized: str, opset: int, sizes: str = SIZES, constants: str = CONSTANTS) -> Any:
    text = f"""g (float[N, 2, H, W] x, float[N, 3, K, L] z) => (float[A, B, C, D] y) <{constants}>
        {{ c = Relu(x) {sizes} {resized} y = Concat<axis = 1>(u, z) }}"""
    made = model(text, {}, opset=opset)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


@pytest.mark.parametrize(
    ("made", "is_open"),
    [
        (network('u = Upsample<mode = "nearest">(c, by)', 9, OLD_SIZES, "float[2] ones = {1, 1}"), True),
        (network('u = Upsample<mode = "linear">(c, by)', 9, OLD_SIZES, "float[2] ones = {1, 1}"), True),
        (network('u = Resize<mode = "nearest">(c, by)', 10), True),
        (network('u = Resize<mode = "linear">(c, by)', 10), True),
        (network('u = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(c, , by)', 13), True),
        (network('u = Resize<mode = "cubic">(c, , by)', 13), True),
        (network('u = Resize<mode = "linear", antialias = 1>(c, , by)', 18), False),
    ],
    ids=["upsample nearest", "upsample linear", "before 11, nearest", "before 11, linear", "corners", "cubic", "wide"],
)
def test_scales_of_sizes(made: Any, is_open: bool) -> None:
    module = renorm.compile(made, threads=1)
    assert isinstance(module, OpenModule) == is_open
    session: Any = onnxruntime.InferenceSession(made.SerializeToString())
    rng, is_old = np.random.default_rng(1), made.graph.node[-2].op_type == "Upsample"
    for own, other in (((5, 7), (10, 14)), ((5, 7), (8, 9)), ((3, 3), (4, 7)), ((9, 7), (4, 3)), ((6, 5), (6, 5))):
        if is_old and other < own:
            continue  # scales are at least 1
        x, z = (rng.standard_normal((1, c, *plane)).astype(np.float32) for c, plane in ((2, own), (3, other)))
        (found,), (expected,) = module.run(x, z), session.run(None, {"x": x, "z": z})
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_scales_of_sizes_stay_in_files(tmp_path: Path) -> None:
    renorm.optimize(network('u = Resize<mode = "linear">(c, , by)', 13), tmp_path / "made.onnx")
    session: Any = onnxruntime.InferenceSession(tmp_path / "made.onnx")
    x, z = np.ones((1, 2, 5, 7), np.float32), np.zeros((1, 3, 8, 9), np.float32)
    assert session.run(None, {"x": x, "z": z})[0].shape == (1, 5, 8, 9)


def test_quotients_of_integers_are_none() -> None:
    """One extent over another is rounded, which as a shape it says nothing of."""
    text = """g (float[H, 4] x, float[K, 4] z) => (float[A, B] y)
        <int64[1] at = {0}, int64[1] one = {1}, int64[1] n = {-1}>
        { s = Shape(x) t = Shape(z) h = Slice(s, at, one) k = Slice(t, at, one) q = Div(h, k)
          to = Concat<axis = 0>(q, n) y = Reshape(x, to) }"""
    made = model(text, {}, opset=13)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    module: Any = renorm.compile(made, threads=1)
    session: Any = onnxruntime.InferenceSession(made.SerializeToString())
    for h, k in ((6, 3), (7, 3), (4, 4)):
        x, z = np.ones((h, 4), np.float32), np.ones((k, 4), np.float32)
        assert module.run(x, z)[0].shape == session.run(None, {"x": x, "z": z})[0].shape
