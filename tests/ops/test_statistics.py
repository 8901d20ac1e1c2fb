"""Statistics of slices: accuracy far from zero, one kernel, any layout, and the same bits for any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import renorm
from renorm import ops, te
from renorm.core import target
from renorm.graph.ir import Graph, Value
from renorm.ops import schedules
from renorm.ops.instance_norm import InstanceNorm
from renorm.topi import layout

Array = np.ndarray[Any, Any]


def compiled(x: Array, build: Callable[[Value], Value], threads: int = 2) -> renorm.driver.module.CompiledModule:
    graph = Graph("g")
    graph.outputs = [build(graph.input("x", str(x.dtype), x.shape))]
    return renorm.compile(graph, threads=threads)


def parameters(n: int) -> tuple[Array, Array]:
    scale, bias = np.random.default_rng(n).normal(1, 0.3, (2, n)).astype(np.float32)
    return scale, bias


def spread(p: Array, rank: int) -> Array:
    return p.astype(np.float64).reshape(-1, *[1] * (rank - 2))


def standard(x: Array, axes: tuple[int, ...], epsilon: float = 1e-5) -> Array:
    wide = x.astype(np.float64)
    return (wide - wide.mean(axis=axes, keepdims=True)) / np.sqrt(wide.var(axis=axes, keepdims=True) + epsilon)


def instance(x: Array) -> tuple[Callable[[Value], Value], Array]:
    scale, bias = parameters(x.shape[1])
    expected = standard(x, tuple(range(2, x.ndim))) * spread(scale, x.ndim) + spread(bias, x.ndim)
    return lambda v: ops.instance_norm(v, scale, bias), expected


def group(x: Array, groups: int) -> tuple[Callable[[Value], Value], Array]:
    scale, bias = parameters(x.shape[1])
    apart = x.reshape(x.shape[0], groups, -1)
    expected = standard(apart, (2,)).reshape(x.shape) * spread(scale, x.ndim) + spread(bias, x.ndim)
    return lambda v: ops.group_norm(v, scale, bias, num_groups=groups), expected


def layer(x: Array) -> tuple[Callable[[Value], Value], Array]:
    scale, bias = parameters(x.shape[-1])
    return lambda v: ops.layer_norm(v, scale, bias), standard(x, (x.ndim - 1,)) * scale + bias


CASES: dict[str, tuple[tuple[int, ...], Callable[[Array], tuple[Callable[[Value], Value], Array]]]] = {
    "instance": ((2, 5, 13, 11), instance),
    "instance of long planes": ((1, 3, 301, 97), instance),
    "instance of few, very long slices": ((1, 2, 300, 1000), instance),
    "group": ((3, 12, 7, 9), lambda x: group(x, 4)),
    "one group": ((2, 6, 31, 5), lambda x: group(x, 1)),
    "one group of one sample": ((1, 6, 220, 211), lambda x: group(x, 1)),
    "as many groups as channels": ((2, 6, 8, 8), lambda x: group(x, 6)),
    "layer, short rows": ((37, 7), layer),
    "layer, rows of two vectors": ((5, 3, 33), layer),
    "layer, long rows": ((3, 5003), layer),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mean_of_ten_thousand_deviations_keeps_its_digits(case: str):
    shape, norm = CASES[case]
    x = np.random.default_rng(len(case)).normal(1e4, 1, shape).astype(np.float32)
    build, expected = norm(x)
    module = compiled(x, build)
    assert len(module.report.kernels) == 1
    np.testing.assert_allclose(module.run(x)[0], expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("case", CASES)
def test_a_first_element_far_from_all_others_costs_no_digits(case: str):
    shape, norm = CASES[case]
    x = np.random.default_rng(len(case)).normal(0, 1, shape).astype(np.float32)
    x[..., 0] = 1e6
    build, expected = norm(x)
    np.testing.assert_allclose(compiled(x, build).run(x)[0], expected, rtol=2e-6, atol=3e-6 * np.abs(expected).max())


@pytest.mark.parametrize("case", ["instance", "instance of few, very long slices", "one group of one sample", "group"])
def test_bits_do_not_depend_on_the_number_of_threads(case: str):
    shape, norm = CASES[case]
    x = np.random.default_rng(0).normal(3, 1, shape).astype(np.float32)
    build, _ = norm(x)
    first, *others = (compiled(x, build, threads).run(x)[0] for threads in (1, 2, 3))
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("case", ["instance", "group", "layer, long rows", "one group of one sample"])
def test_nan_and_infinity_spoil_their_slice_and_no_other(case: str):
    shape, norm = CASES[case]
    for spoiler in (np.nan, np.inf):
        x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
        x[(0, *[-1] * (len(shape) - 1))] = spoiler
        with np.errstate(invalid="ignore"):
            build, expected = norm(x)
        found = compiled(x, build).run(x)[0]
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        fine = ~np.isnan(expected)
        np.testing.assert_allclose(found[fine], expected[fine], atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 4, 3, 3), (2, 4, 0, 3), (2, 4, 1, 1)])
def test_empty_results_and_slices_of_one(shape: tuple[int, ...]):
    x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    scale, bias = parameters(4)
    found = compiled(x, lambda v: ops.instance_norm(v, scale, bias)).run(x)[0]
    np.testing.assert_array_equal(found, np.broadcast_to(bias.reshape(-1, 1, 1), shape))


def in_blocks(x: Array) -> Array:
    n, c, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, c // 16, 16, h, w).transpose(0, 1, 3, 4, 2))


@pytest.mark.parametrize(("n", "c", "h", "w"), [(2, 32, 5, 7), (1, 48, 14, 14), (3, 16, 1, 9)])
@pytest.mark.parametrize("written", [False, True])
def test_blocks_of_channels_are_normalized_without_sums_across_lanes(n: int, c: int, h: int, w: int, written: bool):
    """Operand, and result where `written`, lie as [N, C/16, H, W, 16]."""
    form = layout.Blocking(((1, 16),))
    held = te.placeholder(form.shape((n, c, h, w)), "float32", name="x")
    scale, bias = (te.placeholder((c,), "float32", name=name) for name in ("scale", "bias"))
    y = InstanceNorm().compute(layout.view(held, (n, c, h, w), form), scale, bias)
    out = layout.result(y, form) if written else y
    s = te.create_schedule(out.op)
    schedules.normalization(s, [out], target.parse("llvm"))
    x = np.random.default_rng(c).normal(1e4, 1, (n, c, h, w)).astype(np.float32)
    k, b = parameters(c)
    result = np.empty(out.shape, np.float32)
    renorm.build(s, [held, scale, bias, out])(in_blocks(x), k, b, result)
    expected = standard(x, (2, 3)) * spread(k, 4) + spread(b, 4)
    if written:
        assert ".rf" not in str(renorm.lower(s, [held, scale, bias, out]))
        expected = in_blocks(expected)
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_a_group_of_channels_is_one_nest():
    scale, bias = parameters(64)
    x = np.zeros((2, 64, 9, 9), np.float32)
    loops = compiled(x, lambda v: ops.group_norm(v, scale, bias, num_groups=8)).kernel("group_norm").loops
    assert loops.count("parallel") == 1


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((20000, 20), (0,)),
        ((9000, 3), (0,)),
        ((300, 256), (0,)),
        ((3, 500, 70), (1,)),
        ((4, 300, 33), (0, 1)),
        ((70, 100), (0,)),
    ],
    ids=str,
)
def test_sums_across_memory_in_tiles_and_in_pieces(shape: tuple[int, ...], axes: tuple[int, ...]):
    x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    sums = [
        compiled(x, lambda v: ops.reduce_sum(v, axes=axes, keepdims=False), threads).run(x)[0] for threads in (1, 2, 3)
    ]
    np.testing.assert_allclose(sums[0], x.sum(axis=axes, dtype=np.float64), rtol=1e-5, atol=1e-3)
    for other in sums[1:]:
        np.testing.assert_array_equal(sums[0].view(np.uint32), other.view(np.uint32))
