"""Extents of a program, which are SymPy expressions of PyTorch's, as the project's own.

c10::SymInt s77        an extent of inputs                 Sym("s77")
u0, that data decide   the extent of a result, an axis     what inference calls that one: ?mask.nonzero.0.0
                       the element of one (item)           Sym("u0"), which `known` says until all calls are read
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from copy import copy
from functools import reduce
from math import inf
from operator import add, floordiv, mod, mul
from typing import Any

import numpy as np
from torch.utils._sympy.symbol import SymT, free_symbol_is_type

from renorm.core.dims import Dim, Sym, Symbol, linear, maximum, minimum, symbols_of
from renorm.core.errors import UnsupportedOp
from renorm.graph.ir import Value

_OPS: Mapping[str, Callable[[Any, Any], Dim]] = {
    "Add": add, "Mul": mul, "Max": maximum, "Min": minimum,
    "FloorDiv": floordiv, "CleanDiv": floordiv, "Mod": mod, "PythonMod": mod,
}  # fmt: skip
_COMPARISONS = {
    "StrictGreaterThan": "greater", "GreaterThan": "greater_or_equal", "StrictLessThan": "less",
    "LessThan": "less_or_equal", "Equality": "equal", "Unequality": "not_equal",
}  # fmt: skip


class Extents:
    """ranges: those of the program's symbols, from the least to the greatest value of each. may_count: whether data may
    decide extents. counts: which values do, by symbols: the extent of an axis, or the one element of a value."""

    def __init__(self, ranges: Mapping[Any, Any], may_count: bool = True):
        known = {str(s): r for s, r in ranges.items() if not free_symbol_is_type(s, SymT.UNBACKED_INT)}
        self._symbols: dict[str, Dim] = {s: Sym(Symbol(s, _least(r), _most(r))) for s, r in known.items()}
        self._ranges = {str(s): r for s, r in ranges.items() if str(s) not in known}
        self._own = dict[Any, Sym]()  # expressions, and the symbols that stand for them
        self._may_count = may_count
        self.counts = dict[Symbol, tuple[Value, int | None]]()
        self._signed = set[str]()  # names of elements that may be negative
        self.has_elements = False  # whether a value's `known` is taken for what it is

    def of_inputs(self, shapes: Iterable[Iterable[Any]]) -> Extents:
        """Return extents for what reads tensors of these shapes and nothing else. Of s + 64 it is known what s is, of
        (1 + s)//2 alone it is not: a symbol stands for what no extent of its own decides."""
        given = [d.node.expr for shape in shapes for d in shape if not isinstance(d, int)]
        decided = {s for e in given if self._decides(e) for s in e.free_symbols}
        made = copy(self)
        made._own = {
            e: Sym(Symbol(f"e{i}"))
            for i, e in enumerate(dict.fromkeys(given))
            if not (e.is_Integer or e.free_symbols <= decided)
        }
        return made

    def _decides(self, e: Any) -> bool:
        """Return whether an extent tells the one symbol in it."""
        if e.is_Symbol or len(e.free_symbols) != 1:
            return bool(e.is_Symbol)
        try:
            return linear(self._dim(e)) is not None
        except UnsupportedOp:
            return False

    def unknown(self, shapes: Iterable[Iterable[Dim]], decided: Collection[str]) -> set[str]:
        """Return the program's symbols in these shapes that are not decided."""
        found = {s for shape in shapes for d in shape for s in symbols_of(d)}
        return {str(s) for s in found if str(s) in self._symbols and s not in decided}

    def is_new(self, extent: Any) -> bool:
        """Return whether an extent is one that data decide, and that no value tells yet."""
        e = None if isinstance(extent, int) else extent.node.expr
        return self._may_count and e is not None and e.is_Symbol and str(e) not in self._symbols

    def count(self, extent: Any, value: Value, axis: int) -> None:
        """Take a new extent for that of an axis of a value."""
        found, name = value.shape[axis], str(extent.node.expr)
        new = symbols_of(found).difference(*map(symbols_of, self._symbols.values()))
        if new and not any(found == Sym(s) for s in new):
            raise UnsupportedOp(f"{name}, of which extents are made, is {found}, of which no value tells the parts")
        self.counts.update((s, (value, axis)) for s in new)
        self._symbols[name] = found

    @contextmanager
    def inside(self) -> Generator[None]:
        """Inside, new extents are those of a graph of its own: its symbols mean others elsewhere."""
        symbols, counts = dict(self._symbols), dict(self.counts)
        try:
            yield
        finally:
            self._symbols, self.counts = symbols, counts

    def element(self, extent: Any, value: Value) -> Dim | None:
        """Take a new extent for the one element of a value, and return it; None where it may be negative, as no extent
        is. Raises UnsupportedOp where data may decide none."""
        name = str(extent.node.expr)
        held = self._ranges.get(name)
        if not self._may_count:
            raise UnsupportedOp(f"an extent is {name}", ["data decide it"])
        if held is None or not held.lower.is_Integer or held.lower < 0:
            self._signed.add(name)
            return None
        symbol = Symbol(name, int(held.lower), _most(held))
        self._symbols[name], self.counts[symbol] = Sym(symbol), (value, None)
        value.known, self.has_elements = np.array(Sym(symbol), object), True
        return Sym(symbol)

    def of(self, extent: Any) -> Dim:
        """Return a torch.SymInt, or an int. Raises UnsupportedOp for what data decide."""
        return int(extent) if isinstance(extent, int) else self._dim(extent.node.expr)

    def shape(self, extents: Iterable[Any]) -> tuple[Dim, ...]:
        return tuple(map(self.of, extents))

    def compared(self, truth: Any) -> tuple[str, Dim, Dim]:
        """Return what a torch.SymBool compares, and how, by the name of an op. Raises UnsupportedOp."""
        e = truth.node.expr
        if (found := _COMPARISONS.get(type(e).__name__)) is None:
            do = "let one comparison of two decide: <, <=, ==, !=, >=, >"
            raise UnsupportedOp(f"extents decide it: {truth}", do=do)
        return found, self._dim(e.args[0]), self._dim(e.args[1])

    def _dim(self, e: Any) -> Dim:
        if e.is_Integer:
            return int(e)
        if e in self._own:
            return self._own[e]
        kind = type(e).__name__
        if e.is_Symbol and str(e) in self._symbols:
            return self._symbols[str(e)]
        if kind == "Pow" and e.args[1].is_Integer and e.args[1] > 0:
            return reduce(_OPS["Mul"], [self._dim(e.args[0])] * int(e.args[1]))
        if kind in _OPS:
            return reduce(_OPS[kind], map(self._dim, e.args))
        if signed := sorted(self._signed.intersection(map(str, e.free_symbols))):
            checked = ", ".join(f"torch._check({s} >= 0)" for s in signed)
            raise UnsupportedOp(f"an extent is {e}, which data decide, and may be negative", do=f"say {checked}")
        raise UnsupportedOp(f"an extent is {e}", ["data decide it, or it is no whole number of other extents"])


def _least(r: Any) -> int:
    """Return the least extent: 2 says no more than that the exporter took it to be neither 0 nor 1."""
    return int(r.lower) if r.lower.is_Integer and r.lower > 2 else 0


def _most(r: Any) -> float:
    return int(r.upper) if r.upper.is_Integer else inf
