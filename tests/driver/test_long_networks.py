"""Networks of very many nodes, operands, results and kernels: right, and in time that grows as they do."""

from __future__ import annotations

import cProfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.exhaustive import one_of

import renorm
from renorm import ops
from renorm.core.difference import relative_error
from renorm.core.dims import static
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.passes import channel_flow, fuse, memory

pytestmark = pytest.mark.usefixtures("kept_code")
SHAPE = (1, 4, 4, 4)
Build = Callable[[Graph, Value, int], Any]


def relus(g: Graph, x: Value, n: int) -> Value:
    for i in range(n):
        x = ops.relu(x) if i % 2 else ops.neg(x)
    return x


def gates(g: Graph, x: Value, n: int) -> Value:
    """Ops whose expressions are deep."""
    for i in range(n):
        x = (ops.mish, ops.hard_swish, ops.softplus, ops.elu)[i % 4](x)
    return x


def affine(g: Graph, x: Value, n: int) -> Value:
    for i in range(n):
        x = (ops.mul, ops.add)[i % 2](x, np.float32(1 + 0.1 * (i % 3)))
    return x


def additions(g: Graph, x: Value, n: int) -> Value:
    """Each reads one of the fifty results before it."""
    rng, made = np.random.default_rng(0), [x]
    for _ in range(n):
        made.append(ops.mul(ops.add(made[-1], made[rng.integers(max(0, len(made) - 50), len(made))]), np.float32(0.5)))
    return made[-1]


def convolutions(g: Graph, x: Value, n: int) -> Value:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(4, 4, 3, 3), scale=0.2).astype(np.float32)
    scale, bias, mean, var = (rng.uniform(0.5, 1, 4).astype(np.float32) for _ in range(4))
    for _ in range(n // 3):
        x = ops.relu(ops.batch_norm(ops.conv(x, w, pads=(1, 1, 1, 1)), scale, bias, mean, var, epsilon=1e-5))
    return x


def products(g: Graph, x: Value, n: int) -> Value:
    w = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0].astype(np.float32)
    for _ in range(n):
        x = ops.matmul(x, w)
    return x


def moves(g: Graph, x: Value, n: int) -> Value:
    for i in range(n):
        x = ops.reshape(ops.transpose(x, perm=(0, 2, 1, 3)) if i % 3 else x, (1, 4, 2, 8) if i % 2 else SHAPE)
        x = ops.pad(x, (0, 0, 0, 0, 0, 0, 0, 1)) if i % 2 else ops.reshape(x, SHAPE)
        x = ops.slice(x, starts=(0,), ends=(8,), axes=(3,)) if i % 2 else x
        x = ops.reshape(x, SHAPE)
    return x


def views(g: Graph, x: Value, n: int) -> Value:
    """All of them become one node."""
    for i in range(n):
        x = ops.transpose(x, perm=(0, 2, 3, 1)) if i % 3 else ops.reshape(x, SHAPE)
    return ops.relu(x)


def readers(g: Graph, x: Value, n: int) -> Value:
    """All of them read one value."""
    y = ops.softmax(x, axis=1)
    return ops.sum([ops.tanh(ops.mul(y, np.float32(i % 7))) for i in range(n)])


