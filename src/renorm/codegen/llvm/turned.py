"""Copies that put what a matrix unit multiplies into pairs, as vectors that are turned round:

    turned       X[k, j, p] = Y[j, k*2 + p]        up to 32 rows of up to 16 pairs
    braided      X[j, p] = Y[p, j]                 two rows, element beside element

Either may be of zeros instead, which fill up what is beyond the last row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from renorm.codegen.llvm.expressions import Expressions
from renorm.codegen.llvm.nests import count, first, nest, slopes_of
from renorm.codegen.llvm.ssa import Function, Type, Value, constant, poison, vector
from renorm.core import dtypes
from renorm.expr.nodes import Const, Expr, Load
from renorm.tir.nodes import Buffer, For, Store

MOST = 16  # pairs in a vector register


@dataclass(frozen=True)
class _Copy:
    """A copy in pairs. lanes: pairs side by side in what is written; steps: rows of these; to, step: elements from one
    row to the next, there, and from one to the next row that is read; source: None for zeros."""

    target: Buffer
    source: Buffer | None
    lanes: int
    steps: int
    to: int
    step: int
    is_braided: bool


class Turns:
    """Emits copies in pairs into one function."""

    def __init__(self, function: Function, x: Expressions):
        self._f, self._x = function, x

    def emit(self, s: For) -> bool:
        """Emits tensorized loops that copy in pairs; returns whether they do."""
        loops, store = nest(s)
        copy = None if store is None else _copy_of(loops, store)
        if store is None or copy is None:
            return False
        f, to, value = self._f, first(store.index, loops), store.value

        def read(i: int, t: Type) -> Value:
            assert isinstance(value, Load)
            assert copy.source is not None
            address = self._address(copy.source, first(value.indices[0], loops), i)
            return f.effect(f"load {t}, ptr {address.text}, align 2", t)

        def write(i: int, x: Value) -> None:
            f.effect(f"store {x.typed}, ptr {self._address(copy.target, to, i).text}, align 2")

        _emit(f, copy, read, write)
        self._x.memory.forget([self._x.memory.places[copy.target]])
        return True

    def _address(self, buffer: Buffer, index: Expr, offset: int) -> Value:
        place = self._x.memory.places[buffer]
        form = self._x.indices.linear(index).offset(offset)
        return self._x.indices.address(place.pointer, place.element, form)


def _copy_of(loops: Sequence[For], store: Store) -> _Copy | None:
    """Return the copy that loops make; None where they make none."""
    target, value, counts = store.buffer, store.value, {x.var: count(x) for x in loops}
    of_x = slopes_of(store.index, loops)
    if of_x is None or dtypes.itemsize(target.dtype) != 2 or target.dtype != value.dtype:
        return None
    part = next((v for v, n in counts.items() if n == 2 and of_x[v] == 1), None)
    lane = next((v for v in counts if of_x[v] == 2 and v is not part), None)
    rows = [v for v in counts if v is not part and v is not lane]
    if part is None or lane is None or len(rows) > 1:
        return None
    lanes, (row, steps, to) = counts[lane], next(((v, counts[v], of_x[v]) for v in rows), (None, 1, 0))
    if isinstance(value, Const) and value.value == 0:
        return _Copy(target, None, lanes, steps, to, 0, False)
    if not isinstance(value, Load) or not isinstance(value.source, Buffer) or value.predicate is not None:
        return None
    of_y = slopes_of(value.indices[0], loops)
    if of_y is None:
        return None
    if row is None and of_y[lane] == 1:
        return _Copy(target, value.source, lanes, 1, 0, of_y[part], True)
    if of_y[part] != 1 or (row is not None and of_y[row] != 2) or lanes > 2 * MOST or not 1 < steps <= MOST:
        return None
    return _Copy(target, value.source, lanes, steps, to, of_y[lane], False)


def _emit(f: Function, c: _Copy, read: Callable[[int, Type], Value], write: Callable[[int, Value], None]) -> None:
    """read, write: elements from so many after the first on."""
    if c.source is None:
        for k in range(c.steps):
            write(k * c.to, constant(vector("i32", c.lanes), 0))
    elif c.is_braided:
        one, other = (read(p * c.step, vector("i16", c.lanes)) for p in range(2))
        write(0, f.shuffle(one, [i // 2 + i % 2 * c.lanes for i in range(2 * c.lanes)], other))
    else:
        for at in range(0, c.lanes, MOST):
            rows = [read(j * c.step, vector("i32", c.steps)) for j in range(at, min(at + MOST, c.lanes))]
            for k, row in enumerate(_turned(f, rows, c.steps)):
                write(k * c.to + 2 * at, row)


def _turned(f: Function, rows: list[Value], columns: int) -> list[Value]:
    """A matrix turned round: the halves of rows trade places, then quarters, ... (Eklundh, 1972)."""
    height, size = len(rows), 1 << (max(len(rows), columns) - 1).bit_length()
    places = [min(i, columns - 1) for i in range(size)]
    held = rows if columns == size else [f.shuffle(x, places) for x in rows]
    held = [*held, *[poison(vector("i32", size))] * (size - height)]
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
