"""Networks with open extents, compiled once: they give the numbers of the definition for all shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.driver import compile as compiling
from renorm.driver.module import OpenModule, SpecializingModule
from renorm.errors import InvalidArtifact, InvalidInput
from renorm.graph import interpret
from renorm.graph.ir import Graph

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)


def array(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32) * 0.2


def perceptron() -> Graph:
    g = Graph("perceptron")
    x = g.input("x", "float32", ("n", 24))
    h = ops.relu(ops.gemm(x, array(24, 40), array(40)))
    g.outputs = [ops.softmax(ops.add(ops.gemm(h, array(40, 40), array(40)), h)), ops.relu(h)]
    return g


def image() -> Graph:
    g = Graph("image")
    x = g.input("x", "float32", ("n", 3, "h", "w"))
    y = ops.relu(ops.conv(x, array(16, 3, 3, 3), pads=(1,) * 4))
    z = ops.conv(ops.relu(ops.conv(y, array(16, 16, 3, 3), pads=(1,) * 4)), array(16, 16, 1, 1))
    g.outputs = [ops.max_pool(ops.add(y, z), kernel_shape=(2, 2), strides=(2, 2))]
    return g


def rows() -> Graph:
    g = Graph("rows")
    a, b = g.input("a", "float32", ("n", "m")), g.input("b", "float32", ("n", "m"))
    y = ops.sigmoid(ops.mul(ops.add(a, b), ops.exp(ops.neg(a))))
    g.outputs = [ops.softmax(ops.add(y, b)), ops.mul(y, y)]
    return g


def regrouped() -> Graph:
    """Elements of two padded planes whose number is known, in rows that cross planes."""
    g = Graph("regrouped")
    x = ops.conv(g.input("x", "float32", (1, 2, "h", "w")), array(2, 2, 2, 2), pads=(1, 2, 2, 2))
    y = ops.reshape(ops.transpose(ops.reshape(x, np.array([2, 7, 12])), perm=(1, 0, 2)), np.array([12, 14]))
    g.outputs = [ops.relu(y)]
    return g


def test_where_typical_sizes_give_no_result_shapes_are_compiled_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose conditions do not hold at typical sizes contradicts itself; with numbers they may hold."""
    given = compiling.assemble

    def assembled(*args: Any, **named: Any) -> Any:
        if named.get("typical"):
            raise InvalidArtifact("rows has no result where m is 127", ["node 'mul' needs m == 5"])
        return given(*args, **named)

    monkeypatch.setattr(compiling, "assemble", assembled)
    m = renorm.compile(rows())
    assert isinstance(m, SpecializingModule)
    assert "needs m == 5" in m.obstacle
    feeds = {"a": array(2, 5), "b": array(2, 5)}
    np.testing.assert_allclose(m.run(feeds["a"], feeds["b"])[0], interpret.run(rows(), feeds)[0], rtol=1e-4, atol=1e-5)


