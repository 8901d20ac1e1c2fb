"""GPU: a matrix product whose rows and columns are cut into digits, which blocks, threads and their registers share.

    m = (tile of rows, ..., digit)    p = (tile of columns, ..., digit)    k = (round, place)

    rows[tile][round], columns[tile][round]     copies in shared memory, made by all threads of a block
    sums[tile of rows][tile of columns]         in the registers of threads
    main[m, p] = sums[digits of m][digits of p]

Where blocks would be too few, several of them share the terms of a sum: what each has goes to memory, and a second
launch adds up. Beyond the last row, column or term the last one is read, or zeros are, and so no condition stands in
the inner loops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from renorm import te
from renorm.expr.nodes import Expr, Load, Reduce, const
from renorm.expr.rewrite import substitute
from renorm.ops.schedules import cuda
from renorm.ops.schedules.gpu_contraction import BATCH, COLUMNS, ROWS, cut
from renorm.ops.schedules.gpu_stages import Product, where
from renorm.ops.schedules.gpu_tiles import Tile
from renorm.te.tensor import source_of


@dataclass(frozen=True)
class Place:
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


@dataclass
class Cuts(Product, ABC):
    """A product of many rows and many columns."""

    tile: Tile

    def __post_init__(self) -> None:
        self.extents = {role: self.product.extent(role) for role in (BATCH, ROWS, COLUMNS)}
        self.rounds = -(-self.product.depth // (self.tile.depth * self.tile.parts))
        self.reads = dict[te.Tensor, te.Tensor]()  # of copies, what is read without conditions

    @abstractmethod
    def inner(self, role: str) -> tuple[int, ...]:
        """Return the digits of a row or column inside a tile of a block."""

    @abstractmethod
    def sums(self) -> te.Tensor:
        """Return the stage of sums: part, matrix, then the digits of rows, and of columns."""

    @abstractmethod
    def cut(self, out: te.Tensor, sums: te.Tensor, b: te.IterVar, m: te.IterVar, p: te.IterVar) -> None:
        """Cuts what reads the sums as they are cut: its loops over matrices, rows and columns."""

    def schedule(self, out: te.Tensor) -> None:
        """Schedules `main`, and `out`, which is made of it element by element or is itself."""
        s, main, tile = self.s, self.main, self.tile
        sums = self.sums()
        if tile.parts == 1:
            self.redefine(lambda *at: self._read(sums, const(0), *at))
            if main is not out:
                s[main].compute_inline()
            self.cut(out, sums, *self.joined(out))
            return
        shape = (tile.parts, *self.extents.values())
        parts = self.insert("parts", shape, lambda part, b, m, p: self._read(sums, part, b, m, p))
        part = te.reduce_axis((0, tile.parts), name="part")
        self.redefine(lambda *at: Reduce("sum", parts[(part.var, *at)], [part]))
        first, b, m, p = s[parts].op.axis
        self.cut(parts, sums, s[parts].fuse(first, b), m, p)
        total = s.cache_write(main, "local") if main is out else main
        s[total].set_scope("local")
        s[total].compute_at(s[out], cuda.bind(s, out))
        s[total].unroll(s[total].op.reduce_axis[0])

    def digits(self, role: str) -> tuple[int, ...]:
        """Return how many tiles there are, and the digits inside one."""
        inside = self.inner(role)
        return -(-self.extents[role] // prod(inside)), *inside

    def _read(self, sums: te.Tensor, part: Expr, b: Expr, m: Expr, p: Expr) -> Expr:
        """The element of the sums for a row and column."""
        return sums[(part, b, *cut(m, self.digits(ROWS)), *cut(p, self.digits(COLUMNS)))]

    def splits(self, out: te.Tensor, axis: te.IterVar, role: str) -> list[te.IterVar]:
        """Return the loops of a result over the digits of its rows or columns, tiles first."""
        found = list[te.IterVar]()
        for extent in reversed(self.inner(role)):
            axis, digit = self.s[out].split(axis, factor=extent)
            found.append(digit)
        return [axis, *reversed(found)]

    def copied(self, role: str, shape: Sequence[int], places: Callable[..., tuple[Place, Place]]) -> te.Tensor:
        """Return the stage of a factor in shared memory, of each matrix. places: the row or column, and the term, that
        is at an element of a `shape`."""
        product, whole = self.product, (self.extents[BATCH], *shape)

        def element(b: Any, *at: Any) -> Any:
            number, k = places(*at)
            if product.is_plain(role):  # the last one in the place of those behind, whose sums are not kept
                return where(k.inside, product.element(role, {BATCH: b, role: number.clamped}, k.value))
            inside = [*number.inside, *k.inside]
            return where(inside, product.element(role, {BATCH: b, role: number.value}, k.value))

        padded = product.padded(role)
        if padded is None or product.summed[-1].extent % self.tile.depth == 0:
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

    def share(self, copy: te.Tensor, sums: te.Tensor, rounds: te.IterVar) -> None:
        """Keeps what a round needs of a factor in shared memory."""
        s = self.s
        s[copy].set_scope("shared")
        s[copy].compute_at(s[sums], rounds)
        if self.tile.is_ahead:
            s[copy].double_buffer()

    def vector(self, t: te.Tensor, axis: te.IterVar) -> None:
        """Makes accesses to whole vectors of a loop, where there are such."""
        (self.s[t].vectorize if axis.extent in (2, 4, 8) else self.s[t].unroll)(axis)

    def vector_of_columns(self, out: te.Tensor, axis: te.IterVar) -> None:
        """Makes accesses to whole vectors of the innermost loop of a result, where rows of it hold whole ones."""
        if self.extents[COLUMNS] % axis.extent == 0:
            self.vector(out, axis)
        else:
            self.s[out].unroll(axis)
