"""Lowering: register tiles, regions at edges, shared memory and barriers, arguments, odd shapes and dtypes, speed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from renorm import te, topi
from renorm.core.errors import InvalidSchedule
from renorm.expr.rewrite import loads
from renorm.tir import interpret, text
from renorm.tir.nodes import Allocate, Barrier, For, If, Kernel, Store, expressions, walk
from renorm.tir.verify import verify


def conv(n: int, c: int, o: int, size: int, lanes: int) -> dict[str, te.Tensor]:
    """3x3 convolution with padding and ReLU; weights in blocks of 64 output channels."""
    x = te.placeholder((n, c, size, size), name="X")
    w = te.placeholder((o // (4 * lanes), c, 3, 3, 4 * lanes), name="W")
    b = te.placeholder((o,), name="B")

    def padded(n: Any, c: Any, h: Any, w: Any) -> Any:
        inside = te.all(h >= 1, h < size + 1, w >= 1, w < size + 1)
        return te.if_then_else(inside, x[n, c, h - 1, w - 1], 0.0)

    p = te.compute((n, c, size + 2, size + 2), padded, name="pad")
    rc, kh, kw = te.reduce_axis((0, c), "rc"), te.reduce_axis((0, 3), "kh"), te.reduce_axis((0, 3), "kw")
    block = 4 * lanes

    def product(n: Any, o: Any, h: Any, v: Any) -> Any:
        return te.sum(p[n, rc, h + kh, v + kw] * w[o // block, rc, kh, kw, o % block], axis=[rc, kh, kw])

    y = te.compute((n, o, size, size), product, name="conv")
    relu = te.compute(y.shape, lambda n, o, h, v: te.max(y[n, o, h, v] + b[o], 0.0), name="relu")
    return {"x": x, "w": w, "b": b, "pad": p, "conv": y, "relu": relu}


def register_tiles(t: dict[str, te.Tensor], pixels: int, lanes: int) -> te.Schedule:
    """Accumulators of `pixels` x 4 vectors over the whole reduction; padding and epilogue at their tiles."""
    out, main, pad = t["relu"], t["conv"], t["pad"]
    s = te.create_schedule(out.op)
    n, o, h, w = s[out].op.axis
    block, inner = s[out].split(o, factor=4 * lanes)
    vector, lane = s[out].split(inner, factor=lanes)
    column, pixel = s[out].split(w, factor=pixels)
    s[out].reorder(n, block, h, column, pixel, vector, lane)
    s[out].vectorize(lane)
    s[out].unroll(pixel)
    s[out].unroll(vector)
    rows = s[out].fuse(n, block, h)
    s[out].parallel(rows)
    s[pad].compute_at(s[out], rows)
    s[main].set_scope("register")
    s[main].compute_at(s[out], column)
    n, o, h, w = s[main].op.axis
    vector, lane = s[main].split(o, factor=lanes)
    s[main].reorder(n, h, *s[main].op.reduce_axis, w, vector, lane)
    s[main].vectorize(lane)
    s[main].unroll(w)
    s[main].unroll(vector)
    return s


def arguments(t: dict[str, te.Tensor]) -> list[te.Tensor]:
    return [t["x"], t["w"], t["b"], t["relu"]]


def conv_reference(x: Any, w: Any, b: Any) -> Any:
    c = x.shape[1]
    blocks, _, _, _, lanes = w.shape
    full = np.moveaxis(w, -1, 1).reshape(blocks * lanes, c, 3, 3).astype("f8")
    padded = np.pad(x.astype("f8"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.maximum(np.einsum("nchwij,ocij->nohw", windows, full) + b[:, None, None], 0)


@pytest.mark.parametrize("pixels", [1, 3, 6, 9])
def test_register_tiles_give_the_convolution(run_on_cpu: Any, pixels: int) -> None:
    t = conv(2, 3, 16, 9, lanes=2)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(x.shape, dtype="float32") for x in (t["x"], t["w"], t["b"])]
    y = np.zeros(t["relu"].shape, "float32")
    kernel = te.lower(register_tiles(t, pixels, 2), arguments(t))
    verify(kernel)
    run_on_cpu(kernel, [*arrays, y])
    np.testing.assert_allclose(y, conv_reference(*arrays), rtol=1e-5, atol=1e-5)


def test_accumulators_are_vectors_and_the_hot_loop_has_no_condition() -> None:
    """6 pixels x 4 vectors, also where the row of 9 pixels leaves a tail of 3: the tile is computed whole."""
    t = conv(1, 8, 128, 9, lanes=16)
    kernel = te.lower(register_tiles(t, 6, 16), arguments(t))
    allocated = {s.buffer.name: s.buffer for s in walk(kernel.body) if isinstance(s, Allocate)}
    assert (allocated["conv"].scope, allocated["conv"].size) == ("register", 6 * 4 * 16)
    stores = [s for s in walk(kernel.body) if isinstance(s, Store) and s.buffer.name == "conv"]
    assert [str(s.index) for s in stores] == [
        "(((v.init*64) + (o.outer.init*16)) + o.inner.init)", "(((v*64) + (o.outer*16)) + o.inner)",
    ]  # fmt: skip
    assert all(load.predicate is None for s in stores for e in expressions(s) for load in loads(e))
    around = [s for s in walk(kernel.body) if isinstance(s, If) and any(x in stores for x in walk(s))]
    assert not around


def test_tiles_are_lowered_in_milliseconds() -> None:
    t = conv(1, 64, 128, 28, lanes=16)
    best = 1.0
    for _ in range(5):
        start = time.process_time()
        te.lower(register_tiles(t, 6, 16), arguments(t))
        best = min(best, time.process_time() - start)
    assert best < 0.25


def test_reads_beyond_an_argument_are_predicated() -> None:
    """A 1x1 product of 7 pixels in tiles of 4: the second tile hangs over, and must not read there."""
    x, w = te.placeholder((7, 5), name="X"), te.placeholder((5, 8), name="W")
    k = te.reduce_axis((0, 5), "k")
    y = te.compute((7, 8), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="Y")
    s = te.create_schedule(y.op)
    tile = s.cache_write(y, "register")
    rows, _ = s[y].split(y.op.axis[0], factor=4)
    s[tile].compute_at(s[y], rows)
    s[tile].reorder(*s[tile].op.reduce_axis, *s[tile].op.axis)
    kernel = te.lower(s, [x, w, y])
    verify(kernel)
    reads = {load.source.name: load for s in walk(kernel.body) for e in expressions(s) for load in loads(e)}
    assert str(reads["X"].predicate) == "(((i.outer*4) + i) < 7)"
    assert reads["W"].predicate is None


def test_reads_are_predicated_by_what_leads_outside_alone() -> None:
    """Columns hang over too, but X is not read at a column: no lane differs in what it may read of X, though the loops
    over blocks of rows and columns are one, so that every condition speaks of its variable."""
    x, w = te.placeholder((7, 5), name="X"), te.placeholder((2, 5, 8), name="W")
    k = te.reduce_axis((0, 5), "k")
    y = te.compute((7, 13), lambda i, j: te.sum(x[i, k] * w[j // 8, k, j % 8], axis=k), name="Y")
    s = te.create_schedule(y.op)
    tile = s.cache_write(y, "register")
    rows, row = s[y].split(y.op.axis[0], factor=4)
    columns, lane = s[y].split(y.op.axis[1], factor=8)
    s[y].reorder(columns, rows, row, lane)
    both = s[y].fuse(columns, rows)
    s[tile].compute_at(s[y], both)
    s[tile].reorder(s[tile].op.axis[0], *s[tile].op.reduce_axis, s[tile].op.axis[1])
    s[tile].vectorize(s[tile].op.axis[1])
    kernel = te.lower(s, [x, w, y])
    verify(kernel)
    reads = {load.source.name: load for t in walk(kernel.body) for e in expressions(t) for load in loads(e)}
    assert str(reads["X"].predicate) == "((((j.outer.i.outer.fused % 2)*4) + i) < 7)"
    assert reads["W"].predicate is None


def test_tiles_in_registers_are_whole_vectors() -> None:
    """24 channels in vectors of 16 take 32 places per pixel: no vector of accumulators is cut, none is unaligned."""
    x, w = te.placeholder((6, 5), name="X"), te.placeholder((2, 5, 16), name="W")
    k = te.reduce_axis((0, 5), "k")
    y = te.compute((6, 24), lambda i, j: te.sum(x[i, k] * w[j // 16, k, j % 16], axis=k), name="Y")
    s = te.create_schedule(y.op)
    tile = s.cache_write(y, "register")
    rows, _ = s[y].split(y.op.axis[0], factor=3)
    s[tile].compute_at(s[y], rows)
    i, j = s[tile].op.axis
    vector, lane = s[tile].split(j, factor=16)
    s[tile].reorder(*s[tile].op.reduce_axis, i, vector, lane)
    s[tile].vectorize(lane)
    kernel = te.lower(s, [x, w, y])
    verify(kernel)
    assert [t.buffer.size for t in walk(kernel.body) if isinstance(t, Allocate)] == [3 * 32]
    stores = [t for t in walk(kernel.body) if isinstance(t, Store) and t.buffer.name == "Y.register"]
    assert stores
    assert all(load.predicate is None for t in stores for e in expressions(t) for load in loads(e))
    assert not any(isinstance(t, If) for t in walk(kernel.body))
    a, b = (np.random.default_rng(0).standard_normal(shape) for shape in ((6, 5), (2, 5, 16)))
    out = np.zeros((6, 24), np.float32)
    interpret.run(kernel, [a.astype(np.float32), b.astype(np.float32), out])
    np.testing.assert_allclose(out, (a @ np.concatenate(list(b), 1))[:, :24], rtol=1e-4, atol=1e-4)


def run_with(run: Any, kernel: Kernel, *arrays: Any) -> None:
    verify(kernel)
    run(kernel, list(arrays))


def rows_by_threads(rows: int, columns: int) -> tuple[te.Schedule, list[te.Tensor]]:
    """Softmax-like: a block per row, its threads share loading the row and the partial sums."""
    x = te.placeholder((rows, columns), name="X")
    k = te.reduce_axis((0, columns), "k")
    total = te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), name="total")
    y = te.compute((rows, columns), lambda i, j: x[i, j] / total[i], name="Y")
    s = te.create_schedule(y.op)
    thread = te.thread_axis((0, 8), "threadIdx.x")
    _, part = s[total].split(k, factor=8)
    partial = s.rfactor(total, part)
    row, column = y.op.axis
    _, inner = s[y].split(column, factor=8)
    s[y].bind(row, te.thread_axis("blockIdx.x"))
    s[y].bind(inner, thread)
    s[total].compute_at(s[y], row)
    s[partial].compute_at(s[y], row)
    s[partial].bind(s[partial].op.axis[0], thread)
    return s, [x, y]


def test_threads_cooperate_through_shared_memory(run: Any) -> None:
    s, args = rows_by_threads(3, 21)
    kernel = te.lower(s, args)
    x, y = np.random.default_rng(0).random((3, 21)).astype("float32") + 1, np.zeros((3, 21), "float32")
    run_with(run, kernel, x, y)
    np.testing.assert_allclose(y, x / x.sum(1, keepdims=True), rtol=1e-5)
    scopes = {a.buffer.name: a.buffer.scope for a in walk(kernel.body) if isinstance(a, Allocate)}
    assert scopes == {"total.rf": "shared", "total": "shared"}
    lines = text.simple(kernel).splitlines()
    # partial sums, barrier, their sum by one thread, barrier, the row
    order = [
        i for i, line in enumerate(lines) if "produce total.rf" in line or "barrier" in line or "total[0] =" in line
    ]
    assert ["barrier" in lines[i] for i in order] == [False, True, False, False, True]
    assert any("threadIdx.x < 1" in line for line in lines)


def test_a_repeated_copy_waits_for_its_readers(run: Any) -> None:
    """Tiled product: both tiles are loaded by all threads in each round, between two barriers."""
    n = 12
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c.op)
    copies = [s.cache_read(t, "shared", [c]) for t in (a, b)]
    by, bx, ty, tx = s[c].tile(c.op.axis[0], c.op.axis[1], 4, 4)
    outer, inner = s[c].split(k, factor=3)
    s[c].reorder(by, bx, ty, tx, outer, inner)
    y, x = te.thread_axis((0, 4), "threadIdx.y"), te.thread_axis((0, 4), "threadIdx.x")
    for axis, to in ((by, te.thread_axis("blockIdx.y")), (bx, te.thread_axis("blockIdx.x")), (ty, y), (tx, x)):
        s[c].bind(axis, to)
    for copy in copies:
        s[copy].compute_at(s[c], outer)
        fused = s[copy].fuse(*s[copy].op.axis)
        rest, tx = s[copy].split(fused, factor=4)
        _, ty = s[copy].split(rest, factor=4)
        s[copy].bind(ty, y)
        s[copy].bind(tx, x)
    kernel = te.lower(s, [a, b, c])
    rng = np.random.default_rng(0)
    left, right, out = rng.random((n, n)), rng.random((n, n)), np.zeros((n, n), "float32")
    run_with(run, kernel, left.astype("float32"), right.astype("float32"), out)
    np.testing.assert_allclose(out, left @ right, rtol=1e-5)
    assert sum(isinstance(x, Barrier) for x in walk(kernel.body)) == 2
    sizes = {x.buffer.name: x.buffer.size for x in walk(kernel.body) if isinstance(x, Allocate)}
    assert sizes == {"A.shared": 12, "B.shared": 12}


def test_one_thread_sums_into_shared_memory(run: Any) -> None:
    """A sum that no thread axis shares out, inside threads: all of them adding to it would race."""
    a = te.placeholder((4, 8), name="A")
    k = te.reduce_axis((0, 8), "k")
    total = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="total")
    y = te.compute((4, 8), lambda i, j: total[i] + a[i, j], name="Y")
    s = te.create_schedule(y.op)
    s[y].bind(y.op.axis[0], te.thread_axis("blockIdx.x"))
    s[y].bind(y.op.axis[1], te.thread_axis("threadIdx.x"))
    s[total].compute_at(s[y], y.op.axis[1])
    s[total].set_scope("shared")
    kernel = te.lower(s, [a, y])
    x, out = np.random.default_rng(0).random((4, 8)).astype("float32"), np.zeros((4, 8), "float32")
    run_with(run, kernel, x, out)
    np.testing.assert_allclose(out, x.sum(1, keepdims=True) + x, rtol=1e-5)
    guarded = [s for s in walk(kernel.body) if isinstance(s, If) and str(s.condition) == "(threadIdx.x < 1)"]
    assert any(isinstance(s, Store) and s.buffer.name == "total" for g in guarded for s in walk(g))


def test_indices_from_memory_are_not_made_of_garbage(run_on_cpu: Any) -> None:
    """7 rows in tiles of 4: the fifth to eighth index of the second tile are not there to be read, nor to be
    followed."""
    a, index = te.placeholder((5, 3), name="A"), te.placeholder((7,), "int32", name="I")
    k = te.reduce_axis((0, 3), "k")

    def picked(i: Any) -> Any:
        return te.sum(a[te.min(te.max(index[i], 0), 4), k], axis=k)

    y = te.compute((7,), picked, name="Y")
    s = te.create_schedule(y.op)
    tile = s.cache_write(y, "register")
    rows, _ = s[y].split(y.op.axis[0], factor=4)
    s[tile].compute_at(s[y], rows)
    kernel = te.lower(s, [a, index, y])
    x, rows, out = (
        np.random.default_rng(0).random((5, 3)).astype("float32"),
        np.arange(7, dtype="int32") % 5,
        np.zeros(7),
    )
    out = out.astype("float32")
    run_with(run_on_cpu, kernel, x, rows, out)
    np.testing.assert_allclose(out, x.sum(1)[rows], rtol=1e-6)
    updates = [s for s in walk(kernel.body) if isinstance(s, If)]
    assert any(isinstance(s, Store) and s.buffer.name == "Y.register" for u in updates for s in walk(u))


def test_stages_at_root_are_launches_of_their_own() -> None:
    a = te.placeholder((8,), name="A")
    p = te.compute((8,), lambda i: a[i] * 2, name="P")
    c = te.compute((8,), lambda i: p[7 - i] + 1, name="C")
    s = te.create_schedule(c.op)
    for t in (p, c):
        s[t].bind(t.op.axis[0], te.thread_axis("threadIdx.x"))
    kernel = te.lower(s, [a, c])
    assert sum(isinstance(x, For) for x in walk(kernel.body)) == 2
    assert not any(isinstance(x, Barrier) for x in walk(kernel.body))


# -- arguments


def two_results() -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a = te.placeholder((6, 8), name="A")
    k = te.reduce_axis((0, 8), "k")
    total = te.compute((6,), lambda i: te.sum(a[i, k], axis=k), name="total")
    return a, total, te.compute((6, 8), lambda i, j: a[i, j] / total[i], name="Y")


@pytest.mark.parametrize("place", ["root", "row", "tile", "column", "parallel"])
def test_a_result_computed_inside_another_is_complete(run_on_cpu: Any, place: str) -> None:
    a, total, y = two_results()
    s = te.create_schedule([total.op, y.op])
    row, column = y.op.axis
    if place == "tile":
        row, _ = s[y].split(row, factor=4)
    if place == "parallel":
        s[y].parallel(row)
    if place != "root":
        s[total].compute_at(s[y], column if place == "column" else row)
    x = np.random.default_rng(0).random((6, 8)).astype("float32") + 1
    sums, out = np.zeros(6, "float32"), np.zeros((6, 8), "float32")
    run_with(run_on_cpu, te.lower(s, [a, total, y]), x, sums, out)
    np.testing.assert_allclose(sums, x.sum(1), rtol=1e-6)
    np.testing.assert_allclose(out, x / x.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("place", ["row", "column", "reduction", "inside"])
def test_a_result_is_there_where_the_loops_around_it_have_no_rounds(run_on_cpu: Any, place: str) -> None:
    """It was left as it lay in memory."""
    a, b = te.placeholder((3, 0), name="A"), te.placeholder((3,), name="B")
    k = te.reduce_axis((0, 0), "k")
    twice = te.compute((3,), lambda i: b[i] * 2, name="twice")
    if place == "reduction":
        y = te.compute((3,), lambda i: te.sum(a[i, k] * twice[i], axis=k), name="Y")
    else:
        y = te.compute((3, 0), lambda i, j: a[i, j] * twice[i], name="Y")
    z = te.compute(y.shape, lambda *i: y(*i) + 1, name="Z")
    s = te.create_schedule([twice.op, z.op])
    if place == "inside":
        s[y].compute_at(s[z], z.op.axis[1])
    s[twice].compute_at(s[y], k if place == "reduction" else y.op.axis[place == "column"])
    s[twice].prefetch(b, s[y].leaf_iter_vars[0], 1)
    v, doubled, out = np.arange(3, dtype="f4"), np.full(3, 9, "f4"), np.full(z.shape, 9, "f4")
    run_with(run_on_cpu, te.lower(s, [a, b, twice, z]), np.zeros((3, 0), "f4"), v, doubled, out)
    np.testing.assert_array_equal(doubled, v * 2)
    np.testing.assert_array_equal(out, np.ones(z.shape, "f4"))


def test_results_that_parallel_rounds_would_share_are_refused() -> None:
    a, total, y = two_results()
    s = te.create_schedule([total.op, y.op])
    s[y].reorder(y.op.axis[1], y.op.axis[0])
    s[y].parallel(y.op.axis[1])
    s[total].compute_at(s[y], y.op.axis[1])
    with pytest.raises(InvalidSchedule, match="total is an argument, and the parts"):
        te.lower(s, [a, total, y])


def test_names_of_buffers_are_unique() -> None:
    a = te.placeholder((4,), name="T_add")
    kernel = te.lower(te.create_schedule((y := (a + 1) + 2).op), [a, y])
    names = [b.name for b in kernel.params] + [x.buffer.name for x in walk(kernel.body) if isinstance(x, Allocate)]
    assert len(set(names)) == len(names)
    assert kernel.outputs == {y.op.name + "_1"}


# -- shapes and dtypes


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1, 1)])
def test_odd_shapes(run_on_cpu: Any, shape: tuple[int, ...]) -> None:
    a = te.placeholder(shape, name="A")
    axes = [te.reduce_axis((0, n), f"k{i}") for i, n in enumerate(shape)]
    doubled = te.compute(shape, lambda *i: a(*i) * 2, name="doubled")
    total = te.compute((), lambda: te.sum(doubled(*axes), axis=axes), name="total")
    shifted = te.compute(shape, lambda *i: doubled(*i) + total(), name="shifted")
    x = np.ones(shape, "float32")
    for at_root in (True, False):
        s = te.create_schedule(shifted.op)
        if not at_root and shape:
            fused = s[shifted].fuse(*s[shifted].op.axis)
            outer, inner = s[shifted].split(fused, factor=2)
            s[shifted].vectorize(inner)
            s[total].compute_at(s[shifted], outer)
            s[doubled].compute_root()
        out = np.zeros(shape, "float32")
        run_with(run_on_cpu, te.lower(s, [a, shifted]), x, out)
        np.testing.assert_array_equal(out, x * 2 + (x * 2).sum())


def test_a_stage_without_axes_can_be_bound(run: Any) -> None:
    a = te.placeholder((5,), name="A")
    k = te.reduce_axis((0, 5), "k")
    y = te.compute((), lambda: te.sum(a[k], axis=k), name="Y")
    s = te.create_schedule(y.op)
    s[y].bind(s[y].fuse(), te.thread_axis("threadIdx.x"))
    out = np.zeros((), "float32")
    run_with(run, te.lower(s, [a, y]), np.arange(5, dtype="float32"), out)
    assert out == 10


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int32", "int8", "uint8", "bool"])
def test_dtypes(run: Any, dtype: str) -> None:
    a = te.placeholder((4, 3), dtype, name="A")
    y = te.compute((3, 4), lambda i, j: a[j, i], name="Y")
    k = te.reduce_axis((0, 4), "k")
    m = te.compute((3,), lambda i: te.max(y[i, k], axis=k), name="M")
    s = te.create_schedule([y.op, m.op])
    s[m].vectorize(s[m].op.axis[0])
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 9, (4, 3)).astype(dtype)
    transposed, greatest = np.zeros((3, 4), dtype), np.zeros(3, dtype)
    run_with(run, te.lower(s, [a, y, m]), x, transposed, greatest)
    np.testing.assert_array_equal(transposed, x.T)
    np.testing.assert_array_equal(greatest, x.max(0))


def test_a_tensor_read_twice_is_one_operand(run_on_cpu: Any) -> None:
    a = te.placeholder((4,), name="A")
    d = te.compute((4,), lambda i: a[i] + 1, name="D")
    y = te.compute((4,), lambda i: d[i] * d[3 - i], name="Y")
    s = te.create_schedule(y.op)
    s[d].compute_inline()
    x, out = np.arange(4, dtype="float32"), np.zeros(4, "float32")
    run_with(run_on_cpu, te.lower(s, [a, y]), x, out)
    np.testing.assert_array_equal(out, (x + 1) * (x + 1)[::-1])


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("filled", ["constant", "reflect"])
@pytest.mark.parametrize("mode", ["clip", "from_end", "wrap"])
def test_picks_of_what_is_padded_inline_stay_inside(run_on_cpu: Any, mode: str, filled: str, dtype: str) -> None:
    """Accept indices whose bound a condition, or both sides of a minimum, says of data; the verifier refused some."""
    x, picks = te.placeholder((4,), name="X"), te.placeholder((6,), dtype, name="picks")
    padded = topi.pad(x, (2,), (1,), 9.0, mode=filled)
    y = topi.take(padded, picks, 0, mode)
    s = te.create_schedule(y.op)
    s[padded].compute_inline()
    v, out = np.arange(4, dtype="f4"), np.zeros(6, "f4")
    i = np.array([0, 1, 5, 6, 200, 3], dtype) if dtype == "uint8" else np.array([0, -1, 5, -7, 99, -(2**31)], dtype)
    run_with(run_on_cpu, te.lower(s, [x, picks, y]), v, i, out)
    wide = i.astype("i8")
    at = wide % 7 if mode == "wrap" else np.clip(np.where((wide < 0) & (mode == "from_end"), wide + 7, wide), 0, 6)
    constant, reflected = np.pad(v, (2, 1), constant_values=9), np.pad(v, (2, 1), "reflect")
    np.testing.assert_array_equal(out, (constant if filled == "constant" else reflected)[at])


@pytest.mark.parametrize(("dtype", "divisor"), [("uint8", 3), ("uint16", 1000)])
def test_indices_from_narrow_memory_do_not_wrap(run_on_cpu: Any, dtype: str, divisor: int) -> None:
    most = np.iinfo(dtype).max
    table = te.placeholder((most // divisor + 1, 1200), "float32", "table")
    rows = te.placeholder((6,), dtype, "rows")
    read = te.compute((6, 1200), lambda i, j: table[rows[i].astype("int32") // divisor, j], "read")
    kernel = te.lower(te.create_schedule(read.op), [table, rows, read])
    verify(kernel)
    values = np.random.default_rng(0).random(table.shape, np.float32)
    found = np.zeros((6, 1200), np.float32)
    chosen = np.linspace(0, most, 6).astype(dtype)
    run_on_cpu(kernel, [values, chosen, found])
    np.testing.assert_array_equal(found, values[chosen // divisor])


@pytest.mark.parametrize("factors", [(3,), (4,), (8, 4), (7, 2)])
@pytest.mark.parametrize("width", [1, 4])
def test_conditions_of_data_are_asked_for_inside_of_tails(
    run_on_cpu: Any, width: int, factors: tuple[int, ...]
) -> None:
    """where= reads memory, which has nothing where rounds are beyond the extent."""
    chosen, x = te.placeholder((-(-10 // width),), name="chosen"), te.placeholder((10,), name="X")
    k = inner = te.reduce_axis((0, 10), name="k")
    y = te.compute((1,), lambda i: te.sum(x[k], axis=k, where=te.all(k > 0, chosen[k // width] > 0)), name="Y")
    s = te.create_schedule(y.op)
    for factor in factors:
        _, inner = s[y].split(inner, factor=factor)
    kernel = te.lower(s, [chosen, x, y])
    verify(kernel)
    c, v, out = np.resize(np.array([1, -1, 1], "f4"), chosen.shape), np.arange(10, dtype="f4") + 1, np.zeros(1, "f4")
    run_with(run_on_cpu, kernel, c, v, out)
    assert out == v[1:][c.repeat(width)[1:10] > 0].sum()
