"""Bounds where quotients and remainders of one number stand beside each other: it is written in digits.

    x == (x//28)*28 + ((x//2)%14)*2 + x%2        places 1, 2 and 28: each divides the next
    x == (x//(2*n))*2*n + ((x//2)%n)*2 + x%2     places 1, 2 and 2*n, n an open extent

A loop over planes, rows and tiles of rows is one loop over x; an index has x or x%28 in it, conditions (x//2)%14 and
x%2. As sums of digits all of these are linear forms of the same atoms, so that a condition on one bounds another. That
is exact for every integer x, since // rounds down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from renorm.core.spans import Span
from renorm.expr.bounds import MOST_STEPS, Bounds, Intervals, is_exact
from renorm.expr.linear import (
    ONES,
    Intern,
    Linear,
    Place,
    apart,
    divided,
    factors,
    is_of_extents,
    linear,
    one_of_each,
    place_of,
    times,
)
from renorm.expr.nodes import Binary, Expr, Var


def interval(e: Expr, bounds: Bounds | None = None, facts: Iterable[Expr] = ()) -> Span:
    """Return the interval of an integer expression without lanes, tighter than `bounds.interval`: expensive, for where
    nothing less will do."""
    proof = _Proof(bounds, facts)
    form = linear(e, proof.intern)
    return -proof.most(-form), proof.most(form)


def is_within(index: Expr, size: int | Expr, bounds: Bounds | None = None, facts: Iterable[Expr] = ()) -> bool:
    """Return whether `interval` says that an index is one of `size` elements."""
    proof = _Proof(bounds, facts)
    form = linear(index, proof.intern)
    end = linear(size, proof.intern) if isinstance(size, Expr) else Linear({}, size)
    return proof.most(-form, 0) <= 0 and proof.most(form - end, -1) < 0


STEPS = 4 * MOST_STEPS  # a product over blocks, threads and rounds of a sum has digits of three numbers


class _Proof:
    """Bounds of forms under facts, as sums of digits."""

    def __init__(self, bounds: Bounds | None, facts: Iterable[Expr]):
        self.intern = one_of_each()
        self._intervals = Intervals(bounds, (), self.intern)
        told = [f for fact in facts for f in self._intervals.nonpositive_forms(fact)]
        self._given = [*told, *(f for fact in told for f in self._of_numbers(fact))]

    def _of_numbers(self, fact: Linear) -> Iterator[Linear]:
        """From f + k*(x//m) <= 0 follows m*f + k*x <= k*(m - 1): what was divided so is a number again."""
        for atom, k in fact.terms.items():
            d = digit_of(atom)
            m = d.unit.number
            if k > 0 and d.count is None and m > 1 and not d.unit.extents:
                rest = fact.plus(Linear({atom: 1}), -k) * m
                yield rest.plus(linear(d.base, self.intern), k).offset(-k * (m - 1))

    def most(self, form: Linear, enough: float = -inf) -> float:
        """Return a number that the form never exceeds. enough: one that serves as well as any lower one."""
        found = self._most(form, enough)
        units = {d.unit for x in form.terms if (d := digit_of(x)).unit.extents} if found > max(enough, -1) else ()
        for unit in units:
            scaled = times(form, unit.form(self.intern), self.intern)
            if scaled is not None and self._most(scaled, -1) < 0:
                return -1  # as a multiple of the form is less than 0
        return found

    def _most(self, form: Linear, enough: float) -> float:
        forms = (form, *self._given)
        digits = _Digits(forms, self.intern)
        found = digits.most(form, self._given, self._intervals, enough)
        if found > enough and digits.lone:
            # what ties a remainder to its number stands in the way where nothing else is said of that
            digits = _Digits(forms, self.intern, digits.lone)
            found = min(found, digits.most(form, self._given, self._intervals, enough))
        return found


def _rounded(fact: Linear, intervals: Intervals) -> Iterator[Linear]:
    """From g*f + rest <= 0 follows f <= -least(rest)//g, which may be less than a real number would allow."""
    for g in sorted({abs(k) for k in fact.coefficients if abs(k) > 1}):
        multiples, rest = fact.split(g)
        most = intervals.most(-rest, ())
        if multiples.terms and most != inf and (rest.terms or rest.constant):
            yield multiples.divided(g).offset(-(int(most) // g))
    units = {Place.of(abs(k), extents): None for x, k in fact.terms.items() if (extents := factors(x)[1:])}
    for g in (unit.form(intervals.intern) for unit in units):
        parts = divided(fact, g, intervals.intern)
        if parts is not None and parts[0].terms and (parts[1].terms or parts[1].constant):
            most = intervals.greatest_quotient(-parts[1], g)
            if most is not None:
                yield parts[0] - most


class Digit(NamedTuple):  # a dataclass asks for `base == base`, an expression, from Python 3.13 on
    """base // unit % count: a digit of a number, or several beside each other; base // unit, all that are left, where
    count is None."""

    base: Expr
    unit: Place = ONES
    count: Place | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """Return where it begins and ends."""
        return (self.unit, self.unit.times(self.count)) if self.count else (self.unit,)

    def expression(self) -> Expr:
        e = self.base
        if self.unit != ONES:
            e = Binary("//", e, self.unit.expression(e.dtype))
        return Binary("%", e, self.count.expression(e.dtype)) if self.count else e


def digit_of(e: Expr) -> Digit:
    """Return an expression as a digit of the number that it is taken of: x//2//3 % 4 is x//6 % 4, x%12//4 is x//4 % 3,
    x // (2*n) // 2 is x // (4*n). What is no quotient or remainder is all digits of itself."""
    if not (isinstance(e, Binary) and e.op in ("//", "%") and is_exact(e.a)):
        return Digit(e)
    c = place_of(linear(e.b))
    if c is None:
        return Digit(e)
    whole = digit_of(e.a)
    left = whole.count.over(c) if whole.count else None
    if whole.count and left is None:
        whole = Digit(e.a)
    if e.op == "%":
        return whole._replace(count=c)
    return Digit(whole.base, whole.unit.times(c), left)


class _Digits:
    """The digits of all numbers of which some forms have quotients or remainders, but for those that are left out.

    lone: sums of which forms have one remainder and nothing else.
    """

    def __init__(self, forms: Iterable[Linear], intern: Intern, left_out: Collection[Expr] = ()):
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
        same = _same_remainders(parts, intern)
        for base, other in same.items():
            parts[other] |= {self._atom(d): d for d in (p._replace(base=other) for p in parts[base].values())}
        self._sums: dict[Expr, Linear] = {}  # of a part the digits that it has
        self._bounded: list[
            tuple[Expr, Place | None]
        ] = []  # what is no atom any more, of which greater ends are multiples
        numbers: list[Expr] = []
        self.lone: set[Expr] = set()
        for base, of_number in parts.items():
            if base in same:
                continue
            places = _places(of_number.values())
            if len(of_number) == 1 and not isinstance(base, Var) and all(p.unit == ONES for p in of_number.values()):
                self.lone.add(base)
            if len(places) > 1 and base not in left_out:
                numbers.append(base)
                for part in (Digit(base), *of_number.values()):
                    if all(p in places for p in part.places):
                        self._sums[self._atom(part)] = self._sum(part, places)
                self._bounded.append((base, places[-1]))
        for base, other in same.items():
            for atom, part in parts[base].items():
                if (found := self._sums.get(self._atom(part._replace(base=other)))) is not None:
                    self._sums[atom] = found
        self._ties = [tie for base in numbers if (tie := self._tie(base)).terms]

    def most(self, form: Linear, given: Sequence[Linear], intervals: Intervals, enough: float) -> float:
        """Return a bound of a form under facts that are given."""
        facts = [self.rewritten(f) for f in given]
        known = [*facts, *(f for fact in facts for f in _rounded(fact, intervals)), *self.facts(intervals)]
        known.sort(key=is_of_extents)  # sets of facts are tried in this order
        return intervals.most(self.rewritten(form), known, enough, STEPS)

    def _atom(self, part: Digit) -> Expr:
        return self._intern(part.expression())

    def _sum(self, part: Digit, places: tuple[Place, ...]) -> Linear:
        """The part as a sum of digits, by what they count in it."""
        end = places.index(part.places[1]) if part.count else len(places)
        found = Linear({})
        for i in range(places.index(part.unit), end):
            place, following = places[i], places[i + 1] if i + 1 < len(places) else None
            digit = self._atom(Digit(part.base, place, following.over(place) if following else None))
            together = times(Linear({digit: 1}), _exactly(place, part.unit).form(self._intern), self._intern)
            assert together is not None  # a product with extents is one
            found += together
        return found

    def _tie(self, base: Expr) -> Linear:
        """0, as what a number is made of less its digits. One term stands for the others from there on, if it can."""
        own = self.rewritten(Linear({base: 1}))
        tie = self.rewritten(linear(base, self._intern)) - own
        own_terms = self._sums[base].terms
        atom = next(
            (x for x, k in tie.terms.items() if abs(k) == 1 and x not in own_terms and len(factors(x)) == 1), None
        )
        if atom is None:
            return tie
        by = (tie * -tie.terms[atom]).plus(Linear({atom: 1}))
        for part, form in self._sums.items():
            if atom in form.terms:
                self._sums[part] = form.without((atom,)).plus(by, form.terms[atom])
        self._sums[atom] = by
        self._bounded.append((atom, None))
        return Linear({})

    def rewritten(self, form: Linear) -> Linear:
        """The form with digits in the place of quotients, remainders and what they are taken of."""
        result = Linear({}, form.constant)
        for atom, k in form.terms.items():
            first, unit = apart(atom, self._intern)
            name = self._atom(digit_of(first))
            together = times(self._sums.get(name) or Linear({name: 1}), unit, self._intern)
            result = result.plus(Linear({atom: 1}) if together is None else together, k)
        return result

    def facts(self, intervals: Intervals) -> Iterator[Linear]:
        """Yield what the bounds of single atoms do not say: forms f with f <= 0."""
        for e, unit in self._bounded:
            low, high = intervals.span(e)
            digits = self.rewritten(Linear({e: 1}))
            number = 0 if unit is None else unit.number
            is_certain = number and not (unit and unit.extents)
            if high != inf and not (is_certain and (high + 1) % number == 0):
                yield digits.offset(-int(high))
            elif high == inf and (most := intervals.greatest(linear(e, self._intern))) is not None:
                yield digits - self.rewritten(most)
            if low != -inf and (not number or (low % number if is_certain else low)):
                yield (-digits).offset(int(low))
        for tie in self._ties:
            yield from (tie, -tie)


def _same_remainders(parts: dict[Expr, dict[Expr, Digit]], intern: Intern) -> dict[Expr, Expr]:
    """Return for numbers that forms have remainders of alone another number with the same remainders: (96*b + t) % 160
    is (256*b + t) % 160."""
    found = dict[Expr, Expr]()
    forms = {base: linear(base, intern) for base in parts}
    for base, of_number in parts.items():
        moduli = [p.unit.times(p.count) if p.count else None for p in of_number.values()]
        numbers = [m.number for m in moduli if m is not None and not m.extents]
        if not numbers or len(numbers) < len(moduli) or any(base is other for other in found.values()):
            continue
        for other, form in forms.items():
            apart_by = form - forms[base]
            if (
                other is not base
                and other not in found
                and all(k % m == 0 for m in numbers for k in (*apart_by.terms.values(), apart_by.constant))
            ):
                found[base] = other
                break
    return found


def _exactly(place: Place, unit: Place) -> Place:
    found = place.over(unit)
    assert found is not None  # places of a chain
    return found


def _places(parts: Iterable[Digit]) -> tuple[Place, ...]:
    """The longest chain of places, from 1 on, of which each divides the next."""
    chains: dict[Place, tuple[Place, ...]] = {}
    every = {ONES, *(p for part in parts for p in part.places)}
    for place in sorted(every, key=lambda p: p.key):
        below = (c for p, c in chains.items() if place.over(p) is not None)
        chains[place] = (*max(below, key=len, default=()), place)
    return max(chains.values(), key=len)
