"""Extents of a group for its tensor expressions: numbers, or open variables that stand for extents of the network.

    [n, 8, (h + 1)//2], [n, 8, (h + 3)//4]    ->    [n, 8, g], [n, 8, (g + 1)//2], g for (h + 1)//2

A kernel so knows its extents as they come to it, not how the network came by them: what it computes of them is what is
to be proved, and groups at several scales have one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from renorm.core.conditions import Condition, Sum
from renorm.core.dims import (
    Dim,
    Factor,
    Shape,
    Sym,
    Symbol,
    bounds,
    extents_among,
    factors_of,
    linear,
    size,
    static,
    substitute,
    symbols_of,
    terms,
)
from renorm.expr.extents import as_dim
from renorm.expr.nodes import Binary, Expr, OpenVar, as_expr, promote
from renorm.expr.rewrite import variables
from renorm.graph.conditions import EQUAL, SUMS, TAKEN
from renorm.graph.counts import counted_symbols
from renorm.graph.ir import Graph, Group, Value
from renorm.graph.typical import typical_sizes

Extents = Callable[[Shape, str], tuple[int, ...]]
"""The extents of a tensor of this shape; what: how errors call it. Expressions of open variables count as ints."""


def is_extents(v: Value) -> bool:
    """Return whether a value is what an op is told before the network runs, of open extents."""
    return v.graph.extents.get(v.name) is v


def known(shape: Shape, what: str) -> tuple[int, ...]:
    """Return extents that are all numbers. Raises OperandError for others."""
    return static(shape, what)


def _dims(group: Group) -> Iterator[Dim]:
    """Yield the extents of a group's values, and those that are elements of them."""
    for v in (v for n in group.nodes for v in (*n.inputs, *n.outputs) if v is not None):
        yield from v.shape
        if v.known is not None:
            yield from extents_among(v.known.flat)


@dataclass(frozen=True)
class Empty:
    """Say what may be 0 where a kernel runs: symbols, and, where is_made, extents made of these alone. All others are
    taken to be 1 at least, which whoever runs the kernel sees to."""

    symbols: frozenset[Symbol] = frozenset()
    is_made: bool = False


class OwnSymbols:
    """The symbols of a group: those of the network, or one for the quotient of such a symbol of which all its extents
    are made. values: what they stand for in the network. empty: what may be 0 where results have elements, such as
    where a slice begins, or one of two parts that are joined; first all of it, last what loops are sure to bear. facts:
    what calls fulfil, of these symbols alone."""

    def __init__(self, graph: Graph, group: Group):
        idle = {s for v in graph.inputs for s in v.idle}  # of elements that are data in this graph, and no extents
        dims = dict.fromkeys(d for d in _dims(group) if isinstance(d, Sym) and idle.isdisjoint(symbols_of(d)))
        self._wholes = _wholes(dims, graph.metadata.get(SUMS, ()))
        dims = dict.fromkeys(d for one in dims if isinstance(d := substitute(one, self._wholes.parts), Sym))
        names = list(dict.fromkeys(s for d in dims for s in sorted(symbols_of(d))))
        equal: Mapping[Factor, Dim] = graph.metadata.get(EQUAL, {})
        self.values: dict[Symbol, Dim] = {}
        self._own: dict[Factor, Dim] = {}
        for s in names:
            parts = [f for f in dict.fromkeys(f for d in dims for f in factors_of(d)) if s in _symbols(f)]
            quotient = _finest(parts, equal)
            if quotient is None:
                self.values[s] = substitute(Sym(s), self._wholes.values)
                continue
            divisor, network, made = quotient
            low, high = bounds(network)
            own = Symbol(_free(f"{s}_{divisor}", names), max(0, int(low)), high)
            self.values[own] = substitute(network, self._wholes.values)
            self._own |= {f: substitute(d, {_PLACE: Sym(own)}) for f, d in made.items()}
        self._typical = typical_sizes(graph) if names else {}
        self.empty = _empty(graph, group, self) if self.values else [Empty()]
        taken: Iterable[Condition] = graph.metadata.get(TAKEN, ()) if names else ()
        own = (Condition(self.of(c.left), c.relation, self.of(c.right)) for c in taken)
        self.facts = [c for c in own if c.symbols <= self.values.keys() and c.decided() is None]

    def of(self, dim: Dim) -> Dim:
        """Return an extent of the group's values in its own symbols."""
        return substitute(substitute(dim, self._wholes.parts), self._own)

    @property
    def typical(self) -> dict[str, int]:
        """Return typical values."""
        return {str(s): static([substitute(d, self._typical)])[0] for s, d in self.values.items()}


