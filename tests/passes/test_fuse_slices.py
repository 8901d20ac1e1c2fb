"""Norms of training read slices where they lie: what joins their kernels, what does not, and that results are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.core.dims import static
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.ops.batch_norm_gradient import BatchNormGradient
from renorm.ops.batch_norm_training import TORCH, BatchNormTraining
from renorm.ops.group_norm_gradient import GroupNormGradient
from renorm.ops.group_norm_training import GroupNormTraining


def columns(x: Value, first: int, end: int, step: int = 1, axis: int = 1) -> Value:
    return ops.slice(x, *(np.array([i]) for i in (first, end, axis, step)))


def batch_norm(x: Value) -> Any:
    return BatchNormTraining(**TORCH)(x, None, None, None, None, None, None, None)


def instance_norm(x: Value, axis: int = 1) -> Any:
    return GroupNormTraining(num_groups=int(str(x.shape[axis])), axis=axis)(x, None, None)


def graph(build: Callable[..., Any], *shapes: Sequence[int]) -> Graph:
    g = Graph("slices")
    made = build(*(g.input(f"x{i}", "float32", tuple(s)) for i, s in enumerate(shapes)))
    g.outputs = list(made)
    return g


def kernels(g: Graph) -> list[str]:
    """Compile a graph, compare it with the interpreter, and return its kernels' names."""
    arrays = [RNG.normal(size=static(v.shape)).astype(v.dtype) for v in g.inputs]
    module = renorm.compile(g, threads=2)
    for found, wanted in zip(module.run(*arrays), interpret.run(g, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    return [k.name for k in module.report.kernels]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_slice_is_read_where_it_lies(axis: int) -> None:
    assert kernels(graph(lambda x: batch_norm(columns(x, 2, 7, axis=axis))[:4], (9, 11))) == [
        "fused_slice_batch_norm_training"
    ]


def test_a_slice_is_read_there_whose_axes_are_split() -> None:
    def build(x: Value) -> Any:
        return instance_norm(ops.reshape(columns(x, 3, 8), np.array([2, 9, 5])), axis=2)

    assert kernels(graph(build, (18, 11))) == ["fused_slice_reshape_group_norm_training"]


def test_a_gradient_reads_slices_of_all_that_it_reads() -> None:
    def build(dy: Value, x: Value, y: Value, mean: Value, invstd: Value) -> Any:
        taken = [columns(v, 2, 7) for v in (dy, x, y)]
        passed = ops.where(ops.less_or_equal(taken[2], np.float32(0)), np.float32(0), taken[0])
        return BatchNormGradient()(passed, taken[1], None, mean, invstd, None, None)[:3]

    assert kernels(graph(build, *[(6, 9, 5)] * 3, (5,), (5,))) == ["fused_slice_slice_slice_batch_norm_gradient"]


def test_what_is_no_slice_stays_apart() -> None:
    def others(change: Callable[[Value], Value], *shape: int) -> int:
        return len(kernels(graph(lambda x: batch_norm(change(x))[:4], shape)))

    assert others(lambda x: columns(x, 1, 8, step=2), 9, 11) == 2
    assert others(lambda x: ops.exp(columns(x, 1, 8)), 9, 11) == 2  # it would be computed for each time that it is read
    assert others(lambda x: ops.transpose(columns(x, 1, 8), perm=(1, 0)), 9, 11) == 2
    assert others(lambda x: ops.reshape(columns(x, 1, 8), np.array([3, 21])), 9, 11) == 2  # rows are no rows


def test_a_slice_that_others_read_is_made_once() -> None:
    def build(x: Value) -> Any:
        taken = columns(x, 1, 8)
        return [*batch_norm(taken)[:4], ops.exp(taken)]

    assert sorted(kernels(graph(build, (9, 11)))) == ["batch_norm_training", "exp", "slice"]


def gradient(make: Callable[..., Value], *others: int) -> list[str]:
    """Return the kernels of a batch norm's gradient of (dy, x) whose y, the result of a ReLU, is made of x, what
    channels have, and other tensors of its shape."""

    def build(dy: Value, x: Value, mean: Value, invstd: Value, *given: Value) -> Any:
        return BatchNormGradient()(dy, x, None, mean, invstd, None, make(x, mean, *given))[:3]

    shape = (9, 5)
    return kernels(graph(build, shape, shape, (5,), (5,), *[shape] * len(others)))


def test_a_gradient_computes_what_it_reads_fewer_bytes_for() -> None:
    found = gradient(lambda x, mean: ops.relu(ops.sub(x, mean)))
    assert found == ["fused_sub_relu_batch_norm_gradient"]


def test_a_gradient_is_given_what_is_made_of_as_much() -> None:
    assert len(gradient(lambda x, mean, z: ops.exp(z), 1)) == 2
    assert len(gradient(lambda x, mean, z, w: ops.mul(z, w), 1, 1)) == 2


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_slices_of_any_norm(data: st.DataObject) -> None:
    """[N, C], [N, C, L] or [N, C, H, W], channels first or last, of which all or some are taken."""
    small = st.integers(1, 5)
    rank, taken = data.draw(st.sampled_from((2, 3, 4))), data.draw(st.integers(1, 40))
    shape = [data.draw(small) for _ in range(rank)]
    first, spare = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    axis = data.draw(st.sampled_from((1, rank - 1)))
    norm = data.draw(st.sampled_from(("batch", "batch gradient", "group", "group gradient")))
    axis = 1 if norm.startswith("batch") else axis
    shape[axis] = taken
    whole = [*shape]
    whole[axis] += first + spare

    def build(x: Value, dy: Value, *statistics: Value) -> Any:
        a, b = (columns(v, first, first + taken, axis=axis) for v in (x, dy))
        if norm == "batch":
            return batch_norm(a)[:4]
        if norm == "batch gradient":
            return BatchNormGradient()(b, a, None, *statistics, None, None)[:3]
        if norm == "group":
            return instance_norm(a, axis)
        return GroupNormGradient(num_groups=taken, axis=axis)(b, a, *statistics, None)

    of = (taken,) if norm.startswith("batch") else (shape[0], taken)
    g = Graph("slices")
    dtype = "float32" if norm.startswith("batch") else "float64"
    x, dy = (g.input(n, "float32", tuple(whole)) for n in ("x", "dy"))
    statistics = [g.input(n, dtype, of) for n in ("mean", "invstd")]
    g.outputs = list(build(x, dy, *statistics))
    kernels(g)
