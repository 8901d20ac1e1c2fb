"""Stages computed inside loops of threads of which some have nothing to do."""

from __future__ import annotations

import numpy as np

from renorm import te
from renorm.tir import interpret


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
