"""Elementwise kernels that read across memory: tiles of a line of it, exact against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.graph.ir import Graph


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((2, 48, 9, 7), (0, 2, 3, 1)),
        ((1, 56, 13, 96), (0, 3, 1, 2)),  # vectors of 8 pixels
        ((3, 100, 36), (0, 2, 1)),  # vectors of 4; 12 of 36 columns a tile
        ((3, 64, 17), (0, 2, 1)),  # 17 columns: no tile
        ((1, 50, 7, 64), (0, 2, 3, 1)),  # 50 is a multiple of no vector
        ((8, 77, 64), (0, 2, 1)),  # nor is 77: of each row the last vector is ragged
        ((1, 77, 48), (0, 2, 1)),  # so few tiles that threads share rows
        ((1, 49, 49, 20), (0, 3, 1, 2)),
        ((2, 33, 6, 32), (0, 2, 3, 1)),
        ((128, 700), (1, 0)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_transposed_sums(shape: tuple[int, ...], perm: tuple[int, ...], dtype: str) -> None:
    x = RNG.standard_normal(shape).astype(dtype)
    y = RNG.standard_normal([shape[a] for a in perm]).astype(dtype)
    g = Graph()
    g.outputs = [ops.add(ops.transpose(g.input("x", dtype, shape), perm=perm), g.input("y", dtype, y.shape))]
    np.testing.assert_array_equal(renorm.compile(g).run(x, y)[0], x.transpose(perm) + y)


@pytest.mark.parametrize("tokens", [64, 37])
def test_heads_of_keys(tokens: int) -> None:
    x = RNG.standard_normal((2, tokens, 96)).astype(np.float32)
    g = Graph()
    split = ops.reshape(g.input("x", "float32", x.shape), np.array([2, tokens, 3, 32], np.int64))
    g.outputs = [ops.neg(ops.transpose(split, perm=(0, 2, 3, 1)))]
    np.testing.assert_array_equal(renorm.compile(g).run(x)[0], -x.reshape(2, tokens, 3, 32).transpose(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((2, 24, 5, 8), (0, 2, 3, 1)),  # vectors of 8 pixels, each stored to 8 places
        ((3, 16, 48), (0, 2, 1)),  # of 16
        ((2, 7, 9, 12), (0, 2, 3, 1)),  # of 4
        ((2, 7, 9, 11), (0, 2, 3, 1)),  # 11 is a multiple of none
        ((40, 6, 144), (0, 2, 1)),  # so many that threads share them
        ((1, 100, 64), (0, 2, 1)),  # longer than a vector: lines of memory are used up instead
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32"])
def test_bytes_across_memory(shape: tuple[int, ...], perm: tuple[int, ...], dtype: str) -> None:
    x = RNG.integers(-90, 90, shape).astype(dtype)
    g = Graph()
    turned = ops.transpose(g.input("x", dtype, shape), perm=perm)
    g.outputs = [ops.cast(ops.add(ops.cast(turned, to="float32"), np.float32(3)), to="int8")]
    expected = (x.astype(np.int64) + 3).transpose(perm).astype(np.int8)
    m = renorm.compile(g)
    if dtype != "uint8":  # beyond 127 float32 to int8 is no number that is stated
        np.testing.assert_array_equal(m.run(x)[0], expected)
    is_short = shape[1] <= 64 and shape[-1] % 4 == 0
    (kernel,) = (k for k in m.report.kernels if k.nodes)
    assert ("+ (i" in m.kernel(kernel).loops) or not is_short
