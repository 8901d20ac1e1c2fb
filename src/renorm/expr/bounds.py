"""Interval bounds of integer expressions: interval(e, bounds, facts) holds every value that e takes.

    bounds: variable -> (least, greatest), both inclusive
    facts: conditions known to hold, e.g. `(io*8 + ii) < 28` inside the `if` that asks for it

Sums are bounded as linear forms, so that x - x is 0, and a fact about io*8 + ii bounds (io*8 + ii)*28 + j too: from
e = k*f + rest and f <= 0 follows e <= max(rest). Elements read from memory are only known to lie in their type.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from math import gcd, inf

import numpy as np

from renorm.core import dtypes
from renorm.expr.linear import INDEX_TYPES, Form, form_of
from renorm.expr.nodes import Binary, Broadcast, Call, Cast, Const, Expr, Load, Not, Ramp, Select, Var, const
from renorm.expr.rewrite import key

Bounds = Mapping[Var, tuple[int, int]]
Interval = tuple[int | None, int | None]  # None: no bound on that side is known
_Span = tuple[float, float]  # the same with infinities; finite ends are Python integers
_EVERYTHING: _Span = (-inf, inf)

MOST_STEPS = 1000  # combinations of facts that are tried for one bound: sets of facts are many


def interval(e: Expr, bounds: Bounds | None = None, facts: Iterable[Expr] = ()) -> Interval:
    """Least and greatest value of an integer or bool expression; of all lanes, where it is a vector."""
    return Intervals(bounds, facts).interval(e)


class Intervals:
    """Interval bounds under fixed bounds and facts; what was found is remembered, so ask one object many times."""

    def __init__(
        self,
        bounds: Bounds | None = None,
        facts: Iterable[Expr] = (),
        identity: Callable[[Expr], Hashable] = key,
    ):
        self.bounds: Bounds = bounds or {}
        self.identity = identity
        self._found: dict[int, tuple[Expr, _Span]] = {}
        self._facts: tuple[Form, ...] = ()
        given = tuple(f for fact in facts for f in self.nonpositive_forms(fact))
        self._plain = Intervals(bounds, (), identity) if given else None
        self._facts = (*given, *self._of_remainders(given))

    def interval(self, e: Expr) -> Interval:
        low, high = self.span(e)
        return (None if low == -inf else int(low), None if high == inf else int(high))

    def span(self, e: Expr) -> _Span:
        found = self._found.get(id(e))
        if found is None:
            if self._plain is not None:
                # a fact about both x and x % 2 leads from either back to itself: there it counts without facts
                self._found[id(e)] = (e, self._plain.span(e))
            found = self._found[id(e)] = (e, self._compute(e))
        return found[1]

    def form_span(self, form: Form) -> _Span:
        return (-self.most(form.times(-1), self._facts), self.most(form, self._facts))

    def nonpositive_forms(self, condition: Expr) -> Iterator[Form]:
        """Forms f with f <= 0 that follow from the condition."""
        match condition:
            case Binary(op="&&", a=a, b=b):
                yield from self.nonpositive_forms(a)
                yield from self.nonpositive_forms(b)
            case Call(name="likely", args=(a,)):
                yield from self.nonpositive_forms(a)
            case Not(a=Binary(op=op, a=a, b=b)) if op in _NEGATED and op != "==":
                yield from self.nonpositive_forms(Binary(_NEGATED[op], a, b))
            case Not(a=Binary(op="||", a=a, b=b)):
                yield from self.nonpositive_forms(Not(a))
                yield from self.nonpositive_forms(Not(b))
            case Binary(op=("<" | "<=" | ">" | ">=" | "==") as op, a=a, b=b) if is_exact(a) and is_exact(b):
                if op in ("<", "<=", "=="):
                    yield self._difference(a, b, 1 if op == "<" else 0)
                if op in (">", ">=", "=="):
                    yield self._difference(b, a, 1 if op == ">" else 0)
            case _:
                return

    def _difference(self, a: Expr, b: Expr, plus: int) -> Form:
        form = form_of(a, self.identity).copy()
        form.add(form_of(b, self.identity), -1)
        form.constant += plus
        return form

    def _of_remainders(self, facts: tuple[Form, ...]) -> Iterator[Form]:
        """Facts that tie a remainder which the given ones speak of to what it is taken of: x - x%m is a multiple of m,
        m*(x//m), so that a guard on x%m bounds an index into which x itself went; and a guard on x + m*y bounds
        x//m + y. Behind the others: they are what others leave over.
        """
        seen: set[Hashable] = set()
        for fact in facts:
            for identity, (atom, _) in fact.terms.items():
                if identity in seen or not (isinstance(atom, Binary) and atom.op == "%" and is_exact(atom.a)):
                    continue
                seen.add(identity)
                assert self._plain is not None
                (low, high), m = self._plain.span(atom.a), atom.b
                if not isinstance(m, Const) or int(m.value) <= 0 or -inf in (low, -high):
                    continue
                whole = form_of(atom.a, self.identity).copy()
                whole.add_atom(identity, atom, -1)
                for sign, bound in ((1, high), (-1, low)):
                    form = whole.times(sign)
                    form.constant -= sign * (int(bound) // int(m.value) * int(m.value))
                    yield form
                yield from self._of_quotient(Binary("//", atom.a, m), int(m.value), facts)

    def _of_quotient(self, quotient: Binary, m: int, facts: tuple[Form, ...]) -> Iterator[Form]:
        """Yield what facts +-x + m*y + c <= 0 say of x//m: it is at most -y + floor(-c/m), or at least y +
        floor(c/m)."""
        x = form_of(quotient.a, self.identity)
        for fact in facts:
            for sign in (1, -1):
                rest = fact.copy()
                rest.add(x, -sign)
                if any(k % m for k in rest.coefficients):
                    continue
                c, rest.constant = rest.constant, 0
                form = rest.divided(m)
                form.add_atom(self.identity(quotient), quotient, sign)
                form.constant = -(-c // m) if sign > 0 else c // m
                yield form

    def most(self, form: Form, facts: Sequence[Form]) -> float:
        """An upper bound of the form, the least of the plain one and those that facts f, f <= 0, give; of few facts
        before those of many, MOST_STEPS in all."""
        found: float = inf
        waiting = deque([(form, 1, 0)])  # the form that is asked for is at most this one over that divisor
        for _ in range(MOST_STEPS):
            if not waiting:
                break
            rest, divisor, first = waiting.popleft()
            bound = self._most_alone(rest)
            found = min(found, bound if bound in (inf, -inf) else int(bound) // divisor)
            for i in range(first, len(facts)):  # each set of facts is tried in one order
                for identity, (_, of_fact) in facts[i].terms.items():
                    mine = rest.terms.get(identity)
                    if mine is None or (mine[1] > 0) != (of_fact > 0):
                        continue
                    # rest = (p/q)*fact + next/q with p/q > 0, hence rest <= next/q
                    shared = gcd(mine[1], of_fact)
                    following = rest.times(abs(of_fact) // shared)
                    following.add(facts[i], -(abs(mine[1]) // shared))
                    waiting.append((following, divisor * (abs(of_fact) // shared), i + 1))
        return found

    def _most_alone(self, form: Form) -> float:
        most: float = form.constant
        for atom, k in form.terms.values():
            low, high = self._atom_span(atom)
            most += k * (high if k > 0 else low)
        return most

    def _atom_span(self, atom: Expr) -> _Span:
        if type(atom) is Var:
            known = self.bounds.get(atom)
            return known if known is not None else _of_type(atom.dtype)
        return self.span(atom)

    def _compute(self, e: Expr) -> _Span:
        if type(e) is Const:
            return (int(e.value), int(e.value)) if not dtypes.is_float(e.dtype) else _EVERYTHING
        if e.dtype == "bool":
            return self._truth(e)
        if dtypes.is_float(e.dtype):
            return _EVERYTHING
        if type(e) is Var or (type(e) is Binary and e.op in ("+", "-", "*") and e.dtype in INDEX_TYPES):
            form = form_of(e, self.identity)
            if not (len(form.terms) == 1 and next(iter(form.terms.values()))[0] is e) or type(e) is Var:
                return self.form_span(form)
        low, high = self._within_type(e, self._node(e))
        if self._facts and e.dtype in INDEX_TYPES:
            least, most = self.form_span(Form({self.identity(e): (e, 1)}))
            return (max(low, least), min(high, most))
        return (low, high)

    def _node(self, e: Expr) -> _Span:
        match e:
            case Binary(op=("min" | "max") as op, a=a, b=b) if is_exact(e):
                low, high = _binary(op, self.span(a), self.span(b))
                # the mean lies between them: where one falls as the other grows (reflected rows), it is all that bounds
                least, most = self.form_span(form_of(Binary("+", a, b), self.identity))
                if op == "min":
                    return (low, min(high, most if most in (inf, -inf) else most // 2))
                return (max(low, least if least in (inf, -inf) else -(-least // 2)), high)
            case Binary(op="%", a=Binary(op="//", a=x, b=Const(value=n)) as a, b=Const(value=m) as b) if (
                self._facts and n > 0 and m > 0
            ):  # (x//n) % m == (x % (n*m))//n, and facts may be about that
                low, high = _binary("%", self.span(a), self.span(b))
                least, most = _binary("//", self.span(Binary("%", x, const(int(n * m), e.dtype))), (n, n))
                return (max(low, least), min(high, most))
            case Binary(op=op, a=a, b=b):
                return _binary(op, self.span(a), self.span(b))
            case Select(then=a, otherwise=b) | Call(name="if_then_else", args=(_, a, b)):
                (l1, h1), (l2, h2) = self.span(a), self.span(b)
                return (min(l1, l2), max(h1, h2))
            case Cast(a=a):
                return self.span(a)
            case Call(name="likely", args=(a,)) | Broadcast(value=a):
                return self.span(a)
            case Call(name="sign"):
                return (-1, 1)
            case Call(name="abs", args=(a,)):
                low, high = self.span(a)
                return (0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high)))
            case Call(name="popcount"):
                return (0, 64)
            case Ramp(base=base, stride=stride, lanes=lanes):
                reach = _binary("*", self.span(stride), (0, lanes - 1))
                return _binary("+", self.span(base), reach)
            case _:
                return _EVERYTHING

    def _within_type(self, e: Expr, found: _Span) -> _Span:
        """Return the span, or that of its type where it may leave one that wraps."""
        limits = _of_type(e.dtype)
        if type(e) is Cast and dtypes.is_float(e.a.dtype):
            return limits
        return found if limits[0] <= found[0] and found[1] <= limits[1] else limits

    def _truth(self, e: Expr) -> _Span:
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
                    return _compare(op, self.form_span(self._difference(a, b, 0)))
                return _compare(op, _binary("-", self.span(a), self.span(b)))
            case _:
                return (0, 1)


_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def negated(op: str) -> str:
    """The comparison that holds exactly when `op` does not (for integers)."""
    return _NEGATED[op]


def reads(e: Expr) -> bool:
    """Return whether the value depends on memory: such integers wrap in their type, other index arithmetic never
    does."""
    match e:
        case Var() | Const():
            return False
        case Load():
            return True
        case Binary(a=a, b=b):
            return reads(a) or reads(b)
        case Cast(a=a) | Not(a=a):
            return reads(a)
        case Call(args=args):
            return any(reads(a) for a in args)
        case Select():
            return reads(e.condition) or reads(e.then) or reads(e.otherwise)
        case Ramp():
            return reads(e.base) or reads(e.stride)
        case Broadcast():
            return reads(e.value)
        case _:
            return True


def is_exact(e: Expr) -> bool:
    """Return whether e means the same as index arithmetic and as a value: it cannot wrap."""
    if e.dtype not in INDEX_TYPES or e.lanes != 1:
        return False
    if type(e) is Load:
        return True
    if type(e) is Binary and e.op in ("min", "max"):
        return is_exact(e.a) and is_exact(e.b)
    if type(e) is Cast:
        return is_exact(e.a) and (e.dtype == "int64" or _fits_int32(Intervals().span(e.a)))
    return not reads(e)


def _fits_int32(span: _Span) -> bool:
    return span[0] >= -(2**31) and span[1] < 2**31


def _of_type(dtype: str) -> _Span:
    """Range of the values in memory; index types are unbounded, because index arithmetic is wider than they are."""
    if dtype == "bool":
        return (0, 1)
    if dtypes.is_float(dtype) or dtype in INDEX_TYPES:
        return _EVERYTHING
    limits = np.iinfo(dtypes.numpy_dtype(dtype))
    return (int(limits.min), int(limits.max))


def _compare(op: str, difference: _Span) -> _Span:
    low, high = difference
    always, never = {
        "<": (high < 0, low >= 0),
        "<=": (high <= 0, low > 0),
        ">": (low > 0, high <= 0),
        ">=": (low >= 0, high < 0),
        "==": (low == high == 0, low > 0 or high < 0),
        "!=": (low > 0 or high < 0, low == high == 0),
    }.get(op, (False, False))
    return (1, 1) if always else (0, 0) if never else (0, 1)


def _product(x: float, y: float) -> float:
    return 0 if x == 0 or y == 0 else x * y


def _quotient(x: float, y: float, floor: bool) -> float:
    if x in (inf, -inf):
        return x if y > 0 else -x
    if y in (inf, -inf):
        return (0 if (x >= 0) == (y > 0) or x == 0 else -1) if floor else 0
    exact = int(x) // int(y)
    return exact if floor or exact >= 0 else -(abs(int(x)) // abs(int(y)))


def _binary(op: str, a: _Span, b: _Span) -> _Span:
    (l1, h1), (l2, h2) = a, b
    match op:
        case "+":
            return (l1 + l2, h1 + h2)
        case "-":
            return (l1 - h2, h1 - l2)
        case "*":
            corners = [_product(x, y) for x in a for y in b]
            return (min(corners), max(corners))
        case "//" | "/":
            if l2 <= 0 <= h2:
                return _EVERYTHING
            corners = [_quotient(x, y, op == "//") for x in a for y in b]
            return (min(corners), max(corners))
        case "%":
            if l2 <= 0:
                return _EVERYTHING
            if l1 >= 0 and h1 < l2:
                return a
            return (0, min(h2 - 1, h1 if l1 >= 0 else inf))
        case "min":
            return (min(l1, l2), min(h1, h2))
        case "max":
            return (max(l1, l2), max(h1, h2))
        case _:
            return _EVERYTHING
