"""Bounds of forms in which open extents stand: most(form) is a number that the form never exceeds, or infinity.

    i*m + j,  0 <= i < n,  0 <= j < m      at most (n - 1)*m + m - 1 = n*m - 1: less than n*m by 1, at any n and m

What varies is eliminated, one atom after the other, those first of which no other bound is made: where a form is
x*p + q and p is never negative, x stands at its greatest value, which may be a form itself. What is left is a
polynomial of extents n = low + n', 0 <= n': multiplied out in n', terms that are not positive are at most 0. Quotients
of extents, and extents that are defined by others, are tried as they stand, and as what they are made of.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import product as choices
from math import inf, prod
from typing import TYPE_CHECKING

from renorm.expr.linear import Linear, cofactor, divided, expression, factors, is_of_extents, times
from renorm.expr.nodes import Binary, Cast, Const, Expr, OpenVar, Var
from renorm.expr.rewrite import children

if TYPE_CHECKING:
    from renorm.expr.bounds import Intervals

_MOST_STEPS, _MOST_WAYS = 60, 100  # atoms that are eliminated for one bound, and ways to take extents
_MOST_LOOSER = 4  # extents that are taken as what they are made of, for one quotient
_VARIES = 1000  # ranks from here on are of what varies

_MOST_FOUND = 20_000  # bounds that are kept
_FOUND: dict[Hashable, float] = {}  # bounds of sums of products of extents: they hold wherever these stand

Reach = tuple[Linear | None, Linear | None]  # least and greatest value, as forms; None where there is none


class OpenBounds:
    """Bounds of forms, where those of variables may be forms. intervals: those under no facts, so that what is found of
    extents holds wherever they stand."""

    def __init__(self, intervals: Intervals):
        self._intervals, self._intern = intervals, intervals.intern
        self._ranks: dict[Expr, int] = {}
        self._open: dict[Expr, bool] = {}
        self._sums: dict[Expr, bool] = {}
        self._found: dict[Hashable, float] = {}

    def knows(self, x: Var) -> bool:
        """Return whether a variable was among what was asked for."""
        return x in self._ranks or x in self._open

    def concerns(self, form: Linear) -> bool:
        """Return whether open extents have a say in the bounds of a form."""
        return any(self._is_open(atom) for atom in form.terms)

    def _is_open(self, e: Expr) -> bool:
        found = self._open.get(e)
        if found is None:
            if type(e) is OpenVar:
                found = True
            elif isinstance(e, Var):
                ends = self._intervals.bounds.get(e, (0, 0))
                found = any(isinstance(end, Expr) for end in ends)
            else:
                found = any(self._is_open(c) for c in children(e))
            self._open[e] = found
        return found

    def varies(self, form: Linear) -> bool:
        """Return whether more stands in a form than extents and what is made of them alone."""
        return self._next(form, _VARIES - 1) is not None

    def most(self, form: Linear) -> float:
        """Return a number that the form never exceeds."""
        name = form.key()
        found = self._found.get(name)
        if found is None:
            self._found[name] = inf  # of a bound that leads back to itself nothing is known
            last = self.extreme(form, 1)
            found = inf if last is None else self._least_of(last)
            found = self._found[name] = found if found < 0 else min(found, self._of_cases(form))
        return found

    def _least_of(self, form: Linear) -> float:
        """Return the least bound of a form of extents that is found: each quotient, and each extent that others
        define, is taken as it stands, and as what it is made of."""
        name = _name_of_extents(form)
        found = None if name is None else _FOUND.get(name)
        if found is None:
            found = self._sought(form)
            found = found if found < 0 else min(found, self._of_units(form))
            if len(_FOUND) >= _MOST_FOUND:
                _FOUND.clear()
            if name is not None:
                _FOUND[name] = found
        return found

    def _of_units(self, form: Linear) -> float:
        """Return a bound of u*f + rest, where f is rounded down as an integer before it is multiplied: of a quotient
        3*n//4 it is known that it is less than n by 1, and u*(3*n//4) is less than u*n by u."""
        found = inf
        for x in dict.fromkeys(x for atom in form.terms for x in factors(atom) if _is_quotient(x)):
            parts = cofactor(form, x, self._intern)
            if parts is None or len(parts[0].terms) > 1 or abs(parts[0].number or 0) == 1:
                continue
            unit = parts[0] * -1 if self._sign(parts[0]) < 0 else parts[0]
            together = divided(form, unit, self._intern) if self._sign(unit) > 0 else None
            most = inf if together is None else self._least_of(together[0])
            if together is not None and most != inf:
                found = min(found, self._least_of(together[1] + unit * int(most)))
        return found

    def _of_cases(self, form: Linear) -> float:
        """Return a bound where one that is the greater of two is either of them, and the lesser one at most both."""
        for x in dict.fromkeys(x for atom in form.terms for x in factors(atom)):
            if type(x) is not Binary or x.op not in ("min", "max"):
                continue
            parts = cofactor(form, x, self._intern)
            sign = 0 if parts is None else self._sign(parts[0])
            if parts is None or not sign:
                continue
            cases = [times(parts[0], self._intervals.form(e), self._intern) for e in (x.a, x.b)]
            found = [inf if case is None else self.most(parts[1] + case) for case in cases]
            return max(found) if sign == (1 if x.op == "max" else -1) else min(found)
        return inf

    def _sought(self, form: Linear) -> float:
        found: float = inf
        waiting: list[tuple[Linear, int, frozenset[int]]] = [(form, 1, frozenset())]
        for _ in range(_MOST_WAYS):
            if not waiting:
                break
            # first what is short: where much cancels, bounds are near
            now, divisor, kept = waiting.pop(min(range(len(waiting)), key=lambda i: (len(waiting[i][0].terms), -i)))
            atom = self._next(now, 0, kept)
            if atom is None:
                bound = self._of_extents(now)
                found = min(found, bound if bound in (inf, -inf) else int(bound) // divisor)
                continue
            apart = [(other, divisor * d, kept) for other, d in self._apart(now, atom)]
            waiting += apart
            if not (apart and self._is_sum(atom)) and not self._is_without_end(now, atom):
                waiting.append((now, divisor, kept | {id(atom)}))
        return found

    def _is_without_end(self, form: Linear, atom: Expr) -> bool:
        """Return whether an atom, left as it stands, leaves no bound: it is added, and has no greatest value itself."""
        parts = cofactor(form, atom, self._intern) if self._ends(atom)[1] == inf else None
        return parts is not None and (parts[0].number or 0) > 0

    def _apart(self, form: Linear, atom: Expr) -> Iterator[tuple[Linear, int]]:
        """Yield (f, d) with form <= f / d, where the atom is taken as what it is made of."""
        parts = cofactor(form, atom, self._intern)
        # an extent is equal to what defines it, whatever that is multiplied by
        sign = 0 if parts is None else 1 if type(atom) is OpenVar else self._sign(parts[0])
        if parts is None or not sign:
            return
        multiple, rest = parts
        ways = list[tuple[Linear, Linear | None, int]]()
        if type(atom) is Binary and atom.op == "//" and (c := self._positive(atom.b)) is not None:
            x = self._intervals.form(atom.a)
            end = x if sign > 0 else x.offset(1) - c  # c*(x // c) is at most x, and at least x - c + 1
            whole = divided(multiple, c, self._intern)
            if whole is not None and whole[1].number == 0:
                ways.append((whole[0], end, 1))
            elif c.number is not None:
                ways.append((multiple, end, c.number))
        elif type(atom) is Binary and atom.op == ("min" if sign > 0 else "max"):  # at most either, at least either
            ways += [(multiple, self._intervals.form(e), 1) for e in (atom.a, atom.b)]
        for by, end, d in ways or [(multiple, self._reach(atom)[sign > 0], 1)]:
            if end is not None and (together := times(by, end, self._intern)) is not None:
                yield rest * d + together, d

    def _is_sum(self, x: Expr) -> bool:
        """Return whether an extent is defined as a sum of products that says all that is known of it: nothing better
        follows from it as it stands."""
        found = self._sums.get(x)
        if found is None:
            found = False
            if type(x) is OpenVar and x.definition is not None:
                form, (low, high) = self._intervals.form(x.definition), self._ends(x)
                is_made = form.number is None and is_of_extents(form)
                found = is_made and -self._of_extents(-form) >= low and self._of_extents(form) <= high
            self._sums[x] = found
        return found

    def _next(self, form: Linear, rank: int, kept: frozenset[int] = frozenset()) -> Expr | None:
        """Return the atom to eliminate: of the highest rank, above the one that is given, since bounds are made of what
        has a lower one. kept: ids of what stays."""
        found = None
        for atom in form.terms:
            for x in factors(atom):
                if (own := self._rank(x)) > rank and id(x) not in kept:
                    found, rank = x, own
        return found

    def _rank(self, x: Expr) -> int:
        """Return 0 for extents that the caller gives, more for what is made of extents alone, and from _VARIES on for
        what varies: always more than that of all that it is made of."""
        found = self._ranks.get(x)
        if found is None:
            self._ranks[x] = 0
            if type(x) is OpenVar:
                found = 0 if x.definition is None else 1 + self._highest([x.definition])
            elif isinstance(x, Var):
                ends = self._intervals.bounds.get(x, ())
                found = _VARIES + self._highest(e for e in ends if isinstance(e, Expr))
            elif all(type(v) is OpenVar for v in _leaves(x)):
                found = 1 + self._highest(children(x))
            else:
                found = _VARIES + self._highest(children(x))
            self._ranks[x] = found
        return found

    def _highest(self, parts: Iterable[Expr]) -> int:
        return max((max(self._rank(v) for v in (e, *_leaves(e))) for e in parts if type(e) is not Const), default=0)

    def _sign(self, form: Linear) -> int:
        """Return 1 for what is never negative, -1 for what is never positive, 0 for what may be both."""
        number = form.number
        if number is not None:
            return 1 if number >= 0 else -1
        return 1 if self.most(-form) <= 0 else -1 if self.most(form) <= 0 else 0

    def _reach(self, x: Expr) -> Reach:
        """Return the ends of an atom's range as forms of what has a lower rank."""
        if type(x) is OpenVar and x.definition is not None:
            form = self._intervals.form(_greater_one(x, x.definition))
            return form, form
        if isinstance(x, Var):
            low, high = self._intervals.bounds.get(x, (None, None))
            return self._end(low), self._end(high)
        if type(x) is Cast:
            form = self._intervals.form(x.a)
            return self.extreme(form, -1), self.extreme(form, 1)
        if type(x) is Binary and x.op == "%" and (c := self._positive(x.b)) is not None:
            return Linear({}), c.offset(-1)
        if type(x) is Binary and x.op == "//" and (c := self._positive(x.b)) is not None:
            ends = [self.extreme(self._intervals.form(x.a), sign) for sign in (-1, 1)]
            if ends[1] is not None and c.number is None:
                ends[1] = self._loosened(ends[1], c, _MOST_LOOSER) or ends[1]
            low, high = (None if end is None else self.divided(end, c, sign) for end, sign in zip(ends, (-1, 1)))
            return low, high
        if type(x) is Binary and x.op in ("min", "max"):
            return self._of_choice(x)
        return self._numbers(x)

    def _numbers(self, x: Expr) -> Reach:
        low, high = self._intervals.span(x)
        return None if low == -inf else Linear({}, int(low)), None if high == inf else Linear({}, int(high))

    def _end(self, end: int | Expr | None) -> Linear | None:
        if end is None:
            return None
        return self._intervals.form(end) if isinstance(end, Expr) else Linear({}, int(end))

    def _positive(self, e: Expr) -> Linear | None:
        """Return a divisor that is known to be positive."""
        form = self._intervals.form(e)
        return form if self.most(-form) < 0 else None

    def _of_choice(self, x: Binary) -> Reach:
        """min(a, b) is at most either; it is at least the one that is the least, where that is known."""
        sides = [self._intervals.form(e) for e in (x.a, x.b)]
        smaller, sign = x.op == "min", 1 if x.op == "min" else -1
        low, high = self._numbers(x)
        ends = [end for a in sides if (end := self.extreme(a, sign)) is not None]
        loose = self._nearest(ends, sign)
        if smaller and ends and all(end.number is None for end in ends):
            high = None  # a number comes of the most that extents may be: what ends at one is as large as that one is
        tight = [self.extreme(a, -1 if smaller else 1) for a in sides]
        bound: Linear | None = None
        a, b = tight
        if a is not None and b is not None:
            if self.most(a - b) <= 0:
                bound = a if smaller else b
            elif self.most(b - a) <= 0:
                bound = b if smaller else a
            else:  # of numbers above l, max(a, b) <= a + b - l; of numbers below h, min(a, b) >= a + b - h
                beyond = max(self.most(a), self.most(b)) if smaller else min(-self.most(-a), -self.most(-b))
                bound = (a + b).offset(-int(beyond)) if beyond not in (inf, -inf) else None
        if smaller:
            return (low if bound is None else bound), (loose if high is None else high)
        return (loose if low is None else low), (high if bound is None else bound)

    def _nearest(self, ends: Sequence[Linear], sign: int) -> Linear | None:
        """Return the least of greatest values (sign 1), or the greatest of least ones; one of them where that is not
        known."""
        if len(ends) < 2:
            return ends[0] if ends else None
        return ends[0] if self.most((ends[0] - ends[1]) * sign) <= 0 else ends[1]

    def extreme(self, form: Linear, sign: int) -> Linear | None:
        """Return the greatest (sign 1) or least (-1) value of a form as one of extents."""
        for _ in range(_MOST_STEPS):
            atom = self._next(form, _VARIES - 1)
            if atom is None:
                return form
            parts = cofactor(form, atom, self._intern)
            direction = 0 if parts is None else self._sign(parts[0]) * sign
            if parts is None or not direction:
                return None
            end = self._reach(atom)[direction > 0]
            together = None if end is None else times(parts[0], end, self._intern)
            if together is None:
                return None
            form = parts[1] + together
        return None

    def _loosened(self, form: Linear, c: Linear, steps: int) -> Linear | None:
        """Return a multiple of c and a number that the form never exceeds, where extents in it are made of multiples of
        c; None where none is found in so many steps."""
        parts = divided(form, c, self._intern)
        if parts is not None and parts[1].number is not None:
            return form
        atom = self._next(form, 0) if steps else None
        if atom is not None:
            for looser, divisor in self._apart(form, atom):
                if divisor == 1 and (found := self._loosened(looser, c, steps - 1)) is not None:
                    return found
        return None

    def divided(self, form: Linear, c: Linear, sign: int) -> Linear | None:
        """Return a form that floor(form / c), c being positive, never exceeds (sign 1), or is never below (-1)."""
        if c.number is not None:
            multiples, rest = form.split(c.number)
            if not rest.terms:
                return multiples.divided(c.number).offset(rest.constant // c.number)
            e = expression(rest, next(iter(rest.terms)).dtype)
            quotient = self._intern(Binary("//", self._intern(e), self._intern(Const(c.number, e.dtype))))
            return multiples.divided(c.number) + Linear({quotient: 1})
        parts = divided(form, c, self._intern)
        if parts is None:
            return None
        multiples, rest = parts
        is_positive, is_negative = self.most(-rest) <= 0, self.most(rest) < 0
        if sign > 0:
            if is_negative or self.most(rest - c) < 0:
                return multiples.offset(-is_negative)
            return multiples + rest if is_positive else None
        if is_positive or self.most(-rest - c) <= 0:
            return multiples.offset(0 if is_positive else -1)
        return multiples + rest if is_negative else None

    # ---- polynomials of extents

    def _of_extents(self, form: Linear) -> float:
        """Return the most that a polynomial of extents can be: each counted from its least value on."""
        terms: dict[tuple[Expr, ...], int] = {(): form.constant}
        for atom, k in form.terms.items():
            parts = factors(atom)
            lows = [self._ends(x)[0] for x in parts]
            if -inf in lows or inf in lows:  # what is sought while it is being found has no least value
                return inf
            for chosen in choices((False, True), repeat=len(parts)):  # of each factor low + x' one term
                left = tuple(x for x, rises in zip(parts, chosen) if rises)
                times_low = prod(int(low) for low, rises in zip(lows, chosen) if not rises)
                terms[left] = terms.get(left, 0) + k * times_low
        total: float = 0
        for parts, k in terms.items():
            if k > 0:
                # under facts that never hold together the greatest value may be below the least
                widths = [max(0, self._ends(x)[1] - self._ends(x)[0]) for x in parts]
                total += k * prod(widths) if 0 not in widths else 0
            elif not parts:
                total += k
        return total

    def _ends(self, x: Expr) -> tuple[float, float]:
        if type(x) is OpenVar:
            return x.span
        return self._intervals.span(x)


def _is_quotient(x: Expr) -> bool:
    e = x.definition if type(x) is OpenVar else x
    return type(e) is Binary and e.op == "//"


def _name_of_extents(form: Linear) -> Hashable | None:
    """Return what is equal for equal sums of products of extents, whoever interned them; None for others."""
    parts = list[tuple[tuple[tuple[Expr, float, float], ...], int]]()
    for atom, k in form.terms.items():
        extents = factors(atom)
        if any(type(x) is not OpenVar for x in extents):
            return None
        parts.append((tuple((x, *x.span) for x in extents if isinstance(x, OpenVar)), k))
    return frozenset(parts), form.constant


def _greater_one(extent: OpenVar, definition: Expr) -> Expr:
    """Return a of an extent max(a, c) that is greater than c."""
    if type(definition) is Binary and definition.op == "max" and extent.low is not None:
        for a, c in ((definition.a, definition.b), (definition.b, definition.a)):
            if type(c) is Const and int(c.value) < extent.low:
                return a
    return definition


def _leaves(e: Expr) -> Iterable[Expr]:
    """Variables, and what is neither arithmetic nor a constant, that an expression is made of."""
    if isinstance(e, Var) or not isinstance(e, (Binary, Cast, Const)):
        return (e,)
    return (v for c in children(e) for v in _leaves(c))
