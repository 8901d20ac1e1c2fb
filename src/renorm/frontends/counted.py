"""Extents as what the network computes: (2*u0 + n)//4 of a value of u0, as nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim, Sym, Symbol, substitute, symbols_of
from renorm.graph.ir import Graph, Value


def computed(graph: Graph, extent: Dim, counts: Mapping[Symbol, Value]) -> Value:
    """Return a vector of one extent. counts: what symbols are, as such vectors."""
    parts = {s: counts[s] if s in counts else _value(graph, Sym(s)) for s in sorted(symbols_of(extent))}
    known: dict[Any, Any] = {s: _Whole(v) for s, v in parts.items()}  # of all: a Sym takes what it is added to for one
    return _value(graph, substitute(extent, known, _APPLIED))


@dataclass(frozen=True)
class _Whole:
    """A whole number that the network computes, where arithmetic has extents."""

    value: Value

    def __add__(self, other: Any) -> _Whole:
        return self if isinstance(other, int) and other == 0 else _applied(ops.add)(self, other)

    def __mul__(self, other: Any) -> _Whole:
        return self if isinstance(other, int) and other == 1 else _applied(ops.mul)(self, other)

    __radd__, __rmul__ = __add__, __mul__


def _value(graph: Graph, whole: Any) -> Value:
    if isinstance(whole, _Whole):
        return whole.value
    return graph.open_constant(np.array([whole], object), "extents", "int64")


def _applied(op: Callable[[Value, Value], Value]) -> Callable[[Any, Any], _Whole]:
    def apply(a: Any, b: Any) -> _Whole:
        graph = next(x.value.graph for x in (a, b) if isinstance(x, _Whole))
        return _Whole(op(_value(graph, a), _value(graph, b)))

    return apply


def _quotient(a: Value, b: Value) -> Value:
    """Return a / b rounded down, where Div rounds to 0."""
    return ops.div(ops.sub(a, ops.mod(a, b)), b)


_APPLIED: Mapping[str, Callable[[Any, Any], _Whole]] = {
    "//": _applied(_quotient),
    "%": _applied(ops.mod),
    "min": _applied(lambda a, b: ops.min([a, b])),
    "max": _applied(lambda a, b: ops.max([a, b])),
}
