"""Reductions, extremes, softmax and dropout as every opset writes them, against ONNX Runtime and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ops.nodes import by_loops, by_onnxruntime, by_renorm, model, normal, read

from renorm.core.dims import Sym
from renorm.core.errors import RenormError
from renorm.graph.ir import Graph
from renorm.ops.arg_extreme import ArgMax
from renorm.ops.dropout import Dropout
from renorm.ops.reduce_log_sum_exp import ReduceLogSumExp
from renorm.ops.softmax import LogSoftmax, Softmax

REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("opset", [1, 11, 13, 18])
@pytest.mark.parametrize("axes", [None, [1], [0, 2], [-1]], ids=str)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_at_every_opset(kind: str, opset: int, axes: list[int] | None, keepdims: int) -> None:
    o: dict[str, Any] = {"x": np.abs(normal(np.random.default_rng(0), 3, 4, 5)) + np.float32(0.1)}
    attributes: dict[str, Any] = {"keepdims": keepdims}
    if opset == 1 and axes == [-1]:
        axes = [2]  # axes counted from the front until opset 10
    if axes is not None and opset >= (13 if kind == "Sum" else 18):
        o["axes"] = np.array(axes)
    elif axes is not None:
        attributes["axes"] = axes
    proto = model(f"Reduce{kind}", opset, o, constant=("axes",), **attributes)
    expected = by_onnxruntime(proto, o)[0]
    ours = by_renorm(proto, o)[0]
    assert ours.shape == expected.shape
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("noop", [0, 1])
@pytest.mark.parametrize("axes", [None, np.zeros(0, np.int64)], ids=["absent", "empty"])
def test_no_axes_are_all_of_them_unless_the_node_says_otherwise(noop: int, axes: Any) -> None:
    o = {"x": normal(np.random.default_rng(0), 3, 4), "axes": axes}
    proto = model("ReduceSum", 13, o, constant=("axes",), noop_with_empty_axes=noop)
    expected = o["x"] if noop else o["x"].sum(keepdims=True)
    np.testing.assert_allclose(by_renorm(proto, o)[0], expected, rtol=1e-5)


def test_axes_must_be_known() -> None:
    o = {"x": normal(np.random.default_rng(0), 3, 4), "axes": np.array([1])}
    with pytest.raises(RenormError, match="axes"):
        read(model("ReduceSum", 13, o))


def test_sums_and_products_of_extents_stay_symbolic() -> None:
    from renorm import ops

    graph = Graph()
    x = graph.input("x", "float32", (Sym("N"), 3, Sym("H")))
    shape = ops.shape(x)
    assert ops.reduce_prod(shape, axes=(0,), keepdims=False).known.item() == Sym("N") * Sym("H") * 3
    assert ops.reduce_sum(shape, axes=(0,)).known.tolist() == [Sym("N") + Sym("H") + 3]
    assert ops.reduce_max(shape, axes=(0,)).known is None


def test_log_sum_exp_neither_overflows_nor_makes_nan() -> None:
    rows = np.array([[1000, 1000, -1000], [-1e4, -1e4 - 1, -np.inf], [np.inf, 0, 1], [-np.inf] * 3], np.float32)
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    expected = torch.logsumexp(torch.from_numpy(rows.astype(np.float64)), 1).numpy()
    np.testing.assert_allclose(by_loops(ReduceLogSumExp, rows, axes=(1,), keepdims=False), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("opset", [1, 11, 12, 13])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_extremes_at_every_opset(kind: str, opset: int, last: int, axis: int) -> None:
    o = {"x": np.random.default_rng(0).integers(0, 3, (3, 4, 5)).astype(np.float32)}
    attributes: dict[str, Any] = {"axis": axis, "keepdims": axis % 2} | (
        {"select_last_index": last} if opset >= 12 else {}
    )
    proto = model(kind, opset, o, **attributes)
    for out in proto.graph.output:
        out.type.tensor_type.elem_type = 7  # int64
    np.testing.assert_array_equal(by_renorm(proto, o)[0], by_onnxruntime(proto, o)[0])


def test_nan_is_the_greatest_as_in_numpy() -> None:
    x = np.array([[1, np.nan, 3, np.nan], [4, 4, -np.inf, 1]], np.float32)
    np.testing.assert_array_equal(by_loops(ArgMax, x, axis=1), np.argmax(x, 1, keepdims=True))
    np.testing.assert_array_equal(by_loops(ArgMax, x, axis=1, select_last_index=True), [[3], [1]])


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [1, 9, 11, 12, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3, -1])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4, 2, 1)])
def test_softmax_flattens_before_opset_13(kind: str, opset: int, axis: int | None, shape: tuple[int, ...]) -> None:
    if axis == -1 and opset < 11:
        axis = 3
    o = {"x": normal(np.random.default_rng(0), *shape)}
    stated: dict[str, Any] = {} if axis is None else {"axis": axis}
    proto = model(kind, opset, o, **stated)
    np.testing.assert_allclose(by_renorm(proto, o)[0], by_onnxruntime(proto, o)[0], rtol=1e-5, atol=1e-6)
    (node,) = read(proto).nodes
    loops = by_loops(type(node.op), o["x"], **node.op.values)
    np.testing.assert_allclose(loops, by_onnxruntime(proto, o)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [1, 12])
def test_softmax_over_single_elements(opset: int) -> None:
    """axis = rank is legal before opset 13: every element is a row."""
    o = {"x": normal(np.random.default_rng(0), 2, 3)}
    np.testing.assert_array_equal(by_renorm(model("Softmax", opset, o, axis=2), o)[0], np.ones((2, 3)))


@pytest.mark.parametrize("op", [Softmax, LogSoftmax])
def test_softmax_of_large_numbers(op: Any) -> None:
    x = (normal(np.random.default_rng(0), 5, 30) * np.float32(1e3)).astype(np.float32)
    x[1] = 3e38
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    f = torch.softmax if op is Softmax else torch.log_softmax
    expected = f(torch.from_numpy(x.astype(np.float64)), 1).numpy()
    np.testing.assert_allclose(by_loops(op, x), expected, rtol=1e-5, atol=1e-6)


# --- dropout ----------------------------------------------------------------------------------------------------------

DROPOUT: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (1, {}, {"is_test": 1, "ratio": 0.3, "consumed_inputs": [0]}),
    (6, {}, {"is_test": 1}),
    (7, {}, {"ratio": 0.3}),
    (10, {}, {}),
    (12, {}, {}),
    (12, {"ratio": np.float32(0.3)}, {"seed": 3}),
    (13, {"ratio": np.float32(0.3), "training": np.array(False)}, {}),
    (22, {"ratio": np.float32(0.0), "training": np.array(True)}, {}),
]


@pytest.mark.parametrize(("opset", "operands", "attributes"), DROPOUT, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_dropout_passes_everything(
    opset: int, operands: dict[str, Any], attributes: dict[str, Any], masked: bool
) -> None:
    o = {"x": normal(np.random.default_rng(0), 2, 3), **operands}
    outputs = ("y", "mask") if masked else ("y",)
    proto = model("Dropout", opset, o, outputs, tuple(operands), **attributes)
    y, *mask = by_renorm(proto, o)
    np.testing.assert_array_equal(y, o["x"])
    for m in mask:
        assert m.dtype == (np.float32 if opset < 10 else bool)
        np.testing.assert_array_equal(m, np.ones((2, 3)))
    (op,) = (n.op for n in read(proto).nodes if isinstance(n.op, Dropout))
    ratio = operands.get("ratio", attributes.get("ratio", 0.5))
    assert op.ratio == pytest.approx(float(ratio))
