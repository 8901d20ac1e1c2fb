"""Simplification by a table of rules: simplify(e, bounds, facts) equals e in every environment within the bounds.

Sums of index arithmetic become linear forms (expr.linear), so that row-major indices print as ((i*784) + (j*28)) + k.
All else is the table expr.rules.RULES. Floats are touched only where the result is the same bit for bit (NaN and -0.0
included), with one exception: pow with a small integer exponent is repeated multiplication.

Index arithmetic (int32 and int64 that read no memory) never wraps. Integers read from memory wrap in their type, so
that of the integer rules only those of modular arithmetic (sums and multiples) apply to them. They wrap where what is
read cancels as well: x - x + c is c in its type.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import gcd

from renorm.core.conversion import limits, wrapped
from renorm.core.spans import Span
from renorm.expr.algebra import ExprAlgebra
from renorm.expr.bounds import Bounds, End, Intervals
from renorm.expr.linear import INDEX_TYPES, Linear, expression, linear_in_parts
from renorm.expr.nodes import Binary, Broadcast, Call, Const, Expr, Load, Not, Reduce, Scalar, Var
from renorm.expr.rewrite import children, conjuncts, key, rebuild
from renorm.expr.rules import RULES

_SUMS = ("+", "-", "*")


def simplify(e: Expr, bounds: Bounds | None = None, facts: Iterable[Expr] = ()) -> Expr:
    """`e` simplified, given the inclusive bounds of variables and conditions that are known to hold."""
    return Simplifier(bounds, facts)(e)


class Simplifier(ExprAlgebra):
    """Simplification under fixed bounds and facts; remembers what it did, and gives equal results as one object.

    Simplify all expressions of one scope with one Simplifier: that is faster, and identity then means equality.
    plain: the one under the same bounds and no facts, where it is there, of which facts are simplified.
    """

    def __init__(self, bounds: Bounds | None = None, facts: Iterable[Expr] = (), plain: Simplifier | None = None):
        super().__init__()
        self._done: dict[Expr, Expr] = {}
        self._known: dict[Expr, bool] = {}
        facts = tuple(facts)
        if not facts:
            self._reads: dict[Expr, bool] = {}
            self._interned: dict[Hashable, Expr] = {}
            self._bounds: Bounds = {} if bounds is None else bounds
            self._intervals = Intervals(self._bounds, (), self)
            return
        plain = plain or Simplifier(bounds)
        self._reads, self._interned, self._bounds = plain._reads, plain._interned, plain._bounds
        known = [plain(fact) for fact in facts]
        self._intervals = plain._intervals  # of what is asked while the facts are read
        self._intervals = Intervals(self._bounds, known, self, plain._intervals)
        for fact in (c for condition in known for c in conjuncts(condition)):
            self._known[fact.a if isinstance(fact, Not) else fact] = not isinstance(fact, Not)

    def takes(self, x: Var, ends: tuple[End, End]) -> bool:
        """As Intervals.takes."""
        return (x in self._bounds or x not in self._done) and self._intervals.takes(x, ends)

    def __call__(self, e: Expr) -> Expr:
        done = self._done.get(e)
        if done is not None:
            return done
        if type(e) is Var:
            result = self._fixed(e)
        elif type(e) is Binary and e.op in _SUMS and e.dtype in INDEX_TYPES and e.lanes == 1:
            result = self.expression(self.form(e), e.dtype)
        else:
            plain = self.intern(rebuild(e, tuple(self(c) for c in children(e))))
            # a fact that holds e itself leads back here while its bounds are sought: there e counts as it stands
            self._settle(e, plain)
            result = self._by_rules(plain)
        if type(result) is not Var and result.dtype in INDEX_TYPES and not self.reads(result) and self.reads(e):
            result = self._in_type(e, result)
        if result in self._known:
            result = self.constant(self._known[result], "bool")
        return self._settle(e, result)

    def node(self, e: Expr) -> Expr:
        """`e` simplified at its root only: its children are taken as they are."""
        if type(e) is Var or (e.dtype in INDEX_TYPES and e.lanes == 1):
            return self(e)
        return self._by_rules(self.intern(e))

    def _settle(self, e: Expr, result: Expr) -> Expr:
        """Remembers that `e` simplifies to `result`, which is simple."""
        self._done[e] = self._done[result] = result
        return result

    def _in_type(self, e: Expr, result: Expr) -> Expr:
        """Return integers that wrap, given what they are in index arithmetic; `e` where that may differ."""
        if type(result) is Const:
            return self.constant(wrapped(int(result.value), result.dtype), result.dtype)
        low, high = self.span(result)
        least, greatest = limits(result.dtype)
        return result if least <= low and high <= greatest else e

    def _fixed(self, x: Var) -> Expr:
        """A variable whose bounds meet is a constant."""
        low, high = self._bounds.get(x, (0, 1))
        if isinstance(low, Expr) or isinstance(high, Expr) or low != high:
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

    def intern(self, e: Expr) -> Expr:
        """The one object that stands for all expressions equal to `e` (whose children are interned)."""
        if type(e) is Var:
            return e
        return self._interned.setdefault(key(e, id), e)

    def constant(self, value: Scalar, dtype: str) -> Expr:
        return self.intern(Const(value, dtype))

    # ---- integers

    def form(self, e: Expr) -> Linear:
        """Linear form of an integer expression, over simplified atoms, x//c*c + x%c collapsed."""
        found = self._forms.get(e)
        if found is None:
            found = linear_in_parts(e, self._part, self.intern)
            if len(found.terms) > 1:
                # bounds are sought, and a fact that holds e leads back here: there e counts as it stands
                self._forms[e] = found
                found = self.rejoined(found)
            self._forms[e] = found
        return found

    def _part(self, x: Expr) -> Linear:
        """The form of what is not a sum as it stands."""
        if type(x) is Binary and x.op == "*" and x.dtype in INDEX_TYPES:
            return self._product(x)
        y = self(x)
        if type(y) is Const:
            return Linear({}, int(y.value))
        return self.form(y) if type(y) is Binary and y.op in _SUMS and y is not x else Linear({y: 1})

    def _product(self, x: Binary) -> Linear:
        a, b = self.form(x.a), self.form(x.b)
        if not b.terms:
            return a * b.constant
        if not a.terms:
            return b * a.constant
        # not linear; constant factors still come out, so that equal products meet
        ga, gb = _content(a), _content(b)
        left, right = self.expression(a.divided(ga), x.dtype), self.expression(b.divided(gb), x.dtype)
        return Linear({self.intern(Binary("*", left, right)): ga * gb})

    def expression(self, form: Linear, dtype: str = "") -> Expr:
        """The interned expression of a form. dtype: that of its atoms where there are any."""
        result = self.intern(expression(form, dtype or next(iter(form.terms)).dtype, self._infix))
        self._forms.setdefault(result, form)
        return self._settle(result, result)

    def made(self, e: Binary) -> Expr:
        atom = self._infix(e.op, e.a, e.b)
        return self._settle(atom, atom)

    def _infix(self, op: str, a: Expr, b: Expr) -> Expr:
        return self.intern(Binary(op, self.intern(a), self.intern(b)))

    def span(self, e: Expr) -> Span:
        return self._intervals.span(e)

    def form_span(self, form: Linear) -> Span:
        return self._intervals.form_span(form)

    def is_at_most(self, form: Linear, n: int) -> bool:
        return self._intervals.is_at_most(form, n)

    def is_index(self, e: Expr) -> bool:
        """Index arithmetic: never wraps. What reads memory is not."""
        return e.lanes == 1 and e.dtype in INDEX_TYPES and not self.reads(e)

    def reads(self, e: Expr) -> bool:
        found = self._reads.get(e)
        if found is None:
            found = self._reads[e] = isinstance(e, (Load, Reduce)) or any(self.reads(c) for c in children(e))
        return found


def _content(form: Linear) -> int:
    """Greatest common divisor of all coefficients and the constant, at least 1."""
    return gcd(form.content(), form.constant) or 1
