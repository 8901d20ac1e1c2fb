"""Threads that are in different kernels at the same time do not get into each other's private memory."""

from __future__ import annotations

from typing import Any

import numpy as np

import renorm
from renorm.graph.ir import Graph
from renorm.ops.conv import Conv


def branches(*strides: int) -> Any:
    """Depthwise convolutions of one input, none of which waits for another's result. Rows of pixels are padded in
    private memory, the more the larger the stride is."""
    rng = np.random.default_rng(0)
    g = Graph("branches")
    x = g.input("x", "float32", (1, 12, 56, 56))
    for i, stride in enumerate(strides):
        w = g.constant(rng.standard_normal((12, 1, 5, 5)).astype(np.float32), f"w{i}")
        g.outputs.append(Conv(group=12, pads=(2, 2, 2, 2), strides=(stride, stride))(x, w))
    return renorm.compile(g)


def waits(module: Any) -> list[tuple[int, bool]]:
    """Of each step the size of a thread's private memory, and whether threads wait before it."""
    program = module.program
    return [(program.codes[s.code].scratch, s.waits[0]) for s in program.steps]


def test_pieces_of_different_sizes_are_not_in_use_at_the_same_time() -> None:
    (first, _), (second, must_wait) = waits(branches(1, 2))
    assert 0 < first != second > 0
    assert must_wait


def test_pieces_of_one_size_are_apart() -> None:
    (first, _), (second, must_wait) = waits(branches(2, 2))
    assert first == second > 0
    assert not must_wait
