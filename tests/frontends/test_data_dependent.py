"""Ops whose results are as large as data say: read from ONNX, by NumPy as ONNX Runtime has them, and written again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from tests.frontends import onnx_runtime
from tests.frontends.models import model
from tests.random_numbers import RNG

import renorm
from renorm import frontends, ops
from renorm.core.dims import is_static
from renorm.driver.module import OpenModule
from renorm.errors import RenormError, UnsupportedOp
from renorm.frontends.onnx.writer import write
from renorm.graph import interpret
from renorm.graph.ir import Graph

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("kept_code")
SELECTIONS = {
    "NonZero": "g (float[N, M] x) => (int64[2, C] y) { y = NonZero(x) }",
    "NonZero of a mask": "g (bool[N, M, 2] x) => (int64[3, C] y) { y = NonZero(x) }",
    "Compress of rows": "g (float[N, M] x, bool[K] c) => (float[A, M] y) { y = Compress<axis = 0>(x, c) }",
    "Compress from the end": "g (float[N, M, 3] x, bool[K] c) => (float[N, A, 3] y) { y = Compress<axis = -2>(x, c) }",
    "Compress of all elements": "g (int64[N, M] x, bool[K] c) => (int64[A] y) { y = Compress(x, c) }",
}


def drawn(source: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Inputs of a model, about half of whose elements are 0."""
    found = dict[str, Array]()
    for v in source.graph.input:
        shape = [d.dim_value or sizes[d.dim_param] for d in v.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        found[v.name] = (RNG.integers(-2, 3, shape) * RNG.integers(0, 2, shape)).astype(dtype)
    return found


@pytest.mark.parametrize("text", SELECTIONS.values(), ids=SELECTIONS)
def test_what_is_selected_is_what_onnx_runtime_selects(text: str) -> None:
    source = model(text)
    graph = frontends.read(source)
    assert not is_static(graph.outputs[0].shape)
    peer, module = onnx_runtime.session(source), renorm.compile(source, threads=1)
    assert type(module) is OpenModule
    for n, m, k in ((3, 5, 3), (1, 1, 1), (4, 7, 2), (6, 2, 1), (0, 3, 0)):
        given = drawn(source, {"N": n, "M": m, "K": min(k, n, m) if "-2" in text else k})
        (wanted,) = onnx_runtime.run(peer, given)
        for got in (*interpret.run(graph, given), *module.run(*(given[v.name] for v in module.inputs))):
            np.testing.assert_array_equal(got, wanted)
            assert got.shape == wanted.shape


def test_the_count_is_none_of_onnx() -> None:
    source = model(SELECTIONS["NonZero"])
    again = write(frontends.read(source))
    assert [n.op_type for n in again.graph.node] == ["NonZero"]
    given = drawn(source, {"N": 5, "M": 7})
    np.testing.assert_array_equal(onnx_runtime.run(again, given)[0], onnx_runtime.run(source, given)[0])
    assert [n.op_type for n in write(frontends.read(model(SELECTIONS["Compress of rows"]))).graph.node].count("NonZero")


def test_another_count_cannot_be_written() -> None:
    graph = Graph()
    graph.outputs = [ops.nonzero(graph.input("x", "float32", (3, 4)), np.array([2]))]
    with pytest.raises(UnsupportedOp, match="nonzero"):
        write(graph)


def test_more_conditions_than_elements_are_refused() -> None:
    with pytest.raises(RenormError, match="4 conditions for 3 elements along axis 1"):
        frontends.read(model("g (float[2, 3] x, bool[4] c) => (float[2, A] y) { y = Compress<axis = 1>(x, c) }"))


@pytest.mark.parametrize("dtype", ["float", "double", "int32", "int64"])
@pytest.mark.parametrize(
    ("opset", "text"),
    [
        (8, "v, i = TopK<k = {k}>(x)"),
        (10, "v, i = TopK<axis = {axis}>(x, k)"),
        (17, "v, i = TopK<axis = {axis}, largest = 0>(x, k)"),
        (21, "v, i = TopK<axis = {axis}, sorted = 1>(x, k)"),
    ],
)
def test_top_k_is_that_of_onnx_runtime(opset: int, text: str, dtype: str) -> None:
    """Of whole numbers, many of which are equal: the first of these come first."""
    for extents, axis, k in (((3, 17), -1, 5), ((6, 4), 0, 6), ((2, 70, 3), 1, 9), ((1, 1), -1, 1), ((2, 200), 1, 150)):
        if opset < 11 and dtype.startswith("int"):
            continue  # ONNX had floats only
        if opset == 8 and axis % len(extents) != len(extents) - 1:
            continue
        shape = f"{dtype}[{', '.join(map(str, extents))}]"
        body = text.format(k=k, axis=axis)
        held = {} if opset == 8 else {"k": np.array([k])}
        source = model(
            f"g ({shape} x) => ({dtype}[A] v, int64[A] i) {{ {body} }}".replace("[A]", ""), held, opset=opset
        )
        given = drawn(source, {})
        wanted = onnx_runtime.run(source, given)
        for got, array in zip(interpret.run(frontends.read(source), given), wanted, strict=True):
            np.testing.assert_array_equal(got, array)
        for got, array in zip(renorm.compile(source, threads=1).run(given["x"]), wanted, strict=True):
            np.testing.assert_array_equal(got, array)


def boxes_and_scores(batch: int, classes: int, count: int) -> tuple[Array, Array]:
    """Boxes of a few objects, about their places, opposite corners in either order; scores as detectors have them."""
    objects = RNG.uniform(0, 1, (batch, max(1, count // 5), 4))
    chosen = objects[:, RNG.integers(0, objects.shape[1], count)] + RNG.normal(0, 0.05, (batch, count, 4))
    scores = RNG.uniform(0, 1, (batch, classes, count)) ** 3
    return chosen.astype(np.float32), np.round(scores, 2).astype(np.float32)  # some are equal


SUPPRESSIONS = {
    "all": (11, "boxes, scores, most", {"most": 100}, 0),
    "overlap": (10, "boxes, scores, most, iou", {"most": 100, "iou": 0.3}, 0),
    "score": (11, "boxes, scores, most, iou, score", {"most": 100, "iou": 0.5, "score": 0.4}, 0),
    "few": (17, "boxes, scores, most, iou, score", {"most": 2, "iou": 0.5, "score": 0.1}, 0),
    "centers": (11, "boxes, scores, most, iou, score", {"most": 1 << 40, "iou": 0.45, "score": 0.05}, 1),
    "no overlap": (11, "boxes, scores, most, , score", {"most": 5, "score": 0.05}, 0),
    "none": (11, "boxes, scores", {}, 0),
}


@pytest.mark.parametrize(("opset", "operands", "numbers", "center"), SUPPRESSIONS.values(), ids=SUPPRESSIONS)
def test_what_is_kept_is_what_onnx_runtime_keeps(
    opset: int, operands: str, numbers: Mapping[str, Any], center: int
) -> None:
    held = {k: np.array([v], np.int64 if k == "most" else np.float32) for k, v in numbers.items()}
    text = f"""g (float[B, N, 4] boxes, float[B, C, N] scores) => (int64[K, 3] y)
        {{ y = NonMaxSuppression<center_point_box = {center}>({operands}) }}"""
    source = model(text, held, opset=opset)
    graph = frontends.read(source)
    peer, module, again = onnx_runtime.session(source), renorm.compile(source, threads=1), write(graph)
    assert type(module) is OpenModule
    assert [n.op_type for n in again.graph.node] == ["NonMaxSuppression"] if held else True
    for batch, classes, count in ((1, 1, 1), (1, 1, 60), (2, 3, 41), (1, 4, 130), (2, 2, 0)):
        boxes, scores = boxes_and_scores(batch, classes, count)
        given: dict[str, Array] = {"boxes": boxes, "scores": scores}
        (wanted,) = onnx_runtime.run(peer, given) if count else [np.zeros((0, 3), np.int64)]
        np.testing.assert_array_equal(interpret.run(graph, given)[0], wanted)
        np.testing.assert_array_equal(module.run(*(given[v.name] for v in module.inputs))[0], wanted)
        np.testing.assert_array_equal(onnx_runtime.run(again, given)[0] if count else wanted, wanted)


def test_small_values_that_may_be_negative_are_no_extents() -> None:
    """Of two boxes the second is kept or -1: not as many as there are places."""
    source = model(
        """g (float[1, 2, 4] boxes, float[1, 1, 2] scores) => (int64[K, 3] y)
        { y = NonMaxSuppression(boxes, scores, most, iou) }""",
        most=np.array([2]), iou=np.array([0.5], np.float32),
    )  # fmt: skip
    module, scores = renorm.compile(source, threads=1), np.ones((1, 1, 2), np.float32)
    for second, rows in (((0, 0, 1, 1), 1), ((2, 2, 3, 3), 2)):
        boxes = np.array([[(0, 0, 1, 1), second]], np.float32)
        assert module.run(boxes, scores)[0].tolist() == [[0, 0, 0], [0, 0, 1]][:rows]
