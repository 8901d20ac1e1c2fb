"""What exporters write to compute shapes is known before shapes are fixed, over ints and symbols alike."""

from __future__ import annotations

import numpy as np
import pytest

from renorm import ops
from renorm.core.dims import Sym
from renorm.core.errors import OperandError
from renorm.graph.ir import Graph, Value


def image(*shape: object) -> tuple[Graph, Value]:
    graph = Graph()
    return graph, graph.input("x", "float32", shape)


N, H = Sym("N"), Sym("H")


def test_flatten_as_torch_wrote_it() -> None:
    """x.view(x.size(0), -1): Shape, Gather, Unsqueeze, Concat, Reshape."""
    _, x = image(N, 64, 7, 7)
    batch = ops.unsqueeze(ops.gather(ops.shape(x), np.int64(0)), axes=[0])
    y = ops.reshape(x, ops.concat([batch, np.array([-1])], axis=0))
    assert y.shape == (N, 3136)


def test_view_that_splits_heads() -> None:
    _, x = image(N, H, 768)
    n, h = (ops.gather(ops.shape(x), np.int64(k)) for k in (0, 1))
    parts = [ops.unsqueeze(n, axes=[0]), ops.unsqueeze(h, axes=[0]), np.array([12]), np.array([64])]
    assert ops.reshape(x, ops.concat(parts, axis=0)).shape == (N, H, 12, 64)


def test_channel_shuffle_divides_channels() -> None:
    _, x = image(N, 58, H, 28)
    shape = ops.shape(x)
    half = ops.div(ops.slice(shape, [1], [2]), np.array([2]))
    assert half.known.tolist() == [29]
    to = ops.concat([ops.slice(shape, (0,), (1,)), np.array([2]), half, ops.slice(shape, (2,), (4,))], axis=0)
    assert ops.reshape(x, to).shape == (N, 2, 29, H, 28)


def test_upsampling_by_a_float_factor() -> None:
    """Size by Cast, Mul with a float, Floor and Cast back; exact for symbols and rounded as float32 is for numbers."""
    for extent, expected in ((H, H * 2), (13, 26)):
        _, x = image(N, 3, extent, 7)
        height = ops.cast(ops.gather(ops.shape(x), np.int64(2)), to="float32")
        doubled = ops.cast(ops.floor(ops.mul(height, np.float32(2.0))), to="int64")
        assert doubled.known.item() == expected
    _, x = image(1, 3, 13, 7)
    height = ops.cast(ops.gather(ops.shape(x), np.int64(2)), to="float32")
    thirds = ops.cast(ops.mul(height, np.float32(1 / 3)), to="int64")
    assert thirds.known.item() == int(np.float32(13) * np.float32(1 / 3))


def test_expand_with_equal_and_where() -> None:
    """torch.expand: where(shape == -1, ones, shape), with ones from ConstantOfShape."""
    _, x = image(1, 5, 1)
    wanted = ops.concat([ops.unsqueeze(ops.size(x), axes=[0]), np.array([-1]), np.array([4])], axis=0)
    ones = ops.constant_of_shape(ops.shape(wanted), value=1, dtype="int64")
    to = ops.where(ops.equal(wanted, ops.mul(ones, np.array(-1))), ones, wanted)
    assert to.known.tolist() == [5, 1, 4]
    assert ops.expand(x, to).shape == (5, 5, 4)


def test_a_symbol_is_no_negative_number() -> None:
    _, x = image(N, 3)
    assert ops.equal(ops.shape(x), np.array([-1, -1])).known.tolist() == [False, False]
    assert ops.equal(ops.shape(x), np.array([4, 3])).known is None


def test_arithmetic_on_symbols() -> None:
    _, x = image(N, 3, H, 6)
    h = ops.slice(ops.shape(x), (2,), (3,))
    assert ops.add(h, h).known.tolist() == [H * 2]
    assert ops.sub(ops.mul(h, np.array([4])), h).known.tolist() == [H * 3]
    assert ops.mod(ops.mul(h, np.array([4])), np.array([2])).known.tolist() == [0]
    assert ops.max([h, np.array([0])]).known.tolist() == [H]
    assert ops.max([h, np.array([5])]).known is None
    assert ops.squeeze(h, axes=[0]).known.item() == H
    assert ops.range(np.int64(0), ops.squeeze(h, axes=[0]), np.int64(1)).shape == (H,)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 2**63 - 1, N), (1, 2**63 - 1, N - 1), (0, -1, N - 1), (-1, 2**31 - 1, 1), (0, 1, 1)],
)
def test_slice_of_a_symbolic_axis(start: int, end: int, expected: object) -> None:
    _, x = image(N, 3)
    assert ops.slice(x, (start,), (end,)).shape == (expected, 3)


def test_slice_that_may_lie_outside_leaves_the_extent_open() -> None:
    _, x = image(N, 3)
    (extent, _) = ops.slice(x, (0,), (5,)).shape
    assert isinstance(extent, Sym)
    assert extent != N


def test_slice_of_a_table_to_a_symbolic_length() -> None:
    graph, x = image(N, H)
    table = graph.constant(np.zeros((1, 512), np.int64))
    length = ops.gather(ops.shape(x), np.array([1]))
    assert ops.slice(table, (0,), length, (1,)).shape == (1, H)


def test_shape_of_reshape_that_is_not_known_is_open() -> None:
    graph, x = image(N, 3)
    given = graph.input("to", "int64", (2,))
    y = ops.reshape(x, given)
    assert len(y.shape) == 2
    assert all(isinstance(d, Sym) for d in y.shape)


def test_operands_by_name() -> None:
    _, x = image(2, 3)
    assert ops.reshape(x, shape=(3, 2)).shape == (3, 2)
    assert ops.clip(x, high=np.float32(6)).producer.operands[1] is None
    with pytest.raises(OperandError, match="given twice"):
        ops.reshape(x, (3, 2), shape=(3, 2))
    with pytest.raises(OperandError, match="has no attribute 'shapes'"):
        ops.reshape(x, shapes=(3, 2))
    with pytest.raises(AttributeError, match="nearest: reshape"):
        ops.reshap(x)
