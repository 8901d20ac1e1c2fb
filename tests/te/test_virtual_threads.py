"""Virtual threads: what they do is done side by side, and what does not depend on them once."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import renorm
from renorm import te
from renorm.core.errors import InvalidSchedule
from renorm.core.target import parse as parse_target
from renorm.te.virtual_threads import side_by_side
from renorm.tir import interpret
from renorm.tir.nodes import Barrier, For, Store, walk
from renorm.tir.parse import parse
from renorm.tir.verify import verify


def product(
    size: tuple[int, int, int], virtual: tuple[int, int] = (2, 2), on_gpu: bool = True, is_ahead: bool = False
) -> tuple[te.Schedule, list[te.Tensor]]:
    """Return C = A' B of tiles as TVM's tutorials cut them: blocks, virtual threads, threads, and elements of one."""
    rows, terms, columns = size
    a, b = te.placeholder((terms, rows), name="A"), te.placeholder((terms, columns), name="B")
    k = te.reduce_axis((0, terms), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[k, i] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c.op)
    scopes = ("shared", "local") if on_gpu else ("global", "global")
    shared = [s.cache_read(t, scopes[0], [c]) for t in (a, b)]
    own = [s.cache_read(t, scopes[1], [c]) for t in shared]
    sums = s.cache_write(c, "local")
    outer, inner = list[te.IterVar](), list[te.IterVar]()
    for axis, count, name in zip(s[c].op.axis, virtual, "yx", strict=True):
        block, axis = s[c].split(axis, factor=4 * count)
        v, axis = s[c].split(axis, nparts=count)
        thread, axis = s[c].split(axis, nparts=2)
        outer += [block, v, thread]
        inner.append(axis)
        s[c].bind(v, te.thread_axis((0, count), "vthread", name=f"v{name}"))
        if on_gpu:
            s[c].bind(block, te.thread_axis(f"blockIdx.{name}"))
            s[c].bind(thread, te.thread_axis((0, 2), f"threadIdx.{name}"))
    s[c].reorder(*outer[0::3], *outer[1::3], *outer[2::3], *inner)
    s[sums].compute_at(s[c], outer[5])
    ko, ki = s[sums].split(s[sums].op.reduce_axis[0], factor=3)
    s[sums].reorder(ko, ki, *s[sums].op.axis)
    for copy, read in zip(shared, own, strict=True):
        s[copy].compute_at(s[sums], ko)
        s[read].compute_at(s[sums], ki)
        if is_ahead:
            s[copy].double_buffer()
        if on_gpu:
            rest, x = s[copy].split(s[copy].fuse(*s[copy].op.axis), factor=2)
            _, y = s[copy].split(rest, factor=2)
            s[copy].bind(x, te.thread_axis((0, 2), "threadIdx.x"))
            s[copy].bind(y, te.thread_axis((0, 2), "threadIdx.y"))
    return s, [a, b, c]


def arrays(size: tuple[int, int, int]) -> list[Any]:
    rng, (rows, terms, columns) = np.random.default_rng(0), size
    given = [rng.normal(size=(terms, n)).astype(np.float32) for n in (rows, columns)]
    return [*given, np.full((rows, columns), np.nan, np.float32)]


def assert_right(given: list[Any]) -> None:
    np.testing.assert_allclose(given[2], given[0].astype(np.float64).T @ given[1], rtol=1e-5, atol=1e-5)


@settings(max_examples=12, deadline=None)
@given(
    size=st.tuples(st.integers(1, 18), st.integers(1, 8), st.integers(1, 18)),
    virtual=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    on_gpu=st.booleans(),
    is_ahead=st.booleans(),
)
def test_results_are_the_same(size: Any, virtual: Any, on_gpu: bool, is_ahead: bool) -> None:
    kernel = te.lower(*product(size, virtual, on_gpu, is_ahead))
    if on_gpu:
        verify(kernel, parse_target("cuda"))
    for order in range(2):
        given = arrays(size)
        interpret.run(kernel, given, order=order)
        assert_right(given)


def test_code_is_right() -> None:
    s, args = product((13, 7, 11), on_gpu=False)
    given = arrays((13, 7, 11))
    renorm.build(s, args)(*given)
    assert_right(given)


def test_what_does_not_depend_on_them_is_done_once() -> None:
    kernel = te.lower(*product((16, 9, 16)))
    stores = [x for x in walk(kernel.body) if isinstance(x, Store)]
    loops = {x.var.name for x in walk(kernel.body) if isinstance(x, For) and x.kind == "unrolled"}
    assert loops == {"i.inner.outer", "j.inner.outer"}

    def depends(name: str) -> set[str]:
        found = set[str]()
        for x in (x for x in stores if x.buffer.name == name):
            found |= {v for v in loops if re.search(rf"(?<![\w.]){re.escape(v)}(?![\w.])", str(x))}
        return found

    assert depends("A.shared") == depends("B.shared") == set()
    assert depends("A.shared.local") == {"i.inner.outer"}
    assert depends("B.shared.local") == {"j.inner.outer"}
    assert depends("C.local") == depends("C") == loops
    assert sum(isinstance(x, Barrier) for x in walk(kernel.body)) == 2
    sizes = {x.buffer.name: x.buffer.size for x in stores}
    assert (sizes["A.shared.local"], sizes["C.local"]) == (4, 16)


def test_threads_that_differ_in_barriers_are_refused() -> None:
    kernel = parse("""kernel f(A: float32[8]) -> (A) {
  // attr [iter_var(threadIdx.x, , threadIdx.x)] thread_extent = 4
  unrolled (v, 0, 2) {
    if ((v < 1)) {
      barrier(shared)
      A[((v*4) + threadIdx.x)] = 1f
    }
  }
}""")
    (loop,) = (x for x in walk(kernel.body) if isinstance(x, For) and x.kind == "unrolled")
    loops: Any = [SimpleNamespace(var=loop.var, is_virtual=True)]
    with pytest.raises(InvalidSchedule, match="virtual threads differ in whether they reach a barrier"):
        side_by_side(kernel.body, loops)


def test_what_a_condition_reads_counts() -> None:
    """Sums of one row where another one is positive: only the condition differs between virtual threads."""
    a, b = te.placeholder((4, 5), name="A"), te.placeholder((5,), name="B")
    k = te.reduce_axis((0, 5), name="k")
    c = te.compute((4,), lambda i: te.sum(b[k], axis=k, where=a[i, k] > 0.0), name="C")
    s = te.create_schedule(c.op)
    own = s.cache_read(a, "local", [c])
    sums = s.cache_write(c, "local")
    v, i = s[c].split(s[c].op.axis[0], nparts=2)
    s[c].bind(v, te.thread_axis("vthread"))
    s[c].bind(i, te.thread_axis("threadIdx.x"))
    s[sums].compute_at(s[c], i)
    s[own].compute_at(s[sums], s[sums].op.reduce_axis[0])
    rng = np.random.default_rng(0)
    x, y, z = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 5), (5,), (4,)))
    interpret.run(te.lower(s, [a, b, c]), [x, y, z])
    np.testing.assert_allclose(z, np.where(x > 0, y, 0).sum(1), rtol=1e-5)


def test_what_is_made_outside_of_threads_they_share() -> None:
    """Columns of a copy are made by virtual threads of its own, which end before it is read."""
    a = te.placeholder((3, 2), name="A")
    k = te.reduce_axis((0, 2), name="k")
    c = te.compute((2, 2), lambda i, j: te.sum(a[i + k, j] * te.cast("float32", k + 1), axis=k), name="C")
    s = te.create_schedule(c.op)
    sums = s.cache_write(c, "local")
    v, _ = s[c].split(s[c].op.axis[0], factor=1)
    s[c].bind(v, te.thread_axis("vthread"))
    s[sums].bind(s[sums].op.axis[1], te.thread_axis("vthread"))
    s[sums].compute_at(s[c], v)
    x, y = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32), np.zeros((2, 2), np.float32)
    interpret.run(te.lower(s, [a, c]), [x, y])
    np.testing.assert_allclose(y, x[:2] + 2 * x[1:], rtol=1e-5)
