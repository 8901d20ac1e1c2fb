"""GPU: matrix products and convolutions, with what stands after them elementwise.

    each block: a tile of rows by a tile of columns
      each thread: sums = 0, of a few rows by a few columns, in registers
      for each round of terms
        rows[k][row], columns[k][column] to shared memory, by all threads of the block together
        for each term k of the round: sums += rows[k] * columns[k]
      what is computed from the sums, to memory

A convolution is a product of its weights and of what its windows hold (gpu_contraction); these columns are made in
shared memory, and nowhere else. Where blocks would be too few, several of them share the terms of a sum: what each has
goes to memory, and a second launch adds up.

Arrays are cut into digits, so that what a thread has of a tile is a box of them: rows 0..3 and 64..67 of a tile are
[0..1][0][0..3]. Beyond the last row, column or term the last one is read, or zeros are, and so no condition stands in
the inner loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.gpu import GpuFacts, facts
from renorm.core.target import Target
from renorm.expr.nodes import Expr, Load, Reduce, const
from renorm.expr.rewrite import substitute
from renorm.ops.schedules import cpu_injective, cuda, gpu_few, structure
from renorm.ops.schedules.gpu_contraction import BATCH, COLUMNS, ROWS, Contraction, cut
from renorm.ops.schedules.gpu_stages import VECTOR, Product, find, is_alike, where
from renorm.ops.schedules.gpu_tiles import COPY, COPY_VECTOR, COPY_WINDOW, DEPTHS, Tile, choose
from renorm.te.tensor import source_of


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """One launch for a product and all that is elementwise after it, or two; launches of one thread per element where
    that is not what the stages are."""
    products = find(outs)
    if not products:
        cuda.schedule(s, outs, target)
        return
    mains = [main for main, _ in products]
    cpu_injective.inline(s, outs, keep=mains)
    is_one = len(outs) == len(mains) == 1 and (outs[0] is mains[0] or is_alike(outs[0], mains[0]))
    for main, product in products:
        place(s, main, product, outs[0] if is_one else main, facts(target.arch))
    for t in structure.stages(outs):  # what reads the sums at other places, or several times
        if not is_one and t not in mains and (structure.is_reduction(t) or t in outs):
            sums = s.cache_write(t, "local") if structure.is_reduction(t) else None
            thread = cuda.bind(s, t)
            if sums is not None:
                s[sums].compute_at(s[t], thread)


def place(s: te.Schedule, main: te.Tensor, product: Contraction, out: te.Tensor, gpu: GpuFacts) -> None:
    """Schedules the launches of one product: of `main`, and of `out`, which is made of it element by element or is
    itself."""
    if gpu_few.takes(product):
        gpu_few.Few(s, main, product, gpu).schedule(out)
        return
    batch, rows, columns = (product.extent(role) for role in (BATCH, ROWS, COLUMNS))
    run = product.summed[-1].extent if product.padded(COLUMNS) is not None else 0
    copies = _copying(product, ROWS), _copying(product, COLUMNS)
    tile = choose(batch, rows, columns, product.depth, gpu, itemsize(main.dtype), run, copies)
    _Tiled(s, main, product, tile).schedule(out)


def _copying(product: Contraction, role: str) -> float:
    """What it takes to copy an element of a factor to shared memory."""
    if product.is_plain(role):
        is_vector = product.run(role) % VECTOR == 0 and not product.runs_along_terms(role)
        return COPY_VECTOR if is_vector else COPY
    is_at_one_tap = product.padded(role) is not None and product.summed[-1].extent % DEPTHS[0] == 0
    return COPY if is_at_one_tap else COPY_WINDOW


@dataclass
class _Tiled(Product):
    """A product of many rows and many columns."""

    tile: Tile

    def __post_init__(self) -> None:
        self.extents = {role: self.product.extent(role) for role in (BATCH, ROWS, COLUMNS)}
        self.cuts = {
            ROWS: (self.tile.rows, self.tile.thread_rows),
            COLUMNS: (self.tile.columns, self.tile.thread_columns),
        }
        self.rounds = -(-self.product.depth // (self.tile.depth * self.tile.parts))
        self.reads = dict[te.Tensor, te.Tensor]()  # of copies, what is read without conditions

    def schedule(self, out: te.Tensor) -> None:
        """Schedules `main`, and `out`, which is made of it element by element or is itself."""
        s, main, tile = self.s, self.main, self.tile
        sums = self._sums()
        if tile.parts == 1:
            self.redefine(lambda *at: self._read(sums, const(0), *at))
            if main is not out:
                s[main].compute_inline()
            self._cut(out, sums, *self.joined(out))
            return
        shape = (tile.parts, *self.extents.values())
        parts = self.insert("parts", shape, lambda part, b, m, p: self._read(sums, part, b, m, p))
        part = te.reduce_axis((0, tile.parts), name="part")
        self.redefine(lambda *at: Reduce("sum", parts[(part.var, *at)], [part]))
        first, b, m, p = s[parts].op.axis
        self._cut(parts, sums, s[parts].fuse(first, b), m, p)
        total = s.cache_write(main, "local") if main is out else main
        s[total].set_scope("local")
        s[total].compute_at(s[out], cuda.bind(s, out))
        s[total].unroll(s[total].op.reduce_axis[0])

    def _digits(self, role: str) -> tuple[int, int, int, int]:
        """Tiles, runs of a thread, threads, and places in a run."""
        own, threads = self.cuts[role]
        place = min(VECTOR, own)
        return -(-self.extents[role] // (own * threads)), own // place, threads, place

    def _read(self, sums: te.Tensor, part: Expr, b: Expr, m: Expr, p: Expr) -> Expr:
        """The element of the sums for a row and column."""
        return sums[(part, b, *cut(m, self._digits(ROWS)), *cut(p, self._digits(COLUMNS)))]

    def _copied(self, role: str) -> te.Tensor:
        """What shared memory holds of a factor: matrix, tile, round, terms, then rows or columns in their places."""
        tile, product, extent = self.tile, self.product, self.extents[role]
        tiles, runs, threads, place = self._digits(role)
        shape = (self.extents[BATCH], tiles, self.rounds * tile.parts, tile.depth // VECTOR, VECTOR)

        count, terms = tiles * runs * threads * place, shape[2] * tile.depth

        def places(o: Any, ko: Any, kq: Any, kv: Any, r: Any, t: Any, v: Any) -> tuple[_Place, _Place]:
            run = (o * runs + r) * threads + t
            return (
                _Place(run, v, place, extent, count),
                _Place(ko * (tile.depth // VECTOR) + kq, kv, VECTOR, product.depth, terms),
            )

        def element(b: Any, *at: Any) -> Any:
            number, k = places(*at)
            if product.is_plain(role):  # the last one in the place of those behind, whose sums are not kept
                return where(k.inside, product.element(role, {BATCH: b, role: number.clamped}, k.value))
            inside = [*number.inside, *k.inside]
            return where(inside, product.element(role, {BATCH: b, role: number.value}, k.value))

        whole, padded = (*shape, runs, threads, place), product.padded(role)
        if padded is None or product.summed[-1].extent % tile.depth == 0:
            return self.insert(role, whole, element)
        # terms of a round lie at different places of a window, and some are padding: reads without conditions do not
        # wait for each other
        condition, load = padded

        def read(b: Any, *at: Any) -> Any:
            number, k = places(*at)
            values = product.place({BATCH: b, role: number.clamped}, k.clamped)
            indices = [substitute(i, values) for i in load.indices]
            extents = source_of(load).shape
            return Load(load.source, [te.max(te.min(i, e - 1), 0) for i, e in zip(indices, extents, strict=True)])

        def chosen(b: Any, *at: Any) -> Any:
            number, k = places(*at)
            inside = substitute(condition, product.place({BATCH: b, role: number.value}, k.value))
            return where([*number.inside, *k.inside, inside], fetched[(b, *at)])

        fetched = self.insert(f"{role}.read", whole, read)
        self.s[fetched].set_scope("local")
        copied = self.insert(role, whole, chosen)
        self.reads[copied] = fetched
        return copied

    def _sums(self) -> te.Tensor:
        """The sums in digits: part, matrix, then tile, run, thread and place in a run of rows, and of columns."""
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

        shape = (tile.parts, self.extents[BATCH], *self._digits(ROWS), *self._digits(COLUMNS))
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
            self._vector(own, s[own].op.axis[-1])
            s[own].unroll(s[own].op.axis[-3])
            self._copy(copy, sums, rounds, role)
        return sums

    def _copy(self, copy: te.Tensor, sums: te.Tensor, rounds: te.IterVar, role: str) -> None:
        """Shares a copy to shared memory out to the threads of a block: neighbours in memory go to neighbours."""
        s, tile = self.s, self.tile
        s[copy].set_scope("shared")
        s[copy].compute_at(s[sums], rounds)
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
            self._vector(copy, order[-1])
        elif fetched is not None:  # vectors of terms, which lie apart in shared memory
            s[copy].unroll(order[-1])
            s[fetched].compute_at(s[copy], x)
            self._vector(fetched, s[fetched].op.axis[4])

    # -- loops

    def _vector(self, t: te.Tensor, axis: te.IterVar) -> None:
        (self.s[t].vectorize if axis.extent in (2, 4) else self.s[t].unroll)(axis)

    def _bind_threads(self, t: te.Tensor, y: te.IterVar, x: te.IterVar) -> None:
        self.s[t].bind(y, te.thread_axis((0, self.tile.thread_rows), "threadIdx.y"))
        self.s[t].bind(x, te.thread_axis((0, self.tile.thread_columns), "threadIdx.x"))

    def _cut(self, out: te.Tensor, sums: te.Tensor, b: te.IterVar, m: te.IterVar, p: te.IterVar) -> None:
        """Cuts what reads the sums as they are cut: its loops over matrices, rows and columns."""
        s = self.s
        (mo, mr, my, mv), (po, pr, px, pv) = self._split(out, m, ROWS), self._split(out, p, COLUMNS)
        s[out].reorder(b, mo, po, my, px, mr, mv, pr, pv)
        self.bind_blocks(out, b, mo, po)
        self._bind_threads(out, my, px)
        for axis in (mr, mv, pr):
            s[out].unroll(axis)
        if self.extents[COLUMNS] % pv.extent == 0:
            self._vector(out, pv)
        else:
            s[out].unroll(pv)
        s[sums].compute_at(s[out], px)

    def _split(self, out: te.Tensor, axis: te.IterVar, role: str) -> tuple[te.IterVar, ...]:
        _, runs, threads, place = self._digits(role)
        run, inside = self.s[out].split(axis, factor=place)
        rest, thread = self.s[out].split(run, factor=threads)
        tile, own = self.s[out].split(rest, factor=runs)
        return tile, own, thread, inside


@dataclass(frozen=True)
class _Place:
    """A number run * places + place, which may be beyond its extent; below `padded`."""

    run: Any
    place: Any
    places: int
    extent: int
    padded: int

    @property
    def value(self) -> Expr:
        return self.run * self.places + self.place

    @property
    def inside(self) -> list[Expr]:
        """The condition that it is within its extent, where it may not be; of whole runs where these are whole."""
        if self.extent == self.padded:
            return []
        is_whole = self.extent % self.places == 0
        return [self.run < self.extent // self.places if is_whole else self.value < self.extent]

    @property
    def clamped(self) -> Expr:
        """The number, or the last one in the place of those beyond."""
        if self.extent == self.padded:
            return self.value
        if self.extent % self.places:
            return te.min(self.value, self.extent - 1)
        return te.min(self.run, self.extent // self.places - 1) * self.places + self.place
