"""Networks whose inputs have no fixed size are compiled once, and give ONNX Runtime's results at random ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.compose
import pytest
from tests import any_size
from tests.any_size import NAMES, drawn, stated
from tests.frontends import onnx_runtime
from tests.frontends.models import model

import renorm
from renorm.driver.module import OpenModule


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return any_size.export(tmp_path_factory.mktemp("any_size"))


def serves(name: str, exported: Path, count: int) -> None:
    """The network, compiled once, has the results of ONNX Runtime at so many random sizes, the least one among them."""
    path, rng = exported / f"{name}.onnx", np.random.default_rng(len(name))
    m = renorm.compile(path, shapes=stated(name))
    assert isinstance(m, OpenModule), getattr(m, "obstacle", m)
    session = onnx_runtime.session(path)
    for i in range(count):
        sizes, inputs = drawn(name, rng, longest=2 if i == 1 else 70)
        expected = onnx_runtime.run(session, inputs)
        for ours, theirs in zip(m.run(**inputs), expected, strict=True):
            assert ours.shape == theirs.shape
            tolerance = 1e-3 * max(1.0, float(np.abs(theirs).max(initial=0)))
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=tolerance, err_msg=str(sizes))


@pytest.mark.parametrize("name", ["segmentation", "sentence_encoder"])
def test_one_module_serves_any_size(name: str, exported: Path) -> None:
    serves(name, exported, 4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_one_module_serves_twenty_sizes(name: str, exported: Path) -> None:
    serves(name, exported, 20)


BOXES = """boxes (float[N, A, E] y) => (int64[R, 3] rows, float[R, 4] boxes, float[R] scores)
<int64[1] zero = {0}, int64[1] four = {4}, int64[1] five = {5}, int64[1] all = {1000}, int64[1] axis = {2},
 int64[1] most = {100}, float[1] overlap = {0.45}, float[1] least = {0.27}, int64[2] place = {0, 2}>
{   found = Slice(y, zero, four, axis)
    is_there = Slice(y, four, five, axis) of_class = Slice(y, five, all, axis)
    product = Mul(is_there, of_class) by_class = Transpose<perm = [0, 2, 1]>(product)
    rows = NonMaxSuppression<center_point_box = 1>(found, by_class, most, overlap, least)
    at = Gather<axis = 1>(rows, place)
    boxes = GatherND(found, at) scores = GatherND(by_class, rows)   }"""


def test_a_detector_that_drops_boxes(exported: Path) -> None:
    """What is left of the boxes follows from data: the module's own boxes, since two that are almost alike may change
    places where scores are rounded otherwise."""
    boxes = model(BOXES)
    whole = onnx.compose.merge_models(onnx.load(exported / "detector.onnx"), boxes, [("y", "y")], outputs=None)
    whole.graph.output.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None))
    m = renorm.compile(whole, shapes=stated("detector"))
    assert isinstance(m, OpenModule), getattr(m, "obstacle", m)
    session, alone = onnx_runtime.session(boxes), onnx_runtime.session(exported / "detector.onnx")
    rng, found = np.random.default_rng(5), set[int]()
    for _ in range(5):
        sizes, inputs = drawn("detector", rng, longest=200)
        *left, y = m.run(**inputs)
        (expected,) = onnx_runtime.run(alone, inputs)
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-3 * float(np.abs(expected).max()))
        for ours, theirs in zip(left, onnx_runtime.run(session, {"y": y}), strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=str(sizes))
        found.add(len(left[0]))
    assert len(found) > 2
