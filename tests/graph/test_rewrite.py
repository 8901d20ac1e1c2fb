"""Patterns match what they say; the driver refuses what no rule may do; everything is logged."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm import ops
from renorm.core.errors import InternalError
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.graph.rewrite import Driver, Log, Match, Refusal, Rewrite, any_op
from renorm.graph.verify import verify


def rule(pattern: Any, result: Any = None, **members: Any) -> Rewrite:
    """A rule of one pattern, as a function without self."""
    made = type("Rule", (Rewrite,), {"pattern": staticmethod(pattern), **members})()
    made.rewrite = result or (lambda m: m.x)
    return made


def matches(pattern: Any, graph: Graph, node: int = -1) -> Match | None:
    return next(rule(pattern).matches(graph, graph.nodes[node]), None)


def network(*shape: int) -> tuple[Graph, Value]:
    g = Graph()
    return g, g.input("x", "float32", shape or (2, 3))


def test_variables_bind_values_and_nodes_have_names() -> None:
    g, x = network()
    g.outputs = [ops.relu(ops.neg(x, name="n"))]
    m = matches(lambda x: ops.relu(ops.neg(x, name="inner")), g)
    assert m is not None
    assert m.x is x
    assert (m.inner.name, m.relu.name) == ("n", "relu")
    assert [n.name for n in m.nodes] == ["relu", "n"]
    with pytest.raises(AttributeError, match="neither a variable nor a node 'y'"):
        _ = m.y
    assert matches(lambda x: ops.relu(ops.exp(x)), g) is None


def test_one_variable_is_one_value() -> None:
    g, x = network()
    a = ops.neg(x)
    g.outputs = [ops.mul(a, ops.sigmoid(a)), ops.mul(x, ops.sigmoid(a))]
    swish = lambda x: ops.mul(x, ops.sigmoid(x))  # noqa: E731
    assert matches(swish, g, 2) is not None
    assert matches(swish, g, 3) is None


def test_commutative_operands_match_both_ways() -> None:
    g, x = network()
    g.outputs = [ops.add(ops.relu(x), x), ops.add(x, ops.relu(x)), ops.sub(x, ops.relu(x))]
    for node, expected in ((1, True), (3, True), (5, False)):
        m = matches(lambda x, y: ops.add(y, ops.relu(x)), g, node)
        assert (m is not None) == expected
        if m is not None:
            assert m.x is x
            assert m.y is x


def test_backtracking_over_commutative_operands() -> None:
    g, x = network()
    c = g.constant(np.float32(2))
    g.outputs = [ops.add(ops.mul(c, x), ops.mul(x, ops.relu(x)))]
    m = matches(lambda x, y: ops.add(ops.mul(x, ops.relu(x), name="a"), ops.mul(y, x, name="b")), g)
    assert m is not None
    assert (m.x, m.y) == (x, c)


def test_given_attributes_must_be_equal_and_others_may_be_anything() -> None:
    g, x = network(1, 2, 4, 4)
    w = g.constant(np.zeros((2, 2, 3, 3), np.float32))
    g.outputs = [ops.conv(x, w, strides=(2, 2))]
    assert matches(lambda x, w: ops.conv(x, w), g) is not None
    assert matches(lambda x, w: ops.conv(x, w, strides=(2, 2)), g) is not None
    assert matches(lambda x, w: ops.conv(x, w, strides=(1, 1)), g) is None
    assert matches(lambda x, w: ops.conv(x, w, group=2), g) is None


def test_optional_operands_match_absent_and_left_out_ones_must_be() -> None:
    g, x = network(1, 2, 4, 4)
    w, b = g.constant(np.zeros((2, 2, 3, 3), np.float32)), g.constant(np.zeros(2, np.float32))
    g.outputs = [ops.conv(x, w), ops.conv(x, w, b)]
    without, with_b = (matches(lambda x, w, b: ops.conv(x, w, b), g, i) for i in (0, 1))
    assert without is not None
    assert with_b is not None
    assert (without.b, with_b.b) == (None, b)
    assert matches(lambda x, w: ops.conv(x, w), g, 1) is None


def test_numbers_arrays_and_variadic_operands() -> None:
    g, x = network(2, 2)
    half = g.constant(np.full((1, 2), 0.5, np.float32))
    g.outputs = [ops.mul(x, half), ops.concat([x, half, x], axis=0)]
    assert matches(lambda x: ops.mul(x, 0.5), g, 0) is not None
    assert matches(lambda x: ops.mul(x, 0.25), g, 0) is None
    assert matches(lambda x: ops.mul(x, np.array([0.5, 0.5], np.float32)), g, 0) is None  # another shape
    m = matches(lambda *xs: ops.concat(*xs, axis=0), g, 1)
    assert m is not None
    assert m.xs == [x, half, x]
    assert matches(lambda x, y: ops.concat([x, y, x], axis=0), g, 1) is not None
    assert matches(lambda x, y: ops.concat([x, y], axis=0), g, 1) is None


def test_any_op_and_constants() -> None:
    g, x = network()
    c = g.constant(np.array([1, 2, 3], np.float32))
    g.outputs = [ops.add(ops.exp(x), c), ops.add(ops.exp(x), x)]
    r = rule(lambda c: ops.add(any_op("producer"), c), constants=("c",))
    m = next(r.matches(g, g.nodes[1]), None)
    assert m is not None
    assert m.producer.op.name == "exp"
    assert m.c is c
    assert not any(r.matches(g, g.nodes[3]))


DOUBLE = rule(lambda x: ops.neg(ops.neg(x, name="inner")))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda g, x: [ops.neg(a := ops.neg(x)), ops.relu(a)], "'neg_out' is also read by 'relu'"),
        (lambda g, x: [ops.neg(a := ops.neg(x)), a], "'neg_out' is an output of the graph"),
        (lambda g, x: [ops.neg(ops.neg(x))], "'neg_1_out' is an output of the graph and 'x' is not computed"),
    ],
)
def test_the_driver_refuses(build: Any, reason: str) -> None:
    g, x = network()
    g.outputs = build(g, x)
    before, driver = str(g), Driver([DOUBLE])
    assert driver.run(g) == 0
    assert str(g) == before
    (refused,) = driver.log.refused.values()
    assert refused.reason == reason
    assert (refused.rule, refused.node, refused.about) == ("Rule", "neg_1", ("neg_1",))


def test_kept_nodes_are_not_touched_and_refuse_gives_the_reason() -> None:
    g, x = network()
    g.outputs = [ops.relu(ops.neg(ops.neg(x, name="a"), name="b"))]
    driver = Driver([DOUBLE], kept=lambda n: "it is kept" if n.name == "a" else None)
    assert driver.run(g) == 0
    assert [r.reason for r in driver.log.refused.values()] == ["it is kept"]
    picky = rule(DOUBLE.pattern, plan=lambda self, m: Refusal(f"{m.inner.name} is special"))
    assert Driver([picky], log=(log := Log())).run(g) == 0
    assert [r.reason for r in log.refusals_of(["b"])] == ["a is special"]
    assert log.refusals_of(["a", "c"]) == []


def test_application_merges_origins_keeps_names_and_is_logged() -> None:
    g, x = network()
    a = ops.exp(x, name="first")
    y = g.apply(ops.neg(a, name="second").producer.op, [a], name="unused")
    g.outputs = [ops.mul(g.nodes[1].output, g.constant(np.float32(-1)), name="third")]
    g.discard([y.producer])
    g.rename(g.outputs[0], "result")
    to_exp = rule(lambda x, c: ops.mul(ops.neg(ops.exp(x)), -1.0), lambda m: ops.exp(m.x))
    driver = Driver([to_exp])
    assert driver.run(g) == 1
    (node,) = g.nodes
    assert node.name == "first"  # it takes the place of the node of its op
    assert node.origin == ("third", "second", "first")
    assert [v.name for v in g.outputs] == ["result"]
    (applied,) = driver.log.applied
    assert set(applied.nodes) == {"first", "second", "third"}
    assert (applied.rule, applied.into) == ("Rule", ("first",))
    verify(g)


def test_sharing_rules_read_past_a_node_that_others_read() -> None:
    g, x = network(2, 3)
    inner = ops.transpose(x)
    g.outputs = [ops.relu(ops.transpose(inner)), ops.relu(inner)]
    past = rule(lambda x: ops.transpose(ops.transpose(x, name="inner")), shares=True)
    assert Driver([past]).run(g) == 1
    assert [n.inputs for n in g.nodes if n.output is g.outputs[0]] == [[x]]
    assert [n.op.name for n in g.nodes].count("transpose") == 1
    verify(g)


def test_a_probe_reverts() -> None:
    g, x = network()
    g.outputs = [ops.relu(ops.neg(ops.neg(x)))]
    before = str(g)
    driver = Driver([DOUBLE], probe=lambda replaced, made: (0.5, "it differs by 0.5"))
    assert driver.run(g) == 0
    assert str(g) == before
    assert [r.reason for r in driver.log.refused.values()] == ["reverted: it differs by 0.5"]


def test_rules_that_change_types_or_do_not_end_are_faults() -> None:
    g, x = network(2, 3)
    g.outputs = [ops.relu(x)]
    wrong = rule(lambda x: ops.relu(x), lambda m: ops.reduce_sum(m.x, axes=(0,)))
    with pytest.raises(InternalError, match="Rule at node 'relu' changes a type"):
        Driver([wrong]).run(g)
    endless = rule(lambda x: ops.relu(x), lambda m: ops.relu(m.x))
    with pytest.raises(InternalError, match="do not come to an end"):
        Driver([endless]).run(g)


def test_several_results_are_replaced_together() -> None:
    g, x = network(4, 3)
    a, b = ops.split(x, num_outputs=2)
    g.outputs = [ops.relu(b), ops.relu(a)]
    halves = lambda m: [  # noqa: E731
        ops.slice(m.x, np.array([i]), np.array([i + 2]), np.array([0])) for i in (0, 2)
    ]
    assert Driver([rule(lambda x, s: ops.split(x, s), halves)]).run(g) == 1
    assert sorted(n.op.name for n in g.nodes) == ["relu", "relu", "slice", "slice"]
    verify(g)
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(interpret.run(g, [data])[0], data[2:])


class NegNeg(Rewrite):
    """neg(neg(x)) -> x"""

    shares = True

    def pattern(self, x: Any) -> Any:
        return ops.neg(ops.neg(x, name="inner"))

    def rewrite(self, m: Match) -> Any:
        return m.x


class NegOfSub(Rewrite):
    """neg(a - b) -> b - a"""

    def pattern(self, a: Any, b: Any) -> Any:
        return ops.neg(ops.sub(a, b))

    def rewrite(self, m: Match) -> Any:
        return ops.sub(m.b, m.a)


class SubOfNeg(Rewrite):
    """a - neg(b) -> a + b"""

    shares = True

    def pattern(self, a: Any, b: Any) -> Any:
        return ops.sub(a, ops.neg(b, name="inner"))

    def rewrite(self, m: Match) -> Any:
        return ops.add(m.a, m.b)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["neg", "sub", "add"]), st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_the_order_of_rules_does_not_matter_and_numbers_stay(steps: list[tuple[str, int, int]]) -> None:
    def build() -> Graph:
        g = Graph()
        values = [g.input("x", "float64", (3,)), g.input("y", "float64", (3,))]
        for op, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(ops.neg(a) if op == "neg" else getattr(ops, op)(a, b))
        g.outputs = [ops.exp(values[-1])]
        return g

    inputs = [np.array([0.5, -1, 2]), np.array([0.25, 3, -0.125])]
    expected, texts = interpret.run(build(), inputs)[0], set[str]()
    for rules in ([NegNeg(), NegOfSub(), SubOfNeg()], [SubOfNeg(), NegOfSub(), NegNeg()]):
        g = build()
        Driver(rules).run(g)
        verify(g)
        texts.add(str(g))
        np.testing.assert_allclose(interpret.run(g, inputs)[0], expected, rtol=1e-12)
    assert len(texts) == 1


def test_a_rule_that_moves_a_node_past_many_is_not_tried_on_all_each_time() -> None:
    g, x = network()
    for _ in range(300):
        x = ops.relu(x)
    g.outputs = [ops.transpose(x)]
    tried = list[str]()
    moves = rule(lambda x: ops.transpose(ops.relu(x)), lambda m: ops.relu(ops.transpose(m.x)))
    grows = rule(lambda x: ops.relu(x), plan=lambda self, m: tried.append(m.root.name))
    assert Driver([moves, grows]).run(g) == 300
    assert [n.op.name for n in g.nodes] == ["transpose", *["relu"] * 300]
    assert len(tried) < 1500
    verify(g)
