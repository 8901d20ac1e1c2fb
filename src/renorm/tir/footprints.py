"""Bytes that loops touch, and how many of them come from beyond each cache.

An access reads the lines of a few constant offsets, which loops shift. Lines that a loop body touches are there in its
next round if all that one round touches fits in the cache (fits(c) below); F counts lines, once each:

    misses(loop, c) = F(loop)         if F(body) fits in c, else rounds * misses(body, c)
    misses(s1; s2, c) = F(s1; s2)     if it fits in c, else misses(s1, c) + misses(s2, c)

Between these there is a slope: of a body that takes a part more than the cache, that part comes anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import ceil

from renorm.core import dtypes
from renorm.core.machine import LINE
from renorm.expr.linear import Linear, linear_in_parts, one_of_each
from renorm.expr.nodes import Binary, Broadcast, Const, Expr, OpenVar, Ramp, Var
from renorm.expr.rewrite import children
from renorm.tir.nodes import Buffer
from renorm.tir.scope import typical

Terms = tuple[tuple[Expr, int], ...]  # atoms of an index and the bytes that each moves it
Shifts = tuple[tuple[int, float], ...]  # bytes and rounds of loops
Group = tuple[Buffer, Terms, Shifts]  # accesses that differ by constants
Span = tuple[int, int]  # first byte and end
Place = tuple[Terms, int, int, int]  # of an access: terms, first byte, bytes from lane to lane, lanes
Bytes = dict[Buffer, float]


class Places:
    """Tell where accesses of a kernel lie, by the linear forms of their indices."""

    def __init__(self) -> None:
        self._one = one_of_each()
        self._lets: dict[Var, Linear] = {}
        self._forms: dict[Expr, Linear] = {}
        self._places: dict[tuple[str, Expr], Place] = {}  # by type of the elements and index
        self._variables: dict[Expr, frozenset[Var]] = {}

    def bind(self, var: Var, value: Expr) -> None:
        self._lets[var] = self.form(value)

    def form(self, e: Expr) -> Linear:
        """Return the form of an index of one lane, at typical extents."""
        if e not in self._forms:
            self._forms[e] = linear_in_parts(e, self._part, self._one)
        return self._forms[e]

    def _part(self, e: Expr) -> Linear:
        if isinstance(e, OpenVar):
            return Linear({}, typical(e))
        if isinstance(e, Var) and e in self._lets:
            return self._lets[e]
        return Linear({self._one(e): 1})

    def of(self, buffer: Buffer, index: Expr) -> Place:
        """Return where an access lies."""
        name = buffer.dtype, index
        if name not in self._places:
            self._places[name] = self._of(dtypes.itemsize(buffer.dtype), index)
        return self._places[name]

    def _of(self, size: int, index: Expr) -> Place:
        step, lanes = 0, index.lanes
        while isinstance(index, (Ramp, Broadcast)):
            if isinstance(index, Ramp):
                step = int(index.stride.value) if isinstance(index.stride, Const) else LINE
                index = index.base
            else:
                index = index.value
        if index.lanes > 1:  # lanes that no ramp gives: taken to be anywhere
            return ((self._one(index), size),), 0, LINE, lanes
        form = self.form(index)
        return tuple((atom, k * size) for atom, k in form.terms.items()), form.constant * size, step * size, lanes

    def variables(self, e: Expr) -> frozenset[Var]:
        """Return the loop variables in an atom."""
        if e not in self._variables:
            if isinstance(e, Var):
                held = self._lets.get(e)
                found = {e} if held is None else set[Var]().union(*map(self.variables, held.terms))
            else:
                found = set[Var]().union(*map(self.variables, children(e)))
            self._variables[e] = frozenset(found)
        return self._variables[e]

    def values(self, e: Expr, var: Var, rounds: float) -> float:
        """Return about how many values an expression takes in a loop."""
        if var not in self.variables(e):
            return 1
        if isinstance(e, Binary) and isinstance(e.b, Const) and e.op in ("//", "%", "*"):
            held, by = self.values(e.a, var, rounds), abs(int(e.b.value)) or 1
            return held if e.op == "*" else min(held, by) if e.op == "%" else max(1, ceil(held / by))
        return (
            min(rounds, reduce(lambda n, x: max(n, self.values(x, var, rounds)), children(e), 1))
            if children(e)
            else rounds
        )


class Touched:
    """What a part of a program touches. spans: of accesses that differ by constants, where these lie. misses: bytes
    by cache, from the nearest on, and by buffer."""

    def __init__(self, spans: dict[Group, set[Span]], misses: Sequence[Bytes] = ()):
        self.spans, self.misses = spans, list(misses)
        self.bytes: Bytes = {}
        for (buffer, _, shifts), own in spans.items():
            self.bytes[buffer] = self.bytes.get(buffer, 0) + _footprint(own, shifts)
        for buffer, nbytes in self.bytes.items():
            held = typical(buffer.size) if isinstance(buffer.size, Expr) else buffer.size
            self.bytes[buffer] = min(nbytes, max(LINE, held * dtypes.itemsize(buffer.dtype)))
        self.total = sum(self.bytes.values())

    @staticmethod
    def joined(parts: Sequence[Touched], caches: Sequence[float]) -> Touched:
        """Of parts that follow each other. caches: bytes that stay in each."""
        if len(parts) == 1:
            return parts[0]
        spans = dict[Group, set[Span]]()
        for part in parts:
            for group, own in part.spans.items():
                spans[group] = spans[group] | own if group in spans else own
        found = Touched(spans)
        for c, size in enumerate(caches):
            part = lost(found.total, size)
            apart = {b: sum(p.misses[c].get(b, 0.0) for p in parts) for b in found.bytes}
            found.misses.append({b: n + part * max(0.0, apart[b] - n) for b, n in found.bytes.items()})
        return found

    def repeated(self, places: Places, var: Var, rounds: float, caches: Sequence[float]) -> Touched:
        """Of a loop whose body this is."""
        spans = dict[Group, set[Span]]()
        for (buffer, terms, shifts), own in self.spans.items():
            moved = ((abs(k), places.values(atom, var, rounds)) for atom, k in terms)
            group = buffer, terms, (*shifts, *((k, n) for k, n in moved if n > 1))
            spans[group] = spans[group] | own if group in spans else own
        found = Touched(spans)
        for c, size in enumerate(caches):
            part = lost(self.total, size)
            again = self.misses[c]
            found.misses.append({b: n + part * max(0.0, again[b] * rounds - n) for b, n in found.bytes.items()})
        return found


def is_same(a: Place, b: Place) -> bool:
    """Return whether two accesses lie at the same place."""
    same_terms = len(a[0]) == len(b[0]) and all(x is y and k == n for (x, k), (y, n) in zip(a[0], b[0]))
    return same_terms and a[1:] == b[1:]


def lost(nbytes: float, size: float) -> float:
    """Return which part of so many bytes is gone from a cache when it is touched again."""
    return min(1.0, max(0.0, nbytes / size - 1.0))


def spans(first: int, step: int, lanes: int, size: int) -> set[Span]:
    """Return first byte and end of what the lanes of an access read, counted from where its terms are 0."""
    if abs(step) < LINE:
        ends = first, first + step * (lanes - 1)
        return {(min(ends), max(ends) + size)}
    return {(first + i * step, first + i * step + size) for i in range(lanes)}


def _footprint(touched: Iterable[Span], shifts: Shifts) -> float:
    """Return the bytes of the lines that spans touch when loops shift them.

    Shifts are taken from the smallest on. Runs of lines that each shift extends, or repeats where it leads beyond them,
    are no more than lie between the first and last one.
    """
    ordered = sorted(shifts)
    longer = sum(shift * (rounds - 1) for shift, rounds in ordered if shift < LINE)
    held = list[tuple[int, int]]()  # first line of a run, and the one behind it
    for first, behind in sorted((first // LINE, int(end + longer - 1) // LINE + 1) for first, end in touched):
        if held and first <= held[-1][1]:
            held[-1] = held[-1][0], max(behind, held[-1][1])
        else:
            held.append((first, behind))
    runs, span = len(held), (held[-1][1] - held[0][0]) * LINE
    nbytes = sum(behind - first for first, behind in held) * LINE
    for shift, rounds in ordered:
        if shift >= LINE:
            more = rounds - 1
            nbytes = min(nbytes + more * min(runs * shift, nbytes), span + more * shift)
            if shift >= span:
                runs *= rounds
            span += more * shift
    return nbytes
