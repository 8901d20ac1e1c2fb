"""Programs with open extents: the same schedule at any shape, what a call must tell, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_numbers import RNG

import renorm as tvm
from renorm import te, topi
from renorm.errors import InvalidExpression, InvalidInput, InvalidSchedule, InvalidTarget
from renorm.te.open import evaluate


def draw(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


def test_one_function_for_all_shapes() -> None:
    n, m = te.var("n"), te.var("m")
    a, b = te.placeholder((n, m), name="a"), te.placeholder((m,), name="b")
    c = te.compute((m, n), lambda i, j: a[j, i] * 2 + b[i], name="c")
    s = te.create_schedule(c.op)
    _, inner = s[c].split(c.op.axis[1], factor=8)
    s[c].parallel(c.op.axis[0])
    s[c].vectorize(inner)
    f = tvm.build(s, [a, b, c], name="turned")
    for shape in ((3, 4), (8, 1), (17, 9), (1, 1), (0, 5), (3, 4)):
        x, y, out = draw(*shape), draw(shape[1]), np.zeros(shape[::-1], "float32")
        f(x, y, out)
        np.testing.assert_allclose(out, x.T * 2 + y[:, None], rtol=1e-6)
    assert f.time_evaluator(f.entry_name, tvm.cpu(), number=1)(x, y, out).mean > 0
    assert "define" in f.get_source()


def blocked_product(n: Any, m: Any, k: Any) -> tuple[te.Schedule, list[te.Tensor]]:
    """A product of matrices with tiles, a cached operand, a register tile, and an inlined stage: most primitives."""
    a, b = te.placeholder((n, k), name="a"), te.placeholder((k, m), name="b")
    r = te.reduce_axis((0, k), "r")
    twice = te.compute((n, k), lambda i, j: a[i, j] * 2, name="twice")
    c = te.compute((n, m), lambda i, j: te.sum(twice[i, r] * b[r, j], axis=r), name="c")
    d = te.compute((n, m), lambda i, j: te.max(c[i, j], 0), name="d")
    s = te.create_schedule(d.op)
    s[twice].compute_inline()
    held = s.cache_read(b, "global", [c])
    i, j, _, _ = s[d].tile(d.op.axis[0], d.op.axis[1], 4, 5)
    fused = s[d].fuse(i, j)
    s[d].parallel(fused)
    s[c].compute_at(s[d], fused)
    s[held].compute_at(s[d], fused)
    outer, inner = s[c].split(r, nparts=3)
    s[c].reorder(outer, *c.op.axis, inner)
    s[c].unroll(inner)
    return s, [a, b, d]


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 11), st.integers(1, 12), st.integers(1, 7))
def test_schedules_mean_the_same_as_of_known_extents(n: int, m: int, k: int) -> None:
    """At open extents, and loop by loop: what is specialised prints as what was written for these extents."""
    names = [te.var(v) for v in "nmk"]
    s, args = blocked_product(*names)
    special, tensors = te.specialize(s, args, dict(zip(names, (n, m, k))))
    assert str(te.lower(special, tensors)) == str(te.lower(*blocked_product(n, m, k)))
    x, y = draw(n, k), draw(k, m)
    from renorm.tir import interpret

    out = np.zeros((n, m), "float32")
    interpret.run(te.lower(special, tensors), [x, y, out])
    np.testing.assert_allclose(out, np.maximum(2 * x @ y, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("m", [1, 15, 16, 40])
def test_reductions_are_factored(m: int) -> None:
    n, extent = te.var("n"), te.var("m")
    a = te.placeholder((n, extent), name="a")
    k = te.reduce_axis((0, extent), "k")
    b = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="b")
    s = te.create_schedule(b.op)
    _, inner = s[b].split(k, factor=16)
    partial = s.rfactor(b, inner)
    s[partial].compute_at(s[b], s[b].op.axis[0])
    x, out = draw(5, m), np.zeros(5, "float32")
    tvm.build(s, [a, b])(x, out)
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-4, atol=1e-5)


def test_conditions_of_data_in_tiles_that_end_with_extents() -> None:
    """Guard what a condition reads by others, not by itself: lowering ended in a RecursionError."""
    n = te.var("n")
    a, k = te.placeholder((n, 4), name="a"), te.reduce_axis((0, 4), "k")
    b = te.compute((n,), lambda i: te.sum(a[i, k], axis=k, where=te.all(k > 0, a[i, k] > 0)), name="b")
    s = te.create_schedule(b.op)
    held = s.cache_write(b, "global")
    outer, _ = s[b].split(b.op.axis[0], factor=3)
    s[held].compute_at(s[b], outer)
    f = tvm.build(s, [a, b])
    for rows in (1, 3, 7):
        x, out = draw(rows, 4), np.zeros(rows, "float32")
        f(x, out)
        np.testing.assert_allclose(out, np.maximum(x[:, 1:], 0).sum(1), rtol=1e-5)


def test_numbers_among_the_arguments() -> None:
    n, begin, step = te.var("n"), te.var("begin"), te.var("step")
    a = te.placeholder((n,), name="a")
    b = te.compute(((n - begin) // step,), lambda i: a[i * step + begin] * step, name="b")
    f = tvm.build(te.create_schedule(b.op), [a, b, begin, step])
    x = draw(10)
    for first, by in ((1, 3), (0, 1), (4, 2)):
        out = np.zeros((10 - first) // by, "float32")
        f(x, out, first, by)
        np.testing.assert_allclose(out, x[first::by][: len(out)] * by, rtol=1e-6)
    with pytest.raises(InvalidInput, match="begin is float"):
        f(x, out, 1.0, 2)
    with pytest.raises(InvalidExpression, match="has no value"):
        f(x, out, 1, 0)
    with pytest.raises(InvalidExpression, match=r"would have the shape \[-1\]"):
        f(x, out, 11, 1)
    with pytest.raises(InvalidSchedule, match="begin, step is the extent of no argument"):
        tvm.build(te.create_schedule(b.op), [a, b])


def test_operators_of_topi_take_open_extents() -> None:
    n, m = te.var("n"), te.var("m")
    a, b = te.placeholder((n, m), name="a"), te.placeholder((1, m), name="b")
    results = {
        "sum": (topi.sum(a, axis=1), lambda x, y: x.sum(1)),
        "add": (topi.nn.relu(a + b), lambda x, y: np.maximum(x + y, 0)),
        "softmax": (topi.nn.softmax(a), lambda x, y: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
        "transpose": (topi.transpose(a), lambda x, y: x.T),
    }  # fmt: skip
    x, y = draw(3, 5), draw(1, 5)
    for name, (t, numpy) in results.items():
        wanted = numpy(x, y)
        out = np.zeros(wanted.shape, "float32")
        reads = [t_ for t_ in (a, b) if name == "add" or t_ is a]
        tvm.build(te.create_schedule(t.op), [*reads, t])(*[x, y][: len(reads)], out)
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)


def test_loops_are_shown_for_all_extents() -> None:
    n = te.var("n")
    a = te.placeholder((n,), name="a")
    b = te.compute((n,), lambda i: a[i] + n, name="b")
    shown = str(tvm.lower(te.create_schedule(b.op), [a, b], simple_mode=True))
    assert "for (i, 0, n)" in shown


def test_a_file_has_one_combination(tmp_path: Path) -> None:
    n = te.var("n")
    a = te.placeholder((n,), name="a")
    b = te.compute((n,), lambda i: a[i] + 1, name="b")
    f = tvm.build(te.create_schedule(b.op), [a, b])
    with pytest.raises(InvalidInput, match="0 combinations"):
        f.export_library(tmp_path / "f")
    with pytest.raises(InvalidInput, match="not compiled before its first call"):
        f.get_source()
    x, out = draw(6), np.zeros(6, "float32")
    f(x, out)
    f.export_library(tmp_path / "f")
    tvm.runtime.load_module(tmp_path / "f")(x, out)
    np.testing.assert_array_equal(out, x + 1)
    f(draw(7), np.zeros(7, "float32"))
    with pytest.raises(InvalidInput, match="2 combinations"):
        f.export_library(tmp_path / "f")


N, M = te.var("n"), te.var("m")
A = te.placeholder((N, M), name="A")
B = te.compute((N, M), lambda i, j: A[i, j] + 1, name="B")
ADDED = tvm.build(te.create_schedule(B.op), [A, B])


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: ADDED(draw(2, 3), draw(3, 2)), InvalidInput, "n is 2, and 3 in B"),
        (lambda: ADDED(draw(2, 3), draw(6)), InvalidInput, "B has shape [6], expected ['n', 'm']"),
        (lambda: ADDED(draw(2, 3)), InvalidInput, "takes 2 arguments, not 1"),
        (lambda: ADDED(draw(2, 3).astype("float64"), draw(2, 3)), InvalidInput, "float64"),
        (lambda: ADDED("x", draw(2, 3)), InvalidInput, "A is str, which is neither"),
        (lambda: tvm.build(te.create_schedule(B.op), [A, B], "cuda"), InvalidTarget, "made for known extents"),
        (lambda: te.var("n", "float32"), InvalidExpression, "expected int32 or int64"),
        (lambda: te.placeholder((te.reduce_axis((0, 3)).var,)), InvalidExpression, "is not an extent"),
        (lambda: A + te.placeholder((M, N)), InvalidExpression, "do not broadcast"),
        (lambda: te.specialize(te.create_schedule(B.op), [A, B], {N: 3}), InvalidExpression, "m has no value"),
        (lambda: te.specialize(te.create_schedule(B.op), [A, B], dict[Any, Any]({N: 3, M: 2.5})),
            InvalidExpression, "expected a mapping of open variables to ints"),
    ],
)  # fmt: skip
def test_what_is_refused(act: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        act()
    assert message in str(refused.value)


def test_a_thread_axis_must_hold_the_loop() -> None:
    s = te.create_schedule(B.op)
    s[B].bind(B.op.axis[0], te.thread_axis((0, 4), "threadIdx.x"))
    te.specialize(s, [A, B], {N: 4, M: 2})
    with pytest.raises(InvalidSchedule, match=r"i has 5 rounds, threadIdx\.x has extent 4"):
        te.specialize(s, [A, B], {N: 5, M: 2})


def test_numbers_of_numpy_are_values() -> None:
    values: dict[Any, Any] = {N: np.int64(3), M: np.uint8(2)}
    _, (a, _) = te.specialize(te.create_schedule(B.op), [A, B], values)
    assert a.shape == (3, 2)
    assert all(type(d) is int for d in a.shape)


def test_extents_are_evaluated_exactly() -> None:
    assert evaluate((N * 3 - 1) // 2 + te.floormod(M, 4), {N: 5, M: 7}) == 10
