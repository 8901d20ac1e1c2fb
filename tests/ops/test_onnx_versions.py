"""What ONNX said differently at older opsets, node by node, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.random_numbers import RNG

from renorm import frontends
from renorm.core.errors import RenormError
from renorm.graph import interpret
from renorm.graph.ir import Graph

Array = np.ndarray[Any, Any]


def read(
    op_type: str,
    opset: int,
    *operands: Array | None,
    constants: dict[int, Array] | None = None,
    outputs: int = 1,
    **attributes: Any,
) -> Graph:
    """A model of one node. operands: inputs; constants: operands that are initializers, by position."""
    held = constants or {}
    given = [*operands, *(None for _ in range(max(held, default=-1) + 1 - len(operands)))]
    names = [f"x{k}" if o is not None or k in held else "" for k, o in enumerate(given)]
    node = helper.make_node(op_type, names, [f"y{k}" for k in range(outputs)], name="node", **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(f"x{k}", helper.np_dtype_to_tensor_dtype(o.dtype), o.shape)
            for k, o in enumerate(given)
            if o is not None
        ],
        [helper.make_empty_tensor_value_info(f"y{k}") for k in range(outputs)],
        [numpy_helper.from_array(a, f"x{k}") for k, a in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)
    return frontends.read(model)


def results(graph: Graph, *operands: Array | None) -> list[Array]:
    return interpret.run(graph, [o for o in operands if o is not None])


def draw(*shape: int, dtype: str = "float32") -> Array:
    return RNG.uniform(-2, 2, shape).astype(dtype)


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize(
    ("b", "axis", "as_numpy"),
    [
        ((3, 4), 1, (3, 4, 1)),
        ((5,), None, (5,)),
        ((2,), 0, (2, 1, 1, 1)),
        ((4, 5), -2, (4, 5)),
        ((1,), None, (1,)),
        ((3, 1), 1, (3, 1, 1)),
    ],
)
@pytest.mark.parametrize(
    ("op_type", "f"),
    [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide), ("Pow", np.power)],
)
def test_broadcast_by_attributes(op_type: str, f: Any, b: Any, axis: Any, as_numpy: Any, opset: int) -> None:
    x, y = np.abs(draw(2, 3, 4, 5)) + 0.5, draw(*b)
    given: dict[str, Any] = {} if axis is None else {"axis": axis}
    graph = read(op_type, opset, x, y, broadcast=1, **given)
    np.testing.assert_allclose(results(graph, x, y)[0], f(x, y.reshape(as_numpy)), rtol=1e-5)


def test_comparison_by_attributes() -> None:
    x, y = draw(2, 3, 4), draw(3)
    graph = read("Greater", 1, x, y, broadcast=1, axis=1)
    np.testing.assert_array_equal(results(graph, x, y)[0], x > y[:, None])


def test_clip_bounds_as_attributes() -> None:
    x = draw(9)
    for opset in (1, 6):
        np.testing.assert_array_equal(results(read("Clip", opset, x, min=-1.0, max=0.5), x)[0], np.clip(x, -1, 0.5))
        np.testing.assert_array_equal(results(read("Clip", opset, x, max=0.5), x)[0], np.minimum(x, np.float32(0.5)))
        np.testing.assert_array_equal(results(read("Clip", opset, x), x)[0], x)


def test_clip_bounds_as_operands_that_are_computed() -> None:
    x, low, high = draw(9), np.float32(-1), np.float32(0.5)
    graph = read("Clip", 13, x, np.asarray(low), np.asarray(high))
    np.testing.assert_array_equal(results(graph, x, np.asarray(low), np.asarray(high))[0], np.clip(x, low, high))


def test_slice_by_attributes() -> None:
    x = draw(5, 6, 7)
    graph = read("Slice", 1, x, starts=[1, -3], ends=[2**31 - 1, -1], axes=[0, 2])
    np.testing.assert_array_equal(results(graph, x)[0], x[1:, :, -3:-1])
    graph = read("Slice", 9, x, starts=[0, 1], ends=[2, 5])
    np.testing.assert_array_equal(results(graph, x)[0], x[0:2, 1:5])


def test_reshape_by_attribute() -> None:
    x = draw(2, 3, 4)
    assert results(read("Reshape", 1, x, shape=[0, -1]), x)[0].shape == (2, 12)


@pytest.mark.parametrize(("opset", "name"), [(1, "paddings"), (2, "pads"), (10, "pads")])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad_by_attributes(opset: int, name: str, mode: Any) -> None:
    x = draw(3, 4)
    attributes: dict[str, Any] = {"mode": mode, name: [1, 0, 2, 3]}
    graph = read("Pad", opset, x, **attributes)
    np.testing.assert_array_equal(results(graph, x)[0], np.pad(x, ((1, 2), (0, 3)), mode))


def test_pad_value_as_attribute_and_axes_as_operand() -> None:
    x = draw(3, 4)
    graph = read("Pad", 2, x, pads=[1, 0, 0, 1], value=2.5)
    np.testing.assert_array_equal(results(graph, x)[0], np.pad(x, ((1, 0), (0, 1)), constant_values=2.5))
    graph = read("Pad", 18, x, None, None, None, constants={1: np.array([2, 1]), 3: np.array([-1])})
    np.testing.assert_array_equal(results(graph, x)[0], np.pad(x, ((0, 0), (2, 1))))


@pytest.mark.parametrize("opset", [1, 11])
def test_axes_as_attribute(opset: int) -> None:
    x = draw(1, 3, 1)
    assert results(read("Squeeze", opset, x, axes=[0]), x)[0].shape == (3, 1)
    assert results(read("Squeeze", opset, x), x)[0].shape == (3,)
    assert results(read("Unsqueeze", opset, x, axes=[0, 4]), x)[0].shape == (1, 1, 3, 1, 1)


def test_axes_as_operand() -> None:
    x = draw(1, 3, 1)
    assert results(read("Squeeze", 13, x, constants={1: np.array([-1])}), x)[0].shape == (1, 3)
    assert results(read("Unsqueeze", 13, x, constants={1: np.array([-1, 0])}), x)[0].shape == (1, 1, 3, 1, 1)
    with pytest.raises(RenormError, match="computed when the network runs"):
        read("Squeeze", 13, x, np.array([0]))


def test_split_sizes() -> None:
    x = draw(6, 4)
    parts = [x[:1], x[1:4], x[4:]]
    for graph in (
        read("Split", 2, x, split=[1, 3, 2], outputs=3),
        read("Split", 13, x, constants={1: np.array([1, 3, 2])}, outputs=3),
    ):
        for got, expected in zip(results(graph, x), parts, strict=True):
            np.testing.assert_array_equal(got, expected)
    for graph in (read("Split", 2, x, axis=1, outputs=2), read("Split", 18, x, axis=1, num_outputs=2, outputs=2)):
        for got, expected in zip(results(graph, x), np.split(x, 2, 1), strict=True):
            np.testing.assert_array_equal(got, expected)
    sizes = [r.shape[0] for r in results(read("Split", 18, x, num_outputs=4, outputs=4), x)]
    assert sizes == [2, 2, 2, 0]
    with pytest.raises(RenormError, match="do not divide extent 6"):
        read("Split", 13, x, outputs=4)


def test_tile_by_axis() -> None:
    x = draw(2, 3)
    graph = read("Tile", 1, x, constants={1: np.array(3), 2: np.array(1)})
    np.testing.assert_array_equal(results(graph, x)[0], np.tile(x, (1, 3)))


def test_concat_without_axis_is_along_axis_1() -> None:
    x, y = draw(2, 3), draw(2, 1)
    np.testing.assert_array_equal(results(read("Concat", 1, x, y), x, y)[0], np.concatenate([x, y], 1))


def test_cast_to_a_word() -> None:
    x = draw(4)
    np.testing.assert_array_equal(results(read("Cast", 1, x, to="INT32"), x)[0], x.astype(np.int32))
    np.testing.assert_array_equal(results(read("Cast", 6, x, to=onnx.TensorProto.INT64), x)[0], x.astype(np.int64))


def test_cast_to_the_type_of_an_operand() -> None:
    x, like = draw(4), np.zeros(2, np.int32)
    np.testing.assert_array_equal(results(read("CastLike", 15, x, like), x, like)[0], x.astype(np.int32))


def test_prelu_slope_per_channel() -> None:
    x, slope = draw(2, 3, 4, 5), draw(3)
    for opset, given in ((1, slope), (6, slope), (7, slope.reshape(3, 1, 1))):
        graph = read("PRelu", opset, x, given)
        np.testing.assert_allclose(results(graph, x, given)[0], np.where(x < 0, x * slope[:, None, None], x), rtol=1e-6)


def test_attributes_of_old_optimizers_are_ignored() -> None:
    x = draw(4)
    np.testing.assert_array_equal(results(read("Relu", 1, x, consumed_inputs=[0]), x)[0], np.maximum(x, 0))
    with pytest.raises(RenormError, match="attribute slope is not defined"):
        read("Relu", 6, x, slope=0.5)


@pytest.mark.parametrize(
    ("opset", "attributes", "expected"),
    [(1, {}, [2, 3, 4]), (15, {"start": 1}, [3, 4]), (15, {"start": -2, "end": -1}, [3])],
)
def test_shape_of_some_axes(opset: int, attributes: Any, expected: list[int]) -> None:
    x = draw(2, 3, 4)
    assert results(read("Shape", opset, x, **attributes), x)[0].tolist() == expected


def test_reshape_with_allowzero() -> None:
    x = draw(0, 3)
    graph = read("Reshape", 14, x, constants={1: np.array([3, 0])}, allowzero=1)
    assert results(graph, x)[0].shape == (3, 0)
