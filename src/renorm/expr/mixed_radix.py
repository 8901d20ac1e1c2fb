"""Bounds where quotients and remainders of one number stand beside each other: it is written in digits.

    x == (x//28)*28 + ((x//2)%14)*2 + x%2        places 1, 2 and 28: each divides the next

A loop over planes, rows and tiles of rows is one loop over x; an index has x or x%28 in it, conditions (x//2)%14 and
x%2. As sums of digits all of these are linear forms of the same atoms, so that a condition on one bounds another. That
is exact for every integer x, since // rounds down.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from math import inf

from renorm.expr.bounds import Bounds, Interval, Intervals, is_exact
from renorm.expr.linear import Form, form_of
from renorm.expr.nodes import Binary, Const, Expr
from renorm.expr.rewrite import key


def interval(e: Expr, bounds: Bounds | None = None, facts: Iterable[Expr] = ()) -> Interval:
    """Return the interval of an integer expression without lanes, tighter than `bounds.interval`: expensive, for where
    nothing less will do."""
    intervals = Intervals(bounds)
    form, given = form_of(e), [f for fact in facts for f in intervals.nonpositive_forms(fact)]
    digits = _Digits((form, *given))
    form, given = digits.rewritten(form), [digits.rewritten(f) for f in given]
    facts_known = (*given, *(f for fact in given for f in _rounded(fact, intervals)), *digits.facts(intervals))
    low, high = -intervals.most(form.times(-1), facts_known), intervals.most(form, facts_known)
    return (None if low == -inf else int(low), None if high == inf else int(high))


def _rounded(fact: Form, intervals: Intervals) -> Iterator[Form]:
    """From g*f + rest <= 0 follows f <= -least(rest)//g, which may be less than a real number would allow."""
    for g in sorted({abs(k) for k in fact.coefficients if abs(k) > 1}):
        multiples, rest = fact.split(g)
        most = intervals.most(rest.times(-1), ())
        if multiples.terms and most != inf and (rest.terms or rest.constant):
            whole = multiples.divided(g)
            whole.constant -= int(most) // g
            yield whole


@dataclass(frozen=True)
class _Part:
    """base // divisor % modulus, or base // divisor where modulus is None."""

    base: Expr
    divisor: int = 1
    modulus: int | None = None

    @property
    def places(self) -> tuple[int, ...]:
        """Return where its digits begin and end."""
        return (self.divisor,) if self.modulus is None else (self.divisor, self.divisor * self.modulus)

    @property
    def name(self) -> Hashable:
        """Equal for equal parts."""
        return (key(self.base), self.divisor, self.modulus)

    def expression(self) -> Expr:
        e = self.base
        if self.divisor > 1:
            e = Binary("//", e, Const(self.divisor, e.dtype))
        return e if self.modulus is None else Binary("%", e, Const(self.modulus, e.dtype))


def _part(e: Expr) -> _Part:
    """The expression as a part of the number that it is taken of: x//2//3 % 4 is x//6 % 4, x%12//4 is x//4 % 3."""
    if not (isinstance(e, Binary) and e.op in ("//", "%") and isinstance(e.b, Const) and is_exact(e.a)):
        return _Part(e)
    c, part = int(e.b.value), _part(e.a)
    if c <= 0:
        return _Part(e)
    if part.modulus is not None and part.modulus % c:
        part = _Part(e.a)
    if e.op == "%":
        return _Part(part.base, part.divisor, c)
    return _Part(part.base, part.divisor * c, None if part.modulus is None else part.modulus // c)


class _Digits:
    """The digits of all numbers of which some forms have quotients or remainders."""

    def __init__(self, forms: Iterable[Form]):
        parts: dict[Hashable, dict[Hashable, _Part]] = {}  # of each number
        waiting = list(forms)
        while waiting:
            for atom, _ in waiting.pop().terms.values():
                part = _part(atom)
                of_number = parts.setdefault(key(part.base), {})
                if part.base is not atom and not of_number:
                    waiting.append(form_of(part.base))
                of_number[part.name] = part
        self._sums: dict[Hashable, Form] = {}  # name of a part -> the digits that it has
        self._bounded: list[tuple[Expr, int]] = []  # what is no atom any more, and what greater ends are multiples of
        numbers: list[Expr] = []
        for of_number in parts.values():
            base, places = next(iter(of_number.values())).base, _places(of_number.values())
            if len(places) > 1:
                numbers.append(base)
                for part in (_Part(base), *of_number.values()):
                    if all(p in places for p in part.places):
                        self._sums[part.name] = _sum(part, places)
                self._bounded.append((base, places[-1]))
        self._ties = [tie for base in numbers if (tie := self._tie(base)).terms]

    def _tie(self, base: Expr) -> Form:
        """0, as what a number is made of less its digits. One term stands for the others from there on, if it can."""
        tie = self.rewritten(form_of(base))
        tie.add(self.rewritten(Form({key(base): (base, 1)})), -1)
        own = self._sums[_Part(base).name].terms
        name = next((i for i, (_, k) in tie.terms.items() if abs(k) == 1 and i not in own), None)
        if name is None:
            return tie
        atom, k = tie.terms[name]
        by = tie.times(-k)
        by.add_atom(name, atom, 1)
        for i, form in self._sums.items():
            self._sums[i] = _replaced(form, name, by)
        self._sums[name] = by
        self._bounded.append((atom, 0))
        return Form()

    def rewritten(self, form: Form) -> Form:
        """The form with digits in the place of quotients, remainders and what they are taken of."""
        result = Form({}, form.constant)
        for atom, k in form.terms.values():
            part = _part(atom)
            digits = self._sums.get(part.name)
            if digits is None:
                result.add_atom(part.name, atom, k)
            else:
                result.add(digits, k)
        return result

    def facts(self, intervals: Intervals) -> Iterator[Form]:
        """Yield what the bounds of single atoms do not say: forms f with f <= 0."""
        for e, unit in self._bounded:
            low, high = intervals.span(e)
            digits = self.rewritten(Form({key(e): (e, 1)}))
            if high != inf and (not unit or (high + 1) % unit):
                form = digits.copy()
                form.constant -= int(high)
                yield form
            if low != -inf and (not unit or low % unit):
                form = digits.times(-1)
                form.constant += int(low)
                yield form
        for tie in self._ties:
            yield from (tie, tie.times(-1))


def _replaced(form: Form, name: Hashable, by: Form) -> Form:
    """The form with a term replaced by the form that it equals."""
    if name not in form.terms:
        return form
    atom, k = form.terms[name]
    result = form.copy()
    result.add_atom(name, atom, -k)
    result.add(by, k)
    return result


def _places(parts: Iterable[_Part]) -> tuple[int, ...]:
    """The longest chain of places, from 1 on, of which each divides the next."""
    chains: dict[int, tuple[int, ...]] = {}
    for place in sorted({1, *(p for part in parts for p in part.places)}):
        chains[place] = (*max((c for p, c in chains.items() if place % p == 0), key=len, default=()), place)
    return max(chains.values(), key=len)


def _sum(part: _Part, places: tuple[int, ...]) -> Form:
    """The part as a sum of digits, by what they count in it."""
    end = None if part.modulus is None else part.places[1]
    form = Form()
    for place, following in zip(places, (*places[1:], None)):
        if place >= part.divisor and (end is None or place < end):
            digit = _Part(part.base, place, None if following is None else following // place)
            form.add_atom(digit.name, digit.expression(), place // part.divisor)
    return form