def diamonds(g: Graph, x: Value, n: int) -> Value:
    for _ in range(n // 3):
        x = ops.add(ops.relu(x), ops.mul(x, np.float32(0.5)))
    return x


def pieces(g: Graph, x: Value, n: int) -> Value:
    """Slices of one value, side by side in another order."""
    y = ops.tanh(ops.concat([x] * (n // 4 + 1), axis=1))
    parts = [ops.relu(ops.slice(y, starts=(i,), ends=(i + 1,), axes=(1,))) for i in range(n)]
    return ops.concat(parts[::-1], axis=1)


def results(g: Graph, x: Value, n: int) -> list[Value]:
    return [ops.relu(x) if i % 2 else ops.mul(x, np.float32(i)) for i in range(n)]


def many(op: Callable[..., Value], **attributes: Any) -> Build:
    """One node of n operands, of shapes that broadcast where the op does."""

    def build(g: Graph, x: Value, n: int) -> Value:
        shapes = [SHAPE] if op is ops.concat else [SHAPE, (4, 1), (1, 1, 4, 4)]
        xs = [g.input(f"i{i}", "float32", shapes[i % len(shapes)]) for i in range(n - 1)]
        return op([x, *xs], **attributes)

    return build


def ladder(g: Graph, x: Value, n: int) -> Value:
    """Each reads the last two."""
    made = [x, ops.relu(x)]
    for i in range(n):
        made.append(ops.mul(ops.add(made[-1], made[-2]), np.float32(0.5)) if i % 2 else ops.max([made[-1], made[-2]]))
    return made[-1]


def skips(g: Graph, x: Value, n: int) -> Value:
    """All that stands in a row is read at its end, too."""
    y, ends = x, list[Value]()
    for i in range(n):
        ends.append(ops.softmax(ops.mul(x, np.float32(1 + i % 3)), axis=1 + i % 3))
        y = ops.max([y, ends[-1]])
    return ops.sum([y, *ends])


def branches(g: Graph, x: Value, n: int) -> Value:
    """All of them are there before one of them is read, side by side in rows."""
    x = g.input("wide", "float32", (2, 4, 8, 16))
    rng = np.random.default_rng(0)
    ws = [rng.normal(size=(4, 4, 3, 3)).astype(np.float32) for _ in range(3)]
    return ops.concat([ops.conv(x, ws[i % 3], pads=(1, 1, 1, 1)) for i in range(n)], axis=1)


def pile(g: Graph, x: Value, n: int) -> Value:
    """As in a dense block: each layer reads all before it."""
    for _ in range(n):
        x = ops.concat([x, ops.reduce_max(x, axes=(1,), keepdims=True)], axis=1)
    return x


def norm_of_many(g: Graph, x: Value, n: int) -> Value:
    """One norm that each of its readers takes."""
    scale, bias, mean, var = (np.arange(1, 5, dtype=np.float32) for _ in range(4))
    y, w = ops.batch_norm(x, scale, bias, mean, var, epsilon=1e-5), np.ones((1, 4, 1, 1), np.float32)
    return ops.sum([ops.conv(y, w * np.float32(1 + i % 5)) for i in range(n)])


def far_norms(g: Graph, x: Value, n: int) -> Value:
    """Norms and what lets them through, all the way to one convolution."""
    rng = np.random.default_rng(0)
    x = ops.conv(x, rng.normal(size=(4, 4, 1, 1)).astype(np.float32))
    for _ in range(n // 2):
        scale, bias, mean, var = (rng.uniform(0.9, 1.1, 4).astype(np.float32) for _ in range(4))
        x = ops.max_pool(ops.batch_norm(x, scale, bias, mean, var, epsilon=1e-5), kernel_shape=(1, 1))
    return x


def carriers(g: Graph, x: Value, n: int) -> Value:
    """A norm in front of a long row that a convolution stands behind, and others along the row."""
    scale, bias, mean, var = (np.arange(1, 5, dtype=np.float32) for _ in range(4))
    x = ops.batch_norm(x, scale, bias, mean, var, epsilon=1e-5)
    w, made = np.ones((1, 4, 1, 1), np.float32), list[Value]()
    for i in range(n):
        x = ops.max_pool(x, kernel_shape=(1, 1 + i % 2), pads=(0, 0, 0, i % 2))
        made += [ops.conv(x, w)] if i % 4 == 3 else []
    return ops.sum(made)


def crossings(g: Graph, x: Value, n: int) -> Value:
    """Two ways past each node, again and again."""
    scale, bias, mean, var = (np.arange(1, 5, dtype=np.float32) for _ in range(4))
    x = ops.batch_norm(x, scale, bias, mean, var, epsilon=1e-5)
    for _ in range(n // 4):
        both = ops.concat([ops.max_pool(x, kernel_shape=(1, 1)), ops.average_pool(x, kernel_shape=(1, 1))], axis=1)
        x = ops.slice(both, starts=(2,), ends=(6,), axes=(1,))
    return ops.conv(x, np.ones((1, 4, 1, 1), np.float32))


def alike(g: Graph, x: Value, n: int) -> Value:
    """Equal nodes, and constants that begin alike."""
    cs = [np.concatenate([np.zeros((1, 4, 4, 4)), np.full((1, 4, 4, 4), i // 2)]).astype(np.float32) for i in range(n)]
    return ops.sum([*(ops.relu(x) for _ in range(n)), *(ops.reduce_sum(ops.mul(c, x)) for c in map(g.constant, cs))])


def near_norms(g: Graph, x: Value, n: int) -> Value:
    for _ in range(n // 6):
        c = ops.sub(x, ops.reduce_mean(x, axes=(-1,)))
        x = ops.div(c, ops.add(ops.sqrt(ops.reduce_mean(ops.mul(c, c), axes=(-1,))), np.float32(1e-5)))
    return x


def tiled(g: Graph, x: Value, n: int) -> Value:
    """Convolutions that several algorithms compute."""
    rng = np.random.default_rng(0)
    x = g.input("wide", "float32", (1, 16, 28, 28))
    for _ in range(n // 2):
        w = rng.normal(size=(16, 16, 3, 3), scale=0.01).astype(np.float32)
        x = ops.add(x, ops.relu(ops.conv(x, w, pads=(1, 1, 1, 1))))
    return x


def extents(g: Graph, x: Value, n: int) -> Value:
    """Shapes that are computed from shapes, by ops that inference does not follow."""
    for _ in range(n // 4):
        shape = ops.abs(ops.abs(ops.shape(x)))
        x = ops.neg(ops.reshape(x, shape))
    return x


def cuts(g: Graph, x: Value, n: int) -> Value:
    """Results of one node, each with a norm of its own."""
    w = np.random.default_rng(0).normal(size=(n, 4, 1, 1)).astype(np.float32)
    y = ops.conv(x, w)
    parts = ops.split(y, np.ones(n, np.int64), axis=1)
    return ops.concat([ops.mul(p, np.float32(1 + i % 3)) for i, p in enumerate(parts)], axis=1)


def network(build: Build, n: int) -> Graph:
    g = Graph()
    made = build(g, g.input("x", "float32", SHAPE), n)
    g.outputs = made if isinstance(made, list) else [made]
    return g


MANY = {
    **{name: many(getattr(ops, name)) for name in ("sum", "mean", "max", "min")},
    **{f"concat_{axis}": many(ops.concat, axis=axis) for axis in (0, 1, -1)},
}
ROWS = {
    b.__name__: b
    for b in (
        *(relus, gates, affine, additions, convolutions, products, moves),
        *(views, readers, diamonds, pieces, results, ladder, skips, branches, pile, norm_of_many, far_norms, carriers),
        *(crossings, alike, near_norms, tiled, extents, cuts),
    )
}


@pytest.mark.parametrize(("name", "level"), [*((name, 3) for name in (*ROWS, *MANY)), ("relus", 0), ("sum", 0)])
def test_a_network_of_very_many_parts_is_right(name: str, level: int) -> None:
    g = network({**ROWS, **MANY}[name], 250)
    m = renorm.compile(g, threads=2, opt_level=level)
    rng = np.random.default_rng(1)
    feeds: dict[str, Any] = {v.name: rng.normal(size=static(v.shape)).astype(np.float32) for v in g.inputs}
    for got, expected in zip(m.run(**feeds), interpret.run(g, feeds), strict=True):
        assert relative_error(got, expected) < 1e-4


def seconds(build: Build, n: int) -> float:
    """Of CPU, to compile a network all of whose kernels are known: whatever was compiled before, by this test or by
    another one, the same is done at every size. The least of three, since neighbours take caches and clock rates."""
    renorm.compile(network(build, n), threads=1)
    took = list[float]()
    for _ in range(3):
        g, since = network(build, n), time.process_time()
        code = renorm.compile(g, threads=1).report.code
        took.append(time.process_time() - since)
        assert code is not None
        assert code.compiled == 0
    return min(took)


@pytest.mark.exhaustive  # neighbours take time; the gate counts calls
@pytest.mark.parametrize("name", ["relus", "additions", "products", "results", "sum"])
def test_compiling_takes_time_that_grows_as_the_network_does(name: str) -> None:
    build = {**ROWS, **MANY}[name]
    less, more = seconds(build, 200), seconds(build, 800)
    assert more < 9 * less + 0.1, (less, more)  # four times as much to do; 16 where each part meets each other


@pytest.fixture
def ends_come_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the most that a pass looks at, calls may grow faster than the network."""
    for room, name, most in (
        *((fuse, "_LONGEST", 20), (memory, "_PAIRS", 100)),
        *((channel_flow, "MOST_CARRIERS", 6), (channel_flow, "MANY", 8), (channel_flow, "FARTHEST", 8)),
    ):
        assert getattr(room, name) > most
        monkeypatch.setattr(room, name, most)


def calls(build: Build, n: int) -> dict[Any, int]:
    """How often each function is called to compile a network all of whose kernels are known."""
    renorm.compile(network(build, n), threads=1)
    g, profile = network(build, n), cProfile.Profile()
    profile.runcall(renorm.compile, g, threads=1)
    profile.create_stats()
    return {function: counted[1] for function, counted in profile.stats.items()}


@pytest.mark.usefixtures("ends_come_early")
@pytest.mark.parametrize("name", one_of(2, [*ROWS, "sum", "concat_0"]))
def test_no_function_is_called_more_often_than_the_network_grows(name: str) -> None:
    """Where each part meets each other it is: four times the size gives sixteen times the calls."""
    build = {**ROWS, **MANY}[name]
    less, more = calls(build, 60), calls(build, 240)
    grown = {f: (less.get(f, 0), k) for f, k in more.items() if k > 7 * less.get(f, 0) + 500}
    assert not grown


@pytest.mark.parametrize("op", [ops.sum, ops.mean])
def test_16_bit_sums_in_parts_are_rounded_once(op: Any) -> None:
    g = Graph()
    xs = [g.input(f"x{i}", "float16", (3,)) for i in range(200)]
    g.outputs = [op(xs)]
    feeds: dict[str, Any] = {v.name: np.array([1, 1e-3, -7], np.float16) * (i % 7) for i, v in enumerate(g.inputs)}
    [got] = renorm.compile(g, threads=1).run(**feeds)
    exact = sum(a.astype(np.float64) for a in feeds.values()) / (200 if op is ops.mean else 1)
    assert np.all(np.abs(got - exact) <= np.abs(exact) * 2**-10)
