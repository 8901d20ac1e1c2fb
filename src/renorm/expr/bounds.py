"""Interval bounds of integer expressions: interval(e, bounds, facts) holds every value that e takes.

    bounds: variable -> (least, greatest), both inclusive: numbers, or expressions of open extents and variables that
        are bound further out
    facts: conditions known to hold, e.g. `(io*8 + ii) < 28` inside the `if` that asks for it

Sums are bounded as linear forms, so that x - x is 0, and a fact about io*8 + ii bounds (io*8 + ii)*28 + j too: from
e = k*f + rest and f <= 0 follows e <= max(rest). Elements read from memory are only known to lie in their type.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import compress
from itertools import product as choices
from math import gcd, inf

from renorm.core import dtypes
from renorm.core.spans import EVERYTHING, NEGATED, Span, decided, either, fits_int32, span_of
from renorm.expr.linear import (
    INDEX_TYPES,
    ONES,
    Intern,
    Linear,
    Place,
    divided,
    factors,
    is_of_extents,
    linear_in_parts,
    one_of_each,
    place_of,
    product,
    times,
)
from renorm.expr.nodes import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    OpenVar,
    Ramp,
    Reduce,
    Select,
    Var,
    const,
    integer_limits,
    set_decider,
)
from renorm.expr.open_bounds import OpenBounds
from renorm.expr.rewrite import children, conjuncts, same

End = int | Expr
Bounds = Mapping[Var, tuple[End, End]]

MOST_STEPS = 1000  # combinations of facts that are tried for one bound: sets of facts are many
MOST_WAYS = 1000  # expressions, each under some facts, that are looked at to find whether one may wrap


def interval(e: Expr, bounds: Bounds | None = None, facts: Iterable[Expr] = ()) -> Span:
    """Least and greatest value of an integer or bool expression; of all lanes, where it is a vector."""
    return Intervals(bounds, facts).span(e)


class Intervals:
    """Interval bounds under fixed bounds and facts; what was found is remembered, so ask one object many times.

    intern: gives the one object that stands for all expressions equal to an atom. plain: those under the same bounds
    and no facts, where they are there: facts are read, and what bounds alone say is found, once for all. exact: what
    was found by `is_exact`.
    """

    def __init__(
        self,
        bounds: Bounds | None = None,
        facts: Iterable[Expr] = (),
        intern: Intern | None = None,
        plain: Intervals | None = None,
        exact: dict[Expr, bool] | None = None,
    ):
        self.bounds: Bounds = ({} if bounds is None else bounds) if plain is None else plain.bounds
        self.intern = intern or (plain.intern if plain else one_of_each())
        facts = tuple(facts)
        self._exact = exact if exact is not None else plain._exact if plain else dict[Expr, bool]()
        plain = plain or (Intervals(self.bounds, (), self.intern, exact=self._exact) if facts else None)
        self._forms: dict[Expr, Linear] = plain._forms if plain and plain.intern is self.intern else {}
        self._found: dict[Expr, Span] = {}
        self._spans: dict[Hashable, Span] = {}
        self._values: dict[Expr, Span] = {}
        self._open = OpenBounds(self) if plain is None else plain._open
        self._facts: tuple[Linear, ...] = ()
        self._read: dict[Expr, tuple[Linear, ...]] = {}
        given = tuple(f for fact in facts for f in (plain or self).nonpositive_forms(fact))
        self._plain = plain if given else None
        # sets of facts are tried in this order: those of extents alone come after what leads to these extents
        self._facts = tuple(sorted((*given, *self._of_remainders(given)), key=self._is_of_extents))

    def form(self, e: Expr) -> Linear:
        """Return the form of an integer expression, over atoms that are one object each."""
        found = self._forms.get(e)
        if found is None:
            found = self._forms[e] = linear_in_parts(e, self._part, self.intern)
        return found

    def _part(self, x: Expr) -> Linear:
        """The form of what is not a sum: a cast that loses nothing is what it is of."""
        return self.form(x.a) if type(x) is Cast and is_exact(x, self._exact) else Linear({self.intern(x): 1})

    def difference(self, a: Expr, b: Expr) -> Linear:
        """Return the form of a - b."""
        return self.form(a) - self.form(b)

    def takes(self, x: Var, ends: tuple[End, End]) -> bool:
        """Take bounds of one more variable in, of which nothing was asked yet, and return whether that could be done:
        what was found of others holds on. `bounds` must be of no one else."""
        known = self.bounds.get(x)
        if known is not None:
            return all(_same_end(a, b) for a, b in zip(known, ends))
        if self.has_seen(x) or (self._plain is not None and self._plain.has_seen(x)):
            return False
        assert isinstance(self.bounds, dict)
        self.bounds[x] = ends
        return True

    def has_seen(self, x: Var) -> bool:
        """Return whether anything was asked of a variable."""
        return x in self._found or self._open.knows(x)

    def span(self, e: Expr) -> Span:
        found = self._found.get(e)
        if found is None:
            if self._plain is not None:
                # a fact about both x and x % 2 leads from either back to itself: there it counts without facts
                self._found[e] = self._plain.span(e)
            found = self._found[e] = self._compute(e)
        return found

    def form_span(self, form: Linear) -> Span:
        if not self._facts:
            low, high = form.span(self._atom_span)
            if not self._open.concerns(form):
                return low, high
            return max(low, -self._open.most(-form)), min(high, self._open.most(form))
        name = form.key()
        found = self._spans.get(name)
        if found is None:
            found = self._spans[name] = (-self.most(-form, self._facts), self.most(form, self._facts))
        return found

    def _plain_most(self, form: Linear, enough: float = -inf) -> float:
        """Return the greatest value, whatever facts say."""
        found = form.span(self._atom_span)[1]
        return min(found, self._open.most(form)) if found > enough and self._open.concerns(form) else found

    def nonpositive_forms(self, condition: Expr) -> tuple[Linear, ...]:
        """Forms f with f <= 0 that follow from the condition."""
        found = self._read.get(condition)
        if found is None:
            found = self._read[condition] = tuple(self._nonpositive(condition))
        return found

    def _nonpositive(self, condition: Expr) -> Iterator[Linear]:
        for c in conjuncts(condition):
            if isinstance(c, Not) and isinstance(c.a, Binary) and c.a.op in NEGATED and c.a.op != "==":
                c = Binary(NEGATED[c.a.op], c.a.a, c.a.b)
            if isinstance(c, Binary) and c.op in NEGATED and self._is_told(c.a) and self._is_told(c.b):
                if c.op in ("<", "<=", "=="):
                    yield self.difference(c.a, c.b).offset(c.op == "<")
                if c.op in (">", ">=", "=="):
                    yield self.difference(c.b, c.a).offset(c.op == ">")

    def _is_told(self, x: Expr) -> bool:
        """Return whether what a condition says of x holds in an index: x cannot wrap, or is an atom, whose value is one
        in both, however it came about."""
        is_number = x.dtype in INDEX_TYPES and x.lanes == 1
        return is_exact(x, self._exact) or (is_number and self.form(x).single() is self.intern(x))

    def _of_remainders(self, facts: tuple[Linear, ...]) -> Iterator[Linear]:
        """Facts that tie a remainder which the given ones speak of to what it is taken of: x - x%m is a multiple of m,
        m*(x//m), so that a guard on x%m bounds an index into which x itself went; and a guard on x + m*y bounds
        x//m + y. One on x % (c*d), c an open extent, bounds x//c % d. Behind the others: they are what others leave
        over.
        """
        for atom in dict.fromkeys(x for fact in facts for x in fact.terms):
            if not (isinstance(atom, Binary) and atom.op == "%" and is_exact(atom.a, self._exact)):
                continue
            assert self._plain is not None
            (low, high), m = self._plain.span(atom.a), atom.b
            for c, digit in self._open_digits(atom):
                yield from self._of_quotient(digit, Linear({atom: 1}), c, facts)
            if not isinstance(m, Const) or int(m.value) <= 0 or -inf in (low, -high):
                continue
            whole = self.form(atom.a) - Linear({atom: 1})
            for sign, bound in ((1, high), (-1, low)):
                yield (whole * sign).offset(-sign * (int(bound) // int(m.value) * int(m.value)))
            quotient = self.intern(Binary("//", atom.a, m))
            yield from self._of_quotient(quotient, self.form(atom.a), Linear({}, int(m.value)), facts)

    def _open_digits(self, remainder: Binary) -> Iterator[tuple[Linear, Expr]]:
        """Yield c and x//c % d of x % (c*d), for each c that is some of the open extents in the divisor."""
        whole, dtype = place_of(self.form(remainder.b)), remainder.dtype
        if whole is None:
            return
        for chosen in choices((False, True), repeat=len(whole.extents)):
            unit = Place.of(1, compress(whole.extents, chosen))
            count = whole.over(unit)
            if count is not None and unit != ONES and count != ONES:
                x = self.intern(Binary("//", remainder.a, unit.expression(dtype)))
                yield unit.form(self.intern), self.intern(Binary("%", x, count.expression(dtype)))

    def _of_quotient(self, quotient: Expr, x: Linear, m: Linear, facts: tuple[Linear, ...]) -> Iterator[Linear]:
        """Yield what facts +-x + m*y + c <= 0 say of x//m: it is at most -y + floor(-c/m), or at least y +
        floor(c/m)."""
        assert self._plain is not None
        span = self._plain.form_span(m)
        for fact in facts:
            for sign in (1, -1):
                rest = fact.plus(x, -sign)
                c = rest.constant
                parts = divided(rest.offset(-c), m, self.intern)
                if parts is None or parts[1].terms:
                    continue
                form = parts[0].plus(Linear({quotient: 1}), sign)
                rounded = -span_of("//", (-c, -c), span)[1] if sign > 0 else span_of("//", (c, c), span)[0]
                if rounded not in (inf, -inf):
                    yield form.offset(int(rounded))

    def most(self, form: Linear, facts: Sequence[Linear], enough: float = -inf, steps: int = MOST_STEPS) -> float:
        """An upper bound of the form, the least of the plain one and those that facts f, f <= 0, give; of few facts
        before those of many, as many steps in all. enough: a bound that serves as well as any lower one."""
        found: float = inf
        waiting = deque([(form, 1, 0)])  # the form that is asked for is at most this one over that divisor
        others = sum(not self._is_of_extents(f) for f in facts) if facts and self._is_of_extents(facts[-1]) else -1
        for _ in range(steps):
            if not waiting:
                break
            rest, divisor, first = waiting.popleft()
            bound = self._plain_most(rest, enough * divisor)
            found = min(found, bound if bound in (inf, -inf) else int(bound) // divisor)
            if found <= enough:
                break
            # facts of extents speak of what is left when others are used up
            greatest = self._open.extreme(rest, 1) if first <= others else None
            if greatest is not None and greatest is not rest:
                waiting.append((greatest, divisor, others))
            units = self._units(rest)
            for i in range(first, len(facts)):  # each set of facts is tried in one order
                for fact in self._multiples(facts[i], units) if units else facts[i : i + 1]:
                    for atom, of_fact in fact.terms.items():
                        mine = rest.terms.get(atom)
                        if mine is None or (mine > 0) != (of_fact > 0):
                            continue
                        # rest = (p/q)*fact + next/q with p/q > 0, hence rest <= next/q
                        shared = gcd(mine, of_fact)
                        following = (rest * (abs(of_fact) // shared)).plus(fact, -(abs(mine) // shared))
                        waiting.append((following, divisor * (abs(of_fact) // shared), i + 1))
        return found

    def _is_of_extents(self, fact: Linear) -> bool:
        """Return whether a fact says nothing of what varies: n//8 >= 1."""
        return is_of_extents(fact) or (self._open.concerns(fact) and not self._open.varies(fact))

    def _units(self, form: Linear) -> list[tuple[Expr, Expr | None]]:
        """Return what a form multiplies by open extents, with the product of these."""
        parts = (factors(atom) for atom in form.terms if atom.is_open)
        return [(x, product(extents, self.intern)) for x, *extents in parts if extents]

    def _multiples(self, fact: Linear, units: Sequence[tuple[Expr, Expr | None]]) -> list[Linear]:
        """Return a fact f <= 0, and f*n where n are extents that something in the fact is multiplied by."""
        found = dict.fromkeys(unit for x, unit in units if x in fact.terms)
        positive = [Linear({u: 1}) for u in found if u is not None and self.span(u)[0] >= 0]
        return [fact, *(f for u in positive if (f := times(fact, u, self.intern)) is not None)]

    def _atom_span(self, atom: Expr) -> Span:
        if type(atom) is Var:
            low, high = self.bounds.get(atom) or _of_type(atom.dtype)
            return self._number(low, 0), self._number(high, 1)
        if type(atom) is OpenVar:
            return atom.span
        return self.span(atom)

    def is_within(self, index: Expr, size: int | Expr) -> bool:
        """Return whether an index is one of `size` elements, whatever its variables are."""
        form = self.form(index)
        beyond = form - self.form(size) if isinstance(size, Expr) else form.offset(-size)
        return self._is_certain(-form, 0) and self._is_certain(beyond, -1)

    def _is_certain(self, form: Linear, limit: int) -> bool:
        """Return whether a form never exceeds a number, where guards on x + m*y bound its quotients x//m + y, too: of
        open extents, when nothing else says so."""
        if self.is_at_most(form, limit):
            return True
        found = tuple(self._of_quotients(form)) if self._plain is not None and self.is_open(form) else ()
        return bool(found) and self.most(form, (*found, *self._facts), limit) <= limit

    def _of_quotients(self, form: Linear) -> Iterator[Linear]:
        for atom in dict.fromkeys(factors(x)[0] for x in form.terms):
            if isinstance(atom, Binary) and atom.op == "//" and is_exact(atom.a, self._exact):
                yield from self._of_quotient(atom, self.form(atom.a), self.form(atom.b), self._facts)

    def is_at_most(self, form: Linear, limit: int) -> bool:
        """Return whether a form never exceeds a number: facts are tried only as long as that is not known."""
        return self.most(form, self._facts, limit) <= limit

    def is_open(self, form: Linear) -> bool:
        """Return whether open extents have a say in the bounds of a form."""
        return self._open.concerns(form)

    def is_tied(self, form: Linear) -> bool:
        """Return whether facts about what is in a form speak of open extents."""
        return any(not f.terms.keys().isdisjoint(form.terms) and self.is_open(f) for f in self._facts)

    def least(self, form: Linear) -> Linear | None:
        """Return what the form never falls below, as a form of extents."""
        return self._open.extreme(form, -1)

    def greatest(self, form: Linear) -> Linear | None:
        """Return what the form never exceeds, as a form of extents."""
        return self._open.extreme(form, 1)

    def greatest_quotient(self, form: Linear, by: Linear) -> Linear | None:
        """Return what form // by never exceeds, as a form of extents; by: positive, a number or a product of these."""
        most = self.greatest(form)
        return None if most is None else self._open.divided(most, by, 1)

    def _number(self, end: float | Expr, side: int) -> float:
        return self.span(end)[side] if isinstance(end, Expr) else end

    def _compute(self, e: Expr) -> Span:
        if type(e) is Const:
            return (int(e.value), int(e.value)) if not dtypes.is_float(e.dtype) else EVERYTHING
        if e.dtype == "bool":
            return self._truth(e)
        if dtypes.is_float(e.dtype):
            return EVERYTHING
        if isinstance(e, Var) or (type(e) is Binary and e.op in ("+", "-", "*") and e.dtype in INDEX_TYPES):
            form = self.form(e)
            if form.single() is not e or isinstance(e, Var):
                return self.form_span(form)
        low, high = self._within_type(e, self._node(e))
        # a fact times an extent speaks of longer products, of which it would be asked in turn
        if self._facts and e.dtype in INDEX_TYPES and len(factors(e)) == 1:
            least, most = self.form_span(Linear({self.intern(e): 1}))
            return (max(low, least), min(high, most))
        return (low, high)

    def _node(self, e: Expr) -> Span:
        match e:
            case Binary(op=("min" | "max") as op, a=a, b=b) if is_exact(e, self._exact):
                low, high = span_of(op, self.span(a), self.span(b))
                # the mean lies between them: where one falls as the other grows (reflected rows), it is all that bounds
                least, most = self.form_span(self.form(a) + self.form(b))
                if op == "min":
                    return (low, min(high, most if most in (inf, -inf) else most // 2))
                return (max(low, least if least in (inf, -inf) else -(-least // 2)), high)
            case Binary(op="%", a=Binary(op="//", a=x, b=Const(value=n)) as a, b=Const(value=m) as b) if (
                self._facts and n > 0 and m > 0
            ):  # (x//n) % m == (x % (n*m))//n, and facts may be about that
                low, high = span_of("%", self.span(a), self.span(b))
                least, most = span_of("//", self.span(Binary("%", x, const(int(n * m), e.dtype))), (n, n))
                return (max(low, least), min(high, most))
            case Binary(op=op, a=a, b=b):
                return span_of(op, self.span(a), self.span(b))
            case Select(then=a, otherwise=b):  # as an index, or as the value that it is in a vector
                return either(either(self.span(a), self.span(b)), either(self._valued(a), self._valued(b)))
            case Call(name="if_then_else", args=(_, a, b)):
                return either(self._valued(a), self._valued(b))
            case Cast(a=a) | Call(name="likely", args=(a,)) | Broadcast(value=a):
                return self._valued(a) if _narrows(e) else self.span(a)
            case Call(name="fmod", args=(a, b)) if is_exact(a, self._exact) and is_exact(b, self._exact):
                return span_of("fmod", self.span(a), self.span(b))
            case Call(name="sign"):
                return (-1, 1)
            case Call(name="abs", args=(a,)):
                low, high = self._valued(a)
                return (0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high)))
            case Call(name="popcount"):
                return (0, 64)
            case Ramp(base=base, stride=stride, lanes=lanes):
                reach = span_of("*", self.span(stride), (0, lanes - 1))
                return span_of("+", self.span(base), reach)
            case _:
                return EVERYTHING

    def _within_type(self, e: Expr, found: Span) -> Span:
        """Return the span, or that of its type where it may leave one that wraps."""
        limits = integer_limits(e.dtype) if _narrows(e) and reads(e) else _of_type(e.dtype)
        if type(e) is Cast and dtypes.is_float(e.a.dtype):
            return limits
        return found if limits[0] <= found[0] and found[1] <= limits[1] else limits

    def _valued(self, e: Expr) -> Span:
        """Return the span of an integer as a value of its type, in which what is made of elements wraps."""
        if dtypes.is_float(e.dtype) or e.dtype == "bool" or not reads(e):
            return self.span(e)
        found = self._values.get(e)
        if found is None:
            low, high = limits = integer_limits(e.dtype)
            match e:
                case Binary(op=op, a=a, b=b):
                    found = span_of(op, self._valued(a), self._valued(b))
                case Cast(a=a):
                    found = self._valued(a)
                case _:
                    found = self.span(e)
            if is_exact(e, self._exact):
                least, most = self.span(e)
                found = max(found[0], least, low), min(found[1], most, high)
            self._values[e] = found = found if low <= found[0] and found[1] <= high else limits
        return found

    def _truth(self, e: Expr) -> Span:
        """(1, 1) where a condition always holds, (0, 0) where it never does, else (0, 1)."""
        match e:
            case Binary(op="&&", a=a, b=b):
                x, y = self.span(a), self.span(b)
                return (min(x[0], y[0]), min(x[1], y[1]))
            case Binary(op="||", a=a, b=b):
                x, y = self.span(a), self.span(b)
                return (max(x[0], y[0]), max(x[1], y[1]))
            case Not(a=a):
                low, high = self.span(a)
                return (1 - high, 1 - low)
            case Call(name="likely", args=(a,)) | Broadcast(value=a):
                return self.span(a)
            case Binary(op=op, a=a, b=b) if a.dtype in INDEX_TYPES and not (reads(a) or reads(b)):
                if a.lanes == 1:
                    return self._comparison(op, self.difference(a, b))
                return _truth(op, span_of("-", self.span(a), self.span(b)))
            case _:
                return (0, 1)

    def _comparison(self, op: str, form: Linear) -> Span:
        """The truth of form op 0, by no more bounds than it takes."""
        if op in ("==", "!="):
            return _truth(op, self.form_span(form))
        below, or_equal = form if op in ("<", "<=") else -form, "=" in op
        if self.is_at_most(below, 0 if or_equal else -1):
            return (1, 1)
        return (0, 0) if self.is_at_most(-below, -1 if or_equal else 0) else (0, 1)


def _narrows(e: Expr) -> bool:
    """Return whether index arithmetic, which is wide, takes an expression as a value of its type."""
    return (type(e) is Call and e.name != "likely") or (type(e) is Cast and (e.a.dtype, e.dtype) != INDEX_TYPES)


def _same_end(a: End, b: End) -> bool:
    return same(a, b) if isinstance(a, Expr) and isinstance(b, Expr) else a is b or (type(a) is type(b) and a == b)


def reads(e: Expr) -> bool:
    """Return whether the value depends on memory: such integers wrap in their type, other index arithmetic never
    does."""
    return any(isinstance(x, (Load, Reduce)) for x in _nodes(e))


def _nodes(e: Expr, into_loads: bool = True) -> Iterator[Expr]:
    """Each node of an expression once, however many ways lead to it. into_loads: and of the indices of elements."""
    seen, waiting = {e}, [e]
    while waiting:
        yield (x := waiting.pop())
        parts = [c for c in children(x) if c not in seen] if into_loads or type(x) is not Load else []
        seen.update(parts)
        waiting += parts


def is_exact(e: Expr, known: dict[Expr, bool] | None = None) -> bool:
    """Return whether e means the same as index arithmetic and as a value: it cannot wrap. known: what was found of
    others, and takes what is found."""
    if e.dtype not in INDEX_TYPES or e.lanes != 1:
        return False
    if type(e) is Load:
        return True
    known = {} if known is None else known
    if e not in known:
        known[e] = _is_exact(e, known)
    return known[e]


def never_wraps(e: Expr, condition: Expr) -> bool:
    """Return whether e is exact where a condition holds."""
    said = _is_of_elements(condition.a if isinstance(condition, Not) else condition)
    return _Values({}).span(e, (condition,) if said else ()) is not None


def _is_exact(e: Expr, known: dict[Expr, bool]) -> bool:
    if reads(e):
        return _Values(known).span(e, ()) is not None
    if type(e) is not Cast:
        return True
    return is_exact(e.a, known) and (e.dtype == "int64" or fits_int32(Intervals(exact=known).span(e.a)))


class _Values:
    """Spans of integers that are made of elements. What many ways lead to is looked at once under the same facts, and
    no more than MOST_WAYS times in all."""

    def __init__(self, exact: dict[Expr, bool]):
        self._exact, self._found = exact, dict[tuple[Expr, ...], Span | None]()

    def span(self, e: Expr, facts: tuple[Expr, ...]) -> Span | None:
        """Return the span of an integer, where none of its parts can wrap, as i + n cannot where i < 0; None where one
        may. facts: what holds where it is computed."""
        key = e, *facts
        if key not in self._found:
            if len(self._found) >= MOST_WAYS:
                return None
            self._found[key] = None  # counts, and stands for it until it is known
            self._found[key] = self._span(e, facts)
        return self._found[key]

    def _span(self, e: Expr, facts: tuple[Expr, ...]) -> Span | None:
        limits = integer_limits(e.dtype) if e.dtype in INDEX_TYPES else None
        match e:
            case Cast(a=a):
                found = self.span(a, facts)
            case _ if limits and (isinstance(e, Load) or not reads(e)):  # index arithmetic fits its type
                found = Intervals(None, facts, exact=self._exact).span(e)
                return max(found[0], limits[0]), min(found[1], limits[1])
            case Binary(op=("+" | "-" | "*" | "min" | "max") as op, a=a, b=b):
                x, y = self.span(a, facts), self.span(b, facts)
                found = None if x is None or y is None else span_of(op, x, y)
            case Binary(op=("//" | "%") as op, a=a, b=Const(value=n)) if n > 0:  # of floors: nothing wraps
                x = self.span(a, facts)
                found = None if x is None else span_of(op, x, (n, n))
            case Select(condition=Binary(a=u, b=v) as c, then=a, otherwise=b):
                said = _is_of_elements(c)
                x = self.span(a, (*facts, c) if said else facts)
                y = self.span(b, (*facts, Not(c)) if said else facts)
                is_alike = self.span(u, facts) and self.span(v, facts)  # as values and as indices one branch is chosen
                found = either(x, y) if x and y and is_alike else None
            case _:
                found = None
        return found if found and limits and limits[0] <= found[0] and found[1] <= limits[1] else None


def _is_of_elements(condition: Expr) -> bool:
    """Return whether a condition compares sums of elements and indices: others say nothing of one of these."""
    return all(isinstance(x, (Binary, Const, Var, Load, Cast)) for x in _nodes(condition, into_loads=False))


def _of_type(dtype: str) -> Span:
    """Range of the values in memory; index types are unbounded, because index arithmetic is wider than they are."""
    return EVERYTHING if dtypes.is_float(dtype) or dtype in INDEX_TYPES else integer_limits(dtype)


_TAKEN: ContextVar[tuple[Expr, ...]] = ContextVar("taken", default=())


@contextmanager
def taken(facts: Iterable[Expr]) -> Generator[None]:
    """Take facts about open extents for granted inside the block: callers fulfil them (tir.nodes.Kernel.facts)."""
    token = _TAKEN.set(tuple(facts))
    try:
        yield
    finally:
        _TAKEN.reset(token)


def open_truth(e: Expr) -> bool | None:
    """Return the truth of an expression of open extents where it is the same at all their values: n == 0 is false where
    n is at least 1. None where it is not, or where other variables stand in it."""
    if e.lanes > 1 or not all(isinstance(x, (OpenVar, Const, Binary, Cast)) for x in _nodes(e)):
        return None
    intervals = Intervals(None, _TAKEN.get())
    if isinstance(e, Binary) and e.op in NEGATED and e.a.dtype in INDEX_TYPES:
        return decided(e.op, intervals.form_span(intervals.difference(e.a, e.b)))
    return decided("!=", intervals.form_span(intervals.form(e))) if e.dtype in INDEX_TYPES else None


set_decider(open_truth)


def _truth(op: str, difference: Span) -> Span:
    known = decided(op, difference) if op in NEGATED else None
    return (0, 1) if known is None else (int(known), int(known))
