"""Which nodes share a kernel: the rules one by one, and the invariants of groups on random networks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm import ops
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.op import INJECTIVE, OPAQUE, OpDef
from renorm.graph.verify import verify
from renorm.passes.context import Context
from renorm.passes.fuse import Fuse, kind_of


def fused(build: Callable[..., Any], *shapes: tuple[int, ...]) -> list[str]:
    """Kernel names of a network over inputs of these shapes."""
    g = Graph()
    made = build(*(g.input(f"x{i}", "float32", s) for i, s in enumerate(shapes)))
    g.outputs = list(made) if isinstance(made, (list, tuple)) else [made]
    Fuse().run(g, Context())
    verify(g)
    return [k.name for k in g.groups]


def conv(x: Value, channels: int = 4, **attributes: Any) -> Any:
    k = attributes.pop("k", 1)
    return ops.conv(x, np.ones((channels, int(str(x.shape[1])), k, k), np.float32), **attributes)


IMAGE = (2, 4, 6, 6)


def test_a_tail_joins_what_it_follows() -> None:
    assert fused(lambda x: ops.relu(ops.neg(conv(x))), IMAGE) == ["fused_conv2d_neg_relu"]
    assert fused(lambda x: ops.relu(ops.softmax(x)), IMAGE) == ["fused_softmax_relu"]
    assert fused(lambda x: ops.relu(ops.max_pool(x, kernel_shape=(2, 2))), IMAGE) == ["fused_max_pool2d_relu"]


def test_a_sum_joins_the_later_of_two_producers() -> None:
    def residual(x: Value) -> Value:
        return ops.relu(ops.add(conv(x), conv(ops.relu(conv(x)))))

    assert fused(residual, IMAGE) == ["conv2d", "fused_conv2d_relu", "fused_conv2d_add_relu"]


def test_a_value_that_two_nodes_read_fuses_where_they_meet() -> None:
    assert fused(lambda x: ops.mul(y := conv(x), ops.sigmoid(y)), IMAGE) == ["fused_conv2d_sigmoid_mul"]
    apart = fused(lambda x: (ops.relu(y := conv(x)), ops.exp(y)), IMAGE)
    assert sorted(apart) == ["conv2d", "exp", "relu"]
    assert fused(lambda x: (y := conv(x), ops.relu(y)), IMAGE) == ["conv2d", "relu"]  # an output is written


def test_a_value_is_not_joined_past_a_reduction_that_reads_it() -> None:
    def squeeze(x: Value) -> Value:
        y = conv(x)
        return ops.mul(y, ops.sigmoid(ops.global_average_pool(y)))

    assert fused(squeeze, IMAGE) == ["conv2d", "fused_global_average_pool_sigmoid", "mul"]


def test_a_tail_keeps_its_shape() -> None:
    assert fused(lambda x, y: ops.add(ops.global_average_pool(x), y), IMAGE, IMAGE) == ["global_average_pool", "add"]
    assert fused(lambda x, y: ops.add(conv(x), y), (1, 4, 6, 6), IMAGE) == ["conv2d", "add"]
    assert fused(lambda x, y: ops.add(conv(x), y), IMAGE, (4, 1, 1)) == ["fused_conv2d_add"]
    assert fused(lambda x: ops.transpose(conv(x)), IMAGE) == ["conv2d", "transpose"]


def test_convolutions_take_nothing_before_them_and_reductions_do() -> None:
    assert fused(lambda x: conv(ops.relu(x)), IMAGE) == ["relu", "conv2d"]
    assert fused(lambda x: ops.softmax(ops.neg(x)), IMAGE) == ["fused_neg_softmax"]
    assert fused(lambda x: ops.global_average_pool(ops.transpose(x)), IMAGE) == ["fused_transpose_global_average_pool"]
    scale = fused(lambda x, s: ops.instance_norm(x, ops.exp(s), s), IMAGE, (4,))
    assert scale == ["exp", "instance_norm"]  # the scale would be computed once for each element


def test_chains_of_elementwise_and_injective_nodes() -> None:
    chain = fused(lambda x: ops.transpose(ops.relu(ops.reshape(ops.neg(x), np.array([8, 36])))), IMAGE)
    assert chain == ["fused_neg_reshape_relu_transpose"]
    assert fused(lambda x, y: ops.concat([ops.relu(x), y], axis=3), IMAGE, IMAGE) == ["fused_relu_concat"]
    assert fused(lambda x: ops.pad(ops.relu(x), np.array([0, 0, 1, 1, 0, 0, 0, 0])), IMAGE) == ["fused_relu_pad"]


def test_nothing_is_computed_over_and_over() -> None:
    small = fused(lambda x, y: ops.mul(ops.exp(x), y), (4, 1, 1), IMAGE)
    assert small == ["exp", "mul"]
    through = fused(lambda x, y: ops.mul(ops.reshape(ops.exp(x), np.array([4, 1, 1])), y), (4,), IMAGE)
    assert through == ["fused_exp_reshape", "mul"]
    view = fused(lambda x, y: ops.mul(ops.reshape(x, np.array([4, 1, 1])), y), (4,), IMAGE)
    assert view == ["fused_reshape_mul"]  # an index costs nothing
    spread = fused(lambda x: ops.expand(ops.exp(x), np.array([5, 5, 4])), (4,))
    assert spread == ["exp", "expand"]
    twice = fused(lambda x: ops.concat([ops.neg(y := ops.exp(x)), ops.relu(y)], axis=3), IMAGE)
    assert twice == ["exp", "fused_neg_relu_concat"]


def test_expressions_do_not_grow_without_bound() -> None:
    def squares(x: Value) -> Value:
        for _ in range(40):  # inlined, the last one would have 2^40 terms
            x = ops.mul(x, x)
        return x

    names = fused(squares, IMAGE)
    assert 5 <= len(names) < 40
    assert names[0].startswith("fused_mul_mul_mul")


def test_names_are_short_unique_and_in_launch_order() -> None:
    def long(x: Value) -> Value:
        for _ in range(20):
            x = ops.relu(x)
        return conv(ops.relu(conv(ops.neg(x))))

    first, *others = fused(long, IMAGE)
    assert first == "fused_relu_relu_relu_relu_relu_relu_relu_relu_relu_and_12_more"
    assert others == ["fused_conv2d_relu", "conv2d"]
    assert fused(lambda x: conv(ops.softmax(conv(ops.softmax(x)))), IMAGE) == [
        *("softmax", "conv2d", "softmax_1", "conv2d_1")
    ]


def test_nodes_with_several_results_stay_alone() -> None:
    names = fused(lambda x: [ops.relu(v) for v in ops.split(ops.neg(x), num_outputs=2)], IMAGE)
    assert names == ["neg", "split", "relu", "relu_1"]


class Alone(OpDef):
    """y = x, never in company."""

    signature = "x: T[*S] -> y: T[*S]"
    fusion = OPAQUE

    def reference(self, x: Any) -> Any:
        return x


def test_opaque_nodes_stay_alone() -> None:
    assert fused(lambda x: ops.relu(Alone()(ops.neg(x))), IMAGE) == ["neg", "alone", "relu"]


UNARY = ["relu", "exp", "alone", "softmax", "global_average_pool", "conv", "transpose", "split"]


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.sampled_from([*UNARY, "add", "mul", "concat"]), st.integers(0, 9), st.integers(0, 9))))
def test_groups_are_convex_have_one_exit_and_one_anchor(steps: list[tuple[str, int, int]]) -> None:
    g = Graph()
    values = [g.input("x", "float32", (2, 2, 2, 2)), g.input("y", "float32", (2, 2, 2, 2))]
    for op, i, j in steps[:14]:
        a, b = values[i % len(values)], values[j % len(values)]
        if op == "alone":
            values.append(Alone()(a))
        elif op == "conv":
            values.append(conv(a, 2))
        elif op == "global_average_pool":
            values.append(ops.mul(a, ops.global_average_pool(a)))
        elif op == "split":
            values += ops.split(ops.concat([a, b], axis=1), num_outputs=2, axis=1)
        elif op == "concat":
            values.append(ops.slice(ops.concat([a, b], axis=1), *(np.array([n]) for n in (1, 3, 1))))
        else:
            values.append(getattr(ops, op)(*((a, b) if op in ("add", "mul") else (a,))))
    g.outputs = list(dict.fromkeys([values[-1], values[len(values) // 2]]))
    g.outputs = [v for v in g.outputs if v.producer] or [ops.relu(values[0])]
    context, inputs = Context(), [np.random.default_rng(i).random((2, 2, 2, 2)) for i in range(2)]
    expected = interpret.run(g, inputs)
    before = {n.name for n in g.nodes}
    Fuse().run(g, context)
    verify(g)  # among other things: launching in order reads nothing that is not written yet
    assert {n.name for n in g.nodes} == before
    for k in g.groups:
        anchors = [n for n in k.nodes if kind_of(n, context) > INJECTIVE]
        assert len(anchors) <= 1
        assert len(k.nodes) == 1 or not anchors or kind_of(anchors[0], context) < OPAQUE
        read = {v for n in g.nodes if n not in k.nodes for v in n.inputs} | set(g.outputs)
        exits: list[Node] = [n for n in k.nodes if read & set(n.outputs)]
        assert len(exits) <= 1
    for a, b in zip(interpret.run(g, inputs), expected):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("order", [1, -1])
def test_a_diamond_around_another_kernel_stays_open(order: int) -> None:
    """a feeds b both directly and through a pool: joining a and b would make a kernel wait for itself."""

    def build(x: Value) -> Value:
        a = ops.neg(x)
        return ops.add(*(a, ops.softmax(a))[::order])

    assert fused(build, IMAGE) == ["neg", "fused_softmax_add"]


LARGER = np.array([1, 1, 2, 2], np.float32)


def test_what_interpolates_is_computed_once_for_each_element() -> None:
    def twice(x: Value) -> Value:
        return ops.resize(
            ops.resize(ops.exp(x), None, LARGER, None, mode="linear"), None, 1 / LARGER, None, mode="linear"
        )

    assert fused(twice, IMAGE) == ["exp", "resize", "resize_1"]
    assert fused(lambda x: ops.relu(ops.resize(x, None, LARGER, None, mode="cubic")), IMAGE) == ["fused_resize_relu"]
    assert fused(lambda x: ops.neg(ops.resize(x, None, LARGER, None)), IMAGE) == ["fused_resize_neg"]


def test_a_kernel_that_writes_rows_as_wide_as_it_reads_columns_does_not_turn_them() -> None:
    def last(x: Value) -> Value:
        return ops.transpose(ops.relu(x), perm=(0, 2, 3, 1))

    def back(x: Value) -> Value:
        return ops.transpose(x, perm=(0, 3, 1, 2))

    assert fused(lambda x: ops.softmax(last(x)), IMAGE) == ["fused_relu_transpose", "softmax"]
    assert fused(lambda x: ops.softmax(ops.neg(last(x))), IMAGE) == ["fused_relu_transpose_neg", "softmax"]
    # rows stay rows; nothing is written in the new order; it is turned back
    assert len(fused(lambda x: ops.softmax(ops.transpose(x, perm=(0, 2, 1, 3))), IMAGE)) == 1
    assert len(fused(lambda x: ops.reduce_mean(last(x), axes=(1, 2)), IMAGE)) == 1
    assert len(fused(lambda x: back(ops.layer_norm(last(x), np.ones(4, np.float32))), IMAGE)) == 1