NETWORKS: dict[str, tuple[Callable[[], Graph], list[list[tuple[int, ...]]]]] = {
    "perceptron": (perceptron, [[(n, 24)] for n in (3, 1, 0, 17, 64, 2, 3)]),
    "image": (
        image,
        [[(n, 3, h, w)] for n, h, w in ((1, 8, 8), (2, 17, 9), (3, 2, 2), (1, 33, 5), (0, 4, 4), (2, 3, 2))],
    ),
    "regrouped": (regrouped, [[(1, 2, h, w)] for h, w in ((10, 4), (4, 11), (5, 9), (12, 3), (2, 18))]),
    "rows": (rows, [[shape] * 2 for shape in ((4, 5), (1, 1), (0, 3), (33, 7), (2, 130))]),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("name", "level"), [("perceptron", 0), ("perceptron", 3), ("image", 3), ("regrouped", 3), ("rows", 0), ("rows", 3)]
)
def test_one_module_serves_all_shapes(name: str, level: int, threads: int) -> None:
    build, shapes = NETWORKS[name]
    g = build()
    m = renorm.compile(g, opt_level=level, threads=threads, precision="exact")
    assert isinstance(m, OpenModule), getattr(m, "obstacle", m)
    for given in [*shapes, *shapes[:2]]:
        feeds = [np.random.default_rng(sum(s)).normal(size=s).astype(np.float32) for s in given]
        for ours, theirs in zip(m.run(*feeds), interpret.run(g, feeds), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_extents_may_be_bounded() -> None:
    """A region as large as an open shape has no number of elements, though its extents have a greatest value."""
    g = Graph("bounded")
    x = g.input("x", "float32", ("n", "m", 24))
    heads = ops.transpose(ops.reshape(x, np.array([0, -1, 4, 6])), perm=(0, 2, 1, 3))
    filled = ops.constant_of_shape(ops.shape(heads), value=0.5)
    g.outputs = [ops.softmax(ops.matmul(ops.add(heads, filled), array(6, 6)))]
    m = renorm.compile(g, shapes={"x": (1, "1..48", 24)})
    assert isinstance(m, OpenModule), getattr(m, "obstacle", m)
    for n in (1, 8, 13, 48):
        feeds = {"x": array(1, n, 24)}
        (found,), (expected,) = m.run(feeds["x"]), interpret.run(g, feeds)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
    with pytest.raises(InvalidInput, match="49"):
        m.run(array(1, 49, 24))


def halved_and_back() -> Graph:
    """Rows and columns are halved twice and doubled twice: they have to be multiples of 4."""
    g = Graph("halved_and_back")
    x = g.input("x", "float32", ("n", 3, "h", "w"))
    y = ops.relu(ops.conv(x, array(8, 3, 3, 3), pads=(1,) * 4))
    z = ops.max_pool(ops.max_pool(y, kernel_shape=(2, 2), strides=(2, 2)), kernel_shape=(2, 2), strides=(2, 2))
    for _ in range(2):
        z = ops.conv_transpose(z, array(8, 8, 2, 2), strides=(2, 2))
    g.outputs = [ops.conv(ops.concat([y, z], axis=1), array(4, 16, 1, 1))]
    return g


def test_typical_sizes_are_those_that_the_network_takes() -> None:
    """At 211 rows there is no result."""
    g = halved_and_back()
    m = renorm.compile(g, precision="exact")
    assert isinstance(m, OpenModule), getattr(m, "obstacle", m)
    assert [str(v) for v in m.program.inputs] == ["x f32[n, 3, 4*h, 4*w]"]
    for shape in ((2, 3, 8, 20), (1, 3, 4, 4), (1, 3, 36, 12)):
        x = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
        expected = interpret.run(g, [x])[0]
        np.testing.assert_allclose(m.run(x)[0], expected, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(m.specialized(x=shape).run(x)[0], expected, rtol=2e-4, atol=2e-5)
    with pytest.raises(InvalidInput, match=r"x, axis 2: 9 is 4\*h for no h"):
        m.run(np.zeros((1, 3, 9, 8), np.float32))


def test_a_table_bounds_the_sequences_that_read_it() -> None:
    g = Graph("positions")
    x = g.input("x", "float32", ("n", "t", 8))
    table = g.constant(array(30, 8), "table")
    length = ops.shape(x, start=1, end=2)
    places = ops.slice(table, np.array([0]), length, np.array([0]))
    g.outputs = [ops.relu(ops.add(x, places))]
    m = renorm.compile(g)
    assert isinstance(m, OpenModule), getattr(m, "obstacle", m)
    assert m.program.typical["t"] <= 30
    for shape in ((2, 30, 8), (1, 1, 8), (3, 17, 8)):
        x = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(m.run(x)[0], interpret.run(g, [x])[0], rtol=2e-4, atol=2e-5)
    with pytest.raises(InvalidInput, match=r"31, but t is in 0\.\.30"):
        m.run(np.zeros((1, 31, 8), np.float32))


@pytest.mark.parametrize("lower", [False, True])
def test_automatic_padding_of_transposed_convolutions_follows_open_extents(lower: bool) -> None:
    """It was taken to be none where rows were open, and the numbers were those of other rows."""
    g = Graph("same")
    x = g.input("x", "float32", ("n", 3, "h", 9))
    pads = "SAME_LOWER" if lower else "SAME_UPPER"
    g.outputs = [ops.conv_transpose(x, array(3, 8, 4, 4), strides=(1, 3), auto_pad=pads)]
    m = renorm.compile(g, precision="exact")
    assert isinstance(m, OpenModule), getattr(m, "obstacle", m)
    for shape in ((2, 3, 11, 9), (1, 3, 1, 9)):
        data = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(m.run(data)[0], interpret.run(g, [data])[0], rtol=2e-4, atol=2e-5)


def test_where_conditions_leave_one_size_the_module_has_that_one() -> None:
    g = Graph("one_size")
    x = g.input("x", "float32", ("n", 6))
    g.outputs = [ops.relu(ops.concat([x, g.constant(array(5, 2), "c")], axis=1))]
    m = renorm.compile(g)
    assert [str(v) for v in m.inputs] == ["x f32[5, 6]"]
    data = array(5, 6)
    np.testing.assert_allclose(m.run(data)[0], interpret.run(g, [data])[0])
    with pytest.raises(InvalidInput, match="expected"):
        m.run(data[:4])


def test_where_no_sizes_are_found_there_is_an_obstacle() -> None:
    g = Graph("contradiction")
    x = g.input("x", "float32", ("n", "m"))
    g.outputs = [ops.reshape(x, np.array([7, 11])), ops.reshape(x, np.array([7, 13]))]
    m = renorm.compile(g)
    assert isinstance(m, SpecializingModule)
    assert "no extents were found" in m.obstacle


def test_a_file_serves_all_shapes(tmp_path: Path) -> None:
    g = perceptron()
    m = renorm.compile(g, threads=1)
    assert isinstance(m, OpenModule)
    m.save(tmp_path / "open.renorm")
    held: Any = renorm.load(tmp_path / "open.renorm", threads=1)
    assert str(held.inputs[0]) == "x f32[n, 24]"
    assert "open extent: n" in str(held.report).splitlines()
    assert held.program == m.program
    for n in (5, 0, 31):
        x = np.random.default_rng(n).normal(size=(n, 24)).astype(np.float32)
        for ours, theirs in zip(held.run(x), m.run(x), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_what_the_inputs_must_fulfil_is_said_before_anything_runs() -> None:
    g = Graph("sum")
    a, b = g.input("a", "float32", ("n", 3)), g.input("b", "float32", ("m", 3))
    g.outputs = [ops.relu(ops.add(a, b))]
    m = renorm.compile(g)
    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(m.run(x, x)[0], x + x)
    assert isinstance(m, OpenModule)
    with pytest.raises(InvalidInput, match="b, axis 0: n is 3 here and 4 elsewhere"):
        m.run(x, x[:3])
    with pytest.raises(InvalidInput, match=r"x, axis 1: 3 where the model has 24"):
        renorm.compile(perceptron()).run(x)


def test_slices_that_end_beyond_the_axis_and_extents_of_1_have_modules_of_their_own() -> None:
    """They were refused, as slices are taken to lie inside, and extents that meet to be equal."""
    g = Graph("otherwise")
    a, b, c = (g.input(v, "float32", (d, e)) for v, d, e in (("a", "n", "h"), ("b", "n", "w"), ("c", "m", "h")))
    rows = ops.slice(b, np.array([0]), ops.shape(a, start=1, end=2), np.array([1]))
    g.outputs = [ops.relu(rows), ops.relu(ops.add(a, c))]
    m = renorm.compile(g, threads=1)
    assert isinstance(m, OpenModule), getattr(m, "obstacle", m)
    served = set[int]()
    for n, h, w, k in (
        (3, 4, 6, 3),
        (3, 6, 4, 3),
        (5, 9, 2, 5),
        (3, 4, 6, 1),
        (2, 6, 4, 1),
        (1, 4, 0, 7),
        (1, 1, 1, 1),
    ):
        feeds = [array(n, h), array(n, w), array(k, h)]
        for ours, expected in zip(m.run(*feeds), interpret.run(g, feeds), strict=True):
            assert ours.shape == expected.shape
            np.testing.assert_array_equal(ours, expected)
        served.add(id(m.serving(*feeds)))
    assert len(served) == 5  # as compiled; cut; one row of c; the same, cut; one row of a, cut
    with pytest.raises(InvalidInput, match="c, axis 0: n is 2 here and 3 elsewhere"):
        m.run(array(3, 4), array(3, 6), array(2, 4))
    with pytest.raises(InvalidInput, match="b, axis 0: n is 1 here and 3 elsewhere"):  # which the model calls equal
        m.run(array(3, 4), array(1, 6), array(3, 4))


def test_memory_after_many_shapes_is_that_of_the_largest() -> None:
    m = renorm.compile(image(), threads=1, precision="exact")
    assert isinstance(m, OpenModule)
    rng = np.random.default_rng(3)
    shapes = [(int(rng.integers(1, 4)), 3, *map(int, rng.integers(2, 40, 2))) for _ in range(100)]
    for shape in [(3, 3, 40, 40), *shapes]:
        m.run(np.zeros(shape, np.float32))
    (place,) = m._idle
    assert place._arena.nbytes == m.program.bind({"n": 3, "h": 40, "w": 40}).arena_bytes
    bound = [m.program.bind({"n": n, "h": h, "w": w}).arena_bytes for n, _, h, w in shapes]
    assert max(bound) <= place._arena.nbytes


def test_what_no_open_kernel_computes_is_computed_by_those_for_its_shape() -> None:
    """An extent is 0, and there is something to compute all the same: the constants that surround nothing."""
    g = Graph("padded")
    a = g.input("a", "float32", ("n", 3))
    g.outputs = [ops.relu(ops.pad(a, np.array([1, 2, 0, 0]), np.float32(5)))]
    m = renorm.compile(g, threads=1)
    assert isinstance(m, OpenModule), m
    for n in (2, 0, 1, 0):
        feeds = [array(n, 3)]
        np.testing.assert_array_equal(m.run(*feeds)[0], interpret.run(g, feeds)[0])
        assert (m.serving(*feeds) is m) == (n > 0)
    assert m.specialized(a=(2, 3)).inputs[0].shape == (2, 3)


def test_a_part_of_what_is_joined_may_be_empty(tmp_path: Path) -> None:
    """Kernels took it to have elements: a loaded module refused a decoder's first token. Two extents are one."""
    g = Graph("joined")
    a, b, c = (g.input(name, "float32", (extent, 3)) for name, extent in (("a", "n"), ("b", "m"), ("c", "k")))
    joined = ops.concat([a, ops.add(b, c)], axis=0)
    past, end = (ops.gather(ops.shape(v), np.int64(0)) for v in (a, joined))
    places = ops.range(past, end, np.int64(1))
    weights = ops.softmax(ops.matmul(b, ops.transpose(joined, perm=(1, 0))))
    g.outputs = [ops.relu(joined), ops.neg(places), ops.matmul(weights, joined)]
    m = renorm.compile(g, threads=1)
    assert isinstance(m, OpenModule), m
    m.save(tmp_path / "joined.renorm")
    held = renorm.load(tmp_path / "joined.renorm", threads=1)
    for n, k in ((2, 3), (0, 3), (2, 0), (0, 0), (0, 1)):
        feeds = [array(n, 3), array(k, 3), array(k, 3)]
        for ours, expected in zip(held.run(*feeds), interpret.run(g, feeds), strict=True):
            assert ours.shape == expected.shape
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
        assert m.serving(*feeds) is m
