"""Typical values of a network's symbols: what is decided by sizes is decided at these.

They stand for no call: what is decided holds for all. So that nothing is decided by chance, they are primes: a number
divides such an extent only if it divides all of them, as 16 does 16*h. A batch has 2, since most calls have few; rows
and columns of images are near 211, edges of volumes near 37 (as many elements), lengths of sequences near 127; within
the bounds of a symbol, and so that what the network needs of them holds (graph.conditions), for which other numbers
than primes may be taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import inf, isqrt

from renorm.core.conditions import Condition
from renorm.core.dims import Dim, Sym, Symbol, bounds, linear, static, substitute, symbols_of
from renorm.core.errors import InvalidGraph
from renorm.core.inputs import given_symbols
from renorm.graph.ir import Graph, Value

TYPICAL = "typical"  # in Graph.metadata: the values that were found for a graph whose conditions are known
BATCH, IMAGE, VOLUME, SEQUENCE = 2, 211, 37, 127
_LARGEST = 256  # that is tried, and beyond the least value of a symbol
_MOST_TRIED = 20_000  # values of symbols, until none is said to be found


def typical_sizes(graph: Graph) -> dict[str, int]:
    """Return a value for each symbol in the shapes of a network's inputs."""
    held = graph.metadata.get(TYPICAL)
    return sizes_where(graph, ()) if held is None else held


def sizes_where(graph: Graph, conditions: Iterable[Condition]) -> dict[str, int]:
    """Return a value for each symbol in the shapes of a network's inputs, where all conditions hold. Raises
    InvalidGraph where none of those that are tried fulfils them."""
    candidates: dict[Symbol, list[int]] = {}
    for v in graph.inputs:
        for axis, extent in enumerate(v.shape):
            for symbol in sorted(symbols_of(extent)):
                candidates.setdefault(symbol, _candidates(symbol, extent, _wanted(v, axis)))
    for symbol in given_symbols(graph.inputs):
        if symbol not in candidates:  # of an element, which is about as large as what it decides
            candidates[symbol] = _candidates(symbol, *_decided(graph, symbol))
    given = list(conditions)
    found = None
    if any(v.deciding for v in graph.inputs):  # of which shapes behind them may have none where a small one is taken
        some = {Condition(1, "<=", d): None for v in graph.values() for d in v.shape if bounds(d)[0] < 1}
        found = _Search(candidates, [*given, *some]).values({})
    found = _Search(candidates, given).values({}) if found is None else found
    if found is None:
        raise InvalidGraph(
            f"no extents were found for which {graph.name} has a result",
            [f"it needs {c}" for c in given] + [f"{s} was tried up to {max(ns)}" for s, ns in candidates.items()],
            "give the shapes of its inputs (shapes=)",
        )
    return found


class _Search:
    """Values of symbols, one after the other, the preferred ones first; what a condition forbids is not followed."""

    def __init__(self, candidates: Mapping[Symbol, Sequence[int]], conditions: Sequence[Condition]):
        self._symbols, self._candidates = list(candidates), candidates
        self._left = _MOST_TRIED
        place = {s: i for i, s in enumerate(self._symbols)}
        self._told: list[list[Condition]] = [[] for _ in self._symbols]  # by each of a condition's symbols, in order
        for c in conditions:
            own = sorted(place[s] for s in c.symbols if s in place)
            for i in own:
                # of those that follow it is known that they are as large as any that is tried
                later = {s: Sym(Symbol(s, min(candidates[s]), max(candidates[s]))) for s in self._symbols[i + 1 :]}
                self._told[i].append(c.replaced({s: d for s, d in later.items() if s in c.symbols}))

    def values(self, chosen: dict[str, int]) -> dict[str, int] | None:
        """Return values of all symbols, with those that are chosen; None where no more are found."""
        if len(chosen) == len(self._symbols):
            return chosen
        symbol, told = self._symbols[len(chosen)], self._told[len(chosen)]
        for n in self._tried(symbol, told, chosen):
            self._left -= 1
            if self._left < 0:
                return None
            now = {**chosen, str(symbol): n}
            if all(c.holds(now) is not False for c in told):
                found = self.values(now)
                if found is not None:
                    return found
        return None

    def _tried(self, symbol: Symbol, told: Iterable[Condition], chosen: Mapping[str, int]) -> Sequence[int]:
        """Return the candidates of a symbol, of which an equation may leave one where others are chosen, or none."""
        for c in told:
            with suppress(ZeroDivisionError):
                one = linear(substitute(c.left - c.right, chosen)) if c.relation == "==" else None
                if one is not None and one[0] == symbol:
                    n, rest = divmod(-one[2], one[1])
                    return [n] if not rest and n in self._candidates[symbol] else []
        return self._candidates[symbol]


def _wanted(v: Value, axis: int) -> int:
    """About how large an extent is."""
    if axis == 0 and v.rank > 1:
        return BATCH
    if v.rank >= 4 and axis >= 2:
        return IMAGE if v.rank == 4 else VOLUME
    return SEQUENCE


def _decided(graph: Graph, symbol: Symbol) -> tuple[Dim, int]:
    """Return the first extent that a symbol decides, and about how large that is."""
    for node in graph.nodes:
        for v in node.outputs:
            for axis, extent in enumerate(v.shape):
                if symbol in symbols_of(extent):
                    return extent, _wanted(v, axis)
    return Sym(symbol), BATCH


def _candidates(symbol: Symbol, extent: Dim, wanted: int) -> list[int]:
    """Return values within the bounds of a symbol, primes and then odd numbers first, and of these the one first with
    which the extent is nearest to what is wanted."""
    least = max(1, symbol.least)
    most = _LARGEST if symbol.most == inf and least < _LARGEST else min(symbol.most, least + _LARGEST)
    alone: Dim = Sym(symbol)
    with suppress(ZeroDivisionError):
        alone = substitute(extent, dict.fromkeys(symbols_of(extent) - {symbol}, 1))
    _, k, c = linear(alone) or (symbol, 0, 0)

    def distance(n: int) -> float:
        try:
            return abs((k * n + c if k else static([substitute(alone, {symbol: n})])[0]) - wanted)
        except ZeroDivisionError:
            return inf

    order = sorted(range(least, int(most) + 1), key=lambda n: (not _is_prime(n), n % 2 == 0 and n > 2, distance(n)))
    return order or [least]


@cache
def _is_prime(n: int) -> bool:
    return n > 1 and all(n % k for k in range(2, isqrt(n) + 1))


def typical_shape(shape: Sequence[Dim], sizes: dict[str, int]) -> tuple[int, ...]:
    """Return a shape where symbols have these values; what no input has, since data decide it, is as long as a
    sequence."""
    unknown = {s: SEQUENCE for d in shape for s in symbols_of(d) if s not in sizes}
    return static(substitute(substitute(d, sizes), unknown) for d in shape)
