"""What passes do for fixed extents they do for open ones where numbers do not decide it; it is right at all sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from renorm import ops
from renorm.core.conditions import Condition
from renorm.core.dims import Dim, Sym, Symbol, symbols_of
from renorm.core.errors import RenormError
from renorm.driver.compile import analyze
from renorm.graph import interpret
from renorm.graph.conditions import conditions_of
from renorm.graph.ir import Graph, Value
from renorm.graph.typical import typical_shape, typical_sizes

RNG = np.random.default_rng(0)
N, H, W = Sym("N"), Sym("H"), Sym("W")
CHANNELS = 6


def constant(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def kept(x: Value, *axes: int) -> list[Value]:
    """Return extents of x as exporters take them: Shape, Slice."""
    return [ops.slice(ops.shape(x), (a,), (a + 1,)) for a in axes]


def group_norm(x: Value, norm: Callable[[Value], Value]) -> Value:
    """Return a norm of three groups as exporters write it: between two reshapes, one to a computed shape."""
    inside = ops.reshape(x, np.array([0, 3, -1]))
    return ops.reshape(norm(inside), ops.shape(x))


def instance_group_norm(x: Value) -> Value:
    y = group_norm(x, lambda v: ops.instance_norm(v, np.ones(3, np.float32), np.zeros(3, np.float32)))
    return ops.add(ops.mul(y, constant(CHANNELS, 1, 1)), constant(CHANNELS, 1, 1))


def affine_inside_group_norm(x: Value) -> Value:
    """Scale and bias by groups, in front of the second reshape."""

    def norm(v: Value) -> Value:
        y = ops.instance_norm(v, np.ones(3, np.float32), np.zeros(3, np.float32))
        return ops.add(ops.mul(y, constant(3, 1)), constant(3, 1))

    return group_norm(x, norm)


def five_axes_group_norm(x: Value) -> Value:
    """x as [N, G, C/G, H, W], where a scale per channel stands in front of the second reshape."""
    n, h, w = kept(x, 0, 2, 3)
    to = ops.concat([n, np.array([3, 2]), h, w], axis=0)
    y = ops.layer_norm(ops.reshape(x, to), np.ones(1, np.float32), None, axis=2)
    return ops.reshape(ops.mul(y, constant(3, 2, 1, 1)), ops.shape(x))


def views(x: Value) -> Value:
    n, c, h, w = kept(x, 0, 1, 2, 3)
    y = ops.reshape(x, ops.concat([n, c, ops.mul(h, w)], axis=0))
    y = ops.reshape(y, ops.concat([n, ops.mul(c, h), w], axis=0))
    return ops.unsqueeze(ops.reshape(y, ops.concat([n, c, h, w], axis=0)), axes=[0])


def same_view(x: Value) -> Value:
    return ops.relu(ops.expand(ops.reshape(ops.slice(x, (0,), (2**62,), (2,)), ops.shape(x)), ops.shape(x)))


def split(x: Value) -> Value:
    first, second = ops.split(ops.concat([x, x], axis=2), num_outputs=2, axis=2)
    return ops.sub(ops.relu(first), second)


def contraction(x: Value) -> Value:
    return ops.einsum([x, ops.relu(x)], equation="nchw,ndhw->ncd")


def batched_contraction(x: Value) -> Value:
    return ops.einsum([x, constant(CHANNELS, 5)], equation="nchw,cd->nhwd")


def channel_norm(x: Value) -> Value:
    y = ops.layer_norm(ops.transpose(x, perm=(0, 2, 3, 1)), constant(CHANNELS), constant(CHANNELS), axis=-1)
    return ops.transpose(y, perm=(0, 3, 1, 2))


def transposed_pixel(x: Value) -> Value:
    pixel = ops.global_average_pool(x)
    return ops.conv_transpose(pixel, constant(CHANNELS, 4, 3, 3), constant(4), strides=(2, 2))


def winograd(x: Value) -> Value:
    wide = ops.conv(x, constant(128, CHANNELS, 1, 1))
    return ops.conv(wide, constant(128, 128, 3, 3) / 128, constant(128), pads=(1, 0, 2, 1))


def batch_norms(x: Value) -> Value:
    """Folded on both sides, through a pad, a slice that counts from the end, and a concat."""
    terms = [constant(CHANNELS) for _ in range(4)]
    y = ops.batch_norm(ops.conv(x, constant(CHANNELS, CHANNELS, 3, 3), pads=(1, 1, 1, 1)), *terms)
    y = ops.pad(ops.relu(y), np.array([0, 0, 1, 0, 0, 0, 0, 2]))
    y = ops.slice(y, (1,), (-1,), (2,))
    both = ops.concat([y, ops.batch_norm(y, *terms)], axis=1)
    return ops.batch_norm(ops.conv(both, constant(3, 2 * CHANNELS, 1, 1)), *(t[:3] for t in terms))


CASES: dict[str, tuple[Callable[[Value], Value], dict[str, int]]] = {
    # how it is built, and how many of some ops are left at level 3
    "instance_group_norm": (instance_group_norm, {"group_norm": 1, "instance_norm": 0, "reshape": 0}),
    "affine_inside_group_norm": (affine_inside_group_norm, {"group_norm": 1, "instance_norm": 0, "reshape": 0}),
    "five_axes_group_norm": (five_axes_group_norm, {"group_norm": 1, "layer_norm": 0, "reshape": 0}),
    "views": (views, {"reshape": 1, "unsqueeze": 0}),
    "same_view": (same_view, {"reshape": 0, "expand": 0, "slice": 0, "relu": 1}),
    "split": (split, {"split": 0, "slice": 2}),
    "contraction": (contraction, {"einsum": 0, "matmul": 1}),
    "batched_contraction": (batched_contraction, {"einsum": 0, "matmul": 1}),
    "channel_norm": (channel_norm, {"layer_norm": 1, "transpose": 2, "reshape": 2}),
    "transposed_pixel": (transposed_pixel, {"conv_transpose": 0, "gemm": 1}),
    "winograd": (winograd, {"winograd_conv": 1}),
    "batch_norms": (batch_norms, {"batch_norm": 0}),
}

TARGET = "llvm -mcpu=znver5"  # which algorithms are chosen depends on the machine
SHAPES: dict[str, tuple[Dim, ...]] = {
    "all": (N, CHANNELS, H, W),
    "batch": (N, CHANNELS, 5, 8),
    "multiples": (Sym("N", 1, 4), CHANNELS, 4 * H, 2 * W),
}


def source(build: Callable[[Value], Value], shape: tuple[Dim, ...]) -> Graph:
    graph = Graph()
    graph.outputs = [build(graph.input("x", "float32", shape))]
    return graph


def drawn(
    graph: Graph, symbols: Collection[Symbol], conditions: Sequence[Condition]
) -> tuple[dict[str, int], list[Any], Any]:
    """Return random sizes that fulfil the conditions, inputs of these, and the result. Of nothing, some is not defined:
    the mean, what a 0 means to Reshape."""
    while True:
        sizes = {str(s): int(RNG.integers(max(0, s.least), 5)) for s in symbols}
        if all(c.holds(sizes) for c in conditions):
            with suppress(*([RenormError] if 0 in sizes.values() else [])):
                at = graph.copy(sizes)
                inputs = [RNG.standard_normal([int(str(d)) for d in at.inputs[0].shape]).astype(np.float32)]
                return sizes, inputs, interpret.run(at, inputs)[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_decisions_are_those_of_fixed_extents(name: str, shape: str) -> None:
    build, left = CASES[name]
    graph = source(build, SHAPES[shape])
    symbols = {s for d in SHAPES[shape] for s in symbols_of(d)}
    fixed, _ = analyze(graph.copy({str(s): 3 for s in symbols}), target=TARGET)
    opened, _ = analyze(graph, target=TARGET)
    conditions = [*conditions_of(graph), *conditions_of(opened)]
    found = Counter(n.op.name for n in opened.nodes)
    assert {op: found[op] for op in left} == left
    if shape == "batch" and name != "winograd":  # which depends on the batch
        assert found == Counter(n.op.name for n in fixed.nodes)
    for level in (opened, *(analyze(graph, target=TARGET, opt_level=k)[0] for k in (1, 2))):
        for _ in range(4):
            sizes, inputs, expected = drawn(graph, symbols, conditions)
            for computed in (interpret.run(level, inputs), interpret.run(level.copy(sizes), inputs)):
                np.testing.assert_allclose(computed[0], expected, rtol=2e-4, atol=2e-4, err_msg=str(sizes))


def test_typical_sizes() -> None:
    graph = Graph()
    graph.input("image", "float32", ("n", 3, 16 * Sym("h"), Sym("w", 300, 400)))
    graph.input("tokens", "int64", ("n", "length"))
    graph.input("few", "float32", (Sym("b", 2, 9), Sym("length"), 7))
    graph.input("line", "float32", ("n", 1, 32, Sym("c", 1, 64)))
    graph.input("volume", "float32", ("n", 1, "d", "d", "d"))
    graph.input("steps", "int64", ("s",))
    sizes = typical_sizes(graph)
    assert sizes == {"n": 2, "h": 13, "w": 307, "length": 127, "b": 2, "c": 61, "d": 37, "s": 127}
    assert typical_shape((Sym("n"), 16 * Sym("h"), Sym("?data.0.1")), sizes) == (2, 208, 127)
