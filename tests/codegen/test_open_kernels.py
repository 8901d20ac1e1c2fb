"""Kernels with open extents: one machine code, verified for all extents, gives NumPy's numbers at each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.codegen.native import HOST, Native
from tests.random_numbers import RNG

from renorm import te, topi
from renorm.codegen.llvm import compile_kernel
from renorm.expr.nodes import OpenVar
from renorm.tir import interpret
from renorm.tir.nodes import Kernel
from renorm.tir.parse import parse
from renorm.tir.passes import prepare
from renorm.tir.verify import verify

Array = np.ndarray[Any, Any]
Program = Callable[..., tuple[te.Schedule, list[te.Tensor]]]


def scaled_and_turned(n: Any, m: Any) -> tuple[te.Schedule, list[te.Tensor]]:
    a, b = te.placeholder((n, m), name="a"), te.placeholder((m,), name="b")
    c = te.compute((m, n), lambda i, j: a[j, i] * 2 + b[i], name="c")
    s = te.create_schedule(c.op)
    _, inner = s[c].split(c.op.axis[1], factor=8)
    s[c].parallel(c.op.axis[0])
    s[c].vectorize(inner)
    return s, [a, b, c]


def product(n: Any, m: Any, k: Any, rows: int = 3) -> tuple[te.Schedule, list[te.Tensor]]:
    """Tiles of registers over a product: rows of 8 columns, the ragged edges computed speculatively."""
    a, b = te.placeholder((n, k), name="a"), te.placeholder((k, m), name="b")
    r = te.reduce_axis((0, k), "r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    d = te.compute((n, m), lambda i, j: te.max(c[i, j], 0), name="d")
    s = te.create_schedule(d.op)
    i, j, _, jj = s[d].tile(d.op.axis[0], d.op.axis[1], rows, 8)
    fused = s[d].fuse(i, j)
    s[d].parallel(fused)
    s[d].vectorize(jj)
    s[c].compute_at(s[d], fused)
    s[c].set_scope("register")
    ci, cj = c.op.axis
    s[c].reorder(r, ci, cj)
    s[c].unroll(ci)
    s[c].vectorize(cj)
    return s, [a, b, d]


def product_by_blocks(n: Any, m: Any, k: Any) -> tuple[te.Schedule, list[te.Tensor]]:
    """Blocks of 8 rows by 8 columns, computed as 4 tiles of 2 rows in registers, then finished row by row."""
    a, b = te.placeholder((n, k), name="a"), te.placeholder((k, m), name="b")
    r = te.reduce_axis((0, k), "r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    d = te.compute((n, m), lambda i, j: te.max(c[i, j], 0), name="d")
    s = te.create_schedule(d.op)
    i, j, _, jj = s[d].tile(d.op.axis[0], d.op.axis[1], 8, 8)
    s[d].parallel(j)
    s[d].reorder(j, i)
    s[d].vectorize(jj)
    kept = s.cache_write(c, "register")
    s[c].compute_at(s[d], i)
    s[c].set_scope("local")
    outer, inner = s[c].split(c.op.axis[0], factor=2)
    s[c].unroll(inner)
    s[c].vectorize(c.op.axis[1])
    s[kept].compute_at(s[c], outer)
    ci, cj = kept.op.axis
    (cr,) = kept.op.reduce_axis
    s[kept].reorder(cr, ci, cj)
    s[kept].unroll(ci)
    s[kept].vectorize(cj)
    return s, [a, b, d]


def softmax(n: Any, m: Any) -> tuple[te.Schedule, list[te.Tensor]]:
    a = te.placeholder((n, m), name="a")
    b = topi.nn.softmax(a)
    return te.create_schedule(b.op), [a, b]


def row_means(n: Any, m: Any) -> tuple[te.Schedule, list[te.Tensor]]:
    """A sum in 16 lanes that are added up at last."""
    a = te.placeholder((n, m), name="a")
    r = te.reduce_axis((0, m), "r")
    b = te.compute((n,), lambda i: te.sum(a[i, r], axis=r), name="b")
    c = te.compute((n,), lambda i: b[i] / m, name="c")
    s = te.create_schedule(c.op)
    _, inner = s[b].split(r, factor=16)
    lanes = s.rfactor(b, inner)
    s[c].parallel(c.op.axis[0])
    s[b].compute_at(s[c], c.op.axis[0])
    s[lanes].compute_at(s[c], c.op.axis[0])
    s[lanes].vectorize(s[lanes].op.axis[0])
    return s, [a, c]


def convolution(h: Any, w: Any) -> tuple[te.Schedule, list[te.Tensor]]:
    """3x3, padded by 1, stride 2, one plane: its result is smaller by a quotient."""
    a, k = te.placeholder((h, w), name="a"), te.placeholder((3, 3), name="k")
    padded = te.compute(
        (h + 2, w + 2),
        lambda i, j: te.if_then_else(te.all(i > 0, i < h + 1, j > 0, j < w + 1), a[i - 1, j - 1], 0.0),
        name="padded",
    )
    p, q = te.reduce_axis((0, 3), "p"), te.reduce_axis((0, 3), "q")
    shape = (h - 1) // 2 + 1, (w - 1) // 2 + 1
    c = te.compute(shape, lambda i, j: te.sum(padded[2 * i + p, 2 * j + q] * k[p, q], axis=[p, q]), name="c")
    s = te.create_schedule(c.op)
    _, inner = s[c].split(c.op.axis[1], factor=4)
    s[c].reorder(c.op.axis[0], *s[c].leaf_iter_vars[1:])
    s[c].parallel(c.op.axis[0])
    del inner
    return s, [a, k, c]


def convolution_inline(h: Any, w: Any) -> tuple[te.Schedule, list[te.Tensor]]:
    s, args = convolution(h, w)
    padded = next(x for x in s.stages if x.name == "padded")
    padded.compute_inline()
    return s, args


def of_blocks(h: Any, w: Any) -> tuple[te.Schedule, list[te.Tensor]]:
    """Extents known to be multiples: 4 divides every row, and nothing is left over."""
    a = te.placeholder((h * 4, w * 4), name="a")
    b = te.compute((h, w, 4, 4), lambda i, j, y, x: a[i * 4 + y, j * 4 + x] + 1, name="b")
    s = te.create_schedule(b.op)
    s[b].vectorize(b.op.axis[3])
    s[b].parallel(s[b].fuse(b.op.axis[0], b.op.axis[1]))
    return s, [a, b]


def buffers_within_copies(n: Any, m: Any) -> tuple[te.Schedule, list[te.Tensor]]:
    """Both copies of an unrolled loop hold the same buffers of open size, the inner one under a tail's condition."""
    a = te.placeholder((n, m), name="a")
    b = te.compute((n, m), lambda i, j: a[i, j] * 2.0, name="b")
    c = te.compute((2, n, m), lambda u, i, j: b[i, j] + u.astype("float32"), name="c")
    d = te.compute((2, n, m), lambda u, i, j: c[u, i, j] + 1.0, name="d")
    s = te.create_schedule(d.op)
    s[d].unroll(d.op.axis[0])
    outer, _ = s[d].split(d.op.axis[1], nparts=2)
    s[c].compute_at(s[d], outer)
    s[b].compute_at(s[c], c.op.axis[1])
    return s, [a, d]


