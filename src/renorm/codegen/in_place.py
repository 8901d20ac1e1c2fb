"""Which results a kernel may write over an operand.

    (y, x)  iff  each element of x is read only to compute the element of y at the same place

So a thread that has written an element of y has spoilt nothing that anybody reads later: what is stored needs what is
loaded, in the loops as a schedule leaves them and in all that becomes of them. Asked for is that one statement stores
y, and nothing loads it; that x is loaded by this statement only, at the very index of the store; and that no two rounds
of the loops around it store the same element, of which the second would read what the first wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from renorm.expr import rewrite
from renorm.expr.bounds import End, Intervals
from renorm.expr.extents import same_extent
from renorm.expr.linear import ONES, Linear, Place, apart, factors, linear
from renorm.expr.mixed_radix import digit_of
from renorm.expr.nodes import Expr, Load, Source
from renorm.tir.nodes import Buffer, For, If, Kernel, Stmt, Store, children, expressions
from renorm.tir.scope import Scope


def in_place(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """Pairs (written, read) of indices of parameters."""
    found: list[tuple[int, int]] = []
    accesses = _Accesses()
    accesses.collect(kernel.body, _Around())
    for i, y in enumerate(kernel.params):
        stores = accesses.stores.get(y, ())
        if len(stores) != 1 or y in accesses.loads:
            continue
        store, around = stores[0]
        index = rewrite.key(store.index)
        candidates = [
            k
            for k, x in enumerate(kernel.params)
            if x not in accesses.stores
            and x in accesses.loads
            and x.dtype == y.dtype
            and same_extent(x.size, y.size)
            and all(at is store and rewrite.key(load.indices[0]) == index for load, at in accesses.loads[x])
        ]
        if candidates and _stores_once(store, around):
            found += [(i, k) for k in candidates]
    return tuple(found)


@dataclass(frozen=True)
class _Around:
    """The surroundings of a statement. loops: outermost first. conditions: all hold."""

    loops: tuple[For, ...] = ()
    conditions: tuple[Expr, ...] = ()


@dataclass
class _Accesses:
    stores: dict[Buffer, list[tuple[Store, _Around]]] = field(default_factory=dict[Buffer, list[tuple[Store, _Around]]])
    loads: dict[Source, list[tuple[Load, Stmt]]] = field(default_factory=dict[Source, list[tuple[Load, Stmt]]])

    def collect(self, s: Stmt, around: _Around) -> None:
        for e in expressions(s):
            for load in rewrite.loads(e):
                self.loads.setdefault(load.source, []).append((load, s))
        match s:
            case Store():
                self.stores.setdefault(s.buffer, []).append((s, around))
            case For():
                self.collect(s.body, replace(around, loops=(*around.loops, s)))
            case If():
                self.collect(s.then, replace(around, conditions=(*around.conditions, s.condition)))
                if s.otherwise is not None:
                    self.collect(s.otherwise, around)
            case _:
                for part in children(s):
                    self.collect(part, around)


def _stores_once(store: Store, around: _Around) -> bool:
    """Return whether no two rounds of the loops store the same element.

    In a sum of multiples of atoms, each coefficient, maybe an open extent, exceeds all that the terms with smaller ones
    can add up to. Then equal sums have equal atoms, and those determine the variables of the loops: v itself, or v // c
    and v % c.
    """
    scope = Scope()
    for loop in around.loops:
        scope = scope.inside(loop)
        if loop.var not in scope.bounds:
            return False
    predicate = () if store.predicate is None else (store.predicate,)
    intervals = Intervals(scope.bounds, (*around.conditions, *predicate))
    smaller = Linear({})
    atoms = list[Expr]()
    left = sorted(linear(store.index, intervals.intern).terms.items(), key=lambda t: abs(t[1]))
    while left:
        if (width := _width(smaller, intervals)) is None:
            return False
        at = next((i for i, (atom, k) in enumerate(left) if _exceeds(atom, k, width, intervals)), None)
        if at is None:
            return False
        atom, k = left.pop(at)
        smaller += Linear({atom: k})
        atoms.append(factors(atom)[0])
    known = _determined(atoms)
    return all(v in known or _is_single(*ends) for v, ends in scope.bounds.items())


def _is_single(low: End, high: End) -> bool:
    return not isinstance(low, Expr) and not isinstance(high, Expr) and low == high


def _width(form: Linear, intervals: Intervals) -> Linear | None:
    """Return how far apart values of a form may be."""
    low, high = intervals.form_span(form)
    if low > -inf and high < inf:
        return Linear({}, int(high - low))
    least, most = intervals.least(form), intervals.greatest(form)
    return None if least is None or most is None else most - least


def _exceeds(atom: Expr, k: int, width: Linear, intervals: Intervals) -> bool:
    """Return whether the coefficient of an atom, its open factors included, is greater than `width`."""
    stride = apart(atom, intervals.intern)[1] * abs(k)
    return intervals.form_span(width - stride)[1] < 0


def _determined(atoms: Iterable[Expr]) -> set[Expr]:
    """What the values of the atoms tell: x from x // c and x % c, as all of its digits."""
    known: dict[Expr, Place | None] = {}  # of a number, the digits below that place; None: all
    for digit in sorted(map(digit_of, atoms), key=lambda d: d.unit.key):
        end = known.get(digit.base, ONES)
        if end is None or end.over(digit.unit) is None:
            continue
        following = digit.unit.times(digit.count) if digit.count else None
        if following is None or following.over(end) is not None:
            known[digit.base] = following
    return {number for number, end in known.items() if end is None}
