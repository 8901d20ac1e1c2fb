"""Typical values of a network's symbols: what is decided by sizes is decided at these.

They stand for no call: what is decided holds for all. So that nothing is decided by chance, they are primes: a number
divides such an extent only if it divides all of them, as 16 does 16*h. A batch has 2, since most calls have few; rows
and columns of images are near 211, lengths of sequences near 127; within the bounds of a symbol.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm.core.dims import Dim, Symbol, static, substitute, symbols_of
from renorm.graph.ir import Graph, Value

BATCH, IMAGE, SEQUENCE = 2, 211, 127
_PRIMES = [2, *(n for n in range(3, IMAGE + 1, 2) if all(n % k for k in range(3, n, 2)))]


def typical_sizes(graph: Graph) -> dict[str, int]:
    """Return a value for each symbol in the shapes of a network's inputs."""
    found: dict[str, int] = {}
    for v in graph.inputs:
        for axis, extent in enumerate(v.shape):
            for symbol in sorted(symbols_of(extent)):
                found.setdefault(symbol, _value(symbol, extent, _wanted(v, axis)))
    return found


def _wanted(v: Value, axis: int) -> int:
    """About how large an extent is."""
    if axis == 0 and v.rank > 1:
        return BATCH
    return IMAGE if v.rank >= 4 and axis >= 2 else SEQUENCE


def _value(symbol: Symbol, extent: Dim, wanted: int) -> int:
    """The prime, within the bounds of the symbol, with which the extent is nearest to what is wanted."""
    within = [n for n in _PRIMES if symbol.least <= n <= symbol.most] or [max(1, symbol.least)]
    return min(within, key=lambda n: abs(_with(extent, symbol, n) - wanted))


def _with(extent: Dim, symbol: Symbol, n: int) -> int:
    others: dict[str, int] = dict.fromkeys(symbols_of(extent), 1)
    return static([substitute(extent, {**others, symbol: n})])[0]


def typical_shape(shape: Sequence[Dim], sizes: dict[str, int]) -> tuple[int, ...]:
    """Return a shape where symbols have these values; what no input has, since data decide it, is as long as a
    sequence."""
    unknown = {s: SEQUENCE for d in shape for s in symbols_of(d) if s not in sizes}
    return static(substitute(substitute(d, sizes), unknown) for d in shape)
