"""What exporters write to compute shapes is known before shapes are fixed, over ints and symbols alike."""

from __future__ import annotations

import numpy as np
import pytest

from renorm import ops
from renorm.core.dims import Sym, maximum, minimum, substitute
from renorm.core.errors import OperandError
from renorm.graph import interpret
from renorm.graph.conditions import conditions_of
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


@pytest.mark.parametrize("rounded", ["floor", "ceil", "cast"])
@pytest.mark.parametrize(
    "step", [("mul", 0.5), ("mul", 1.75), ("div", 2.0), ("div", 32.0), ("div", 0.25), ("mul", 0.3)]
)
def test_parts_of_an_extent(step: tuple[str, float], rounded: str) -> None:
    """Cast to float, Mul or Div by a float, Floor or Ceil, Cast back: known where floats do not round."""
    op, by = step
    graph, x = image(N, 3, H + 1, 7)
    extent = ops.cast(ops.gather(ops.shape(x), np.int64(2)), to="float32")
    part = getattr(ops, op)(extent, np.float32(by))
    made = ops.cast(part if rounded == "cast" else getattr(ops, rounded)(part), to="int64")
    if by == 0.3:
        assert made.known is None
        return
    graph.outputs = [ops.identity(made)]
    for h in range(70):
        given = np.zeros((1, 3, h + 1, 7), np.float32)
        assert substitute(made.known.item(), {"H": h}) == interpret.run(graph, [given])[0]
    assert ops.neg(part).known.item() == -part.known.item()
    if not isinstance(part.known.item(), Sym):
        assert ops.add(part, part).known is ops.mul(part, part).known is ops.max([part, part]).known is None
        assert ops.equal(part, np.float32(1)).known is ops.sqrt(part).known is None


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
    assert ops.max([h, np.array([5])]).known.tolist() == [maximum(H, 5)]
    assert ops.squeeze(h, axes=[0]).known.item() == H
    assert ops.range(np.int64(0), ops.squeeze(h, axes=[0]), np.int64(1)).shape == (H,)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 2**63 - 1, N), (1, 2**63 - 1, N - 1), (0, -1, N - 1), (-1, 2**31 - 1, 1), (0, 1, 1)],
)
def test_slice_of_a_symbolic_axis(start: int, end: int, expected: object) -> None:
    _, x = image(N, 3)
    assert ops.slice(x, (start,), (end,)).shape == (expected, 3)


def test_slice_that_may_lie_outside() -> None:
    _, x = image(N, 3)
    assert ops.slice(x, (0,), (5,)).shape == (minimum(N, 5), 3)


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
def test_slices_are_those_of_python(step: int) -> None:
    """At each extent that the slice takes to be possible, and it excludes but an axis without elements. A start before
    the first element is that one, also of a slice down: as ONNX has it, unlike Python."""
    for start in (-9, -3, -1, 0, 1, 2, 5, 2**31 - 1):
        for end in (-(2**31), -4, -1, 0, 1, 3, 7, 2**63 - 1):
            graph, x = image(N)
            (extent,) = ops.slice(x, (start,), (end,), (0,), (step,)).shape
            conditions = conditions_of(graph)
            for n in range(10):
                if all(c.holds({"N": n}) for c in conditions):
                    first = max(start, -n) if step < 0 else start
                    cut = slice(first, None if step < 0 and end == -(2**31) else end, step)
                    assert substitute(extent, {"N": n}) == len(range(n)[cut]), (start, end, n)
                else:
                    assert n == 0, (start, end, [*map(str, conditions)])


def test_range_over_an_extent() -> None:
    for start, limit, delta in ((0, N, 1), (2, N, 3), (N, 1, -2), (N, N * 2, 2), (N - 1, -1, -1)):
        graph, _ = image(N)
        bounds = [graph.open_constant(np.array(b, dtype=object), "b", "int64") for b in (start, limit, delta)]
        (extent,) = ops.range(*bounds).shape
        for n in range(9):
            first, end, by = (int(str(substitute(b, {"N": n}))) for b in (start, limit, delta))
            assert substitute(extent, {"N": n}) == len(range(first, end, by))


def test_what_shapes_take_to_be_so() -> None:
    graph, x = image(N, H, 4)
    y, table = graph.input("y", "float32", ("M", 6, 4)), graph.constant(np.zeros((512, 4), np.float32))
    both = ops.add(x, y, name="both")
    ops.reshape(both, np.array([-1, 48]), name="wide")
    ops.slice(x, (0, 0), (1, 3), name="cut")
    length = ops.gather(ops.shape(x), np.array([1]))
    ops.concat([ops.slice(table, (0,), length, (0,), name="rows"), ops.squeeze(y, axes=[0], name="one")], axis=0)
    found = {str(c): by for c, by in conditions_of(graph).items()}
    assert found == {
        "N == M": "both",
        "H == 6": "both",
        "24*(M)%(2) == 0": "wide",
        "1 <= N": "cut",
        "H <= 512": "rows",
        "M == 1": "one",
    }


def test_a_part_of_a_difference_is_not_rounded_towards_zero() -> None:
    graph, x = image(N, H)
    half = ops.div(ops.sub(ops.gather(ops.shape(x), np.array([1])), np.array([5])), np.array([2]))
    ops.constant_of_shape(half)
    assert half.known.item() == (H - 5) // 2
    assert "0 <= -5 + H" in map(str, conditions_of(graph))


def test_windows_that_may_not_fit() -> None:
    graph, x = image(N, 3, H, 9)
    pool = ops.max_pool(x, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=True)
    for h in range(1, 12):
        fixed = graph.copy({"N": 1, "H": h}) if all(c.holds({"N": 1, "H": h}) for c in conditions_of(graph)) else None
        assert (fixed is None) == (h < 2)
        if fixed is not None:
            assert fixed.nodes[-1].output.shape == tuple(substitute(d, {"N": 1, "H": h}) for d in pool.shape)


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
