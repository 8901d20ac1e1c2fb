"""Tensorized loops to instructions of a matrix unit: AMX, whose eight tile registers have 16 rows of 64 bytes.

    zero       C[i, j] = 0                                    tilezero
    product    C[i, j] += A[i, k, p] * B[k, j, p]             tdpbf16ps, p of 2
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
from renorm.codegen.llvm.ssa import I8, PTR, Function, Value
from renorm.core import dtypes
from renorm.core.errors import InvalidLoops
from renorm.expr.linear import linear
from renorm.expr.nodes import Binary, Cast, Const, Expr, Load, Var
from renorm.expr.rewrite import depends_on, same, substitute
from renorm.tir.nodes import Allocate, Buffer, For, Stmt, Store, children
from renorm.tir.nodes import constant as number

ROWS, COLUMNS, ROW_BYTES = 16, 16, 64  # of a register; columns of float32
SIDE = 2  # registers of C along rows, and along columns
_A, _B = 4, 6  # the first registers of A and B; those of C are before them


@dataclass(frozen=True)
class _Register:
    """Rows of a tile. at: where they begin in the loops over rows."""

    rows: int
    at: Mapping[Var, int]


@dataclass(frozen=True)
class _Tile:
    """What tensorized loops compute of a buffer of scope tile."""

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
class _Product:
    tile: _Tile
    depth: int
    a: _Part
    b: _Part


class Matrices:
    """Emits tensorized loops into one function."""

    def __init__(self, function: Function, x: Expressions, kernel: str):
        self._f, self._x, self._kernel = function, x, kernel
        self._loaded: Value | None = None  # where the address of the configuration is that is loaded

    def begin(self, s: Allocate) -> None:
        """Where accumulators begin to live: registers get the shapes that the products need."""
        products = [p for loop in _tensorized(s.body) if (p := _product(loop, s.buffer))]
        shapes = {(*p.tile.shape, p.depth) for p in products}
        if len(shapes) != 1:
            raise self._refused(s.buffer.name, f"products of {len(shapes)} shapes, expected 1")
        self._configure(*shapes.pop())

    def release(self) -> None:
        """At the end of the function: what a thread does not use need not be saved."""
        if self._loaded is not None:
            self._f.effect("call void @llvm.x86.tilerelease()")

    def emit(self, s: For) -> None:
        """Raises InvalidLoops where there are no such instructions."""
        loops, store = _nest(s)
        product = None if store is None else _product(s, store.buffer)
        if store is not None and store.buffer.scope == "tile" and product is not None:
            self._multiply(product)
        elif store is not None and store.buffer.scope == "tile" and _is_zero(store.value):
            self._zero(loops, store)
        elif store is not None and isinstance(store.value, Load) and _scope(store.value) == "tile":
            self._move(loops, store, store.value)
        else:
            what = "no start values, copy, or product of bfloat16 that lie in pairs"
            raise self._refused("tensorized loops", what, *str(s).splitlines())

    def _configure(self, rows: Sequence[int], columns: Sequence[int], depth: int) -> None:
        f = self._f
        if depth % 2 or not 0 < depth <= ROW_BYTES // 2:
            raise self._refused("tensorized loops", f"sums of {depth}, expected pairs, up to {ROW_BYTES // 2}")
        of_a, of_b = ([part[min(i, len(part) - 1)] for i in range(SIDE)] for part in (rows, columns))
        heights = [of_a[c // SIDE] for c in range(SIDE * SIDE)] + of_a + [depth // 2] * SIDE
        widths = [4 * of_b[c % SIDE] for c in range(SIDE * SIDE)] + [2 * depth] * SIDE + [4 * n for n in of_b]
        held = [1, *[0] * 15, *(b for w in (*widths, *[0] * 8) for b in (w, 0)), *heights, *[0] * 8]
        table = f.table(f"tiles_{'_'.join(map(str, (*of_a, *of_b, depth)))}", I8, held)
        if self._loaded is None:
            self._loaded = f.allocate_one(PTR)
            f.entry.lines.append(f"store ptr null, ptr {self._loaded.text}")
        loaded = f.effect(f"load ptr, ptr {self._loaded.text}", PTR)
        with f.branch(f.compare("icmp ne", loaded, table)):
            f.effect(f"call void @llvm.x86.ldtilecfg(ptr {table.text})")
            f.effect(f"store ptr {table.text}, ptr {self._loaded.text}")

    def _zero(self, loops: Sequence[For], store: Store) -> None:
        tile = self._tile(loops, store.index)
        for a in range(len(tile.registers)):
            for b in range(len(tile.columns)):
                self._f.effect(f"call void @llvm.x86.tilezero(i8 {a * SIDE + b})")

    def _multiply(self, p: _Product) -> None:
        for a, register in enumerate(p.tile.registers):
            self._access("tileloadd64", _A + a, p.a, p.a.offset(register))
            for b in range(len(p.tile.columns)):
                if not a:
                    self._access("tileloadd64", _B + b, p.b, b * 2 * COLUMNS)
                self._f.effect(f"call void @llvm.x86.tdpbf16ps(i8 {a * SIDE + b}, i8 {_A + a}, i8 {_B + b})")

    def _move(self, loops: Sequence[For], store: Store, tile: Load) -> None:
        held, slopes = self._tile(loops, tile.indices[0]), _slopes(store.index, loops)
        of_c = _slopes(tile.indices[0], loops) or {}
        column = next((x.var for x in loops if of_c[x.var] == 1), None)
        if slopes is None or column is None or slopes[column] != 1 or store.buffer.dtype != "float32":
            raise self._refused(store.buffer.name, "columns of a tile are copied side by side, as float32")
        to = _Part(store.buffer, _first(store.index, loops), slopes, _row_step(slopes, of_c, loops))
        for a, register in enumerate(held.registers):
            for b in range(len(held.columns)):
                self._access("tilestored64", a * SIDE + b, to, to.offset(register) + b * COLUMNS)
        self._x.memory.forget([self._x.memory.places[to.buffer]])

    def _access(self, name: str, register: int, part: _Part, offset: int) -> None:
        """Reads or writes the rows of a register."""
        place = self._x.memory.places[part.buffer]
        form = self._x.indices.linear(part.first).offset(offset)
        address = self._x.indices.address(place.pointer, place.element, form)
        step = part.rows * dtypes.itemsize(place.dtype)
        self._f.effect(f"call void @llvm.x86.{name}(i8 {register}, ptr {address.text}, i64 {step})")

    def _tile(self, loops: Sequence[For], index: Expr) -> _Tile:
        slopes = _slopes(index, loops)
        tile = None if slopes is None else _tile_of(loops, slopes)
        if tile is None:
            raise self._refused("tensorized loops", "what is computed of a tile is no tile")
        return tile

    def _refused(self, what: str, why: str, *facts: str) -> InvalidLoops:
        fits = f"up to {SIDE} times {ROWS} rows of up to {SIDE * COLUMNS} columns, sums of {ROW_BYTES // 2}"
        return InvalidLoops(f"kernel {self._kernel}: {what}: {why}", [f"registers hold {fits}", *facts])


def _tensorized(s: Stmt) -> Iterator[For]:
    """The outermost tensorized loops in a statement."""
    if isinstance(s, For) and s.kind == "tensorized":
        yield s
        return
    for part in children(s):
        yield from _tensorized(part)


def _nest(s: For) -> tuple[list[For], Store | None]:
    """The tensorized loops from `s` on, and what they hold."""
    loops, body = [s], s.body
    while isinstance(body, For) and body.kind == "tensorized":
        loops.append(body)
        body = body.body
    return loops, body if isinstance(body, Store) and body.predicate is None else None


def _scope(load: Load) -> str:
    return load.source.scope if isinstance(load.source, Buffer) else ""


def _slopes(index: Expr, loops: Sequence[For]) -> dict[Var, int] | None:
    """How far an index moves with each loop; None where it is not linear in them."""
    form = linear(index)
    found = {loop.var: 0 for loop in loops}
    for atom, k in form.terms.items():
        if isinstance(atom, Var) and atom in found:
            found[atom] = k
        elif any(depends_on(atom, v) for v in found):
            return None
    return found


def _first(index: Expr, loops: Sequence[For]) -> Expr:
    return substitute(index, {loop.var: loop.start for loop in loops})


def _count(loop: For) -> int:
    return number(loop.extent) or 0


def _row_loops(of_c: Mapping[Var, int], loops: Sequence[For]) -> list[For]:
    return [x for x in loops if of_c[x.var] > 1]


def _row_step(slopes: Mapping[Var, int], of_c: Mapping[Var, int], loops: Sequence[For]) -> int:
    """Return how far apart the rows of a register lie."""
    rows = _row_loops(of_c, loops)
    return slopes[rows[-1].var] if rows else 0


def _tile_of(loops: Sequence[For], of_c: Mapping[Var, int]) -> _Tile | None:
    """The registers of accumulators. of_c: slopes of their index."""
    columns = next((_count(x) for x in loops if of_c[x.var] == 1), 0)
    rows = _row_loops(of_c, loops)
    if not 0 < columns <= SIDE * COLUMNS or any(k < 0 for k in of_c.values()) or len(rows) > 2:
        return None
    registers = [_Register(1, {})]
    if len(rows) == 1:
        parts = -(-_count(rows[0]) // ROWS)
        heights = [-(-(_count(rows[0]) - i) // parts) for i in range(parts)]
        registers = [_Register(h, {rows[0].var: sum(heights[:i])}) for i, h in enumerate(heights)]
    elif rows:
        outer, inner = rows
        registers = [_Register(_count(inner), {outer.var: i}) for i in range(_count(outer))]
    fits = 0 < len(registers) <= SIDE and all(0 < r.rows <= ROWS for r in registers)
    across = tuple(min(COLUMNS, columns - b) for b in range(0, columns, COLUMNS))
    return _Tile(tuple(registers), across) if fits else None


def _product(s: For, accumulators: Buffer) -> _Product | None:
    """The product of matrices that tensorized loops are; None where they are none."""
    loops, store = _nest(s)
    if s.kind != "tensorized" or store is None or store.buffer is not accumulators:
        return None
    match store.value:
        case Binary(op="+", a=Load() as c, b=Binary(op="*", a=Cast(a=Load() as a), b=Cast(a=Load() as b))):
            pass
        case Binary(op="+", a=Binary(op="*", a=Cast(a=Load() as a), b=Cast(a=Load() as b)), b=Load() as c):
            pass
        case _:
            return None
    left, right = a.source, b.source
    slopes = [_slopes(i, loops) for i in (store.index, a.indices[0], b.indices[0])]
    if not isinstance(left, Buffer) or not isinstance(right, Buffer):
        return None
    if c.source is not accumulators or accumulators.dtype != "float32" or not same(c.indices[0], store.index):
        return None
    if a.predicate is not None or b.predicate is not None:
        return None
    if left.dtype != "bfloat16" or right.dtype != "bfloat16" or any(x is None for x in slopes):
        return None
    of_c, of_a, of_b = (x or {} for x in slopes)
    tile = _tile_of(loops, of_c)
    column = next((x.var for x in loops if of_c[x.var] == 1), None)
    if tile is None or column is None:
        return None
    if of_a[column]:
        a, b, left, right, of_a, of_b = b, a, right, left, of_b, of_a
    rows = _row_loops(of_c, loops)
    summed = [x for x in loops if of_c[x.var] == 0]
    pair = next((x for x in summed if _count(x) == 2 and of_a[x.var] == 1 == of_b[x.var]), None)
    steps = [x for x in summed if x is not pair]
    lies_in_pairs = of_a[column] == 0 and of_b[column] == 2 and all(of_a[x.var] == 2 for x in steps)
    if pair is None or len(steps) > 1 or not lies_in_pairs or any(of_b[x.var] for x in rows):
        return None
    of_rows = _Part(left, _first(a.indices[0], loops), of_a, _row_step(of_a, of_c, loops))
    of_columns = _Part(right, _first(b.indices[0], loops), of_b, of_b[steps[0].var] if steps else 0)
    return _Product(tile, 2 * (_count(steps[0]) if steps else 1), of_rows, of_columns)


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0
