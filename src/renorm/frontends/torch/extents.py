"""Extents of a program, which are SymPy expressions of PyTorch's, as the project's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import reduce
from math import inf
from operator import add, floordiv, mod, mul
from typing import Any

from torch.utils._sympy.symbol import SymT, free_symbol_is_type

from renorm.core.dims import Dim, Sym, Symbol, maximum, minimum
from renorm.core.errors import UnsupportedOp

_OPS: Mapping[str, Callable[[Any, Any], Dim]] = {
    "Add": add, "Mul": mul, "Max": maximum, "Min": minimum,
    "FloorDiv": floordiv, "CleanDiv": floordiv, "Mod": mod, "PythonMod": mod,
}  # fmt: skip


class Extents:
    """ranges: those of the program's symbols, from the least to the greatest value of each."""

    def __init__(self, ranges: Mapping[Any, Any]):
        known = {str(s): r for s, r in ranges.items() if not free_symbol_is_type(s, SymT.UNBACKED_INT)}
        self._symbols = {s: Sym(Symbol(s, _least(r), _most(r))) for s, r in known.items()}
        self._own = dict[Any, Sym]()  # expressions, and the symbols that stand for them

    def of_inputs(self, shapes: Iterable[Iterable[Any]]) -> Extents:
        """Return extents for what reads tensors of these shapes and nothing else. Of (1 + s)//2 alone nobody can tell
        what s is: a symbol stands for what no extent of its own decides."""
        given = [d.node.expr for shape in shapes for d in shape if not isinstance(d, int)]
        decided = {e for e in given if e.is_Symbol}
        made = copy(self)
        made._own = {
            e: Sym(Symbol(f"e{i}"))
            for i, e in enumerate(dict.fromkeys(given))
            if not (e.is_Integer or e.free_symbols <= decided)
        }
        return made

    def of(self, extent: Any) -> Dim:
        """Return a torch.SymInt, or an int. Raises UnsupportedOp for what data decide."""
        return int(extent) if isinstance(extent, int) else self._dim(extent.node.expr)

    def shape(self, extents: Iterable[Any]) -> tuple[Dim, ...]:
        return tuple(map(self.of, extents))

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
        raise UnsupportedOp(f"an extent is {e}", ["data decide it, or it is no whole number of other extents"])


def _least(r: Any) -> int:
    """Return the least extent: 2 says no more than that the exporter took it to be neither 0 nor 1."""
    return int(r.lower) if r.lower.is_Integer and r.lower > 2 else 0


def _most(r: Any) -> float:
    return int(r.upper) if r.upper.is_Integer else inf
