"""ReLUs and residuals that batch norms in training compute, and those that they must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from renorm import ops
from renorm.core.dims import static
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.ops.batch_norm_gradient import BatchNormGradient
from renorm.ops.batch_norm_training import TORCH, BatchNormTraining
from renorm.passes.around_batch_norms import JoinBatchNorms
from renorm.passes.context import Context

SHAPE = (3, 4, 5, 2)


def forward(after: Callable[[Graph, tuple[Value, ...], Value], Any]) -> Graph:
    """Return a graph of a batch norm, and of what `after` makes of its results and of r."""
    g = Graph("forward")
    x, r = g.input("x", "float32", SHAPE), g.input("r", "float32", SHAPE)
    scale, bias = (g.input(n, "float32", SHAPE[1:2]) for n in ("scale", "bias"))
    made = BatchNormTraining(**TORCH)(x, scale, bias, None, None, None, None, None)
    g.outputs = [*after(g, made, r), made[3]]
    return g


def backward(after: Callable[[Graph, Any, Value], Any], zero: float = 0.0, below: Any = ops.less_or_equal) -> Graph:
    """Return a graph of the gradient of a batch norm before a ReLU. after: makes results of it and of its dy."""
    g = Graph("backward")
    dy, x, y = (g.input(n, "float32", SHAPE) for n in ("dy", "x", "y"))
    mean, invstd = (g.input(n, "float32", SHAPE[1:2]) for n in ("mean", "invstd"))
    passed = ops.where(below(y, np.float32(0)), np.float32(zero), dy)
    made = BatchNormGradient()(passed, x, None, mean, invstd, None, None)
    g.outputs = [*made[:3], *after(g, made, passed)]
    return g


def joined(g: Graph) -> list[tuple[str, bool, bool]]:
    """Run the pass; return ops that are left, with whether they have a ReLU and a residual. Results are the same."""
    draw = np.random.default_rng(0)
    arrays = [draw.normal(size=static(v.shape)).astype(np.float32) for v in g.inputs]
    wanted = interpret.run(g, arrays)
    names = {n.name for n in g.nodes if n.op.name in (NORM, GRADIENT)}
    JoinBatchNorms().run(g, Context())
    assert names == {n.name for n in g.nodes if n.op.name in (NORM, GRADIENT)}
    for found, expected in zip(interpret.run(g, arrays), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    used = {v.producer for n in g.nodes for v in n.inputs if v is not None} | {v.producer for v in g.outputs}
    return [_described(n) for n in g.nodes if n in used]


def _described(n: Node) -> tuple[str, bool, bool]:
    if n.op.name == NORM:
        return NORM, n.op.values["relu"], n.inputs[-1] is not None
    if n.op.name == GRADIENT:
        return GRADIENT + " of a sum" * (n.inputs[7] is not None), n.inputs[6] is not None, n.op.values["residual"]
    return n.op.name, False, False


NORM, GRADIENT = "batch_norm_training", "batch_norm_gradient"


def test_relu() -> None:
    assert joined(forward(lambda g, made, r: [ops.relu(made[0])])) == [(NORM, True, False)]


def test_residual_and_relu() -> None:
    assert joined(forward(lambda g, made, r: [ops.relu(ops.add(r, made[0]))])) == [(NORM, True, True)]


def test_residual_alone() -> None:
    assert joined(forward(lambda g, made, r: [ops.add(made[0], r)])) == [(NORM, False, True)]


def test_a_residual_that_is_made_later() -> None:
    g = forward(lambda g, made, r: [ops.relu(ops.add(made[0], ops.exp(ops.neg(r))))])
    assert joined(g)[-1] == (NORM, True, True)


@pytest.mark.parametrize(
    "after",
    [
        lambda g, made, r: [ops.relu(made[0]), made[0]],  # the norm's own result is wanted
        lambda g, made, r: [ops.add(ops.relu(made[0]), ops.exp(made[0]))],
        lambda g, made, r: [
            ops.add(made[0], ops.mul(r, ops.reshape(made[3], np.array([4, 1, 1]))))
        ],  # made of the norm itself
        lambda g, made, r: [ops.add(made[0], np.float32(1))],
    ],
)
def test_what_stays(after: Any) -> None:
    assert [n for n in joined(forward(after)) if n[0] == NORM] == [(NORM, False, False)]


def test_a_gradient_through_a_relu() -> None:
    assert joined(backward(lambda g, made, dy: [])) == [(GRADIENT, True, False)]


def test_the_gradient_of_a_residual_is_a_result() -> None:
    assert joined(backward(lambda g, made, dy: [dy])) == [(GRADIENT, True, True)]
    assert (GRADIENT, True, True) in joined(backward(lambda g, made, dy: [ops.exp(dy)]))


def test_two_norms_of_one_residual() -> None:
    def second(g: Graph, made: Any, dy: Value) -> list[Value]:
        x = g.input("x2", "float32", SHAPE)
        mean, invstd = (g.input(n, "float32", SHAPE[1:2]) for n in ("mean2", "invstd2"))
        return list(BatchNormGradient()(dy, x, None, mean, invstd, None, None))[:1]

    assert sorted(joined(backward(second))) == [(GRADIENT, False, False), (GRADIENT, True, True)]


def test_other_choices_stay() -> None:
    assert (GRADIENT, False, False) in joined(backward(lambda g, made, dy: [], zero=1.0))
    assert (GRADIENT, False, False) in joined(backward(lambda g, made, dy: [], below=ops.less))


@pytest.mark.parametrize("is_rectified", [True, False])
@pytest.mark.parametrize("is_residual", [True, False])
def test_a_sum_of_gradients(is_rectified: bool, is_residual: bool) -> None:
    """That of a block's result, which the next block reads twice."""

    def graph(more: Callable[[Graph, Value], list[Value]], shape: Any = SHAPE) -> Graph:
        g = Graph("backward")
        a, x, y = (g.input(n, "float32", SHAPE) for n in ("a", "x", "y"))
        b, mean, invstd = g.input("b", "float32", shape), *(g.input(n, "float32", (4,)) for n in ("mean", "invstd"))
        dy = added = ops.add(a, b)
        if is_rectified:
            dy = ops.where(ops.less_or_equal(y, np.float32(0)), np.float32(0), added)
        made = BatchNormGradient()(dy, x, None, mean, invstd, None, None)
        g.outputs = [*made[:3], *([dy] * is_residual), *more(g, added)]
        return g

    has_both = is_rectified and is_residual
    if is_rectified or not is_residual:
        assert joined(graph(lambda g, added: [])) == [(GRADIENT + " of a sum", is_rectified, has_both)]
    assert (GRADIENT, is_rectified, has_both) in joined(graph(lambda g, added: [ops.exp(added)]))
    assert (GRADIENT, is_rectified, has_both) in joined(graph(lambda g, added: [], (4, 1, 1)))
