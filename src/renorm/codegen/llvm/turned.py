"""Copies as vectors that are turned round: of what stands in rows, and of what a matrix unit multiplies, in pairs.

    turned       X[k, j] = Y[j, k] * factor        of 4 bytes: up to 32 rows of up to 16
                 X[k, j, p] = Y[j, k*2 + p]        of 2 bytes: up to 32 rows of up to 16 pairs
    braided      X[j, p] = Y[p, j]                 two rows, element beside element

Any may be of zeros instead, which fill up what is beyond the last row; a row of elements of 4 bytes may have a
condition, without which it is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from renorm.codegen.llvm.expressions import Expressions
from renorm.codegen.llvm.nests import count, first, nest, slopes_of
from renorm.codegen.llvm.ssa import Function, Type, Value, constant, poison, vector
from renorm.core import dtypes
from renorm.expr.nodes import Binary, Const, Expr, Load, Var
from renorm.expr.rewrite import depends_on, substitute
from renorm.tir.nodes import Buffer, For, Store

MOST = 16  # pairs, or elements of 4 bytes, in a vector register


@dataclass(frozen=True)
class _Copy:
    """lanes: pairs, or elements, side by side in what is written; steps: rows of these; to, step: elements from one row
    to the next, there, and from one to the next row that is read; source: None for zeros; lane: the loop over rows that
    are read; unit: elements of 4 bytes; factor: None for 1."""

    target: Buffer
    source: Load | None
    lane: Var
    lanes: int
    steps: int
    to: int
    step: int
    is_braided: bool
    unit: int
    factor: Expr | None


class Turns:
    """Emits copies into one function."""

    def __init__(self, function: Function, x: Expressions):
        self._f, self._x = function, x

    def emit(self, s: For) -> bool:
        """Emits tensorized loops that copy; returns whether they do."""
        loops, store = nest(s)
        copy = None if store is None else _copy_of(loops, store)
        if store is None or copy is None:
            return False
        to = first(store.index, loops)

        def read(row: int, t: Type) -> Value:
            return self._row(copy, loops, row, t)

        def write(i: int, x: Value) -> None:
            address = self._address(copy.target, to, i)
            self._f.effect(f"store {x.typed}, ptr {address.text}, align {4 // copy.unit}")

        _emit(self._f, copy, read, write)
        self._x.memory.forget([self._x.memory.places[copy.target]])
        return True

    def _row(self, copy: _Copy, loops: Sequence[For], row: int, t: Type) -> Value:
        f, x, load = self._f, self._x, copy.source
        assert load is not None
        assert isinstance(load.source, Buffer)
        if copy.unit == 2:
            address = self._address(load.source, first(load.indices[0], loops), row * copy.step)
            return f.effect(f"load {t}, ptr {address.text}, align 2", t)

        def there(e: Expr) -> Expr:
            return first(substitute(e, {copy.lane: copy.lane + row}), loops)

        held = None if load.predicate is None else x.value(there(load.predicate))
        read = x.memory.held(x.memory.places[load.source], there(load.indices[0]), t.lanes, held)
        return read if copy.factor is None else f.op("fmul", read, f.splat(x.value(copy.factor), t.lanes))

    def _address(self, buffer: Buffer, index: Expr, offset: int) -> Value:
        place = self._x.memory.places[buffer]
        form = self._x.indices.linear(index).offset(offset)
        return self._x.indices.address(place.pointer, place.element, form)


def _copy_of(loops: Sequence[For], store: Store) -> _Copy | None:
    """Return the copy that loops make; None where they make none."""
    target, counts = store.buffer, {x.var: count(x) for x in loops}
    of_x, (value, factor) = slopes_of(store.index, loops), _scaled(store.value)
    unit = 4 // dtypes.itemsize(target.dtype)
    if of_x is None or unit not in (1, 2) or target.dtype != value.dtype or (unit == 2 and factor is not None):
        return None
    part = next((v for v, n in counts.items() if unit == 2 and n == 2 and of_x[v] == 1), None)
    lane = next((v for v in counts if of_x[v] == unit and v is not part), None)
    rows = [v for v in counts if v is not part and v is not lane]
    if lane is None or len(rows) > 1 or (part is None) != (unit == 1):
        return None
    lanes, (row, steps, to) = counts[lane], next(((v, counts[v], of_x[v]) for v in rows), (None, 1, 0))
    if isinstance(value, Const) and value.value == 0:
        return _Copy(target, None, lane, lanes, steps, to, 0, False, unit, None)
    if not isinstance(value, Load) or not isinstance(value.source, Buffer):
        return None
    of_y, condition = slopes_of(value.indices[0], loops), value.predicate
    if of_y is None or (condition is not None and (unit == 2 or any(depends_on(condition, v) for v in rows))):
        return None
    if part is not None and row is None and of_y[lane] == 1:
        return _Copy(target, value, lane, lanes, 1, 0, of_y[part], True, unit, None)
    follows = (part is None or of_y[part] == 1) and (row is None or of_y[row] == unit)
    if not follows or lanes > 2 * MOST or not 1 < steps <= MOST:
        return None
    return _Copy(target, value, lane, lanes, steps, to, of_y[lane], False, unit, factor)


def _scaled(e: Expr) -> tuple[Expr, Expr | None]:
    match e:
        case Binary(op="*", a=Load() as x, b=Const() as factor) | Binary(op="*", a=Const() as factor, b=Load() as x):
            return x, factor
        case _:
            return e, None


def _emit(f: Function, c: _Copy, read: Callable[[int, Type], Value], write: Callable[[int, Value], None]) -> None:
    """read: a row, as a vector; write: elements from so many after the first on."""
    if c.source is None:
        for k in range(c.steps):
            write(k * c.to, constant(vector("i32", c.lanes), 0))
    elif c.is_braided:
        one, other = (read(p, vector("i16", c.lanes)) for p in range(2))
        write(0, f.shuffle(one, [i // 2 + i % 2 * c.lanes for i in range(2 * c.lanes)], other))
    else:
        for at in range(0, c.lanes, MOST):
            rows = [read(j, vector("i32", c.steps)) for j in range(at, min(at + MOST, c.lanes))]
            for k, row in enumerate(_turned(f, rows, c.steps)):
                write(k * c.to + c.unit * at, row)


def _turned(f: Function, rows: list[Value], columns: int) -> list[Value]:
    """A matrix turned round: the halves of rows trade places, then quarters, ... (Eklundh, 1972)."""
    height, size = len(rows), 1 << (max(len(rows), columns) - 1).bit_length()
    places = [min(i, columns - 1) for i in range(size)]
    held = rows if columns == size else [f.shuffle(x, places) for x in rows]
    held = [*held, *[poison(vector(rows[0].type.element, size))] * (size - height)]
    step = 1
    while step < size:
        for i in (i for i in range(size) if not i & step):
            a, b = held[i], held[i + step]
            held[i] = f.shuffle(a, [c + size - step if c & step else c for c in range(size)], b)
            held[i + step] = f.shuffle(a, [c + size if c & step else c + step for c in range(size)], b)
        step *= 2
    if height == 1:
        return [f.extract(x, 0) for x in held[:columns]]
    return [x if height == size else f.shuffle(x, list(range(height))) for x in held[:columns]]
