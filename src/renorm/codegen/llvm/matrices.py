"""Tensorized loops to instructions of a matrix unit: AMX, whose eight tile registers have 16 rows of 64 bytes.

    zero       C[i, j] = 0                                    tilezero
    product    C[i, j] += A[i, k, p] * B[k, j, p]             tdpbf16ps, p of 2; tdpbusd of bytes, p of 4
    move       X[i, j] = C[i, j]                              tilestored

C, a buffer of scope tile with j of up to 32, is four registers at most: i is one loop of up to 32 rows, or two, the
outer one of 2. Two registers hold parts of A, and two of B, whose rows are runs of memory, evenly spaced. The shapes of
registers are a configuration, which a thread loads where C begins to live unless it has loaded it already: it takes as
long as ten products.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from renorm.codegen.llvm.expressions import Expressions
from renorm.codegen.llvm.nests import count, factors_of, first, is_zero, nest, slopes_of
from renorm.codegen.llvm.ssa import I8, PTR, Function, Value
from renorm.core import dtypes
from renorm.core.dots import PAIRS, Dot
from renorm.core.machine import MatrixUnit
from renorm.expr.nodes import Expr, Load, Var
from renorm.expr.rewrite import loads
from renorm.tir.nodes import Allocate, Buffer, For, Stmt, Store, children, expressions, walk

UNIT = MatrixUnit()
ROWS, COLUMNS, SIDE = UNIT.rows, UNIT.columns, UNIT.side
_A, _B = 4, 6  # the first registers of A and B; those of C are before them
_PRODUCTS = {("bfloat16", "bfloat16"): "tdpbf16ps", ("uint8", "int8"): "tdpbusd"}  # by dtypes of A and B


@dataclass(frozen=True)
class _Register:
    """Rows of a tile. at: where they begin in the loops over rows."""

    rows: int
    at: Mapping[Var, int]


@dataclass(frozen=True)
class _Tile:
    """The registers that a buffer of scope tile is held in."""

    registers: tuple[_Register, ...]
    columns: tuple[int, ...]  # of registers side by side

    @property
    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows and columns of its registers."""
        return tuple(r.rows for r in self.registers), self.columns


@dataclass(frozen=True)
class _Part:
    """A matrix in memory. first: index of its first element; slopes: how far apart rounds of each loop lie; rows:
    elements from one row to the next."""

    buffer: Buffer
    first: Expr
    slopes: Mapping[Var, int]
    rows: int

    def offset(self, register: _Register) -> int:
        """Return how many elements after the first one a register begins."""
        return sum(self.slopes[v] * i for v, i in register.at.items())


@dataclass(frozen=True)
class _Zero:
    tile: _Tile


@dataclass(frozen=True)
class _Move:
    tile: _Tile
    to: _Part


@dataclass(frozen=True)
class _Product:
    tile: _Tile
    dot: Dot
    depth: int
    a: _Part
    b: _Part


