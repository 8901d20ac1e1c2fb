"""Values that lie within others: nothing runs for them, and no number changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.core.dims import static
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value

F = "float32"


def graph() -> Graph:
    return Graph("g")


def conv(x: Value, channels: int, seed: int = 0) -> Value:
    w = np.random.default_rng(seed).standard_normal((channels, static(x.shape)[1], 3, 3)).astype(np.float32) * 0.2
    return ops.conv(x, w, pads=(1, 1, 1, 1))


def check(g: Graph, threads: int = 2, gap: float = 0) -> Any:
    """The module at level 3, whose numbers are those of the interpreter, for every run; its arena is as small as it can
    be, up to alignment and a part `gap`: between rows that are free at other times there may be too little room."""
    rng = np.random.default_rng(1)
    feeds: dict[str, Any] = {v.name: rng.standard_normal(static(v.shape)).astype(np.float32) for v in g.inputs}
    expected = interpret.run(g, feeds)
    m = renorm.compile(g, threads=threads)
    for _ in range(2):
        for ours, theirs in zip(m.run(**feeds), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * max(1.0, np.abs(theirs).max()))
    assert m.report.memory.arena <= (1 + gap) * m.report.memory.lower_bound + 64 * len(m.report.kernels)
    return m


def kinds_of_arguments(m: Any, step: int) -> list[str]:
    return [a.kind for a in m.program.steps[step].args]


def kinds(m: Any) -> list[str]:
    return [str(k) for k in m.report.kernels]


def ran(m: Any, word: str) -> int:
    return sum(word in k for k in kinds(m))


@pytest.mark.parametrize("channels", [(16, 32), (3, 5), (16, 8, 7)])
@pytest.mark.parametrize("n", [1, 2])
def test_parts_of_a_concat_are_written_in_place(channels: tuple[int, ...], n: int) -> None:
    g = graph()
    x = g.input("x", F, (n, 6, 9, 7))
    parts = [conv(x, c, seed) for seed, c in enumerate(channels)]
    g.outputs = [conv(ops.concat(parts, axis=1), 4)]
    assert ran(check(g), "concat") == 0


def test_a_concat_along_the_batch() -> None:
    g = graph()
    x = g.input("x", F, (2, 6, 5, 7))
    g.outputs = [conv(ops.concat([conv(x, 16), conv(x, 16, 1)], axis=0), 4)]
    assert ran(check(g), "concat") == 0


def test_a_concat_that_is_an_output() -> None:
    g = graph()
    x = g.input("x", F, (1, 6, 5, 7))
    g.outputs = [ops.concat([conv(x, 3), conv(x, 4, 1)], axis=1)]
    m = check(g)
    assert len(kinds(m)) == 2
    written = [a for s in m.program.steps for a in s.args if a.kind == "output"]
    assert [(a.at, a.offset) for a in written] == [(0, 0), (0, 3 * 5 * 7 * 4)]


def test_parts_that_must_lie_elsewhere_are_copied() -> None:
    g = graph()
    x = g.input("x", F, (1, 6, 5, 7))
    a, b = conv(x, 16), conv(x, 2, 1)
    constant = g.constant(np.ones((1, 1, 5, 7), np.float32))
    y = ops.concat([a, b, x, constant], axis=1)
    g.outputs = [conv(y, 4), b]
    m = check(g)
    assert ran(m, "concat") == 0
    assert ran(m, "copy") == 3


def test_where_most_would_be_copied_the_kernel_stays() -> None:
    g = graph()
    x = g.input("x", F, (1, 6, 5, 7))
    g.outputs = [conv(ops.concat([x, conv(x, 2)], axis=1), 4)]
    assert ran(check(g), "concat") == 1


def test_a_part_that_stands_twice() -> None:
    g = graph()
    x = g.input("x", F, (1, 6, 5, 7))
    a = conv(x, 3)
    g.outputs = [conv(ops.concat([a, a], axis=1), 4)]
    assert ran(check(g), "concat") == 1


def test_a_part_of_two_concats() -> None:
    g = graph()
    x = g.input("x", F, (1, 6, 5, 7))
    a, b, c = conv(x, 2), conv(x, 3, 1), conv(x, 4, 2)
    g.outputs = [conv(ops.concat([a, b], axis=1), 4), conv(ops.concat([c, a], axis=1), 4)]
    m = check(g)
    assert ran(m, "concat") == 0
    assert ran(m, "copy") == 1


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("growth", [4, 16])
def test_features_that_pile_up(whole: bool, growth: int) -> None:
    """A dense block: each layer reads all before it; as exporters write it, or with concats of concats."""
    g = graph()
    x = g.input("x", F, (1, 3, 6, 8))
    features = [conv(x, 16)]
    joined = features[0]
    for seed in range(4):
        features.append(conv(joined, growth, seed))
        joined = ops.concat(features, axis=1) if whole else ops.concat([joined, features[-1]], axis=1)
    g.outputs = [conv(joined, 4)]
    assert ran(check(g), "concat") == 0


def test_skips_of_a_u() -> None:
    g = graph()
    x = g.input("x", F, (1, 3, 16, 24))
    a = ops.relu(conv(x, 16))
    b = ops.relu(conv(ops.max_pool(a, kernel_shape=(2, 2), strides=(2, 2)), 32))
    c = ops.relu(conv(ops.max_pool(b, kernel_shape=(2, 2), strides=(2, 2)), 32))
    for skip, channels in ((b, 32), (a, 16)):
        w = np.random.default_rng(7).standard_normal((c.shape[1], channels, 2, 2)).astype(np.float32) * 0.2
        c = ops.relu(conv(ops.concat([skip, ops.conv_transpose(c, w, strides=(2, 2))], axis=1), channels))
    g.outputs = [c]
    assert ran(check(g), "concat") == 0


def test_views() -> None:
    g = graph()
    x = g.input("x", F, (1, 6, 4, 5))
    y = conv(x, 8)
    flat = ops.reshape(y, np.array([8, 20]))
    g.outputs = [
        ops.softmax(ops.matmul(flat, np.eye(20, 7, dtype=np.float32)), axis=-1),
        ops.reshape(x, np.array([6, 20])),
    ]
    m = check(g)
    assert ran(m, "reshape") == 1  # an output that is an input


@pytest.mark.parametrize("is_read", [False, True])
def test_a_view_that_is_an_output(is_read: bool) -> None:
    g = graph()
    x = g.input("x", F, (1, 6, 4, 5))
    y = conv(x, 8)
    g.outputs = [ops.reshape(y, np.array([8, 20]))]
    if is_read:
        g.outputs.append(conv(y, 3))
    m = check(g)
    assert ran(m, "reshape") == 0
    assert "output" in kinds_of_arguments(m, 0)


def test_a_value_and_its_view_are_outputs() -> None:
    g = graph()
    x = g.input("x", F, (1, 6, 4, 5))
    y = conv(x, 8)
    g.outputs = [y, ops.reshape(y, np.array([8, 20])), ops.reshape(y, np.array([160]))]
    assert ran(check(g), "reshape") == 2


@pytest.mark.parametrize("n", [1, 2])
def test_pieces_of_a_split(n: int) -> None:
    g = graph()
    x = g.input("x", F, (n, 6, 4, 5))
    pieces = ops.split(conv(x, 48), np.array([16, 32]), axis=1)
    g.outputs = [conv(pieces[0], 3), conv(pieces[1], 3)]
    m = check(g, gap=n - 1)
    assert ran(m, "split") + ran(m, "slice") == 0


def test_a_piece_goes_into_a_concat_by_a_copy() -> None:
    g = graph()
    x = g.input("x", F, (1, 6, 4, 5))
    a, b = ops.split(conv(x, 48), np.array([16, 32]), axis=1)
    g.outputs = [conv(ops.concat([conv(b, 32), a], axis=1), 3)]
    m = check(g)
    assert ran(m, "concat") == ran(m, "slice") == 0
    assert ran(m, "copy") == 1


def test_residuals_are_added_in_place() -> None:
    g = graph()
    x = g.input("x", F, (1, 16, 8, 9))
    y = conv(x, 16)
    for seed in range(3):
        y = ops.relu(ops.add(conv(ops.relu(conv(y, 16, seed)), 16, seed), y))
    g.outputs = [conv(y, 2)]
    shared = [s for s in check(g).program.steps if len(set(s.args)) < len(s.args)]
    assert len(shared) == 3


@pytest.mark.parametrize("order", [(0, 2, 3), (2, 0, 3), (3, 1, 2), (2, 3, 1), (1, 2, 3, 0)])
def test_a_concat_of_a_value_and_of_pieces_of_it(order: tuple[int, ...]) -> None:
    """The value can lie in the result only where it stands itself, not where a piece of it stands."""
    g = graph()
    a, b = (ops.softmax(g.input(name, F, (rows, 7))) for name, rows in (("a", 4), ("b", 10)))
    parts = [*ops.split(a, axis=0, num_outputs=2), a, b]
    g.outputs = [ops.concat([parts[i] for i in order], axis=0)]
    check(g)
