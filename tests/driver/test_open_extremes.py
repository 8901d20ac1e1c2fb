"""Open modules called with extents that are chosen to break them: each call gives the right result, or one error before
anything runs; nothing outside of inputs and outputs is touched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.driver.guarded import guarded
from tests.driver.test_open_networks import array, image, perceptron, rows
from tests.random_numbers import RNG
from tests.stress._children import in_child

import renorm
from renorm import ops
from renorm.core.dims import substitute, symbols_of
from renorm.errors import InvalidInput, LimitExceeded, OutOfMemory, RenormError, TimeLimit
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.runtime import Module

Array = np.ndarray[Any, Any]
LIMITS = renorm.Limits(operations=10**9, bytes=10**9, elements=10**9)
# 2^15 squared is 2^30 and 2^16 squared 2^32; 2^32 squared and 2^63 - 1 leave 64 bits
HUGE = (46341, 1 << 16, (1 << 24) + 7, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) + 1, 1 << 47, (1 << 61) + 3)


def sentences() -> Graph:
    """Attention over rows of a table."""
    g = Graph("sentences")
    words = ops.gather(array(50, 24), g.input("x", "int64", ("n", "l")))
    weights = ops.softmax(ops.matmul(ops.matmul(words, array(24, 24)), ops.transpose(words, perm=(0, 2, 1))))
    g.outputs = [ops.layer_norm(ops.matmul(weights, words), array(24), array(24))]
    return g


def shrunk() -> Graph:
    """Strides, windows at borders, and places in a concat."""
    g = Graph("shrunk")
    x = g.input("x", "float32", ("n", 4, "h", "w"))
    y = ops.relu(ops.conv(x, array(8, 4, 3, 3), strides=(2, 2), pads=(1,) * 4))
    wide = ops.conv(y, array(8, 8, 3, 3), pads=(2, 2, 2, 2), dilations=(2, 2))
    joined = ops.concat([y, ops.relu(wide)], axis=1)
    g.outputs = [ops.slice(joined, np.array([1]), np.array([2**31]), np.array([3])), ops.reduce_mean(joined, axes=(2,))]
    return g


NETWORKS: dict[str, Callable[[], Graph]] = {f.__name__: f for f in (perceptron, image, rows, sentences, shrunk)}


def shapes_at(g: Graph, extents: Mapping[str, int]) -> list[tuple[int, ...]]:
    return [tuple(int(str(substitute(d, extents))) for d in v.shape) for v in g.inputs]


def symbols(g: Graph) -> list[str]:
    return sorted({str(s) for v in g.inputs for d in v.shape for s in symbols_of(d)})


def drawn(g: Graph, extents: Mapping[str, int]) -> list[Array]:
    return [
        (RNG.integers(0, 50, s) if v.dtype == "int64" else RNG.normal(size=s)).astype(v.dtype)
        for v, s in zip(g.inputs, shapes_at(g, extents))
    ]


@pytest.fixture(params=[*NETWORKS])
def network(request: pytest.FixtureRequest) -> Graph:
    return NETWORKS[request.param]()


@pytest.fixture(params=["compiled", "loaded"])
def module(request: pytest.FixtureRequest, network: Graph, tmp_path: Path) -> Module:
    m = renorm.compile(network.copy(), threads=1, limits=LIMITS)
    assert isinstance(m, Module), m
    if request.param == "compiled":
        return m
    m.save(tmp_path / "open.renorm")
    held = renorm.load(tmp_path / "open.renorm", threads=1, limits=LIMITS)
    assert isinstance(held, Module)
    return held


def small(g: Graph) -> Iterator[dict[str, int]]:
    """Extents from 0 on round widths of vectors and tiles; of images a few of each."""
    names = symbols(g)
    each = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65) if len(names) == 1 else (0, 1, 2, 3, 5, 8, 16, 17, 33)
    every = [dict(zip(names, values)) for values in product(each, repeat=len(names))]
    return (every[i] for i in sorted(RNG.choice(len(every), min(len(every), 60), replace=False)))


def test_nothing_outside_of_arrays_is_touched(network: Graph, module: Module) -> None:
    def calls() -> None:
        computed = 0
        for extents in small(network):
            feeds = drawn(network, extents)
            try:
                found = module.run(*feeds)
            except InvalidInput:
                with pytest.raises(RenormError):  # nor is there a result for these numbers
                    renorm.compile(network.copy(), shapes={v.name: x.shape for v, x in zip(network.inputs, feeds)})
                continue
            expected = interpret.run(network, {v.name: x for v, x in zip(network.inputs, feeds)})
            for is_at_end in (False, True):
                out = [guarded(np.full_like(y, np.nan), is_at_end) for y in found]
                module.run(*(guarded(x, is_at_end) for x in feeds), out=out)
                for ours, theirs in zip(out, expected, strict=True):
                    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
            computed += 1
        assert computed > 5

    in_child(calls, 240)


def test_huge_extents_are_one_error_before_anything_runs(network: Graph, module: Module) -> None:
    names, begun = symbols(network), time.perf_counter()
    everything = [dict.fromkeys(names, huge) for huge in HUGE]
    everything += [{**dict.fromkeys(names, other), one: huge} for one in names for huge in HUGE for other in (0, 1, 17)]
    refused = 0
    for extents in everything:
        shapes = shapes_at(network, extents)
        try:
            feeds = [
                np.lib.stride_tricks.as_strided(np.ones(1, v.dtype), s, (0,) * len(s))
                for v, s in zip(network.inputs, shapes)
            ]
        except (ValueError, OverflowError):
            continue  # NumPy has no such array
        with suppress(InvalidInput, LimitExceeded, OutOfMemory):
            refused += 1
            with suppress(TimeLimit):  # attention keeps no table of scores: what fits is computed, for long
                module.run(*feeds, timeout=0.5)
            refused -= 1
            assert max(x.nbytes for x in feeds) < LIMITS.bytes, extents
    assert refused > 5
    assert time.perf_counter() - begun < 60
    feeds = drawn(network, dict.fromkeys(names, 5))
    expected = interpret.run(network, {v.name: x for v, x in zip(network.inputs, feeds)})
    for ours, theirs in zip(module.run(*feeds), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
