"""GPU: products with few rows or few columns, as of a vector and a matrix: the matrix is read once, and never waits.

each block: a few of the many rows (or columns)
  each thread: one of these, and every n-th term of its sums, in registers: neighbours read neighbours in memory
  sums of threads that have different terms to shared memory; added up by one thread per result
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from renorm import te
from renorm.core.gpu import GpuFacts
from renorm.expr.nodes import Expr, Reduce
from renorm.ops.schedules.gpu_contraction import BATCH, COLUMNS, ROWS, Contraction
from renorm.ops.schedules.gpu_stages import VECTOR, Product, where

FEW = 8  # rows that one thread has sums of
LEAST_TERMS = 64  # below which a tile of the matrix is no more than what it is read for
LANES, LINES = 32, 4  # threads along terms in memory, and sums of a block beside each other
COLUMN_THREADS = 256  # of a block whose threads lie along the many


def takes(product: Contraction) -> bool:
    """Return whether a product is one of few rows, or of few columns."""
    few, many = sorted(product.extent(role) for role in (ROWS, COLUMNS))
    return few <= FEW and few < many and product.depth >= LEAST_TERMS


@dataclass
class Few(Product):
    """A product of few rows or columns and many of the others."""

    gpu: GpuFacts

    def __post_init__(self) -> None:
        product = self.product
        self.few, self.many = sorted((ROWS, COLUMNS), key=product.extent)
        self.along_terms = product.runs_along_terms(self.many)
        self.vector = VECTOR if self.along_terms and product.run(self.many) % VECTOR == 0 else 1
        # of a block: sums beside each other, and threads that share the terms of one
        self.width, self.slices = (LINES, LANES) if self.along_terms else self._columns()
        steps = -(-product.depth // (self.slices * self.vector))
        is_whole = product.depth % (self.slices * self.vector) == 0
        # reads of several steps are on their way at once, without conditions where steps divide evenly
        self.unrolled = next((n for n in (8, 6, 4, 3) if is_whole and steps % n == 0), min(8, steps))
        self.rounds = -(-steps // self.unrolled)

    def _columns(self) -> tuple[int, int]:
        """As few neighbours as make enough blocks, but whole sectors of memory."""
        blocks = self.product.extent(BATCH) * self.product.extent(self.many)
        width = next((w for w in (32, 16) if blocks >= w * self.gpu.units), 8)
        return width, COLUMN_THREADS // width

    def schedule(self, out: te.Tensor) -> None:
        """Schedules `main`, and `out`, which is made of it element by element or is itself."""
        s, main = self.s, self.main
        sums = self._sums()
        part = te.reduce_axis((0, self.slices), name="part")

        def element(b: Expr, m: Expr, p: Expr) -> Expr:
            c, f = (p, m) if self.many == COLUMNS else (m, p)
            return Reduce("sum", sums[b, c // self.width, c % self.width, f, part.var], [part])

        self.redefine(element)
        total = s.cache_write(main, "local") if main is out else main
        s[total].set_scope("local")
        b, m, p = self.joined(out)
        c, f = (p, m) if self.many == COLUMNS else (m, p)
        tile, own = s[out].split(c, factor=self.width)
        s[out].reorder(b, tile, own, f)
        block = self.bind_blocks(out, b, tile)
        self._bind(out, own)
        s[total].compute_at(s[out], f)
        s[total].unroll(s[total].op.reduce_axis[0])
        s[sums].compute_at(s[out], block)

    def _bind(self, t: te.Tensor, own: te.IterVar, terms: te.IterVar | None = None) -> None:
        """Threads along the sums of a block and along the terms of each: x runs along memory."""
        axes = ("threadIdx.y", "threadIdx.x") if self.along_terms else ("threadIdx.x", "threadIdx.y")
        self.s[t].bind(own, te.thread_axis((0, self.width), axes[0]))
        if terms is not None:
            self.s[t].bind(terms, te.thread_axis((0, self.slices), axes[1]))

    def _sums(self) -> te.Tensor:
        """Sums of the terms of each thread: of matrix, tile of the many, place in it, one of the few, and thread."""
        s, product = self.s, self.product
        batch, few, tiles = product.extent(BATCH), product.extent(self.few), -(-product.extent(self.many) // self.width)
        ks = [te.reduce_axis((0, n), name="k") for n in (self.rounds, self.unrolled, self.vector)]
        terms = (self.rounds, self.unrolled, self.slices, self.vector)
        fetched = self.insert(self.many, (batch, tiles, self.width, *terms), self._of_many)
        beside = self.insert(self.few, (batch, few, *terms), self._of_few)

        def element(b: Any, o: Any, c: Any, f: Any, thread: Any) -> Any:
            ro, ri, kv = ks
            return te.sum(beside[b, f, ro, ri, thread, kv] * fetched[b, o, c, ro, ri, thread, kv], axis=ks)

        sums = self.insert("sums", (batch, tiles, self.width, few, self.slices), element)
        own = s.cache_write(sums, "local")
        s[sums].set_scope("shared")
        b, o, c, f, thread = s[sums].op.axis
        s[sums].reorder(b, o, c, thread, f)
        self._bind(sums, c, thread)
        s[own].compute_at(s[sums], thread)
        f = s[own].op.axis[3]
        s[own].reorder(*ks, f)
        for axis in (*ks[1:], f):
            s[own].unroll(axis)
        for factor in (fetched, beside):
            s[factor].set_scope("local")
            s[factor].compute_at(s[own], ks[1])
            if self.vector > 1:
                s[factor].vectorize(s[factor].op.axis[-1])
        return sums

    def _term(self, ro: Any, ri: Any, thread: Any, kv: Any) -> tuple[Expr, list[Expr]]:
        """The number of a term, and the condition that there is one."""
        run, runs = (ro * self.unrolled + ri) * self.slices + thread, self.product.depth // self.vector
        is_whole = runs == self.rounds * self.unrolled * self.slices
        return run * self.vector + kv, [] if is_whole else [run < runs]

    def _of_few(self, b: Any, f: Any, *term: Any) -> Any:
        k, inside = self._term(*term)
        return where(inside, self.product.element(self.few, {BATCH: b, self.few: f}, k))

    def _of_many(self, b: Any, o: Any, c: Any, *term: Any) -> Any:
        (k, inside), number, extent = self._term(*term), o * self.width + c, self.product.extent(self.many)
        if extent % self.width:
            if self.product.is_plain(self.many):  # the last one in the place of those behind, which nobody reads
                number = te.min(number, extent - 1)
            else:
                inside.append(number < extent)
        return where(inside, self.product.element(self.many, {BATCH: b, self.many: number}, k))
