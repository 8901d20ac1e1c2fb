"""Extents and elements that users state decide what a file computes: shapes, branches, conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.frontends import onnx_runtime

import renorm
from renorm.core.dims import Sym, bounds
from renorm.driver.compare import compare
from renorm.driver.compile import analyze
from renorm.frontends import read
from renorm.frontends.diagnosis import ASSUMPTIONS
from renorm.graph import interpret
from renorm.graph.ir import Graph

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def model(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], constants: dict[str, Any] | None = None) -> Any:
    """Return a model with one float output, y."""
    graph = helper.make_graph(
        nodes,
        "stated",
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branch(op: str) -> Any:
    name = f"{op}_out"
    return helper.make_graph(
        [helper.make_node(op, ["x"], [name])], op, [], [helper.make_tensor_value_info(name, FLOAT, None)]
    )


def choice() -> Any:
    """y = x where rate == 16000 doubled, else its negative: control flow that an input decides."""
    return model(
        [
            helper.make_node("Equal", ["rate", "wanted"], ["is_wanted"]),
            helper.make_node("If", ["is_wanted"], ["y"], then_branch=branch("Exp"), else_branch=branch("Neg")),
        ],
        {"x": (FLOAT, ["N"]), "rate": (INT, [])},
        {"wanted": np.int64(16000)},
    )


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(("rate", "expected"), [(16000, np.exp), (8000, np.negative)])
def test_an_input_decides_a_branch(rate: int, expected: Any) -> None:
    m = renorm.compile(choice(), inputs={"rate": rate}, shapes={"x": (3,)})
    assert [v.name for v in m.inputs] == ["x"]
    np.testing.assert_allclose(m.run(X[0])[0], expected(X[0]), rtol=1e-6)


def test_without_it_each_call_decides() -> None:
    with pytest.raises(renorm.errors.OperandError, match="inputs="):
        read(choice())
    m = renorm.compile(choice())
    for rate, expected in ((16000, np.exp), (8000, np.negative), (16000, np.exp)):
        np.testing.assert_allclose(m.run(x=X[0], rate=np.array(rate))[0], expected(X[0]), rtol=1e-6)


def test_an_extent_decides_a_branch() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["n"]),
        helper.make_node("Greater", ["n", "few"], ["is_large"]),
        helper.make_node("If", ["is_large"], ["y"], then_branch=branch("Exp"), else_branch=branch("Neg")),
    ]
    made = model(nodes, {"x": (FLOAT, ["N"])}, {"first": np.int64(0), "few": np.int64(4)})
    for extent, op in ((3, "neg"), (7, "exp"), ("..4", "neg"), ("n:5..", "exp"), ("5*n:5..", "exp")):
        assert [n.op.name for n in read(made, shapes={"x": [extent]}).nodes if n.op.name in ("neg", "exp")] == [op]
    undecided = read(made, shapes={"x": ["..5"]})
    assert {"neg", "exp", "where"} <= {n.op.name for n in undecided.nodes}
    assert any("both branches" in a for a in undecided.metadata[ASSUMPTIONS])


SHAPES: dict[str, tuple[list[Any], Any, Any]] = {
    "reshape": ([helper.make_node("Reshape", ["x", "k"], ["y"])], [3, -1], (3, 2)),
    "slice": ([helper.make_node("Slice", ["x", "zero", "k", "one"], ["y"])], [2], (2, 2)),
    "expand": ([helper.make_node("Expand", ["x", "k"], ["y"])], [4, 1, 1], (4, 2, 3)),
    "tile": ([helper.make_node("Tile", ["x", "k"], ["y"])], [2, 3], (4, 9)),
    "constant_of_shape": (
        [helper.make_node("ConstantOfShape", ["k"], ["ones"]), helper.make_node("Add", ["ones", "x"], ["y"])],
        [5, 1, 1],
        (5, 2, 3),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_an_input_decides_a_shape(name: str) -> None:
    nodes, k, shape = SHAPES[name]
    made = model(nodes, {"x": (FLOAT, [2, 3]), "k": (INT, ["K"])}, {"zero": np.array([0]), "one": np.array([1])})
    graph = read(made, inputs={"k": k})
    assert graph.outputs[0].shape == shape
    (expected,) = onnx_runtime.run(made, {"x": X, "k": np.array(k)})
    np.testing.assert_array_equal(interpret.run(graph, {"x": X})[0], expected)
    np.testing.assert_array_equal(renorm.compile(made, inputs={"k": k}).run(X)[0], expected)


def test_a_range_as_long_as_an_input_says() -> None:
    nodes = [helper.make_node("Range", ["zero", "k", "one"], ["steps"]), helper.make_node("Add", ["steps", "x"], ["y"])]
    made = model(nodes, {"x": (FLOAT, ["N", 1]), "k": (FLOAT, [])}, {"zero": np.float32(0), "one": np.float32(1)})
    m = renorm.compile(made, inputs={"k": 4}, shapes={"x": (2, 1)})
    np.testing.assert_array_equal(m.run(X[:, :1])[0], X[:, :1] + np.arange(4, dtype=np.float32))


def test_what_does_not_fit_is_listed_together() -> None:
    with pytest.raises(renorm.errors.InvalidInput) as caught:
        renorm.compile(choice(), inputs={"rate": [1, 2], "z": 1}, shapes={"x": (3, 4)})
    for part in ("'z' is not an input", "the value given for rate has rank 0, not 1", "x has rank 1, not 2"):
        assert part in str(caught.value)


def test_a_file_is_written_without_it(tmp_path: Path) -> None:
    path = tmp_path / "neg.onnx"
    renorm.optimize(choice(), path, inputs={"rate": 8000})
    np.testing.assert_array_equal(onnx_runtime.run(path, {"x": X[0]})[0], -X[0])
    with pytest.raises(renorm.errors.InvalidInput, match="does not lead back"):
        renorm.optimize(choice(), path, inputs={"rate": 8000}, reversible=True)


def test_it_is_compared_with_a_runtime_that_is_given_it() -> None:
    found = compare(choice(), {"x": X[0], "rate": np.array(16000)}, bound=["rate"])
    assert found.agrees
    assert found.reference == "ort"


def test_of_a_graph_in_memory() -> None:
    graph = Graph("g")
    x, k = graph.input("x", "float32", ("N", "H")), graph.input("k", "int64", (2,))
    graph.outputs = [renorm.ops.reshape(x, k)]
    (y,) = renorm.compile(graph, inputs={"k": [3, 2]}, shapes={"x": (2, 3)}).run(X)
    np.testing.assert_array_equal(y, X.reshape(3, 2))
    analyzed, _ = analyze(graph, inputs={"k": [3, -1]}, shapes={"x": ["n:1..4", "3*h"]})
    assert analyzed.outputs[0].shape == (3, Sym("n") * Sym("h"))
    assert bounds(analyzed.inputs[0].shape[0]) == (1, 4)
    assert [v.name for v in graph.inputs] == ["x", "k"]


def test_a_module_of_stated_extents_says_what_does_not_fit() -> None:
    graph = Graph("g")
    graph.outputs = [renorm.ops.relu(graph.input("x", "float32", ("N", "H")))]
    m = renorm.compile(graph, shapes={"x": ["n:1..4", "3*h"]})
    np.testing.assert_array_equal(m.run(-X)[0], 0 * X)
    with pytest.raises(renorm.errors.InvalidInput, match=r"5, but n is in 1\.\.4"):
        m.run(np.zeros((5, 3), np.float32))
    with pytest.raises(renorm.errors.InvalidInput, match=r"4 is 3\*h for no h"):
        m.run(np.zeros((2, 4), np.float32))
