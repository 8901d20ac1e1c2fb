"""Weights are asked for ahead where the sizes of a product say that memory would rest, and nowhere else; data always
is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import renorm
from renorm.graph.ir import Graph, Value

CPUS = [
    "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4",
    "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell",
]
RNG = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def hints(
    target: str, shape: tuple[int, ...], op: Callable[[Graph, Value], Value], of_data: bool = False
) -> dict[str, int]:
    """Return how many hints each kernel has for weights, or for data, which is its first parameter."""
    g = Graph("net")
    g.outputs = [op(g, g.input("x", "float32", shape))]
    m = renorm.compile(g, target=target, threads=1, precision="fast")
    found = dict[str, int]()
    for k in m.report.kernels:
        loops = m.kernel(k.name).loops
        data = loops[loops.index("(") + 1 :].split(":")[0]
        asked = loops.count(f"prefetch {data}[")
        others = loops.count("prefetch ") - asked - loops.count("prefetch transformed[")
        found[k.name] = asked if of_data else others
    return found


def convolution(results: int, channels: int, size: int) -> Callable[[Graph, Value], Value]:
    """Between two others, so that it reads and writes blocks of channels."""

    def op(g: Graph, x: Value) -> Value:
        for k, c, s in ((channels, channels, 1), (results, channels, size), (channels, results, 1)):
            x = renorm.ops.relu(renorm.ops.conv(x, weights(k, c, s, s), pads=(s // 2,) * 4))
        return x

    return op


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize(
    ("extent", "size", "expected"),
    [(7, 1, True), (14, 1, True), (56, 1, False), (1, 1, False), (7, 5, True), (14, 3, True)],
)
def test_convolutions_whose_weights_are_used_for_few_pixels(
    target: str, extent: int, size: int, expected: bool
) -> None:
    _, found, _ = hints(target, (1, 128, extent, extent), convolution(256, 128, size)).values()
    assert (found > 0) is expected
    assert found <= 4  # a few lines in a round


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("extent", [7, 56])
@pytest.mark.parametrize(("results", "channels"), [(256, 128), (116, 58), (124, 128)])
def test_data_in_blocks_of_channels_or_in_rows_is_asked_for(
    target: str, extent: int, results: int, channels: int
) -> None:
    found = hints(target, (1, channels, extent, extent), convolution(results, channels, 1), of_data=True)
    assert list(found.values()) == [1, 1, 1]


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize(("rows", "expected"), [(1, False), (32, True), (197, True), (4000, False)])
def test_matrix_products(target: str, rows: int, expected: bool) -> None:
    (found,) = hints(target, (rows, 192), lambda g, x: renorm.ops.gemm(x, weights(192, 576))).values()
    assert (found > 0) is expected


def test_what_is_no_constant_is_not_asked_for() -> None:
    def op(g: Graph, x: Value) -> Value:
        return renorm.ops.gemm(x, g.input("w", "float32", (192, 576)))

    assert hints(CPUS[0], (32, 192), op) == {"gemm": 0}


@pytest.mark.parametrize("target", CPUS)
def test_winograd_asks_for_the_next_matrix_or_the_weights_that_it_transforms(target: str) -> None:
    found = hints(target, (1, 256, 14, 14), lambda g, x: renorm.ops.conv(x, weights(256, 256, 3, 3), pads=(1,) * 4))
    assert [n > 0 for name, n in found.items() if "winograd" in name] == [True]


@pytest.mark.parametrize("extent", [14, 112])
def test_winograd_asks_for_what_other_threads_have_transformed(extent: int) -> None:
    """Ask where threads share channels; where they share tiles, each has in its cache what it transformed."""
    g = Graph("net")
    g.outputs = [
        renorm.ops.conv(g.input("x", "float32", (1, 64, extent, extent)), weights(64, 64, 3, 3), pads=(1,) * 4)
    ]
    m = renorm.compile(g, target=CPUS[0], threads=1)
    (loops,) = (m.kernel(k.name).loops for k in m.report.kernels if "winograd" in k.name)
    assert loops.count("parallel (") == loops.count("prefetch transformed[") + 1 == (2 if extent == 14 else 1)


@pytest.mark.parametrize("shape", [(1, 96, 7, 7), (3, 96, 7, 9)])
@pytest.mark.parametrize(("results", "size"), [(112, 1), (100, 1), (37, 1), (96, 3), (160, 5)])
def test_results(shape: tuple[int, ...], results: int, size: int) -> None:
    """Ragged panels of channels, batches, windows."""
    g, w = Graph("net"), weights(results, shape[1], size, size)
    g.outputs = [renorm.ops.conv(g.input("x", "float32", shape), w, pads=(size // 2,) * 4)]
    x = weights(*shape)
    m = renorm.compile(g, threads=1)
    (y,) = m.run(x)
    half = size // 2
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (half, half), (half, half)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))
    np.testing.assert_allclose(y, np.einsum("nchwij,kcij->nkhw", windows, w.astype(np.float64)), rtol=1e-3, atol=1e-3)
