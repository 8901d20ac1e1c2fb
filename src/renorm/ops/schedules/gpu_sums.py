"""GPU: matrix products in multiply-adds, each thread a box of sums.

    each block: a tile of rows by a tile of columns
      each thread: sums = 0, of a few rows by a few columns, in registers
      for each round of terms
        rows[k][row], columns[k][column] to shared memory, by all threads of the block together
        for each term k of the round: sums += rows[k] * columns[k]
      what is computed from the sums, to memory

What a thread has of a tile is a box of digits: rows 0..3 and 64..67 of a tile are [0..1][0][0..3].
"""

from __future__ import annotations

from typing import Any

from renorm import te
from renorm.ops.schedules.gpu_contraction import BATCH, COLUMNS, ROWS
from renorm.ops.schedules.gpu_cuts import Cuts, Place
from renorm.ops.schedules.gpu_stages import VECTOR


class Sums(Cuts):
    """A product of many rows and many columns, of any dtype."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cuts = {
            ROWS: (self.tile.rows, self.tile.thread_rows),
            COLUMNS: (self.tile.columns, self.tile.thread_columns),
        }

    def inner(self, role: str) -> tuple[int, ...]:
        """Return runs of a thread, threads, and places in a run."""
        own, threads = self.cuts[role]
        place = min(VECTOR, own)
        return own // place, threads, place

    def _copied(self, role: str) -> te.Tensor:
        """What shared memory holds of a factor: matrix, tile, round, terms, then rows or columns in their places."""
        tile, (tiles, runs, threads, place) = self.tile, self.digits(role)
        quarters, count, rounds = tile.depth // VECTOR, tiles * runs * threads * place, self.rounds * tile.parts

        def places(o: Any, ko: Any, kq: Any, kv: Any, r: Any, t: Any, v: Any) -> tuple[Place, Place]:
            run = (o * runs + r) * threads + t
            return (
                Place(run, v, place, self.extents[role], count),
                Place(ko * quarters + kq, kv, VECTOR, self.product.depth, rounds * tile.depth),
            )

        return self.copied(role, (tiles, rounds, quarters, VECTOR, runs, threads, place), places)

    def sums(self) -> te.Tensor:
        """Return the sums in digits: part, matrix, then tile, run, thread and place in a run of rows, and of
        columns."""
        s, tile = self.s, self.tile
        rows, columns = self._copied(ROWS), self._copied(COLUMNS)
        rounds, quarter, term = (
            te.reduce_axis((0, n), name=name)
            for n, name in ((self.rounds, "ko"), (tile.depth // VECTOR, "kq"), (VECTOR, "kv"))
        )

        def element(part: Any, b: Any, mo: Any, mr: Any, my: Any, mv: Any, po: Any, pr: Any, px: Any, pv: Any) -> Any:
            k = part * self.rounds + rounds, quarter, term
            row = rows[(b, mo, *k, mr, my, mv)]
            return te.sum(row * columns[(b, po, *k, pr, px, pv)], axis=[rounds, quarter, term])

        shape = (tile.parts, self.extents[BATCH], *self.digits(ROWS), *self.digits(COLUMNS))
        sums = self.insert("sums", shape, element)
        s[sums].set_scope("local")
        part, b, mo, mr, my, mv, po, pr, px, pv = s[sums].op.axis
        unrolled = [quarter, term, mr, mv, pr, pv]
        s[sums].reorder(part, b, mo, po, my, px, rounds, *unrolled)
        for axis in unrolled:
            s[sums].unroll(axis)
        for copy, role in ((rows, ROWS), (columns, COLUMNS)):
            own = s.cache_read(copy, "local", [sums])
            s[own].compute_at(s[sums], term)
            self.vector(own, s[own].op.axis[-1])
            s[own].unroll(s[own].op.axis[-3])
            self._copy(copy, sums, rounds, role)
        return sums

    def _copy(self, copy: te.Tensor, sums: te.Tensor, rounds: te.IterVar, role: str) -> None:
        """Shares a copy to shared memory out to the threads of a block: neighbours in memory go to neighbours."""
        s, tile = self.s, self.tile
        self.share(copy, sums, rounds)
        *_, kq, kv, r, t, v = s[copy].op.axis
        along_terms = self.product.runs_along_terms(role)
        order = [r, t, v, kq, kv] if along_terms else [kq, kv, r, t, v]
        is_vector = self.product.run(role) % order[-1].extent == 0
        fetched = s.cache_write(copy, "local") if is_vector and along_terms else None
        s[copy].reorder(*order)
        whole = s[copy].fuse(*(order[:4] if is_vector else order))
        rest, x = s[copy].split(whole, factor=tile.thread_columns)
        rest, y = s[copy].split(rest, factor=tile.thread_rows)
        self._bind_threads(copy, y, x)
        s[copy].unroll(rest)
        if copy in self.reads:
            s[self.reads[copy]].compute_at(s[copy], x)
        if is_vector and not along_terms:
            self.vector(copy, order[-1])
        elif fetched is not None:  # vectors of terms, which lie apart in shared memory
            s[copy].unroll(order[-1])
            s[fetched].compute_at(s[copy], x)
            self.vector(fetched, s[fetched].op.axis[4])

    def _bind_threads(self, t: te.Tensor, y: te.IterVar, x: te.IterVar) -> None:
        self.s[t].bind(y, te.thread_axis((0, self.tile.thread_rows), "threadIdx.y"))
        self.s[t].bind(x, te.thread_axis((0, self.tile.thread_columns), "threadIdx.x"))

    def cut(self, out: te.Tensor, sums: te.Tensor, b: te.IterVar, m: te.IterVar, p: te.IterVar) -> None:
        """Cuts what reads the sums as they are cut: its loops over matrices, rows and columns."""
        s = self.s
        (mo, mr, my, mv), (po, pr, px, pv) = self.splits(out, m, ROWS), self.splits(out, p, COLUMNS)
        s[out].reorder(b, mo, po, my, px, mr, mv, pr, pv)
        self.bind_blocks(out, b, mo, po)
        self._bind_threads(out, my, px)
        for axis in (mr, mv, pr):
            s[out].unroll(axis)
        self.vector_of_columns(out, pv)
        s[sums].compute_at(s[out], px)
