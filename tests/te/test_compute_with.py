"""compute_with: a result in loops of a stage that does not need it, but reads the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from renorm import te
from renorm.core.errors import InvalidSchedule
from renorm.tir.nodes import For, Kernel, walk
from renorm.tir.verify import verify


def program(rows: int, columns: int) -> dict[str, te.Tensor]:
    """Sums of columns, twice of what is summed, and that twice again, through a stage that is inlined."""
    x = te.placeholder((rows, columns), name="X")
    k = te.reduce_axis((0, rows), name="k")
    total = te.compute((columns,), lambda j: te.sum(x[k, j], axis=k), name="total")
    twice = te.compute(x.shape, lambda i, j: x[i, j] * 2, name="twice")
    double = te.compute(x.shape, lambda i, j: twice[i, j], name="double")
    after = te.compute(x.shape, lambda i, j: double[i, j] * 2, name="after")
    return {"x": x, "total": total, "twice": twice, "double": double, "after": after}


def schedule(t: dict[str, te.Tensor], *results: str) -> te.Schedule:
    s = te.create_schedule([t[r].op for r in results])
    s[t["twice"]].compute_inline()
    return s


def check(run_on_cpu: Any, kernel: Kernel, shape: tuple[int, ...], *results: str) -> None:
    verify(kernel)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = {"total": x.sum(axis=0, dtype=np.float64), "double": 2 * x, "after": 4 * x}
    found = {r: np.full(expected[r].shape, np.nan, np.float32) for r in results}
    run_on_cpu(kernel, [x, *found.values()])
    for r in results:
        np.testing.assert_allclose(found[r], expected[r], atol=1e-5)


def loops(kernel: Kernel, name: str) -> int:
    return sum(isinstance(n, For) and n.var.name.startswith(name) for n in walk(kernel.body))


@pytest.mark.parametrize("results", [("total", "double"), ("double", "total"), ("total", "double", "after")])
@pytest.mark.parametrize("rows", [7, 8])
def test_elements_beside_a_sum(run_on_cpu: Any, results: tuple[str, ...], rows: int) -> None:
    t = program(rows, 5)
    s = schedule(t, *results)
    (j,), (k,) = s[t["total"]].op.axis, s[t["total"]].op.reduce_axis
    outer, inner = s[t["total"]].split(k, factor=4)
    s[t["total"]].reorder(outer, inner, j)
    s[t["double"]].compute_with(s[t["total"]], outer, t["x"])
    kernel = te.lower(s, [t["x"], *(t[r] for r in results)])
    assert loops(kernel, "k.outer") == 1
    check(run_on_cpu, kernel, (rows, 5), *results)


@pytest.mark.parametrize("rows", [30, 33])
def test_pieces_of_threads(run_on_cpu: Any, rows: int) -> None:
    """Of a sum that is cut in pieces, blocks and registers: who reads is a stage inside of the one with the loops."""
    t = program(rows, 19)
    s = schedule(t, "total", "double")
    piece, _ = s[t["total"]].split(s[t["total"]].op.reduce_axis[0], factor=12)
    part = s.rfactor(t["total"], piece)
    block, _ = s[part].split(s[part].op.reduce_axis[0], factor=4)
    held = s.rfactor(part, block)
    first, j = s[part].op.axis
    (block,) = s[part].op.reduce_axis
    tile, inside = s[part].split(j, factor=8)
    s[part].reorder(first, block, tile, inside)
    s[part].parallel(first)
    s[held].compute_at(s[part], tile)
    s[t["double"]].compute_with(s[part], block, t["x"])
    s[t["double"]].vectorize(s[t["double"]].split(s[t["double"]].op.axis[1], factor=8)[1])
    kernel = te.lower(s, [t["x"], t["total"], t["double"]])
    check(run_on_cpu, kernel, (rows, 19), "total", "double")


def test_elements_beside_elements(run_on_cpu: Any) -> None:
    x = te.placeholder((3, 37), name="X")
    a, b = (te.compute(x.shape, lambda i, j, f=f: x[i, j] * f, name=n) for f, n in ((2, "double"), (4, "after")))
    s = te.create_schedule([a.op, b.op])
    for t in (a, b):
        vector, lane = s[t].split(s[t].op.axis[1], factor=16)
        s[t].vectorize(lane)
        if t is a:
            s[a].parallel(s[a].op.axis[0])
            s[b].compute_with(s[a], vector, x)
    kernel = te.lower(s, [x, a, b])
    assert sum(isinstance(n, For) and n.kind == "parallel" for n in walk(kernel.body)) == 1
    assert loops(kernel, "j.outer") == 1
    check(run_on_cpu, kernel, (3, 37), "double", "after")


def test_parallel_rounds_must_be_disjoint() -> None:
    t = program(9, 5)
    s = schedule(t, "total", "double")
    (j,) = s[t["total"]].op.axis
    outer, _ = s[t["total"]].split(s[t["total"]].op.reduce_axis[0], factor=4)
    s[t["total"]].reorder(j, outer)
    part = s.rfactor(t["total"], outer)
    block, _ = s[part].split(s[part].op.reduce_axis[0], factor=3)  # two of three rows: six of four
    s[part].parallel(s[part].op.axis[0])
    s[t["double"]].compute_with(s[part], block, t["x"])
    with pytest.raises(InvalidSchedule, match="not disjoint"):
        te.lower(s, [t["x"], t["total"], t["double"]])


def test_shapes_must_agree() -> None:
    t = program(3, 4)
    s = schedule(t, "total", "double")
    with pytest.raises(InvalidSchedule, match=r"cannot be computed with what is read of total \(4,\)"):
        s[t["double"]].compute_with(s[t["total"]], s[t["total"]].op.axis[0], t["total"])


def test_what_needs_the_result_of_the_loops_cannot_stand_in_them() -> None:
    t = program(3, 4)
    y = te.compute(t["x"].shape, lambda i, j: t["x"][i, j] - t["total"][j], name="Y")
    s = te.create_schedule([t["total"].op, y.op])
    s[y].compute_with(s[t["total"]], s[t["total"]].op.axis[0], t["x"])
    with pytest.raises(InvalidSchedule, match="needed before the loops"):
        te.lower(s, [t["x"], t["total"], y])
