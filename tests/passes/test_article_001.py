"""The numbers that the article on folding into transposed convolutions prints, each row with its epsilon."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.shared_files import article

import renorm
from renorm import ops
from renorm.graph.ir import Graph

FLOOR = 1.001e-5  # of epsilon in tf.nn.fused_batch_norm, which the article calls with 0


def row(title: str) -> np.ndarray:
    """The first 16 numbers printed under a title."""
    printed = article("001").split(f"---------- {title} ----------", 1)[1].split("----------", 1)[0]
    numbers = re.findall(r"\[\s*(-?\d+\.\d+)\s*\]", printed)
    return np.array([float(n) for n in numbers[:16]]).reshape(1, 1, 4, 4)


def spread() -> np.ndarray:
    """Its transposed convolution: 1, 2, 3, 4 under a window of ones."""
    y = np.zeros((1, 1, 4, 4))
    for at, v in zip(np.ndindex(2, 2), (1, 2, 3, 4)):
        y[..., at[0] : at[0] + 3, at[1] : at[1] + 3] += v
    return y


def network(epsilon: float) -> Graph:
    graph, y = Graph("article"), spread()
    x = graph.input("x", "float32", (1, 1, 2, 2))
    made = ops.conv_transpose(x, np.ones((1, 1, 3, 3), np.float32))
    numbers = [np.asarray([n], np.float32) for n in (1.05, 0.015, y.mean(), y.var())]
    graph.outputs = [ops.batch_norm(made, *numbers, epsilon=epsilon)]
    return graph


@pytest.mark.parametrize(
    ("title", "epsilon", "level", "fate"),
    [
        ("numpy batch_norm", 0.0, 0, "unpacked"),
        ("tensorflow batch_norm", FLOOR, 0, "unpacked"),
        ("tensorflow batch_norm", FLOOR, 2, "folded"),
        ("folded tconv", 0.0, 2, "folded"),
    ],
)
def test_rows_come_out_as_printed(title: str, epsilon: float, level: int, fate: str):
    y = spread()
    by_hand = (y - y.mean()) / np.sqrt(y.var() + epsilon) * 1.05 + 0.015
    np.testing.assert_allclose(by_hand, row(title), rtol=0, atol=3e-7)
    m = renorm.compile(network(epsilon), opt_level=level)
    (found,) = m.run(np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2))
    np.testing.assert_allclose(found, row(title), rtol=0, atol=3e-7)
    assert [n.fate for n in m.report.norms] == [fate]


def test_the_minor_difference_is_the_floor_of_epsilon():
    """The rows differ by more than they may differ from ours, and no epsilon fits both."""
    assert np.abs(row("tensorflow batch_norm") - row("numpy batch_norm")).max() > 6e-7
    y = spread()
    for title, other in (("tensorflow batch_norm", 0.0), ("numpy batch_norm", FLOOR)):
        by_hand = (y - y.mean()) / np.sqrt(y.var() + other) * 1.05 + 0.015
        assert np.abs(by_hand - row(title)).max() > 5e-7
