"""store_root: what is computed inside a loop is read behind it, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import renorm
from renorm import te
from renorm.core.errors import InvalidSchedule
from renorm.tir.nodes import Allocate, For, walk
from renorm.tir.verify import verify


def program(rows: int, columns: int) -> dict[str, te.Tensor]:
    """Sums of rows, x less the mean of its row, and twice the mean of each row, through a stage that is inlined."""
    x = te.placeholder((rows, columns), name="X")
    k = te.reduce_axis((0, columns), name="k")
    total = te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), name="total")
    mean = te.compute((rows,), lambda i: total[i] / columns, name="mean")
    y = te.compute(x.shape, lambda i, j: x[i, j] - mean[i], name="Y")
    double = te.compute((rows,), lambda i: mean[i] * 2, name="double")
    return {"x": x, "total": total, "mean": mean, "y": y, "double": double}


def scheduled(t: dict[str, te.Tensor], results: list[str], at: int = 0, parallel: bool = True) -> te.Schedule:
    s = te.create_schedule([t[r].op for r in results])
    s[t["mean"]].compute_inline()
    axes = s[t["y"]].op.axis
    if parallel:
        s[t["y"]].parallel(axes[0])
    s[t["total"]].compute_at(s[t["y"]], axes[at])
    return s


@pytest.mark.parametrize("results", [["y", "double"], ["double", "y"]])
def test_loops_behind_read_what_was_computed_inside(run_on_cpu: Any, results: list[str]) -> None:
    t = program(5, 7)
    s = scheduled(t, results)
    s[t["total"]].store_root()
    kernel = te.lower(s, [t["x"], *(t[r] for r in results)])
    verify(kernel)
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    out = {"y": np.zeros_like(x), "double": np.zeros(5, np.float32)}
    run_on_cpu(kernel, [x, *(out[r] for r in results)])
    np.testing.assert_allclose(out["y"], x - x.mean(axis=1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(out["double"], 2 * x.mean(axis=1), atol=1e-6)
    # the array is around both nests, and the sums are computed once
    assert isinstance(kernel.body, Allocate)
    assert kernel.body.buffer.size == 5
    assert sum(isinstance(n, For) and n.var.name == "k" for n in walk(kernel.body)) == 1


def test_a_result_is_kept_whole_without_it(run_on_cpu: Any) -> None:
    t = program(3, 4)
    s = scheduled(t, ["total", "y", "double"])
    kernel = te.lower(s, [t["x"], t["total"], t["y"], t["double"]])
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    total, y, double = np.zeros(3, np.float32), np.zeros_like(x), np.zeros(3, np.float32)
    run_on_cpu(kernel, [x, total, y, double])
    np.testing.assert_allclose(total, x.sum(axis=1), atol=1e-6)
    np.testing.assert_allclose(double, x.sum(axis=1) / 2, atol=1e-6)


def test_what_is_not_stored_at_the_root_is_gone_behind_its_loop() -> None:
    t = program(3, 4)
    s = scheduled(t, ["y", "double"])
    with pytest.raises(InvalidSchedule, match="double reads it outside of that loop") as caught:
        te.lower(s, [t["x"], t["y"], t["double"]])
    assert "store_root" in str(caught.value)


def test_parallel_rounds_must_be_disjoint() -> None:
    t = program(3, 4)
    s = te.create_schedule([t["y"].op, t["double"].op])
    s[t["mean"]].compute_inline()
    s[t["y"]].parallel(s[t["y"]].fuse(*s[t["y"]].op.axis))
    s[t["total"]].compute_at(s[t["y"]], s[t["y"]].leaf_iter_vars[0])
    s[t["total"]].store_root()
    with pytest.raises(InvalidSchedule, match="not disjoint"):
        te.lower(s, [t["x"], t["y"], t["double"]])


def test_a_circle_is_an_error() -> None:
    """y reads what is computed from the sums that only y's loop computes."""
    t = program(3, 4)
    z = te.compute(t["y"].shape, lambda i, j: t["y"][i, j] - t["mean"][i] * t["double"][i], name="Z")
    s = te.create_schedule(z.op)
    s[t["mean"]].compute_inline()
    s[t["y"]].compute_inline()
    s[t["total"]].compute_at(s[z], s[z].op.axis[0])
    s[t["total"]].store_root()
    with pytest.raises(InvalidSchedule, match="needed before the loops"):
        te.lower(s, [t["x"], z])


@pytest.mark.parametrize("width", [13, None])
def test_parts_end_where_tails_of_readers_do(width: int | None) -> None:
    """Rounds of eight read beyond a part of 13, but for the condition of the last round: the parts are disjoint."""
    w: Any = te.size_var("w") if width is None else width
    a, k = te.placeholder((3, w), name="a"), te.reduce_axis((0, w), name="k")
    parts = te.compute((3 * w,), lambda i: a[i // w, i % w] * 2, name="parts")
    totals = te.compute((3,), lambda g: te.sum(parts[g * w + k], axis=k), name="totals")
    s = te.create_schedule([parts.op, totals.op])
    (g,) = s[totals].op.axis
    s[totals].split(s[totals].op.reduce_axis[0], factor=8)
    s[parts].compute_at(s[totals], g)
    s[totals].parallel(g)
    f = renorm.build(s, [a, parts, totals], "llvm")
    given = np.random.default_rng(0).standard_normal((3, 13)).astype(np.float32)
    doubled, summed = np.zeros(39, np.float32), np.zeros(3, np.float32)
    f(given, doubled, summed)
    np.testing.assert_array_equal(doubled, 2 * given.reshape(-1))
    np.testing.assert_allclose(summed, (2 * given).sum(1), rtol=1e-5)
