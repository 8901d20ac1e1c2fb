"""Open extents as those of core.dims, which compare by value, divide and have bounds; and back.

    n*4 + m, of te.var("n") and te.var("m")    <->    Sym: 4*n + m

What ops say of shapes with symbols (which axes stay, what a slice leaves) is so said once, for graphs and for tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from renorm.core.dims import Dim, Sym, Symbol, substitute, symbols_of
from renorm.expr import nodes
from renorm.expr.bounds import open_truth
from renorm.expr.extents import as_dim
from renorm.expr.nodes import Expr, OpenVar, const


class OpenDims:
    """Variables by the symbols that stand for them, and extents in both forms."""

    def __init__(self, variables: Mapping[Symbol, OpenVar] | None = None):
        self.variables: dict[str, OpenVar] = {}
        self._symbols: dict[OpenVar, Symbol] = {}
        self._extents: dict[Dim, Any] = {}
        for symbol, variable in (variables or {}).items():
            self._add(symbol, variable)

    def _add(self, name: str, variable: OpenVar) -> Symbol:
        symbol = self._symbols[variable] = Symbol(name, max(0, variable.low or 0), variable.span[1])
        self.variables[symbol] = variable
        return symbol

    def dim(self, extent: Any) -> Dim:
        """Return an extent of a tensor as one of core.dims."""
        return extent if isinstance(extent, Sym) else as_dim(extent, self._symbol)

    def _symbol(self, variable: OpenVar) -> Dim:
        if variable not in self._symbols:
            name = variable.name if variable.name not in self.variables else f"{variable.name}.{variable.order}"
            self._add(name, variable)
        return Sym(self._symbols[variable])

    def shape(self, extents: Iterable[Any]) -> tuple[Dim, ...]:
        """Return `dim` of each extent."""
        return tuple(map(self.dim, extents))

    def extent(self, d: Dim) -> Any:
        """Return a number, or an expression, which counts as one."""
        if isinstance(d, int):
            return d
        if d not in self._extents:
            bounded = substitute(d, {s: Sym(self._symbols[self.variables[s]]) for s in symbols_of(d)})
            self._extents[d] = bounded if isinstance(bounded, int) else self._sum(bounded)
        return self._extents[d]

    def _sum(self, d: Sym) -> Any:
        total: Any = None
        for product, k in d.form.terms.items():
            factors: list[Any] = [self._factor(x) for x in product]
            term = factors[0]
            for x in factors[1:]:
                term = term * x
            term = term if k == 1 else term * k
            total = term if total is None else total + term
        return total + d.form.constant if d.form.constant else total

    def _factor(self, x: Any) -> Expr:
        if isinstance(x, str):
            return self.variables[x]
        op, *parts = x
        a, b = (const(e) if isinstance(e, int) else e for e in map(self.extent, parts))
        match op:
            case "//":
                return a // b
            case "%":
                return a % b
            case "min":
                return nodes.minimum(a, b)
            case _:
                return nodes.maximum(a, b)


def larger(a: Any, b: Any) -> Any:
    """Return the greater one of two extents, or an expression of it where that depends on what open ones are."""
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        return max(a, b)
    is_first = open_truth(nodes.as_expr(a) >= b)
    return nodes.maximum(a, b) if is_first is None else a if is_first else b


def smaller(a: Any, b: Any) -> Any:
    """Return the lesser one of two extents, or an expression of it where that depends on what open ones are."""
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        return min(a, b)
    is_first = open_truth(nodes.as_expr(a) <= b)
    return nodes.minimum(a, b) if is_first is None else a if is_first else b
