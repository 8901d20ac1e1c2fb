"""Extents of a group for its tensor expressions: numbers, typical numbers, or open variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from renorm.core.dims import Dim, Shape, Sym, Symbol, static, symbols_of
from renorm.expr.extents import as_dim
from renorm.expr.nodes import Expr, OpenVar
from renorm.expr.rewrite import variables
from renorm.graph.ir import Group

Extents = Callable[[Shape, str], tuple[int, ...]]
"""The extents of a tensor of this shape; what: how errors call it. Expressions of open variables count as ints."""


def known(shape: Shape, what: str) -> tuple[int, ...]:
    """Return extents that are all numbers. Raises OperandError for others."""
    return static(shape, what)


def symbols(group: Group) -> list[Symbol]:
    """Return the symbols in the shapes of a group's values, in order of appearance."""
    values = (v for n in group.nodes for v in (*n.inputs, *n.outputs) if v is not None)
    return list(dict.fromkeys(s for v in values for d in v.shape for s in sorted(symbols_of(d))))


class OpenExtents:
    """Extents as expressions of open variables, one for each symbol."""

    def __init__(self, given: Iterable[Symbol], typical: Mapping[str, int]):
        self.variables = {s: _variable(s, typical[s]) for s in given}
        from renorm.te.open_dims import OpenDims  # as above

        self._dims = OpenDims(self.variables)

    def __call__(self, shape: Shape, what: str) -> tuple[int, ...]:
        return tuple(self._dims.extent(d) for d in shape)

    def dim(self, e: int | Expr) -> Dim:
        """Return an expression of the variables as one of the symbols."""
        of = {v: Sym(s) for s, v in self.variables.items()}
        return as_dim(e, of.__getitem__)

    def given(self, variables: Sequence[OpenVar]) -> tuple[Dim, ...]:
        """Return the symbols that open variables of a kernel stand for."""
        symbol = {v: s for s, v in self.variables.items()}
        return tuple(Sym(symbol[v]) for v in variables)


def _variable(s: Symbol, typical: int) -> OpenVar:
    most = None if s.most == float("inf") else int(s.most)
    return OpenVar(str(s), "int32", max(1, s.least), most, typical=typical)


def are_equal(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether shapes are equal; open extents count as equal where they are at two values of their variables."""
    from renorm.te.open import evaluate  # as above

    if len(shape) != len(other):
        return False
    for a, b in zip(shape, other):
        if not isinstance(a, Expr) and not isinstance(b, Expr):
            if a != b:
                return False
            continue
        found = {v for e in (a, b) if isinstance(e, Expr) for v in variables(e) if isinstance(v, OpenVar)}
        for step in (0, 1):
            values = {v: v.typical + step for v in found}
            if evaluate(a, values) != evaluate(b, values):
                return False
    return True