def _empty(graph: Graph, group: Group, own: OwnSymbols) -> list[Empty]:
    """Return OwnSymbols.empty. What loops are sure to bear are offsets: symbols of elements, and rests of sums, that
    divide the size of no value. Others that may be 0 are counts, terms of extents beside others, and what is an element
    alone: of these all are to be tried, and those that data decide."""
    found = {s for v in graph.inputs for d in v.deciding for s in symbols_of(d)}
    found = (found | {s.rest for s in graph.metadata.get(SUMS, ())}) & own.values.keys()
    values = {v: tuple(map(own.of, v.shape)) for n in group.nodes for v in (*n.inputs, *n.outputs) if v is not None}
    sizes = {size(shape) for shape in values.values()}
    results = {size(values[v]) for n in group.nodes for v in n.outputs}
    counted = counted_symbols(graph)
    offsets = frozenset(s for s in found if not any(isinstance(n, Sym) and n % Sym(s) == 0 for n in sizes))
    elements = own.values.keys() - _all_symbols(sizes)
    joined = _all_symbols(d for shape in values.values() for d in shape if _is_join(d))
    others = (found & counted) | (own.values.keys() & joined) | elements
    absent = frozenset(s for s in others - offsets if s.least < 1 and _is_left(results, [s]))
    made = {d for shape in values.values() for d in shape if isinstance(d, Sym) and bounds(d)[0] < 1} - {*own.values}
    tried = list[Empty]()
    for symbols in dict.fromkeys((offsets | absent, offsets | (absent & counted), offsets)):
        among = ((d, symbols_of(d)) for d in made if symbols_of(d) <= symbols)
        parts = ((d, part) for d, whole in among for part in (whole, *([s] for s in whole)))
        if any(not _is_left([d], part) and _is_left(results, part) for d, part in parts):
            tried.append(Empty(symbols, is_made=True))
        tried.append(Empty(symbols))
    return tried


def _is_left(results: Iterable[Dim], without: Iterable[Symbol]) -> bool:
    """Return whether there are results where symbols are 0."""
    none = dict.fromkeys(without, 0)
    with suppress(ZeroDivisionError):
        return any(substitute(n, none) != 0 for n in results)
    return False


def _is_join(extent: Dim) -> bool:
    """Return whether an extent is that of parts which are joined: a sum of products of symbols and nothing else."""
    parts = terms(extent)
    is_sum = all(product and k > 0 and all(isinstance(f, Symbol) for f in product) for product, k in parts)
    return len(parts) > 1 and is_sum


@dataclass(frozen=True)
class _Wholes:
    """Symbols of a network that sums took the place of (core.conditions.Sum), where only these sums are extents of a
    group. parts: what the rest of each sum is; values: what each whole is."""

    parts: dict[Symbol, Dim]
    values: dict[Symbol, Dim]


def _wholes(dims: Iterable[Dim], sums: Sequence[Sum]) -> _Wholes:
    found = _Wholes({}, {})
    dims = list(dims)
    for s in reversed(sums):
        part: dict[Symbol, Dim] = {s.rest: Sym(s.whole) - substitute(s.least, found.parts)}
        without = [substitute(d, part) for d in dims]
        if s.rest in _all_symbols(dims) and not _all_symbols(without) & {s.rest, *symbols_of(s.least)}:
            dims = without
            found.parts.update({r: substitute(d, part) for r, d in found.parts.items()} | part)
            found.values[s.whole] = s.value
    return found


def _all_symbols(dims: Iterable[Dim]) -> set[Symbol]:
    return {s for d in dims for s in symbols_of(d)}


_PLACE = Symbol("?own")  # for which a group's own symbol comes


