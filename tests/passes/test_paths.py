"""Norms behind and in front of linear ops, with ops between that leave channels apart: folded, and exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

from renorm import ops
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.passes.pipeline import optimize

LINEAR = ("conv", "conv_transpose", "gemm", "matmul")
PADS = np.array([0, 0, 1, 0, 0, 0, 2, 1])
CHANNELS = np.array([0, 1, 0, 0, 0, 2, 0, 0])


def w(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def norm(x: Value, name: str = "norm") -> Value:
    c = int(str(x.shape[1]))
    scale, bias, mean = (RNG.uniform(-2, 2, c).astype(np.float32) for _ in range(3))
    scale[:1] *= -np.sign(scale[:1])
    return ops.batch_norm(x, scale, bias, mean, RNG.uniform(0.5, 2, c).astype(np.float32), name=name)


def stored(x: Value) -> Value:
    """An instance norm with stored statistics, as it may be written: samples and channels in one axis."""
    n, c, *_ = shape = [int(str(d)) for d in x.shape]
    scale, bias, mean, var = (np.tile(RNG.uniform(0.5, 2, c).astype(np.float32), n) for _ in range(4))
    y = ops.batch_norm(ops.reshape(x, np.array([1, n * c, *shape[2:]])), scale, bias, mean, var, name="norm")
    return ops.reshape(y, np.array(shape))


def positive(x: Value) -> Value:
    """A scale above zero, which more ops commute with."""
    return ops.mul(x, RNG.uniform(0.5, 2, (int(str(x.shape[1])), 1, 1)).astype(np.float32), name="norm")


def conv(x: Value, m: int = 6, **given: Any) -> Value:
    return ops.conv(x, w(m, int(str(x.shape[1])) // given.get("group", 1), 3, 3), w(m), **given)


def sliced(x: Value, axis: int, start: int, end: int, step: int = 1) -> Value:
    return ops.slice(x, *(np.array([v]) for v in (start, end, axis, step)))


def halves(x: Value, *sizes: int) -> tuple[Value, ...]:
    return ops.split(x, np.array(sizes), axis=1)


def slices(x: Value, *sizes: int) -> list[Value]:
    ends = np.cumsum(sizes)
    return [sliced(x, 1, int(end) - size, int(end)) for size, end in zip(sizes, ends)]


BEHIND: dict[str, Callable[[Value], Value]] = {
    "slice": lambda x: norm(sliced(conv(x), 3, 0, 9, 2)),
    "slice of channels": lambda x: norm(sliced(conv(x), 1, 4, 0, -2)),
    "transpose": lambda x: ops.mul(ops.transpose(conv(x), perm=(0, 2, 3, 1)), w(6), name="norm"),
    "concat": lambda x: norm(ops.concat([conv(x, 6), conv(x, 3)], axis=1)),
    "concat of a constant": lambda x: norm(ops.concat([conv(x, 6), w(2, 3, 4, 5)], axis=1)),
    "concat of rows": lambda x: norm(ops.concat([conv(x), conv(x)], axis=2)),
    "add": lambda x: norm(ops.add(conv(x), conv(x, pads=(0, 0, 0, 0)))),
    "sub": lambda x: norm(ops.sub(conv(x), conv(x))),
    "add of a constant": lambda x: norm(ops.add(conv(x), w(1, 6, 4, 5))),
    "max pool": lambda x: positive(ops.max_pool(conv(x), kernel_shape=(2, 2))),
    "average pool": lambda x: norm(ops.average_pool(conv(x), kernel_shape=(2, 2), pads=(1, 1, 1, 1))),
    "global average": lambda x: norm(ops.global_average_pool(conv(x))),
    "relu": lambda x: positive(ops.relu(conv(x))),
    "edge": lambda x: norm(ops.pad(conv(x), PADS, mode="edge")),
    "reflect": lambda x: norm(ops.pad(conv(x), PADS, mode="reflect")),
    "flatten": lambda x: ops.mul(ops.flatten(conv(x)), np.repeat(w(6), 20), name="norm"),
    "reshape": lambda x: norm(ops.reshape(conv(x), np.array([2, 6, 20]))),
    "reshape into groups": lambda x: ops.mul(ops.reshape(conv(x), np.array([2, 3, 2, 20])), w(3, 1, 1), name="norm"),
    "pad of channels": lambda x: norm(ops.pad(conv(x), CHANNELS)),
    "expand": lambda x: norm(ops.expand(ops.global_average_pool(conv(x)), np.array([2, 6, 3, 5]))),
    "tile": lambda x: norm(ops.tile(conv(x), np.array([1, 1, 2, 3]))),
    "tile of channels": lambda x: ops.mul(
        ops.tile(conv(x), np.array([1, 2, 1, 1])), np.tile(w(6, 1, 1), (2, 1, 1)), name="norm"
    ),
    "resize": lambda x: norm(ops.resize(conv(x), sizes=np.array([2, 6, 9, 7]), mode="linear")),
    "resize by scales": lambda x: norm(ops.resize(conv(x), None, np.array([1, 1, 1.5, 2], np.float32), mode="cubic")),
    "sum of three": lambda x: norm(ops.sum(conv(x), conv(x), w(1, 6, 4, 5))),
    "stored instance norm": lambda x: stored(conv(x)),
    "depth to space": lambda x: ops.mul(ops.depth_to_space(conv(x, 8), blocksize=2), w(2, 1, 1), name="norm"),
    "split, concat": lambda x: norm(ops.concat([*halves(conv(x), 1, 2, 3)], axis=1)),
    "split, concat in another order": lambda x: norm(ops.concat([*halves(conv(x), 1, 2, 3)][::-1], axis=1)),
    "slices, concat in another order": lambda x: norm(ops.concat([*slices(conv(x), 2, 4)][::-1], axis=1)),
    "split, sum": lambda x: norm(ops.add(*halves(conv(x), 3, 3))),
    "slices, difference": lambda x: norm(ops.sub(*slices(conv(x), 3, 3))),
    "slices, one of them alone": lambda x: ops.concat(
        [norm((parts := slices(conv(x), 1, 2, 3))[1]), ops.relu(parts[0]), ops.tanh(parts[2])], axis=1
    ),
    "split, one part convolved": lambda x: norm(
        ops.concat([conv((parts := halves(conv(x, pads=(1, 1, 1, 1)), 2, 4))[0], pads=(1, 1, 1, 1)), parts[1]], axis=1)
    ),
    "split, relu of a part": lambda x: positive(
        ops.concat([(parts := halves(conv(x), 2, 4))[1], ops.relu(parts[0])], axis=1)
    ),
    "split in two ways": lambda x: positive(
        ops.add(ops.concat([*halves(y := conv(x), 2, 4)], axis=1), ops.concat(slices(y, 3, 3), axis=1))
    ),
    "several": lambda x: norm(sliced(ops.concat([conv(x, 6), sliced(conv(x, 4), 1, 3, -5, -1)], axis=1), 1, 2, 9)),
}

IN_FRONT: dict[str, Callable[[Value], Value]] = {
    "conv": lambda x: conv(norm(x)),
    "padded conv": lambda x: conv(norm(x), pads=(1, 0, 2, 1), strides=(2, 1), dilations=(1, 2)),
    "conv, SAME": lambda x: conv(norm(x), auto_pad="SAME_UPPER", strides=(2, 2)),
    "groups": lambda x: conv(norm(x), group=2, pads=(1, 1, 1, 1)),
    "depthwise": lambda x: conv(norm(x), 8, group=4, pads=(1, 1, 1, 1)),
    "transposed": lambda x: ops.conv_transpose(
        norm(x), w(4, 3, 3, 3), strides=(2, 3), pads=(1, 0, 1, 1), output_padding=(1, 2)
    ),
    "transposed groups": lambda x: ops.conv_transpose(
        norm(x), w(4, 3, 3, 2), w(6), strides=(2, 1), group=2, dilations=(2, 1)
    ),
    "gemm": lambda x: ops.gemm(ops.flatten(norm(x)), w(168, 5), w(5), alpha=0.5, beta=2.0),
    "pooled gemm": lambda x: ops.gemm(ops.flatten(ops.global_average_pool(norm(x))), w(5, 4), transB=True),
    "matmul": lambda x: ops.matmul(ops.mul(x, w(7), name="norm"), w(7, 3)),
    "pad": lambda x: conv(ops.pad(norm(x), PADS)),
    "pad of channels": lambda x: conv(ops.pad(ops.mul(x, w(4, 1, 1), name="norm"), CHANNELS)),
    "tile of channels": lambda x: conv(ops.tile(norm(x), np.array([1, 2, 1, 1]))),
    "space to batch": lambda x: conv(ops.space_to_batch(norm(x), blocks=(2, 1), pads=(0, 0, 0, 0))),
    "stored instance norm": lambda x: conv(stored(x)),
    "slice": lambda x: conv(sliced(norm(x), 1, 1, 3), pads=(1, 1, 1, 1)),
    "concat": lambda x: conv(ops.concat([norm(x), ops.relu(x)], axis=1), pads=(1, 1, 1, 1)),
    "split": lambda x: ops.concat([conv(part, group=2) for part in halves(norm(x), 2, 2)], axis=1),
    "slices": lambda x: ops.concat([conv(part, pads=(1, 1, 1, 1)) for part in slices(norm(x), 1, 3)], axis=1),
    "split, concat in another order": lambda x: conv(ops.concat([*halves(norm(x), 1, 3)][::-1], axis=1)),
    "split, concat and a part": lambda x: ops.add(
        conv(ops.concat([*(parts := halves(norm(x), 1, 3))][::-1], axis=1)), conv(parts[1])
    ),
    "pools of several readers": lambda x: ops.add(
        ops.conv(ops.global_average_pool(y := norm(x)), w(6, 4, 1, 1)),
        ops.conv(ops.global_average_pool(y), w(6, 4, 1, 1)),
    ),
    "a norm, and another one behind it": lambda x: ops.add(conv(y := norm(x)), conv(norm(y, "behind"))),
    "two in a row": lambda x: conv(norm(norm(x, "before")), pads=(1, 1, 1, 1)),
    "both sides": lambda x: norm(conv(norm(x, "before"), pads=(1, 1, 1, 1))),
    "relu": lambda x: conv(ops.relu(positive(x))),
}


def built(make: Callable[[Value], Value]) -> Graph:
    g = Graph("network")
    x = g.input("x", "float32", (2, 4, 6, 7))
    g.outputs = [make(x)]
    return g


@pytest.mark.parametrize(
    "make", [*BEHIND.values(), *IN_FRONT.values()], ids=[*BEHIND, *(f"{n} behind" for n in IN_FRONT)]
)
def test_norms_fold_over_what_leaves_channels_apart(make: Callable[[Value], Value]):
    g = built(make)
    x = RNG.standard_normal((2, 4, 6, 7)).astype(np.float32)
    (expected,) = interpret.run(g, [x])
    done, report = optimize(g.copy(), level=2)
    assert {"batch_norm", "mul"}.isdisjoint(n.op.name for n in done.nodes)
    assert {r.fate for r in report.norms} <= {"folded"}
    (found,) = interpret.run(done, [x])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    before, after = (Counter(n.op.name for n in graph.nodes if n.op.name in LINEAR) for graph in (g, done))
    assert before == after, "nothing is computed twice"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda x: norm(ops.relu(conv(x))), "relu does not commute with"),
        (lambda x: norm(ops.max_pool(conv(x), kernel_shape=(2, 2))), "factors that are not above zero"),
        (lambda x: norm(ops.add(conv(x), ops.exp(conv(x)))), "exp has no constants"),
        (lambda x: ops.add(norm(sliced(y := conv(x), 2, 0, 2)), sliced(y, 2, 1, 3)), "is also read by"),
        (lambda x: norm(ops.concat([conv(x, pads=(1, 1, 1, 1)), x], axis=1)), "the input 'x'"),
        (lambda x: norm(ops.pad(conv(x), PADS, np.float32(-np.inf))), "change -inf"),
        (lambda x: conv(ops.exp(norm(x))), "it reads the input"),
        (lambda x: norm(ops.concat([y := conv(x), ops.average_pool(y, kernel_shape=(1, 1))], axis=1)), "two ways"),
        (lambda x: conv(ops.relu(norm(x))), "relu does not commute with"),
        (lambda x: norm(ops.add(y := conv(x, 4), conv(y, 4, pads=(1, 1, 1, 1)))), "two ways"),
        (lambda x: norm(ops.add(y := conv(x), y)), "two ways"),
        (lambda x: norm(ops.add(*halves(ops.concat([x, x], axis=1), 4, 4))), "the input 'x'"),
        (lambda x: norm(ops.concat([*halves(y := conv(x), 2, 4), sliced(y, 1, 1, 2)], axis=1)), "two ways"),
        (lambda x: ops.concat([norm(sliced(y := conv(x), 1, 0, 2)), sliced(y, 1, 1, 3)], axis=1), "is also read by"),
    ],
)  # fmt: skip
def test_what_is_in_the_way_is_named(make: Callable[[Value], Value], reason: str):
    _, report = optimize(built(make), level=2)
    (record,) = (r for r in report.norms)
    assert record.fate != "folded"
    said = [record.reason, *(r for _, _, r in report.refusals)]
    assert any(reason in s for s in said), said


@pytest.mark.parametrize("has_relu", [False, True])
@pytest.mark.parametrize("is_last_normed", [False, True])
def test_a_norm_in_front_of_a_split_stays_where_all_parts_are_read(has_relu: bool, is_last_normed: bool) -> None:
    """One part carried it to the convolution, and the other part lost it."""
    rng = np.random.default_rng(3)

    def normed(x: Value) -> Value:
        return ops.batch_norm(x, *rng.normal(size=(3, 1)), np.abs(rng.normal(size=1)) + 0.3)

    g = Graph("split")
    x = g.input("x", "float64", (2, 2, 3, 4))
    a, b = ops.split(x, np.array([1, 1]), axis=1)
    c, d = ops.split(ops.concat([ops.relu(a) if has_relu else a, normed(b)], axis=1), np.array([1, 1]), axis=1)
    y = ops.concat([ops.relu(c) if has_relu else c, normed(d) if is_last_normed else d], axis=1)
    g.outputs = [ops.conv(y, rng.normal(size=(3, 2, 1, 1)))]
    values = rng.normal(size=(2, 2, 3, 4))
    (expected,) = interpret.run(g.copy(), [values])
    (found,) = interpret.run(optimize(g, level=2)[0], [values])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "said",
    [
        {"mode": "linear", "coordinate_transformation_mode": "tf_half_pixel_for_nn"},
        {"mode": "linear", "keep_aspect_ratio_policy": "not_smaller"},
        {"nearest_mode": "ceil", "coordinate_transformation_mode": "tf_half_pixel_for_nn"},
    ],
)
def test_a_resize_that_moves_along_channels_carries_none(said: dict[str, Any]) -> None:
    """Their number stayed the same, and maps went through as if channels did."""
    g, x = Graph("resize"), RNG.standard_normal((2, 4, 10, 10))
    y = ops.conv(g.input("x", "float64", x.shape), RNG.standard_normal((4, 4, 1, 1)))
    g.outputs = [ops.mul(ops.resize(y, sizes=np.array([2, 4, 11, 11]), **said), RNG.standard_normal((4, 1, 1)))]
    (expected,) = interpret.run(g.copy(), [x])
    (found,) = interpret.run(optimize(g, level=2)[0], [x])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def optimized(g: Graph) -> Graph:
    """The graph after all passes, which gives the same numbers."""
    done = optimize(g.copy(), level=2)[0]
    inputs = [RNG.standard_normal([int(str(d)) for d in v.shape]) for v in g.inputs]
    for a, b in zip(interpret.run(g, inputs), interpret.run(done, inputs), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
    return done


def test_equal_slices_that_are_both_outputs_stay_two_values() -> None:
    g = Graph()
    y = conv(g.input("x", "float32", (1, 3, 6, 6)), 4)
    g.outputs = [sliced(y, 1, 0, 2), sliced(y, 1, 0, 2), ops.mul(sliced(y, 1, 2, 4), np.full((2, 1, 1), 3, np.float32))]
    optimized(g)


def test_another_axis_is_asked_where_somebody_else_reads_the_first() -> None:
    """A single factor is the same along any axis; here a node besides reads the value whatever its channels are."""
    g = Graph()
    y = positive(ops.relu(conv(g.input("x", "float32", (1, 3, 6, 6)), 4)))
    g.outputs = [ops.relu(sliced(y, 1, 0, 0)), ops.mul(ops.transpose(y, perm=(1, 0, 2, 3)), np.float32(3))]
    assert sum(n.op.name == "mul" for n in optimized(g).nodes) == 0


@pytest.mark.parametrize(
    "build",
    [
        lambda x: ops.mul(ops.conv(x, w(4, 0, 1, 1), w(4)), w(4, 1, 1)),
        lambda x: ops.conv(norm(x), w(4, 0, 1, 1)),
        lambda x: ops.mul(ops.conv_transpose(x, w(0, 6, 1, 1), group=1), w(6, 1, 1)),
    ],
)
def test_folds_where_there_are_no_channels(build: Callable[[Value], Value]) -> None:
    g = Graph()
    x = g.input("x", "float32", (2, 0, 3, 3))
    g.outputs = [build(x)]
    optimized(g)


def test_a_norm_of_one_channel_in_front_of_a_product_with_no_rows() -> None:
    g = Graph()
    g.outputs = [ops.matmul(norm(g.input("x", "float32", (3, 1, 1, 0))), w(0, 3))]
    optimized(g)
