"""GPU: products of float16, bfloat16 or tf32 on tensor cores, each warp a tile of sums that its lanes share.

    each block: a tile of rows by a tile of columns
      each warp: sums = 0, of some 16 rows by some 8 columns, in the registers of its lanes
      for each round of 32 terms, or 16 of tf32
        rows[row][k], columns[column][k] to shared memory, by all threads of the block together
        for each 16 rows, 8 columns: sums += rows * columns               two instructions (codegen/cuda/tensor_cores)
      what is computed from the sums, to memory

Lane (g, t) of 8 x 4 has rows g and g + 8, columns 2t and 2t + 1 of each tile of 16 by 8, as the instruction gives them:

    m = (tile, warp, times 16, half, g)    p = (tile, warp, times 8, t, place)
"""

from __future__ import annotations

from math import prod
from typing import Any

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.gpu import COLUMN_LANES, ROW_LANES, STEP, GpuFacts
from renorm.expr.nodes import cast
from renorm.ops.schedules.gpu_contraction import BATCH, COLUMNS, ROWS, Contraction
from renorm.ops.schedules.gpu_cuts import Cuts, Place

HALVES = 2  # what each lane has of 16 rows, and of 8 columns
VECTOR = 16  # bytes that a thread reads or writes as one


class Warps(Cuts):
    """A product of many rows and many columns of a narrow dtype, summed in float32."""

    @staticmethod
    def takes(product: Contraction, gpu: GpuFacts) -> bool:
        """Return whether tensor cores multiply what memory holds, and a tile is not mostly empty."""
        is_large = product.extent(ROWS) >= ROW_LANES and product.extent(COLUMNS) >= ROW_LANES
        return product.rows.dtype in gpu.narrow and is_large and product.depth * itemsize(product.rows.dtype) >= STEP

    def inner(self, role: str) -> tuple[int, ...]:
        """Return warps, instructions of a warp, and what the digits of a lane and its own are."""
        tile = self.tile
        if role == ROWS:
            return tile.thread_rows // ROW_LANES, tile.rows // HALVES, HALVES, ROW_LANES
        return tile.thread_columns // COLUMN_LANES, tile.columns // HALVES, COLUMN_LANES, HALVES

    @property
    def vector_of_terms(self) -> int:
        """Terms that a thread copies as one."""
        return VECTOR // itemsize(self.product.rows.dtype)

    def _copied(self, role: str) -> te.Tensor:
        """What shared memory holds of a factor: matrix, tile, round, row or column by its digits, terms."""
        tile, (tiles, *inside), rounds = self.tile, self.digits(role), self.rounds * self.tile.parts
        vector = self.vector_of_terms
        runs, place = prod(inside[:-1]), inside[-1]

        def places(o: Any, ko: Any, *at: Any) -> tuple[Place, Place]:
            *digits, v, kq, kv = at
            run = o
            for extent, digit in zip(inside[:-1], digits, strict=True):
                run = run * extent + digit
            k = Place(ko * (tile.depth // vector) + kq, kv, vector, self.product.depth, rounds * tile.depth)
            return Place(run, v, place, self.extents[role], tiles * runs * place), k

        return self.copied(role, (tiles, rounds, *inside, tile.depth // vector, vector), places)

    def sums(self) -> te.Tensor:
        """Return the sums in digits: part, matrix, then tile, warp, instruction, half and lane of rows, and tile, warp,
        instruction, lane and place of columns."""
        s, tile, vector = self.s, self.tile, self.vector_of_terms
        rows, columns = self._copied(ROWS), self._copied(COLUMNS)
        rounds, term = te.reduce_axis((0, self.rounds), name="ko"), te.reduce_axis((0, tile.depth), name="k")

        def element(part: Any, b: Any, mo: Any, *at: Any) -> Any:
            of_row, (po, *of_column) = at[:4], at[4:]
            k, at_term = part * self.rounds + rounds, (term // vector, term % vector)
            row, column = rows[(b, mo, k, *of_row, *at_term)], columns[(b, po, k, *of_column, *at_term)]
            return te.sum(cast("float32", row) * cast("float32", column), axis=[rounds, term])

        shape = (tile.parts, self.extents[BATCH], *self.digits(ROWS), *self.digits(COLUMNS))
        sums = self.insert("sums", shape, element)
        s[sums].set_scope("local")
        part, b, mo, wr, mi, half, g, po, wc, ni, t, place = s[sums].op.axis
        s[sums].reorder(part, b, mo, po, wc, wr, g, t, rounds, mi, ni, half, place, term)
        for axis in (mi, ni):
            s[sums].unroll(axis)
        s[sums].tensorize(half)
        for copy, role in ((rows, ROWS), (columns, COLUMNS)):
            self._copy(copy, sums, rounds, role)
        return sums

    def _copy(self, copy: te.Tensor, sums: te.Tensor, rounds: te.IterVar, role: str) -> None:
        """Shares a copy to shared memory out to the threads of a block: neighbours in memory go to neighbours, 16
        bytes of terms to shared memory at once."""
        s, tile = self.s, self.tile
        self.share(copy, sums, rounds)
        _, _, _, *digits, kq, kv = s[copy].op.axis
        along_terms = self.product.runs_along_terms(role)
        s[copy].reorder(*([*digits, kq] if along_terms else [kq, *digits]), kv)
        whole = s[copy].fuse(*([*digits, kq] if along_terms else [kq, *digits]))
        rest, x = s[copy].split(whole, factor=COLUMN_LANES)
        rest, y = s[copy].split(rest, factor=tile.thread_rows)
        rest, z = s[copy].split(rest, factor=tile.thread_columns // COLUMN_LANES)
        self._bind_threads(copy, z, y, x)
        s[copy].unroll(rest)
        self.vector(copy, kv)
        if copy in self.reads:
            s[self.reads[copy]].compute_at(s[copy], x)

    def _bind_threads(self, t: te.Tensor, z: te.IterVar, y: te.IterVar, x: te.IterVar) -> None:
        tile = self.tile
        self.s[t].bind(z, te.thread_axis((0, tile.thread_columns // COLUMN_LANES), "threadIdx.z"))
        self.s[t].bind(y, te.thread_axis((0, tile.thread_rows), "threadIdx.y"))
        self.s[t].bind(x, te.thread_axis((0, COLUMN_LANES), "threadIdx.x"))

    def cut(self, out: te.Tensor, sums: te.Tensor, b: te.IterVar, m: te.IterVar, p: te.IterVar) -> None:
        """Cuts what reads the sums as they are cut: its loops over matrices, rows and columns."""
        s = self.s
        mo, wr, mi, half, g = self.splits(out, m, ROWS)
        po, wc, ni, t, place = self.splits(out, p, COLUMNS)
        s[out].reorder(b, mo, po, wc, wr, g, t, mi, half, ni, place)
        self.bind_blocks(out, b, mo, po)
        self._bind_threads(out, wc, s[out].fuse(wr, g), t)
        for axis in (mi, half, ni):
            s[out].unroll(axis)
        self.vector_of_columns(out, place)
        s[sums].compute_at(s[out], t)
