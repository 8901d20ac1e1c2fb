"""double_buffer and storage_align: what is computed stays the same, in loops a round ahead and rows further apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import renorm
from renorm import te
from renorm.core.errors import InvalidLoops, InvalidSchedule
from renorm.tir import interpret
from renorm.tir.nodes import Barrier, For, Kernel, walk
from renorm.tir.parse import parse
from renorm.tir.verify import verify

WHICH = ("", "A", "B", "AB")


def product(
    size: tuple[int, int, int], tile: int, which: str, on_gpu: bool, aligned: int = 1, inner: int = 3
) -> tuple[te.Schedule, list[te.Tensor]]:
    """Return C = A B of rows, terms and columns, both factors copied for each `tile` terms. inner: columns of a tile,
    of which threads compute several one after the other."""
    rows, terms, columns = size
    a, b = te.placeholder((rows, terms), name="A"), te.placeholder((terms, columns), name="B")
    k = te.reduce_axis((0, terms), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c.op)
    copies = {name: s.cache_read(t, "shared" if on_gpu else "local", [c]) for name, t in (("A", a), ("B", b))}
    sums = s.cache_write(c, "local")
    i, j = s[c].op.axis
    jo, ji = s[c].split(j, factor=inner)
    s[c].reorder(jo, i, ji)
    if on_gpu:
        s[c].bind(i, te.thread_axis("threadIdx.x"))
    s[sums].compute_at(s[c], i if on_gpu else jo)
    outer, within = s[sums].split(s[sums].op.reduce_axis[0], factor=tile)
    s[sums].reorder(outer, within, *s[sums].op.axis)
    for name, t in copies.items():
        s[t].compute_at(s[sums], outer)
        if name in which:
            s[t].double_buffer()
        s[t].storage_align(s[t].op.axis[0], aligned, 1)
        if on_gpu:
            _, thread = s[t].split(s[t].fuse(*s[t].op.axis), factor=rows)
            s[t].bind(thread, te.thread_axis("threadIdx.x"))
    return s, [a, b, c]


def arrays(size: tuple[int, int, int]) -> list[Any]:
    rng = np.random.default_rng(0)
    rows, terms, columns = size
    shapes = (rows, terms), (terms, columns)
    return [*(rng.normal(size=s).astype(np.float32) for s in shapes), np.full((rows, columns), np.nan, np.float32)]


def assert_right(given: list[Any]) -> None:
    a, b, c = given
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


def run(kernel: Kernel, size: tuple[int, int, int], orders: int) -> None:
    for order in range(orders):
        given = arrays(size)
        interpret.run(kernel, given, order=order)
        assert_right(given)


@settings(max_examples=20, deadline=None)
@given(
    size=st.tuples(st.integers(1, 6), st.integers(1, 20), st.integers(1, 9)),
    tile=st.integers(1, 8),
    which=st.sampled_from(WHICH),
    on_gpu=st.booleans(),
    aligned=st.sampled_from([1, 4, 8]),
)
def test_results_are_the_same(size: Any, tile: int, which: str, on_gpu: bool, aligned: int) -> None:
    s, args = product(size, tile, which, on_gpu, aligned)
    run(te.lower(s, args), size, 3 if on_gpu else 1)


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("size", [(5, 17, 7), (1, 1, 1), (16, 64, 48)])
def test_code_is_right(size: tuple[int, int, int], which: str) -> None:
    s, args = product(size, 8, which, on_gpu=False, aligned=8)
    given = arrays(size)
    renorm.build(s, args)(*given)
    assert_right(given)


def rounds(kernel: Kernel) -> list[For]:
    return [x for x in walk(kernel.body) if isinstance(x, For) and x.var.name.startswith("k.outer")]


def barriers(loop: For) -> int:
    return sum(isinstance(x, Barrier) for x in walk(loop.body))


@pytest.mark.parametrize(("which", "left"), [("", 2), ("AB", 1)])
def test_one_barrier_a_round_is_left_of_two(which: str, left: int) -> None:
    s, args = product((4, 20, 6), 5, which, on_gpu=True)
    (loop,) = rounds(te.lower(s, args))
    assert barriers(loop) == left


@pytest.mark.parametrize(("terms", "count"), [(20, 1), (25, 2)])
def test_every_barrier_is_needed(terms: int, count: int) -> None:
    """Also that in front of the first copies, which the loop over columns repeats: of an odd number of rounds the last
    one reads what they store."""
    size = 4, terms, 6
    s, args = product(size, 5, "AB", on_gpu=True)
    lines = str(te.lower(s, args)).splitlines()
    at = [i for i, line in enumerate(lines) if line.strip() == "barrier(shared)"]
    assert len(at) == count
    for i in at:
        with pytest.raises(InvalidLoops, match="a race"):
            run(parse("\n".join([*lines[:i], *lines[i + 1 :]])), size, 1)


def test_what_is_staged_is_there_behind_a_barrier() -> None:
    """For the thread that stored it, too."""
    text = """kernel f(A: float32[8], C: float32[8]) -> (C) {{
  // attr [iter_var(threadIdx.x, , threadIdx.x)] thread_extent = 8
  // attr [S] storage_scope = "{scope}"
  allocate S[float32 * 8]
  S[threadIdx.x] = A[threadIdx.x]
  {between}
  C[threadIdx.x] = S[threadIdx.x]
}}"""
    a, c = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    for scope, between in (("shared", ""), ("staged", "barrier(shared)")):
        interpret.run(parse(text.format(scope=scope, between=between)), [a, c])
        np.testing.assert_array_equal(c, a)
    with pytest.raises(InvalidLoops, match="a race"):
        interpret.run(parse(text.format(scope="staged", between="")), [a, c])


def chain(buffered: str) -> tuple[te.Schedule, list[te.Tensor]]:
    """Return C of Q of P of A, Q and P in the loop over rows of a block."""
    a = te.placeholder((2, 6, 8), name="A")
    p = te.compute((2, 6, 8), lambda n, i, j: a[n, i, j] * 2.0, name="P")
    q = te.compute((2, 6, 8), lambda n, i, j: p[n, i, 7 - j] + 1.0, name="Q")
    c = te.compute((2, 6, 8), lambda n, i, j: q[n, i, (j + 3) % 8], name="C")
    s = te.create_schedule(c.op)
    n, i, j = s[c].op.axis
    s[c].bind(n, te.thread_axis("blockIdx.x"))
    s[c].bind(j, te.thread_axis("threadIdx.x"))
    for t in (p, q):
        s[t].compute_at(s[c], i)
        s[t].set_scope("shared")
        s[t].bind(s[t].op.axis[2], te.thread_axis("threadIdx.x"))
        if t.name in buffered:
            s[t].double_buffer()
    return s, [a, c]


@pytest.mark.parametrize("buffered", ["", "P", "PQ"])
def test_stages_that_read_each_other(buffered: str) -> None:
    s, args = chain(buffered)
    a, c = np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32), np.zeros((2, 6, 8), np.float32)
    for order in range(4):
        interpret.run(te.lower(s, args), [a, c], order=order)
        np.testing.assert_array_equal(c, np.roll((a * np.float32(2))[..., ::-1] + np.float32(1), -3, axis=2))


def test_what_reads_what_its_round_stores_is_refused() -> None:
    s, args = chain("Q")
    with pytest.raises(InvalidSchedule, match=r"Q: double_buffer of what reads P, which each round over i stores"):
        te.lower(s, args)
    for stage in s.stages[:2]:
        stage.compute_root()
    with pytest.raises(InvalidSchedule, match="Q: double_buffer of a stage at root"):
        te.lower(s, args)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_sums_that_are_buffered(on_gpu: bool) -> None:
    """They read what they store, before any barrier."""
    a = te.placeholder((2, 6, 8), name="A")
    k = te.reduce_axis((0, 8), name="k")
    p = te.compute((2, 6), lambda n, i: te.sum(a[n, i, k], axis=k), name="P")
    c = te.compute((2, 6, 4), lambda n, i, j: p[n, i] + te.cast("float32", j), name="C")
    s = te.create_schedule(c.op)
    n, i, j = s[c].op.axis
    if on_gpu:
        s[c].bind(n, te.thread_axis("blockIdx.x"))
        s[c].bind(j, te.thread_axis("threadIdx.x"))
        s[p].set_scope("shared")
    s[p].compute_at(s[c], i)
    s[p].double_buffer()
    x, y = np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32), np.zeros((2, 6, 4), np.float32)
    interpret.run(te.lower(s, [a, c]), [x, y])
    np.testing.assert_allclose(y, x.sum(2)[..., None] + np.arange(4), rtol=1e-5)


def test_rows_lie_as_far_apart_as_is_asked_for() -> None:
    s, args = product((4, 20, 6), 5, "", on_gpu=True, aligned=8)
    text = str(te.lower(s, args))
    assert "allocate A.shared[float32 * 36]" in text  # 4 rows of 5, 9 apart
    assert "(threadIdx.x*9)" in text


@pytest.mark.parametrize("is_result", [True, False])
def test_rows_of_what_is_kept_whole_lie_side_by_side(is_result: bool) -> None:
    a = te.placeholder((8,), name="A")
    p = te.compute((8,), lambda i: a[i] * 2.0, name="P")
    t = te.compute((8,), lambda i: p[i] + 1.0, name="T")
    s = te.create_schedule([p.op, t.op] if is_result else t.op)
    s[p].compute_at(s[t], t.op.axis[0])
    s[p].store_root()
    s[p].storage_align(p.op.axis[0], 4, 0)
    kernel = te.lower(s, [a, p, t] if is_result else [a, t])
    verify(kernel)
    x, *results = np.arange(8, dtype=np.float32), *np.zeros((1 + is_result, 8), np.float32)
    interpret.run(kernel, [x, *results])
    np.testing.assert_array_equal(results[-1], x * 2 + 1)


def test_an_axis_that_is_none_of_the_compute_is_refused() -> None:
    s, (*_, c) = product((4, 20, 6), 5, "", on_gpu=True)
    i, _ = s[c].op.axis
    with pytest.raises(InvalidSchedule, match=r"C: storage_align of j.outer, which is no axis of its compute"):
        s[c].storage_align(s[c].leaf_iter_vars[0], 8, 1)
    with pytest.raises(InvalidSchedule, match="expected a factor from 1 up"):
        s[c].storage_align(i, 0, 1)
