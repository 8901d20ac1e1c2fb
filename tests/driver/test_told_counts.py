"""Ops whose results are as large as an operand says before they run: compiled once, for all that it may say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends import onnx_runtime
from tests.frontends.models import model
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.core.dims import Sym
from renorm.driver.module import OpenModule
from renorm.errors import InvalidInput
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


@pytest.fixture(scope="module")
def best() -> Any:
    """The k best of rows, where k is an element of an input."""
    graph = Graph()
    x, k = graph.input("x", "float32", (Sym("N"), Sym("M"))), graph.input("k", "int64", (1,))
    graph.outputs = list(ops.top_k(x, k))
    return renorm.compile(graph)


@pytest.mark.parametrize(
    ("rows", "extent", "k"), [(1, 1, 1), (3, 7, 2), (2, 300, 300), (5, 1000, 70), (1, 129, 64), (2, 3, 0), (0, 4, 2)]
)
def test_top_k(best: Any, rows: int, extent: int, k: int) -> None:
    """Few values, so that many are equal; and rows in order, of which each element is better than those before."""
    assert type(best) is OpenModule
    for x in (RNG.integers(-9, 9, (rows, extent)), np.arange(rows * extent).reshape(rows, extent)):
        found = np.argsort(-x, axis=1, kind="stable")[:, :k]
        values, indices = best.run(x=x.astype(np.float32), k=np.array([k]))
        np.testing.assert_array_equal(indices, found)
        np.testing.assert_array_equal(values, np.take_along_axis(x, found, 1))


def test_more_than_there_are_is_refused(best: Any) -> None:
    with pytest.raises(InvalidInput, match="k"):
        best.run(x=np.zeros((2, 3), np.float32), k=np.array([4]))


@pytest.fixture(scope="module")
def suppressed() -> Any:
    """Kept boxes as rows; the most of a class and the count of all are elements of inputs."""
    graph = Graph()
    boxes, scores = (graph.input(*given) for given in (
        ("boxes", "float32", (Sym("B"), Sym("N"), 4)), ("scores", "float32", (Sym("B"), Sym("C"), Sym("N")))
    ))  # fmt: skip
    most, count = (graph.input(name, "int64", (1,)) for name in ("most", "count"))
    limits = [np.array([0.4], np.float32), np.array([0.25], np.float32)]
    graph.outputs = [ops.kept_rows(ops.non_max_suppression(boxes, scores, most, *limits), count)]
    return renorm.compile(graph)


@pytest.mark.parametrize(("batch", "classes", "boxes", "most"), [(1, 1, 1, 1), (2, 3, 60, 5), (1, 2, 200, 300)])
def test_non_max_suppression(suppressed: Any, batch: int, classes: int, boxes: int, most: int) -> None:
    assert type(suppressed) is OpenModule
    corners = RNG.uniform(0, 1, (batch, boxes, 4)).astype(np.float32)
    scores = RNG.uniform(0, 1, (batch, classes, boxes)).astype(np.float32)
    wanted = kept(corners, scores, most)
    for count in (len(wanted), len(wanted) + 3, len(wanted) // 2):
        (rows,) = suppressed.run(boxes=corners, scores=scores, most=np.array([most]), count=np.array([count]))
        expected = np.concatenate([wanted, np.zeros((3, 3), np.int64)])[:count]
        np.testing.assert_array_equal(rows, expected)


def kept(boxes: np.ndarray[Any, Any], scores: np.ndarray[Any, Any], most: int) -> np.ndarray[Any, Any]:
    """What ONNX Runtime keeps."""
    source = model(
        """g (float[B, N, 4] boxes, float[B, C, N] scores) => (int64[K, 3] y)
        { y = NonMaxSuppression(boxes, scores, most, iou, score) }""",
        most=np.array([most]), iou=np.array([0.4], np.float32), score=np.array([0.25], np.float32),
    )  # fmt: skip
    return onnx_runtime.run(source, {"boxes": boxes, "scores": scores})[0]
