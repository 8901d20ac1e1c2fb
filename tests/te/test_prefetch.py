"""Prefetches ask for just what the next round reads, evenly over its rounds, and change no result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import renorm
from renorm import te
from renorm.codegen import llvm
from renorm.codegen.structural_hash import digest
from renorm.core.errors import InvalidSchedule
from renorm.expr.nodes import Binary, Const, Expr, Var
from renorm.targets import find
from renorm.tir import interpret
from renorm.tir.nodes import For, If, Kernel, Prefetch, Stmt, children, walk
from renorm.tir.passes import prepare
from renorm.tir.verify import verify

LINE = 16  # elements of float32


@dataclass
class Product:
    """y[b, c, p] = sum over k of x[b, k, p] * w[c // lanes, k, c % lanes], in panels of some vectors of channels."""

    batch: int = 1
    blocks: int = 6
    pixels: int = 10
    depth: int = 12
    lanes: int = 16
    vectors: int = 2
    tile: int = 4
    cut: int = 1  # of the sum
    fused: int = 3  # of the loops over images, panels and tiles
    offset: int = 1

    def tensors(self) -> list[te.Tensor]:
        x = te.placeholder((self.batch, self.depth, self.pixels), name="X")
        w = te.placeholder((self.blocks, self.depth, self.lanes), name="W")
        k = te.reduce_axis((0, self.depth), name="k")
        y = te.compute(
            (self.batch, self.blocks * self.lanes, self.pixels),
            lambda b, c, p: te.sum(x[b, k, p] * w[c // self.lanes, k, c % self.lanes], axis=k),
            name="Y",
        )
        return [x, w, y]

    def schedule(self, hint: bool = True, of_data: bool = False) -> tuple[te.Schedule, list[te.Tensor]]:
        """hint: for the weights of a later panel, or for the data of a later tile."""
        x, w, y = self.tensors()
        s = te.create_schedule(y.op)
        acc = s.cache_write(y, "register")
        b, c, p = y.op.axis
        panel, inside = s[y].split(c, factor=self.vectors * self.lanes)
        tiles, column = s[y].split(p, factor=self.tile)
        s[y].reorder(b, panel, tiles, inside, column)
        loops = [b, panel, tiles]
        around = s[y].fuse(*loops[: self.fused]) if self.fused else b
        s[y].parallel(around)
        place = [around, *loops[self.fused :]][-1] if self.fused else tiles
        s[acc].compute_at(s[y], place)
        b, c, p = s[acc].op.axis
        (k,) = s[acc].op.reduce_axis
        vector, lane = s[acc].split(c, factor=self.lanes)
        outer, inner = s[acc].split(k, factor=self.cut)
        s[acc].reorder(b, outer, inner, p, vector, lane)
        s[acc].unroll(p)
        s[acc].unroll(vector)
        s[acc].vectorize(lane)
        if hint:
            s[acc].prefetch(*((x, tiles) if of_data else (w, panel)), self.offset)
        return s, [x, w, y]

    def kernel(self, hint: bool = True, of_data: bool = False) -> Kernel:
        return te.lower(*self.schedule(hint, of_data))

    def panel(self, number: int) -> set[int]:
        """The elements of W that a round reads, or would, beyond the last one."""
        size = self.vectors * self.depth * self.lanes
        return set(range(number * size, (number + 1) * size))


def asked(s: Stmt, env: dict[Var, int]) -> Iterator[tuple[dict[Var, int], int]]:
    """Yield every index that is asked for, with the values of the loops around, in the order of a run."""
    if not any(isinstance(x, Prefetch) for x in walk(s)):
        return
    match s:
        case Prefetch():
            yield env, value(s.index, env)
        case For():
            start = value(s.start, env)
            for i in range(start, start + value(s.extent, env)):
                yield from asked(s.body, {**env, s.var: i})
        case If():
            taken = s.then if value(s.condition, env) else s.otherwise
            if taken is not None:
                yield from asked(taken, env)
        case _:
            for part in children(s):
                yield from asked(part, env)


def value(e: Expr, env: dict[Var, int]) -> int:
    match e:
        case Const():
            return int(e.value)
        case Var():
            return env[e]
        case Binary(op=op, a=a, b=b):
            x, y = value(a, env), value(b, env)
            return int({"+": x + y, "-": x - y, "*": x * y, "//": x // (y or 1), "%": x % (y or 1), "<": x < y}[op])
        case _:
            raise AssertionError(e)


def products() -> st.SearchStrategy[Product]:
    return st.builds(
        Product,
        batch=st.integers(1, 2),
        blocks=st.sampled_from([2, 4, 6, 12]),
        pixels=st.integers(1, 23),
        depth=st.integers(1, 24),
        lanes=st.sampled_from([16, 32]),
        vectors=st.integers(1, 2),
        tile=st.integers(1, 6),
        cut=st.sampled_from([1, 2, 4]),
        fused=st.integers(0, 3),
        offset=st.integers(1, 2),
    )


@settings(max_examples=120, deadline=None)
@given(products())
def test_a_round_asks_for_just_the_panel_of_a_later_one(p: Product) -> None:
    kernel = p.kernel()
    verify(kernel)
    for program in (kernel, prepare(kernel)):
        found = [i for _, i in asked(program.body, {})]
        panels, tiles = p.blocks // p.vectors, -(-p.pixels // p.tile)
        depth = -(-p.depth // p.cut) * p.cut
        if panels == 1 or p.depth % p.cut or p.depth * tiles == 1:
            assert panels > 1 or not found  # nothing comes after it
            return  # or the rounds of the sum are no loop over memory
        hints = len({id(s) for s in walk(kernel.body) if isinstance(s, Prefetch)})
        per_round, rest = divmod(len(found), p.batch * panels)
        asking = per_round // hints
        assert not rest
        assert asking in (tiles * depth, tiles * depth // p.cut)
        for k in range(p.batch * panels):
            mine = found[k * per_round : (k + 1) * per_round]
            wanted = p.panel(k % panels + p.offset)
            beyond = {i for i in mine if i not in wanted}
            assert all(0 <= i - max(wanted) < hints * LINE for i in beyond)
            assert {i // LINE for i in mine if i in wanted} == {i // LINE for i in wanted}
            # evenly: no round is further than its share
            for r in range(0, per_round, hints):
                share = len(wanted) * (r // hints) // asking
                assert mine[r] - min(wanted) == share


@settings(max_examples=120, deadline=None)
@given(products())
def test_runs_shorter_than_a_line_are_asked_for_one_by_one(p: Product) -> None:
    """A tile reads a few pixels of each channel: where these lie within a line of each other, they are one run."""
    found = [i for _, i in asked(p.kernel(of_data=True).body, {})]
    panels, tiles = p.blocks // p.vectors, -(-p.pixels // p.tile)
    if tiles == 1 or p.depth == 1 or p.depth % p.cut:
        return
    per_round, rest = divmod(len(found), p.batch * panels * tiles)
    assert not rest
    assert per_round <= max(p.depth, 2 * p.depth * p.pixels // LINE)
    for r in range(p.batch * panels * tiles):
        image, tile = r // (panels * tiles), r % tiles + p.offset
        first = [(image * p.depth + k) * p.pixels + tile * p.tile for k in range(p.depth)]
        lines = {i // LINE for i in found[r * per_round : (r + 1) * per_round]}
        assert lines >= {i // LINE for i in first} if p.pixels > LINE else min(lines) == first[0] // LINE
        assert min(first) // LINE <= min(lines) <= max(lines) <= (max(first) + p.tile + LINE) // LINE


@pytest.mark.parametrize("window", [1, 3])
def test_what_asks_for_few_lines_stands_in_an_outer_loop_of_the_sum(window: int) -> None:
    """To ask costs a division by 7 here, whether or not loops of one round lie between."""
    x = te.placeholder((7, 64, 4, window), name="X")
    w = te.placeholder((2, 4, window, 16, 16), name="W")
    k, q, i = (te.reduce_axis((0, n), name=n_) for n, n_ in ((4, "k"), (window, "q"), (16, "i")))
    y = te.compute(
        (32, 7), lambda c, p: te.sum(x[p, k * 16 + i, 0, q] * w[c // 16, k, q, i, c % 16], axis=[k, q, i]), name="Y"
    )
    s = te.create_schedule(y.op)
    acc = s.cache_write(y, "register")
    c, p = y.op.axis
    panel, inside = s[y].split(c, factor=16)
    s[y].reorder(panel, p, inside)
    s[acc].compute_at(s[y], p)
    c, p = s[acc].op.axis
    s[acc].reorder(p, *s[acc].op.reduce_axis, c)
    s[acc].vectorize(c)
    s[acc].prefetch(w, panel, 1)
    kernel = te.lower(s, [x, w, y])
    loops = [f for f in walk(kernel.body) if isinstance(f, For) and any(isinstance(c, Prefetch) for c in _directly(f))]
    assert [f.var.name for f in loops] == ["k" if window == 1 else "q"]


def _directly(s: Stmt) -> Iterator[Stmt]:
    """Yield the statements within this one that are in no loop within."""
    for part in children(s):
        if not isinstance(part, For):
            yield part
            yield from _directly(part)


@settings(max_examples=25, deadline=None)
@given(products())
def test_the_interpreter_leaves_it_out(p: Product) -> None:
    rng = np.random.default_rng(p.pixels)
    x = rng.integers(-4, 5, (p.batch, p.depth, p.pixels)).astype(np.float32)
    w = rng.integers(-4, 5, (p.blocks, p.depth, p.lanes)).astype(np.float32)
    y = np.zeros((p.batch, p.blocks * p.lanes, p.pixels), np.float32)
    interpret.run(p.kernel(), [x, w, y])
    np.testing.assert_array_equal(y, np.einsum("bkp,ckl->bclp", x, w).reshape(y.shape))


def test_the_hint_reaches_the_machine_and_is_part_of_a_kernels_identity() -> None:
    p = Product()
    haswell = find("llvm -mcpu=haswell -mtriple=x86_64-unknown-linux-gnu")
    compiled = llvm.compile_kernel(p.kernel(), haswell)
    assert "prefetcht0" in llvm.assembly(compiled, haswell)
    plain = llvm.compile_kernel(p.kernel(hint=False), haswell)
    assert "prefetch" not in llvm.assembly(plain, haswell)
    assert compiled.accesses == plain.accesses
    assert digest(p.kernel()) == digest(p.kernel())
    assert len({digest(Product(offset=n).kernel()) for n in (1, 2)} | {digest(p.kernel(hint=False))}) == 3


def test_compiled_code_gives_the_same(run_on_cpu: Any) -> None:
    p = Product(batch=2, pixels=23, depth=24, tile=6, cut=4)
    rng = np.random.default_rng(0)
    x, w = rng.random((2, 24, 23), np.float32), rng.random((6, 24, 16), np.float32)
    results = [np.zeros((2, 96, 23), np.float32) for _ in range(2)]
    for y, hint in zip(results, (True, False), strict=True):
        run_on_cpu(p.kernel(hint), [x, w, y])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0], np.einsum("bkp,ckl->bclp", x, w).reshape(2, 96, 23), rtol=1e-5)


def matrices(others: int) -> tuple[te.Schedule, te.Tensor, te.Tensor, te.Tensor]:
    """y[m, c] = sum over k of x[m, k] * w[c // 16, m, k, c % 16]: a round of m reads runs far from each other."""
    x = te.placeholder((5, 8), name="X")
    w = te.placeholder((others, 5, 8, 16), name="W")
    k = te.reduce_axis((0, 8), name="k")
    y = te.compute((5, others * 16), lambda m, c: te.sum(x[m, k] * w[c // 16, m, k, c % 16], axis=k), name="Y")
    s = te.create_schedule(y.op)
    m, c = y.op.axis
    vector, lane = s[y].split(c, factor=16)
    s[y].reorder(m, k, vector, lane)
    s[y].unroll(vector)
    s[y].vectorize(lane)
    s[y].prefetch(w, m, 1)
    return s, x, w, y


@pytest.mark.parametrize("others", [1, 2, 3])
def test_runs_that_lie_apart_are_asked_for_one_after_the_other(others: int) -> None:
    s, *args = matrices(others)
    found = [i for _, i in asked(te.lower(s, args).body, {})]
    assert len(found) == 5 * 8 * others
    for m in range(5):
        run = [v * 640 + (m + 1) * 128 + i for v in range(others) for i in range(0, 128, 16)]
        assert found[m * 8 * others : (m + 1) * 8 * others] == run


def test_what_another_stage_of_the_round_reads_is_asked_for_in_the_loops_of_this_one() -> None:
    a = te.placeholder((6, 9, 16), name="A")
    twice = te.compute(a.shape, lambda i, j, k: a[i, j, k] + a[i, j, k] * a[i, j, k], name="twice")
    j = te.reduce_axis((0, 9), name="j")
    total = te.compute((6, 4, 16), lambda i, n, k: te.sum(twice[i, j, k] * (n + 1), axis=j), name="total")
    s = te.create_schedule(total.op)
    i, n, k = total.op.axis
    s[total].reorder(i, n, j, k)
    s[total].vectorize(k)
    s[twice].compute_at(s[total], i)
    s[total].prefetch(a, i, 1)
    found = [x for _, x in asked(te.lower(s, [a, total]).body, {})]
    lines = 3  # of each of four rounds: nine in all
    assert len(found) == 6 * 4 * lines
    for r, x in enumerate(found):
        assert x == (r // (4 * lines) + 1) * 144 + r // lines % 4 * 36 + r % lines * LINE


N = te.var("n")


@pytest.mark.parametrize(
    ("shape", "terms", "index"),
    [
        ((8, 64), 64, lambda i, k: (k % 8, i)),
        ((8, N), N, lambda i, k: (i, k)),
        ((64, 3), 64, lambda i, k: (k, 1)),
        ((64, 64), 64, lambda i, k: (i * 8 + k // 8, k)),
    ],
)
def test_it_is_left_out_where_there_is_no_run_of_memory_or_sizes_are_open(shape: Any, terms: Any, index: Any) -> None:
    a = te.placeholder(shape, name="A")
    k = te.reduce_axis((0, terms), name="k")
    y = te.compute((8,), lambda i: te.sum(a[index(i, k)], axis=k), name="Y")
    s = te.create_schedule(y.op)
    s[y].prefetch(a, y.op.axis[0], 1)
    assert "prefetch" not in str(te.lower(s, [a, y]))


@pytest.mark.parametrize("is_copied", [False, True])
def test_it_is_left_out_where_data_say_what_is_read(is_copied: bool) -> None:
    """Also where another stage reads it, whose loads are not made yet: lowering ended in a KeyError."""
    a, rows = te.placeholder((2, 2, 2), name="A"), te.placeholder((2,), "int32", name="rows")
    y = te.compute(a.shape, lambda i, j, k: a[rows[i], j, k], name="Y")
    s = te.create_schedule(y.op)
    if is_copied:
        s[s.cache_write(y, "register")].compute_at(s[y], s[y].op.axis[1])
    s[y].prefetch(a, s[y].op.axis[1], 1)
    assert "prefetch" not in str(te.lower(s, [a, rows, y]))


def test_given_loops_do_not_say_what_they_read() -> None:
    """Lowering ended in a ValueError where they alone, or they first, read what a loop asks for."""
    a = te.placeholder((4, 3), name="A")
    c = te.extern(a.shape, [a], lambda loops, x, y: None, name="C", dtype="float32", rounds=4)
    d = te.compute(a.shape, lambda i, j: c[i, j] * 2, name="D")
    s = te.create_schedule(d.op)
    s[d].prefetch(a, d.op.axis[0], 1)
    assert "prefetch" not in str(te.lower(s, [a, d]))


def test_it_is_left_out_on_a_gpu() -> None:
    a = te.placeholder((8, 64), name="A")
    k = te.reduce_axis((0, 64), name="k")
    y = te.compute((8,), lambda i: te.sum(a[i, k], axis=k), name="Y")
    s = te.create_schedule(y.op)
    (i,) = y.op.axis
    s[y].prefetch(a, i, 1)
    assert "prefetch" in str(te.lower(s, [a, y]))
    s[y].bind(i, te.thread_axis("blockIdx.x"))
    assert "prefetch" not in str(renorm.lower(s, [a, y]))


def test_refusals() -> None:
    p = Product()
    s, (_, w, y) = p.schedule(hint=False)
    acc = s.stages[0].tensor
    for axis, offset, said in (
        (s[y].leaf_iter_vars[0], 0, "prefetch for 0 rounds later"),
        (te.reduce_axis((0, 3), name="other"), 1, "other, which is no loop around it"),
        (y.op.axis[1], 1, "which is no loop around it"),
    ):
        with pytest.raises(InvalidSchedule, match=said):
            s[acc].prefetch(w, axis, offset)
    s[acc].prefetch(w, s[y].leaf_iter_vars[-1], 1)  # inside of the loop that it is computed in
    with pytest.raises(InvalidSchedule, match="which is no loop around it"):
        te.lower(s, [*p.tensors()[:0], *(t for t in (s.stages[0].op.input_tensors[0], w, y))])