def conv_reference(a: Array, k: Array) -> Array:
    x = np.pad(a.astype(np.float64), 1)
    rows, columns = ((e - 1) // 2 + 1 for e in a.shape)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3))[::2, ::2]
    assert windows.shape[:2] == (rows, columns)
    return np.einsum("ijpq,pq->ij", windows, k)


def stable_softmax(a: Array) -> Array:
    e = np.exp(a - a.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


SIZES = [1, 2, 7, 8, 9, 33]
PROGRAMS: dict[str, tuple[Program, int, Callable[..., Array]]] = {
    "turned": (scaled_and_turned, 2, lambda a, b: a.T * 2 + b[:, None]),
    "product": (product, 3, lambda a, b: np.maximum(a @ b, 0)),
    "product_of_high_tiles": (partial(product, rows=8), 3, lambda a, b: np.maximum(a @ b, 0)),
    "product_by_blocks": (product_by_blocks, 3, lambda a, b: np.maximum(a @ b, 0)),
    "softmax": (softmax, 2, stable_softmax),
    "row_means": (row_means, 2, lambda a: a.mean(1)),
    "convolution": (convolution, 2, conv_reference),
    "convolution_inline": (convolution_inline, 2, conv_reference),
    "buffers_within_copies": (buffers_within_copies, 2, lambda a: np.stack([a * 2 + 1, a * 2 + 2])),
    "of_blocks": (of_blocks, 2, lambda a: a.reshape(len(a) // 4, 4, -1, 4).swapaxes(1, 2) + 1),
}


def lowered(build: Program, count: int, most: int | None = None) -> tuple[Kernel, list[te.Tensor], list[OpenVar]]:
    extents = [OpenVar(name, low=1, high=most) for name in "nmk"[:count]]
    s, args = build(*extents)
    return te.lower(s, args), args, extents


def arrays(kernel: Kernel, extents: Sequence[int]) -> list[Array]:
    sizes = interpret.buffer_sizes(kernel, extents)
    return [
        np.full(size, np.nan, "float32") if p.name in kernel.outputs else RNG.standard_normal(size).astype("float32")
        for p, size in zip(kernel.params, sizes)
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_code_for_all_extents(name: str) -> None:
    build, count, reference = PROGRAMS[name]
    kernel, args, extents = lowered(build, count)
    verify(kernel)
    verify(prepare(kernel))
    again = parse(str(kernel))
    assert str(again) == str(kernel)
    native = Native(compile_kernel(kernel, HOST))
    order = [next(i for i, v in enumerate(extents) if v is g) for g in kernel.given]
    for sizes in itertools.islice(itertools.product(SIZES, repeat=count), 0, None, 1 if count < 3 else 5):
        given = [sizes[i] for i in order]
        found = arrays(kernel, given)
        native(*found, extents=given, threads=3)
        shapes = [te.specialize(te.create_schedule(t.op), [t], dict(zip(extents, sizes)))[1][0].shape for t in args]
        *operands, result = (x.reshape(s) for x, s in zip(found, shapes))
        np.testing.assert_allclose(result, reference(*operands), rtol=1e-4, atol=1e-5, err_msg=str(sizes))


def test_tiles_beyond_an_extent_are_skipped_and_rows_beyond_it_read_in_vain() -> None:
    """A block of 8 rows is one of 1 where there are no more; a tile of 2 rows reads the last one twice."""
    kernel, _, _ = lowered(product_by_blocks, 3)
    lines = [line.strip() for line in str(kernel).splitlines()]
    loop = next(i for i, line in enumerate(lines) if line.startswith("for (i.outer_1, 0, 4)"))
    assert lines[loop + 1] == "if ((((i.outer*8) + (i.outer_1*2)) < n)) {"
    (update,) = (line for line in lines if line.startswith("c.register[") and "a[" in line)
    assert "min((((i.outer*8) + (i.outer_1*2)) + i), (n - 1))" in update


def test_short_tiles_have_sums_of_their_own() -> None:
    """Of 8 rows in registers, 4 or 2 are summed where no more are there."""
    kernel, _, _ = lowered(PROGRAMS["product_of_high_tiles"][0], 3)
    lines = [line.strip() for line in str(kernel).splitlines()]
    ends = [line.rpartition("< ")[2] for line in lines if line.startswith("if (")]
    assert ends[:2] == ["(n - 4))) {", "(n - 2))) {"]
    assert [line for line in lines if line.startswith("unrolled (i,")] == [
        f"unrolled (i, 0, {n}) {{" for n in (8, 4, 2)
    ]


def test_loops_are_not_copied_for_conditions_that_cost_little() -> None:
    """A row beyond the last one costs an address, and a tile that is skipped a comparison: one hot loop does for all;
    columns that are lanes have predicates, without which there is another one."""
    kernel, _, _ = lowered(product_by_blocks, 3)
    text = str(prepare(kernel))
    assert text.count("for (r, 0, k)") == 2
    assert "for (i.outer, 0, extent)" in text
    assert "for (i.outer, 0, (n//8))" not in text


def test_cuts_at_most_a_round_apart_are_one() -> None:
    """n//15 and (n + 2)//15: a loop has one ragged end."""
    text = """kernel k[n(1)](a: float32[(n + 2)], b: float32[(n + 2)]) -> (b) {
  for (i, 0, ((n + 16)//15)) {
    for (j, 0, 15) {
      if ((((i*15) + j) < n)) {
        b[((i*15) + j)] = a[((i*15) + j)]
      }
      if ((((i*15) + j) < (n + 2))) {
        b[((i*15) + j)] = (a[((i*15) + j)] + 1f)
      }
    }
  }
}"""
    kernel = prepare(parse(text))
    verify(kernel)
    assert str(kernel).count("for (i, ") == 2
    for n in (1, 13, 14, 15, 28, 29, 30, 44, 45):
        a, b = np.arange(n + 2, dtype=np.float32), np.zeros(n + 2, np.float32)
        interpret.run(kernel, [a, b], [n])
        np.testing.assert_array_equal(b, a + 1)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_greatest_value_takes_nothing_away_from_what_is_proved(name: str) -> None:
    """Buffers end at n, not at the most that n may be: loops are cut where they are without it, conditions go."""
    build, count, _ = PROGRAMS[name]
    bounded, unbounded = (prepare(lowered(build, count, most)[0]) for most in (384, None))
    verify(bounded)
    texts = [str(kernel).split("\n", 1) for kernel in (bounded, unbounded)]
    assert "n(1, 384)" in texts[0][0]
    assert texts[0][1] == texts[1][1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_prepared_loops_mean_the_same(name: str) -> None:
    build, count, _ = PROGRAMS[name]
    kernel, _, _ = lowered(build, count)
    prepared = prepare(kernel)
    for given in ([1] * count, [5] * count, list(range(2, 2 + count)), list(range(9, 9 + count))):
        expected = arrays(kernel, given)
        found = [x.copy() for x in expected]
        interpret.run(kernel, expected, given)
        interpret.run(prepared, found, given)
        for x, y in zip(found, expected):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_quotients_in_branches_leave_the_loops_that_do_not_change_them() -> None:
    """LLVM does not move a division out of a branch: it does not know that the divisor is positive."""
    text = """kernel k[n(1)](a: float32[(n*8)], b: float32[(n*8)]) -> (b) {
  for (f, 0, (n*8)) {
    for (j, 0, 16) {
      if ((a[f] < 0.5f)) {
        if ((a[j // 2] < 0.5f)) {
          b[f] = (b[f] + a[(f % n)])
        }
      } else {
        b[f] = (b[f] - a[(f//n)])
      }
    }
  }
}"""
    kernel = parse(text)
    verify(kernel)
    compiled = compile_kernel(kernel, HOST)
    blocks = re.split(r"\n(?=\w+:)", compiled.llvm)
    dividing = [block.split(":")[0].strip() for block in blocks if re.search(r"\b[us](div|rem) i64 %\w+, %", block)]
    assert len(dividing) == 1  # the body of f: not that of j, nor its branches
    assert dividing[0] in re.findall(r"label %(\w+)", compiled.llvm)
    for n in (1, 3, 8, 40):
        a, b = RNG.random(n * 8, np.float32), RNG.random(n * 8, np.float32)
        expected = b.copy()
        interpret.run(kernel, [a, expected], [n])
        Native(compiled)(a, b, extents=[n])
        np.testing.assert_allclose(b, expected, rtol=1e-5)