def _symbols(f: Factor) -> set[Symbol]:
    return {f} if isinstance(f, Symbol) else symbols_of(f[1]) | symbols_of(f[2])


def _free(name: str, taken: Iterable[str]) -> str:
    return name if name not in taken else _free(name + "_", taken)


def _finest(parts: Sequence[Factor], equal: Mapping[Factor, Dim]) -> tuple[int, Dim, dict[Factor, Dim]] | None:
    """Return (d, q, what each part is) with q = (k*s + c) // d, of which all parts are quotients, for which _PLACE
    stands; None where there is none. equal: what parts are else, which counts where q is coarser by it."""
    found = _of_one({f: {f} for f in parts})
    others = {f: factors_of(equal[f]) if f in equal else {f} for f in parts}
    coarser = _of_one(others)
    if coarser is None or (found is not None and coarser[0] <= found[0]):
        return found
    divisor, network, made = coarser
    return divisor, network, {f: substitute(equal[f], made) if f in equal else made[f] for f in parts}


def _of_one(parts: Mapping[Factor, set[Factor]]) -> tuple[int, Dim, dict[Factor, Dim]] | None:
    quotients: dict[Factor, tuple[int, int, int]] = {}  # d, k and c of each
    for f in {f for fs in parts.values() for f in fs}:
        inner = None if isinstance(f, Symbol) or f[0] != "//" else linear(f[1])
        if inner is None or isinstance(f, Symbol) or not isinstance(f[2], int):
            return None
        quotients[f] = f[2], inner[1], inner[2]
    if not quotients:  # what conditions leave are numbers
        return None
    least = min(quotients, key=lambda f: quotients[f][0])
    divisor, k, c = quotients[least]
    made: dict[Factor, Dim] = {}
    for f, (d, own, offset) in quotients.items():
        if own != k or d % divisor or (offset - c) % divisor:
            return None
        made[f] = (Sym(_PLACE) + (offset - c) // divisor) // (d // divisor)
    return divisor, Sym.of({(least,): 1}), made


class OpenExtents:
    """Extents as expressions of open variables, one for each symbol. of: an extent in these symbols. offsets: those
    that are not taken to be 1 at least."""

    def __init__(
        self,
        given: Iterable[Symbol],
        typical: Mapping[str, int],
        of: Callable[[Dim], Dim] = lambda d: d,
        offsets: Container[Symbol] = (),
    ):
        self.variables = {s: _variable(s, typical[s], s.least if s in offsets else max(1, s.least)) for s in given}
        from renorm.te.open_dims import OpenDims  # loads te, which a network out of the cache does without

        self._dims, self._of = OpenDims(self.variables), of

    def __call__(self, shape: Shape, what: str) -> tuple[int, ...]:
        return tuple(self._dims.extent(self._of(d)) for d in shape)

    def dim(self, e: int | Expr) -> Dim:
        """Return an expression of the variables as one of the symbols."""
        of = {v: Sym(s) for s, v in self.variables.items()}
        return as_dim(e, of.__getitem__)

    def fact(self, c: Condition) -> Expr:
        """Return a condition on the symbols as one on the variables, without what all its products have in common and
        is 1 at least."""
        difference = c.left - c.right
        whole, positive = difference, [s for s, v in self.variables.items() if (v.low or 0) > 0]
        while found := [s for s in positive if all(s in product for product, _ in terms(difference))]:
            difference = difference // Sym(found[0])
        pair = (c.left, c.right) if difference == whole else (difference, 0)
        left, right = map(as_expr, map(self._dims.extent, pair))
        return Binary(c.relation, *promote(left, right))

    def given(self, variables: Sequence[OpenVar]) -> tuple[Dim, ...]:
        """Return the symbols that open variables of a kernel stand for."""
        symbol = {v: s for s, v in self.variables.items()}
        return tuple(Sym(symbol[v]) for v in variables)


def _variable(s: Symbol, typical: int, least: int) -> OpenVar:
    most = None if s.most == float("inf") else int(s.most)
    return OpenVar(str(s), "int32", least, most, typical=typical)


def are_equal(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether shapes are equal; open extents count as equal where they are at two values of their variables."""
    from renorm.te.open import evaluate  # loads te, which a network out of the cache does without

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
