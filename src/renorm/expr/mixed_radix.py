"""Bounds where quotients and remainders of one number stand beside each other: it is written in digits.

    x == (x//28)*28 + ((x//2)%14)*2 + x%2        places 1, 2 and 28: each divides the next

A loop over planes, rows and tiles of rows is one loop over x; an index has x or x%28 in it, conditions (x//2)%14 and
x%2. As sums of digits all of these are linear forms of the same atoms, so that a condition on one bounds another. That
is exact for every integer x, since // rounds down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import NamedTuple

from renorm.core.linear import Span
from renorm.expr.bounds import Bounds, Intervals, is_exact
from renorm.expr.linear import Intern, Linear, factors, linear, one_of_each, product, times
from renorm.expr.nodes import Binary, Const, Expr


def interval(e: Expr, bounds: Bounds | None = None, facts: Iterable[Expr] = ()) -> Span:
    """Return the interval of an integer expression without lanes, tighter than `bounds.interval`: expensive, for where
    nothing less will do."""
    intern = one_of_each()
    intervals = Intervals(bounds, (), intern)
    form, given = linear(e, intern), [f for fact in facts for f in intervals.nonpositive_forms(fact)]
    digits = _Digits((form, *given), intern)
    form, given = digits.rewritten(form), [digits.rewritten(f) for f in given]
    facts_known = (*given, *(f for fact in given for f in _rounded(fact, intervals)), *digits.facts(intervals))
    return -intervals.most(-form, facts_known), intervals.most(form, facts_known)


def _rounded(fact: Linear, intervals: Intervals) -> Iterator[Linear]:
    """From g*f + rest <= 0 follows f <= -least(rest)//g, which may be less than a real number would allow."""
    for g in sorted({abs(k) for k in fact.coefficients if abs(k) > 1}):
        multiples, rest = fact.split(g)
        most = intervals.most(-rest, ())
        if multiples.terms and most != inf and (rest.terms or rest.constant):
            yield multiples.divided(g).offset(-(int(most) // g))


class Digit(NamedTuple):  # a dataclass asks for `base == base`, an expression, from Python 3.13 on
    """base // unit % count: a digit of a number, or several beside each other; base // unit, all that are left, where
    count is 0."""

    base: Expr
    unit: int = 1
    count: int = 0

    @property
    def places(self) -> tuple[int, ...]:
        """Return where it begins and ends."""
        return (self.unit, self.unit * self.count) if self.count else (self.unit,)

    def expression(self) -> Expr:
        e = self.base
        if self.unit > 1:
            e = Binary("//", e, Const(self.unit, e.dtype))
        return Binary("%", e, Const(self.count, e.dtype)) if self.count else e


def digit_of(e: Expr) -> Digit:
    """Return an expression as a digit of the number that it is taken of: x//2//3 % 4 is x//6 % 4, x%12//4 is x//4 % 3.
    What is no quotient or remainder is all digits of itself."""
    if not (isinstance(e, Binary) and e.op in ("//", "%") and isinstance(e.b, Const) and is_exact(e.a)):
        return Digit(e)
    c, whole = int(e.b.value), digit_of(e.a)
    if c <= 0:
        return Digit(e)
    if whole.count % c:
        whole = Digit(e.a)
    return whole._replace(count=c) if e.op == "%" else Digit(whole.base, whole.unit * c, whole.count // c)


class _Digits:
    """The digits of all numbers of which some forms have quotients or remainders."""

    def __init__(self, forms: Iterable[Linear], intern: Intern):
        self._intern = intern
        parts: dict[Expr, dict[Expr, Digit]] = {}  # of each number, by what they are as expressions
        waiting = list(forms)
        while waiting:
            for product_of in waiting.pop().terms:
                atom, *_ = factors(product_of)
                part = digit_of(atom)
                of_number = parts.setdefault(intern(part.base), {})
                if part.base is not atom and not of_number:
                    waiting.append(linear(part.base, intern))
                of_number[self._atom(part)] = part
        self._sums: dict[Expr, Linear] = {}  # of a part the digits that it has
        self._bounded: list[tuple[Expr, int]] = []  # what is no atom any more, and what greater ends are multiples of
        numbers: list[Expr] = []
        for base, of_number in parts.items():
            places = _places(of_number.values())
            if len(places) > 1:
                numbers.append(base)
                for part in (Digit(base), *of_number.values()):
                    if all(p in places for p in part.places):
                        self._sums[self._atom(part)] = self._sum(part, places)
                self._bounded.append((base, places[-1]))
        self._ties = [tie for base in numbers if (tie := self._tie(base)).terms]

    def _atom(self, part: Digit) -> Expr:
        return self._intern(part.expression())

    def _sum(self, part: Digit, places: tuple[int, ...]) -> Linear:
        """The part as a sum of digits, by what they count in it."""
        end = part.places[1] if part.count else inf
        terms: dict[Expr, int] = {}
        for place, following in zip(places, (*places[1:], 0)):
            if part.unit <= place < end:
                digit = Digit(part.base, place, following // place)
                terms[self._atom(digit)] = place // part.unit
        return Linear(terms)

    def _tie(self, base: Expr) -> Linear:
        """0, as what a number is made of less its digits. One term stands for the others from there on, if it can."""
        own = self.rewritten(Linear({base: 1}))
        tie = self.rewritten(linear(base, self._intern)) - own
        atom = next((x for x, k in tie.terms.items() if abs(k) == 1 and x not in self._sums[base].terms), None)
        if atom is None:
            return tie
        by = (tie * -tie.terms[atom]).plus(Linear({atom: 1}))
        for part, form in self._sums.items():
            if atom in form.terms:
                self._sums[part] = form.without((atom,)).plus(by, form.terms[atom])
        self._sums[atom] = by
        self._bounded.append((atom, 0))
        return Linear({})

    def rewritten(self, form: Linear) -> Linear:
        """The form with digits in the place of quotients, remainders and what they are taken of."""
        result = Linear({}, form.constant)
        for atom, k in form.terms.items():
            first, *extents = factors(atom)
            name = self._atom(digit_of(first))
            digits = self._sums.get(name) or Linear({name: 1})
            unit = product(extents, self._intern) if extents else None
            together = digits if unit is None else times(digits, Linear({unit: 1}), self._intern)
            result = result.plus(Linear({atom: 1}) if together is None else together, k)
        return result

    def facts(self, intervals: Intervals) -> Iterator[Linear]:
        """Yield what the bounds of single atoms do not say: forms f with f <= 0."""
        for e, unit in self._bounded:
            low, high = intervals.span(e)
            digits = self.rewritten(Linear({e: 1}))
            if high != inf and (not unit or (high + 1) % unit):
                yield digits.offset(-int(high))
            if low != -inf and (not unit or low % unit):
                yield (-digits).offset(int(low))
        for tie in self._ties:
            yield from (tie, -tie)


def _places(parts: Iterable[Digit]) -> tuple[int, ...]:
    """The longest chain of places, from 1 on, of which each divides the next."""
    chains: dict[int, tuple[int, ...]] = {}
    for place in sorted({1, *(p for part in parts for p in part.places)}):
        chains[place] = (*max((c for p, c in chains.items() if place % p == 0), key=len, default=()), place)
    return max(chains.values(), key=len)
