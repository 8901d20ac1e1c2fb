"""Nodes that change nothing go, chains become one node, norms are unpacked; and look-alikes stay."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from renorm import ops
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.graph.rewrite import Rewrite
from renorm.graph.verify import verify
from renorm.passes import decompose, simplify, unpack
from renorm.passes.context import Context
from renorm.passes.rewriting import ApplyRules


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def after(
    build: Callable[[Value], Any],
    shape: Sequence[int] = (2, 3, 4, 5),
    rules: Sequence[Rewrite] = simplify.RULES,
    dtype: str = "float64",
    tolerance: float = 1e-12,
) -> tuple[list[str], Context]:
    """Op names between an exp and a relu, after the rules; the numbers must not change."""
    g, context = Graph(), Context()
    x = g.input("x", dtype, shape)
    made = build(ops.exp(x))
    g.outputs = [ops.relu(v) for v in (made if isinstance(made, (list, tuple)) else [made])]
    data = np.random.default_rng(0).uniform(-1, 1, shape).astype(dtype)
    expected = interpret.run(g, [data])
    ApplyRules(rules).run(g, context)
    verify(g)
    for ours, theirs in zip(interpret.run(g, [data]), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    return [n.op.name for n in g.nodes if n.op.name not in ("exp", "relu")], context


@pytest.mark.parametrize(
    "build",
    [
        ops.identity,
        lambda x: ops.dropout(ops.identity(x)),
        lambda x: ops.reshape(x, ints(2, 3, 4, 5)),
        lambda x: ops.reshape(x, ints(0, -1, 4, 5)),
        lambda x: ops.slice(x, ints(0, 0), ints(99, 3), ints(2, 1)),
        lambda x: ops.slice(x, ints(0), ints(4), ints(2), ints(1)),
        lambda x: ops.pad(x, ints(*[0] * 8)),
        lambda x: ops.cast(x, to="float64"),
        lambda x: ops.concat([x], axis=1),
        lambda x: ops.expand(x, ints(3, 1, 5)),
        lambda x: ops.transpose(x, perm=(0, 1, 2, 3)),
        lambda x: ops.transpose(ops.transpose(x)),
        lambda x: ops.transpose(ops.transpose(x, perm=(1, 2, 3, 0)), perm=(3, 0, 1, 2)),
        lambda x: ops.squeeze(ops.unsqueeze(x, axes=(1,)), axes=(1,)),
        lambda x: ops.reshape(ops.flatten(x), ints(2, 3, 4, 5)),
    ],
)
def test_what_changes_nothing_goes(build: Callable[[Value], Any]) -> None:
    assert after(build)[0] == []


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda x: ops.slice(x, ints(99), ints(-99), ints(2), ints(-1)), ["slice"]),
        (lambda x: ops.pad(x, ints(0, 0, 0, 1, 0, 0, 0, -1)), ["pad"]),
        (lambda x: ops.transpose(x, perm=(0, 1, 3, 2)), ["transpose"]),
        (lambda x: ops.expand(x, ints(2, 2, 3, 4, 5)), ["expand"]),
        (lambda x: ops.cast(x, to="float32"), ["cast"]),
        (lambda x: ops.concat([x, x], axis=1), ["concat"]),
        (lambda x: ops.reshape(x, ints(6, 4, 5)), ["reshape"]),
        (
            lambda x: ops.reshape(ops.transpose(ops.reshape(x, ints(2, 12, 5)), perm=(0, 2, 1)), ints(2, 5, 4, 3)),
            ["reshape", "transpose", "reshape"],
        ),
        (
            lambda x: ops.reshape(ops.transpose(ops.reshape(x, ints(2, 6, 2, 5)), perm=(0, 2, 1, 3)), ints(4, 30)),
            ["reshape", "transpose", "reshape"],
        ),
    ],
)
def test_what_changes_something_stays(build: Callable[[Value], Any], left: list[str]) -> None:
    assert after(build)[0] == left


def test_a_transpose_of_axes_of_one_element_moves_nothing() -> None:
    assert after(lambda x: ops.transpose(x, perm=(1, 0, 2)), (1, 1, 3))[0] == []
    # here the type changes: elements stay in order, but it takes a view to say so
    assert after(lambda x: ops.transpose(x, perm=(1, 0, 2)), (1, 2, 3))[0] == ["transpose"]


def test_chains_of_views_and_transposes_become_one() -> None:
    chain = after(lambda x: ops.unsqueeze(ops.flatten(ops.reshape(x, ints(6, 20)), axis=0), axes=(2,)))
    assert chain[0] == ["reshape"]
    assert after(lambda x: ops.transpose(ops.transpose(x, perm=(0, 2, 1, 3)), perm=(0, 1, 3, 2)))[0] == ["transpose"]
    keys = after(lambda x: ops.reshape(ops.transpose(ops.reshape(x, ints(6, 4, 5)), perm=(0, 2, 1)), ints(2, 3, 5, 4)))
    assert keys[0] == ["transpose"]
    all_axes = after(lambda x: ops.reshape(ops.transpose(ops.reshape(x, ints(6, 20)), perm=(1, 0)), ints(4, 5, 2, 3)))
    assert all_axes[0] == ["transpose"]
    shared = after(lambda x: (y := ops.transpose(x), ops.transpose(y)))
    assert shared[0] == ["transpose"]


@pytest.mark.parametrize(
    "view", [ops.flatten, lambda y: ops.reshape(y, ints(2, 3)), lambda y: ops.squeeze(y, axes=(2, 3))]
)
def test_a_view_that_drops_reduced_axes_becomes_part_of_the_reduction(view: Callable[[Value], Any]) -> None:
    assert after(lambda x: view(ops.global_average_pool(x)))[0] == ["reduce_mean"]
    assert after(lambda x: view(ops.reduce_max(x, axes=(2, -1))))[0] == ["reduce_max"]


def test_other_views_of_reductions_stay() -> None:
    assert after(lambda x: ops.reshape(ops.reduce_max(x, axes=(2, 3)), ints(3, 2)))[0] == ["reduce_max", "reshape"]
    both = after(lambda x: (y := ops.global_average_pool(x), ops.flatten(y)))
    assert both[0] == ["global_average_pool", "flatten"]


def test_splits_become_slices() -> None:
    assert after(lambda x: ops.split(x, ints(1, 2), axis=1), rules=decompose.RULES)[0] == ["slice"] * 2
    assert after(lambda x: ops.split(x, num_outputs=2, axis=-1), rules=decompose.RULES)[0] == ["slice"] * 2


def norm(x: Value, *, scale: float = 1.0, mean: float = 0.5, var: float = 2.0, **attributes: Any) -> Any:
    c = int(str(x.shape[1]))
    ramp = 1 + np.arange(c) / c
    stats = [(ramp * v).astype(x.dtype) for v in (scale, -0.25, mean, var)]
    return ops.batch_norm(x, *stats, name="norm", **attributes)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 2), (2, 3, 0)])
def test_batch_norm_becomes_scale_and_shift(shape: tuple[int, ...]) -> None:
    assert after(norm, shape, unpack.RULES)[0] == ["mul", "add"]
    assert after(lambda x: norm(x, scale=0.0, mean=1e9), shape, unpack.RULES)[0] == ["mul", "add"]
    assert after(norm, shape, unpack.RULES, "float32", 1e-5)[0] == ["mul", "add"]


@pytest.mark.parametrize(
    ("build", "dtype", "reason"),
    [
        (lambda x: norm(x, training_mode=True), "float64", "its statistics come from the batch (training_mode = 1)"),
        (norm, "float16", "x is float16: unpacked, it would be rounded between scale and shift"),
        (lambda x: norm(x, mean=1e5), "float64", "mean / standard deviation is 91287 in channel 2"),
        (lambda x: norm(x, var=0.0, epsilon=0.0), "float64", "its scale or shift is not finite"),
        (lambda x: ops.batch_norm(x, *[x.graph.input(f"p{i}", "float64", (3,)) for i in range(4)]), "float64", None),
    ],
)
def test_norms_that_stay_whole(build: Callable[[Value], Any], dtype: str, reason: str | None) -> None:
    if reason is None:  # parameters that are inputs: the numbers cannot be compared here
        g, context = Graph(), Context()
        g.outputs = [ops.relu(build(g.input("x", dtype, (2, 3))))]
        ApplyRules(unpack.RULES).run(g, context)
        (refused,) = context.log.refusals
        assert refused.reason == "its scale 'p0' is not a constant"
        return
    names, context = after(build, (4, 3, 2), unpack.RULES, dtype)
    assert names == ["batch_norm"]
    (refused,) = context.log.refusals
    assert refused.reason.startswith(reason)