class Matrices:
    """Emits tensorized loops into one function. A buffer of scope tile that other loops touch, or in tiles of several
    shapes, is memory like any other, and its loops run one after the other."""

    def __init__(self, function: Function, x: Expressions):
        self._f, self._x = function, x
        self._loaded: Value | None = None  # where the address of the configuration is that is loaded
        self._held = set[Buffer]()

    def begin(self, s: Allocate) -> bool:
        """Give registers the shapes that accumulators need, where these begin to live; return whether registers hold
        them."""
        parts = [_part_of(loop, s.buffer) for loop in _tensorized(s.body) if _touches(loop, s.buffer)]
        is_alone = not any(_touches(x, s.buffer) for x in _plain(s.body))
        shapes = {p.tile.shape for p in parts if p is not None}
        sums = {(p.dot, p.depth) for p in parts if isinstance(p, _Product)}
        fits = is_alone and None not in parts and len(shapes) == len(sums) == 1
        if not fits or any(depth > UNIT.depth(dot) for dot, depth in sums):
            return False
        self._configure(*shapes.pop(), *sums.pop())
        self._held.add(s.buffer)
        return True

    def release(self) -> None:
        """At the end of the function: what a thread does not use need not be saved."""
        if self._loaded is not None:
            self._f.effect("call void @llvm.x86.tilerelease()")

    def emit(self, s: For) -> bool:
        """Emit tensorized loops over what registers hold; return whether they were such."""
        buffer = next((b for b in self._held if _touches(s, b)), None)
        part = None if buffer is None else _part_of(s, buffer)
        match part:
            case _Product():
                self._multiply(part)
            case _Move():
                self._move(part)
            case _Zero():
                self._zero(part)
            case _:
                return False
        return True

    def _configure(self, rows: Sequence[int], columns: Sequence[int], dot: Dot, depth: int) -> None:
        f, steps = self._f, depth // dot.count
        of_a, of_b = ([part[min(i, len(part) - 1)] for i in range(SIDE)] for part in (rows, columns))
        heights = [of_a[c // SIDE] for c in range(SIDE * SIDE)] + of_a + [steps] * SIDE
        widths = [4 * of_b[c % SIDE] for c in range(SIDE * SIDE)] + [4 * steps] * SIDE + [4 * n for n in of_b]
        held = [1, *[0] * 15, *(b for w in (*widths, *[0] * 8) for b in (w, 0)), *heights, *[0] * 8]
        table = f.table(f"tiles_{'_'.join(map(str, (*of_a, *of_b, steps)))}", I8, held)
        if self._loaded is None:
            self._loaded = f.allocate_one(PTR)
            f.entry.lines.append(f"store ptr null, ptr {self._loaded.text}")
        loaded = f.effect(f"load ptr, ptr {self._loaded.text}", PTR)
        with f.branch(f.compare("icmp ne", loaded, table)):
            f.effect(f"call void @llvm.x86.ldtilecfg(ptr {table.text})")
            f.effect(f"store ptr {table.text}, ptr {self._loaded.text}")

    def _zero(self, p: _Zero) -> None:
        for a in range(len(p.tile.registers)):
            for b in range(len(p.tile.columns)):
                self._f.effect(f"call void @llvm.x86.tilezero(i8 {a * SIDE + b})")

    def _multiply(self, p: _Product) -> None:
        name = _PRODUCTS[p.a.buffer.dtype, p.b.buffer.dtype]
        for a, register in enumerate(p.tile.registers):
            self._access("tileloadd64", _A + a, p.a, p.a.offset(register))
            for b in range(len(p.tile.columns)):
                if not a:
                    self._access("tileloadd64", _B + b, p.b, b * p.dot.count * COLUMNS)
                self._f.effect(f"call void @llvm.x86.{name}(i8 {a * SIDE + b}, i8 {_A + a}, i8 {_B + b})")

    def _move(self, p: _Move) -> None:
        for a, register in enumerate(p.tile.registers):
            for b in range(len(p.tile.columns)):
                self._access("tilestored64", a * SIDE + b, p.to, p.to.offset(register) + b * COLUMNS)
        self._x.memory.forget([self._x.memory.places[p.to.buffer]])

    def _access(self, name: str, register: int, part: _Part, offset: int) -> None:
        """Reads or writes the rows of a register."""
        place = self._x.memory.places[part.buffer]
        form = self._x.indices.linear(part.first).offset(offset)
        address = self._x.indices.address(place.pointer, place.element, form)
        step = part.rows * dtypes.itemsize(place.dtype)
        self._f.effect(f"call void @llvm.x86.{name}(i8 {register}, ptr {address.text}, i64 {step})")


def _tensorized(s: Stmt) -> Iterator[For]:
    """The outermost tensorized loops in a statement."""
    if isinstance(s, For) and s.kind == "tensorized":
        yield s
        return
    for part in children(s):
        yield from _tensorized(part)


def _plain(s: Stmt) -> Iterator[Stmt]:
    """The statements in one that are in no tensorized loop, each by itself."""
    if isinstance(s, For) and s.kind == "tensorized":
        return
    if not children(s):
        yield s
    for part in children(s):
        yield from _plain(part)


def _touches(s: Stmt, buffer: Buffer) -> bool:
    """Return whether a statement reads or writes a buffer."""
    for x in walk(s):
        if isinstance(x, Store) and x.buffer is buffer:
            return True
        if any(load.source is buffer for e in expressions(x) for load in loads(e)):
            return True
    return False


def _part_of(s: For, accumulators: Buffer) -> _Zero | _Move | _Product | None:
    """Return what tensorized loops do with accumulators; None where there is no instruction for it."""
    loops, store = nest(s)
    if store is None:
        return None
    if store.buffer is accumulators and is_zero(store.value):
        slopes = slopes_of(store.index, loops)
        tile = None if slopes is None else _tile_of(loops, slopes)
        return None if tile is None else _Zero(tile)
    if isinstance(store.value, Load) and store.value.source is accumulators:
        return _moved(loops, store, store.value)
    return _product(s, accumulators)


def _moved(loops: Sequence[For], store: Store, held: Load) -> _Move | None:
    of_c, slopes = slopes_of(held.indices[0], loops), slopes_of(store.index, loops)
    tile = None if of_c is None else _tile_of(loops, of_c)
    if of_c is None or slopes is None or tile is None or held.predicate is not None or store.nontemporal:
        return None
    column = next(x.var for x in loops if of_c[x.var] == 1)
    if slopes[column] != 1 or store.buffer.dtype != held.dtype:
        return None  # columns of a tile are copied side by side
    return _Move(tile, _Part(store.buffer, first(store.index, loops), slopes, _row_step(slopes, of_c, loops)))


def _row_loops(of_c: Mapping[Var, int], loops: Sequence[For]) -> list[For]:
    return [x for x in loops if of_c[x.var] > 1]


def _row_step(slopes: Mapping[Var, int], of_c: Mapping[Var, int], loops: Sequence[For]) -> int:
    """Return how far apart the rows of a register lie."""
    rows = _row_loops(of_c, loops)
    return slopes[rows[-1].var] if rows else 0


def _tile_of(loops: Sequence[For], of_c: Mapping[Var, int]) -> _Tile | None:
    """The registers of accumulators. of_c: slopes of their index."""
    columns = next((count(x) for x in loops if of_c[x.var] == 1), 0)
    rows = _row_loops(of_c, loops)
    if not 0 < columns <= SIDE * COLUMNS or any(k < 0 for k in of_c.values()) or len(rows) > 2:
        return None
    registers = [_Register(1, {})]
    if len(rows) == 1:
        heights = UNIT.registers(1, count(rows[0]))
        registers = [_Register(h, {rows[0].var: sum(heights[:i])}) for i, h in enumerate(heights)]
    elif rows:
        outer, inner = rows
        registers = [_Register(count(inner), {outer.var: i}) for i in range(count(outer))]
    fits = 0 < len(registers) <= SIDE and all(0 < r.rows <= ROWS for r in registers)
    across = tuple(min(COLUMNS, columns - b) for b in range(0, columns, COLUMNS))
    return _Tile(tuple(registers), across) if fits else None


def _product(s: For, accumulators: Buffer) -> _Product | None:
    """The product of matrices that tensorized loops are; None where they are none."""
    loops, store = nest(s)
    if store is None or store.buffer is not accumulators or s.kind != "tensorized":
        return None
    dot, found = next(((dot, found) for dot in UNIT.dots if (found := factors_of(store, dot))), (PAIRS, ()))
    sides = [x for x in found if isinstance(x, Load) and x.predicate is None]
    buffers = [x.source for x in sides if isinstance(x.source, Buffer)]
    if len(buffers) != 2:
        return None
    (a, b), (left, right) = sides, buffers
    slopes = [slopes_of(i, loops) for i in (store.index, a.indices[0], b.indices[0])]
    if any(x is None for x in slopes):
        return None
    of_c, of_a, of_b = (x or {} for x in slopes)
    tile = _tile_of(loops, of_c)
    column = next((x.var for x in loops if of_c[x.var] == 1), None)
    if tile is None or column is None:
        return None
    if of_a[column]:
        a, b, left, right, of_a, of_b = b, a, right, left, of_b, of_a
    if (left.dtype, right.dtype) not in _PRODUCTS:
        return None
    rows = _row_loops(of_c, loops)
    summed = [x for x in loops if of_c[x.var] == 0]
    neighbours = next((x for x in summed if count(x) == dot.count and of_a[x.var] == 1 == of_b[x.var]), None)
    steps = [x for x in summed if x is not neighbours]
    are_neighbours = of_a[column] == 0 and of_b[column] == dot.count and all(of_a[x.var] == dot.count for x in steps)
    if neighbours is None or len(steps) > 1 or not are_neighbours or any(of_b[x.var] for x in rows):
        return None
    of_rows = _Part(left, first(a.indices[0], loops), of_a, _row_step(of_a, of_c, loops))
    of_columns = _Part(right, first(b.indices[0], loops), of_b, of_b[steps[0].var] if steps else 0)
    return _Product(tile, dot, dot.count * (count(steps[0]) if steps else 1), of_rows, of_columns)
