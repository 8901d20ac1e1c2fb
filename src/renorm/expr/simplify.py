"""Simplification by a table of rules: simplify(e, bounds, facts) equals e in every environment within the bounds.

Sums of index arithmetic become linear forms (expr.linear), so that row-major indices print as ((i*784) + (j*28)) + k.
All else is the table expr.rules.RULES. Floats are touched only where the result is the same bit for bit (NaN and -0.0
included), with one exception: pow with a small integer exponent is repeated multiplication.

Index arithmetic (int32 and int64 that read no memory) never wraps. Integers read from memory wrap in their type, so
that of the integer rules only those of modular arithmetic (sums and multiples) apply to them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import gcd, inf

from renorm.expr.bounds import Bounds, Intervals
from renorm.expr.linear import INDEX_TYPES, Form, collect, expression
from renorm.expr.nodes import Binary, Broadcast, Call, Const, Expr, Load, Not, Reduce, Scalar, Var
from renorm.expr.rewrite import children, rebuild
from renorm.expr.rules import RULES

_SUMS = ("+", "-", "*")


def simplify(e: Expr, bounds: Bounds | None = None, facts: Iterable[Expr] = ()) -> Expr:
    """`e` simplified, given the inclusive bounds of variables and conditions that are known to hold."""
    return Simplifier(bounds, facts)(e)


class Simplifier:
    """Simplification under fixed bounds and facts; remembers what it did, and gives equal results as one object.

    Simplify all expressions of one scope with one Simplifier: that is faster, and identity then means equality.
    """

    def __init__(self, bounds: Bounds | None = None, facts: Iterable[Expr] = ()):
        # keyed by id; every entry also holds the object, so that its id stays its own
        self._done: dict[int, tuple[Expr, Expr]] = {}
        self._forms: dict[int, tuple[Expr, Form]] = {}
        self._reads: dict[int, tuple[Expr, bool]] = {}
        self._interned: dict[Hashable, Expr] = {}
        self._known: dict[int, bool] = {}
        self._bounds: Bounds = bounds or {}
        self._intervals = Intervals(bounds, (), self._identity)
        known = [self(fact) for fact in facts]
        if known:
            self._intervals = Intervals(bounds, known, self._identity)
            for memory in (self._done, self._forms):
                memory.clear()
            for fact in known:
                self._assume(fact)

    def __call__(self, e: Expr) -> Expr:
        done = self._done.get(id(e))
        if done is not None:
            return done[1]
        if type(e) is Var:
            result = self._fixed(e)
        elif type(e) is Binary and e.op in _SUMS and e.dtype in INDEX_TYPES and e.lanes == 1:
            result = self.from_form(self.form(e), e.dtype)
        else:
            plain = self.intern(rebuild(e, tuple(self(c) for c in children(e))))
            # a fact that holds e itself leads back here while its bounds are sought: there e counts as it stands
            self._settle(e, plain)
            result = self._by_rules(plain)
        if id(result) in self._known:
            result = self.constant(self._known[id(result)], "bool")
        return self._settle(e, result)

    def node(self, e: Expr) -> Expr:
        """`e` simplified at its root only: its children are taken as they are."""
        if type(e) is Var or (e.dtype in INDEX_TYPES and e.lanes == 1):
            return self(e)
        return self._by_rules(self.intern(e))

    def _settle(self, e: Expr, result: Expr) -> Expr:
        """Remembers that `e` simplifies to `result`, which is simple."""
        self._done[id(e)] = (e, result)
        self._done[id(result)] = (result, result)
        return result

    def _fixed(self, x: Var) -> Expr:
        """A variable whose bounds meet is a constant."""
        low, high = self._bounds.get(x, (0, 1))
        if low != high:
            return x
        value = self.constant(low, x.dtype)
        return value if x.lanes == 1 else self.intern(Broadcast(value, x.lanes))

    def _by_rules(self, e: Expr) -> Expr:
        kind = e.op if type(e) is Binary else e.name if type(e) is Call else type(e).__name__
        for rule in RULES.get(kind, ()):
            new = rule(self, e)
            if new is not None and new is not e:
                return self(new)
        return e

    def _assume(self, fact: Expr) -> None:
        if isinstance(fact, Binary) and fact.op == "&&":
            self._assume(fact.a)
            self._assume(fact.b)
        elif isinstance(fact, Not):
            self._known[id(fact.a)] = False
        else:
            self._known[id(fact)] = True

    def intern(self, e: Expr) -> Expr:
        """The one object that stands for all expressions equal to `e` (whose children are interned)."""
        if type(e) is Var:
            return e
        return self._interned.setdefault(_shallow_key(e), e)

    def _identity(self, e: Expr) -> Hashable:
        return id(e) if type(e) is Var else id(self(e))

    def constant(self, value: Scalar, dtype: str) -> Expr:
        return self.intern(Const(value, dtype))

    # ---- integers

    def form(self, e: Expr) -> Form:
        """Linear form of an integer expression, over simplified atoms, x//c*c + x%c collapsed."""
        found = self._forms.get(id(e))
        if found is None:
            form = Form()
            collect(e, 1, form, self._add_atom)
            if len(form.terms) > 1:
                # bounds are sought, and a fact that holds e leads back here: there e counts as it stands
                self._forms[id(e)] = (e, form.copy())
                self._join_quotients(form)
            found = self._forms[id(e)] = (e, form)
        return found[1]

    def _add_atom(self, x: Expr, k: int, into: Form) -> None:
        if k == 0:
            return
        if type(x) is Binary and x.op == "*" and x.dtype in INDEX_TYPES:
            self._add_product(x, k, into)
            return
        y = self(x)
        if type(y) is Const:
            into.constant += k * int(y.value)
        elif type(y) is Binary and y.op in _SUMS and y is not x:
            into.add(self.form(y), k)
        else:
            into.add_atom(id(y), y, k)

    def _add_product(self, x: Binary, k: int, into: Form) -> None:
        a, b = self.form(x.a), self.form(x.b)
        if not b.terms:
            into.add(a, k * b.constant)
        elif not a.terms:
            into.add(b, k * a.constant)
        else:
            # not linear; constant factors still come out, so that equal products meet
            ga, gb = _content(a), _content(b)
            left, right = self.from_form(a.divided(ga), x.dtype), self.from_form(b.divided(gb), x.dtype)
            product = self.intern(Binary("*", left, right))
            into.add_atom(id(product), product, k * ga * gb)

    def _join_quotients(self, form: Form) -> None:
        """(x//c)*c + x%c -> x, for any common factor."""
        again = True
        while again:
            again = False
            for identity, (atom, k) in form.terms.items():
                if type(atom) is Binary and atom.op == "%" and type(atom.b) is Const and self.is_index(atom):
                    c = int(atom.b.value)
                    if c <= 0:
                        continue
                    quotient = self.floor_divide(atom.a, c)
                    partner = form.terms.get(id(quotient))
                    if partner is not None and partner[1] == k * c:
                        _replace(form, (id(quotient), identity), self.form(atom.a), k)
                        again = True
                        break

    def from_form(self, form: Form, dtype: str) -> Expr:
        """The interned expression of a form."""
        e = expression(form, dtype)
        result = self._intern_sum(e)
        self._forms.setdefault(id(result), (result, form))
        return self._settle(result, result)

    def _intern_sum(self, e: Expr) -> Expr:
        if type(e) is Binary and e.op in ("+", "-", "*"):
            known = self._interned.get((e.op, id(e.a), id(e.b)))
            if known is not None:
                return known
            a, b = self._intern_sum(e.a), self._intern_sum(e.b)
            return self.intern(e if a is e.a and b is e.b else Binary(e.op, a, b))
        return self.intern(e)

    def span(self, e: Expr) -> tuple[float, float]:
        return self._intervals.span(e)

    def form_span(self, form: Form) -> tuple[float, float]:
        return self._intervals.form_span(form)

    def is_index(self, e: Expr) -> bool:
        """Index arithmetic: never wraps. What reads memory is not."""
        return e.lanes == 1 and e.dtype in INDEX_TYPES and not self.reads(e)

    def reads(self, e: Expr) -> bool:
        found = self._reads.get(id(e))
        if found is None:
            found = (e, isinstance(e, (Load, Reduce)) or any(self.reads(c) for c in children(e)))
            self._reads[id(e)] = found
        return found[1]

    def floor_divide(self, a: Expr, c: int) -> Expr:
        """a // c for index arithmetic a (simplified) and a constant c > 0."""
        if c == 1:
            return a
        if type(a) is Binary and type(a.b) is Const and int(a.b.value) > 0:
            d = int(a.b.value)
            if a.op == "//":  # x // d // c -> x // (d*c)
                return self.floor_divide(a.a, d * c)
            if a.op == "%" and d % c == 0:  # x % (c*m) // c -> x // c % m
                return self.floor_modulo(self.floor_divide(a.a, c), d // c)
        quotient, rest = self.form(a).split(c)
        quotient = quotient.divided(c)
        bucket = self._bucket(rest, c)
        if bucket is not None:  # (c*q + r) // c -> q + k where r lies in [k*c, (k+1)*c)
            quotient.constant += bucket
            return self.from_form(quotient, a.dtype)
        for g in _common_factors(rest, c):  # (g*x + r) // (g*e) -> x // e where 0 <= r < g
            multiples, small = rest.split(g)
            bucket = self._bucket(small, g)
            if bucket is not None:
                whole = multiples.divided(g)
                whole.constant += bucket
                inner = self.floor_divide(self.from_form(whole, a.dtype), c // g)
                quotient.add(self.form(inner))
                return self.from_form(quotient, a.dtype)
        atom = self.intern(Binary("//", self.from_form(rest, a.dtype), self.constant(c, a.dtype)))
        self._settle(atom, atom)
        if not quotient.terms and not quotient.constant:
            return atom
        quotient.add_atom(id(atom), atom, 1)
        return self.from_form(quotient, a.dtype)

    def floor_modulo(self, a: Expr, c: int) -> Expr:
        """a % c for index arithmetic a (simplified) and a constant c > 0."""
        if c == 1:
            return self.constant(0, a.dtype)
        if type(a) is Binary and a.op == "%" and type(a.b) is Const and int(a.b.value) % c == 0 and int(a.b.value) > 0:
            return self.floor_modulo(a.a, c)  # x % (c*m) % c -> x % c
        _, rest = self.form(a).split(c)  # (c*q + r) % c -> r % c
        bucket = self._bucket(rest, c)
        if bucket is not None:
            shifted = rest.copy()
            shifted.constant -= bucket * c
            return self.from_form(shifted, a.dtype)
        for g in _common_factors(rest, c):  # (g*x + r) % (g*e) -> x % e * g + r where 0 <= r < g
            multiples, small = rest.split(g)
            bucket = self._bucket(small, g)
            if bucket is not None:
                whole = multiples.divided(g)
                whole.constant += bucket
                inner = self.floor_modulo(self.from_form(whole, a.dtype), c // g)
                result = self.form(inner).times(g)
                result.add(small)
                result.constant -= bucket * g
                return self.from_form(result, a.dtype)
        atom = self.intern(Binary("%", self.from_form(rest, a.dtype), self.constant(c, a.dtype)))
        return self._settle(atom, atom)

    def _bucket(self, form: Form, c: int) -> int | None:
        """k where the form always lies in [k*c, (k+1)*c)."""
        low, high = self.form_span(form)
        if low == -inf or high == inf or low // c != high // c:
            return None
        return int(low // c)


def _content(form: Form) -> int:
    """Greatest common divisor of all coefficients and the constant, at least 1."""
    return gcd(*form.coefficients, form.constant) or 1


def _common_factors(form: Form, c: int) -> list[int]:
    """Factors g of c, 1 < g < c, that some coefficient has in common with c; the largest first."""
    return sorted({g for k in form.coefficients if 1 < (g := gcd(k, c)) < c}, reverse=True)


def _replace(form: Form, gone: tuple[Hashable, Hashable], by: Form, k: int) -> None:
    """Puts k*by where the first of the terms `gone` stood, so that the order of terms stays natural."""
    place = min(list(form.terms).index(g) for g in gone)
    terms = [item for i, item in enumerate(form.terms.items()) if i < place and item[0] not in gone]
    after = [item for i, item in enumerate(form.terms.items()) if i >= place and item[0] not in gone]
    form.terms.clear()
    form.terms.update(terms)
    form.add(by, k)
    for identity, (atom, coefficient) in after:
        form.add_atom(identity, atom, coefficient)


def _shallow_key(e: Expr) -> Hashable:
    match e:
        case Const():
            return ("const", e.dtype, repr(e.value))
        case Binary():
            return (e.op, id(e.a), id(e.b))
        case Load():
            return ("load", id(e.source), tuple(id(i) for i in e.indices), id(e.predicate))
        case Call():
            return ("call", e.name, tuple(id(a) for a in e.args))
        case Reduce():
            return ("reduce", id(e))
        case _:
            return (type(e).__name__, e.dtype, e.lanes, tuple(id(c) for c in children(e)))
