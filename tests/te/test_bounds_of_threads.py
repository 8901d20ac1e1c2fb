"""Stages computed inside loops of threads of which some have nothing to do."""

from __future__ import annotations

import numpy as np

from renorm import te
from renorm.core.target import parse
from renorm.tir import interpret
from renorm.tir.verify import verify


def test_threads_beyond_a_gathered_row_read_nothing_of_it() -> None:
    """What an index in memory leads to is computed for elements of the tensor only, and so are those who read it."""
    x, rows = te.placeholder((5, 2), name="x"), te.placeholder((3,), "int64", name="rows")
    gathered = te.compute((3, 2), lambda i, j: x[rows[i], j], name="gathered")
    y = te.compute((3, 2), lambda i, j: gathered[i, j] * 2, name="y")
    s = te.create_schedule(y.op)
    close = s.cache_write(y, "register")
    block, thread = s[y].op.axis
    s[y].bind(block, te.thread_axis("blockIdx.x"))
    s[y].bind(thread, te.thread_axis((0, 8), "threadIdx.x"))
    s[close].compute_at(s[y], thread)
    s[gathered].compute_at(s[close], close.op.axis[0])
    kernel = te.lower(s, [x, rows, y])
    data = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
    picks, out = np.array([4, 0, 2]), np.zeros((3, 2), np.float32)
    interpret.run(kernel, [data.reshape(-1), picks, out.reshape(-1)])
    np.testing.assert_array_equal(out, 2 * data[picks])


def test_threads_that_wait_for_each_other_leave_out_no_round() -> None:
    """A row of 3 in rounds of 2: the second thread has nothing to do in its second round, but fills shared memory."""
    a = te.placeholder((1, 3), name="A")
    b = te.compute((1, 3), lambda i, j: a[i, j] + 1.0, name="B")
    s = te.create_schedule(b.op)
    copy = s.cache_read(a, "shared", [b])
    outer, inner = s[b].split(s[b].fuse(*s[b].op.axis), factor=2)
    block, thread = s[b].split(outer, factor=1)
    s[b].bind(block, te.thread_axis("blockIdx.x"))
    s[b].bind(thread, te.thread_axis((0, 8), "threadIdx.y"))
    s[copy].compute_at(s[b], inner)
    kernel = te.lower(s, [a, b])
    verify(kernel, parse("cuda"))
    x, y = np.arange(3, dtype=np.float32)[None], np.zeros((1, 3), np.float32)
    interpret.run(kernel, [x, y])
    np.testing.assert_array_equal(y, x + 1)
