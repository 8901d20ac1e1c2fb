"""Indices of one lowering, as linear forms over its loop variables; ranges of values while some of them run.

What is no index arithmetic (an element that is read, a product of variables, a choice) is an opaque variable with the
bounds of its type or of its parts. Here forms are built up, and never taken apart again: an index into a region becomes
an index relative to the region's start by a difference, which cancels exactly. Bounds contain every value, maybe more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import reduce
from math import gcd, inf
from typing import NamedTuple

from renorm.core import dtypes
from renorm.core.errors import InvalidSchedule
from renorm.core.spans import Span, decided, fits_int32
from renorm.expr.algebra import ExprAlgebra
from renorm.expr.bounds import End, Intervals
from renorm.expr.linear import ONES, Linear, Place, cofactor, expression, factors, is_of_extents, linear, place_of
from renorm.expr.mixed_radix import Digit, digit_of
from renorm.expr.nodes import COMPARISONS, Binary, Call, Cast, Const, Expr, OpenVar, Select, Var, cast, const, holds
from renorm.expr.rewrite import children, key, transform, variables

ZERO, ONE = Linear({}), Linear({}, 1)


class OpaqueValue(NamedTuple):
    """build: makes the expression. variables: what alone fixes its value; None where it reads memory."""

    build: Callable[[], Expr]
    variables: frozenset[Var] | None


class LoopAlgebra(ExprAlgebra):
    """The loop variables in sight, with their ranges, and the atoms made of them. One per lowering.
    may_be_empty: as of te.lower."""

    def __init__(self, may_be_empty: bool = False) -> None:
        super().__init__()
        self._may_be_empty = may_be_empty
        self.ranges: dict[Var, tuple[End, End]] = {}
        self._interned: dict[Hashable, Expr] = {}
        self._intervals = Intervals(self.ranges, (), self.intern)
        self._depth: dict[Var, int] = {}
        self._free: dict[Expr, frozenset[Var]] = {}
        self._opaque: dict[Var, OpaqueValue] = {}
        self._opaque_named: dict[Hashable, Linear] = {}
        self._expressions: dict[Hashable, Expr] = {}
        self._values: dict[Expr, Expr] = {}
        self._defined: dict[Hashable, Linear] = {}
        self._sums: dict[Expr, Linear] = {}  # of variables that are sums, of which none is a sum itself
        self._quotients: list[tuple[int, Linear, Linear]] = []  # c, x and the variable of each x // c that has one

    def intern(self, e: Expr) -> Expr:
        return e if isinstance(e, Var) or e in self._forms else self._interned.setdefault(key(e, id), e)

    def made(self, e: Binary) -> Expr:
        return self._interned.setdefault(key(e, id), e)

    def declare(self, var: Var, extent: Linear, depth: int) -> Linear:
        """The form of a loop variable with values 0 .. extent - 1; depth: how many loops enclose its loop."""
        number = extent.number
        self.ranges[var] = (0, self.expression(extent.offset(-1)) if number is None else max(0, number - 1))
        self._depth[var] = depth
        return ZERO if number == 1 else Linear({var: 1})

    # -- extents

    @property
    def defined(self) -> list[OpenVar]:
        """Extents that got variables of their own, in the order of making."""
        return list(dict.fromkeys(v for form in self._defined.values() for v in form.terms if isinstance(v, OpenVar)))

    def extent(self, e: int | Expr) -> Linear:
        """The form of an extent: a number, or a product of open ones."""
        if not isinstance(e, Expr):
            return Linear({}, e)
        form = self.unit(self.linear(e, {}, self._atom_of))
        for v in (x for atom in form.terms for x in factors(atom)):
            if isinstance(v, OpenVar) and v.definition is not None and not _may_be_0(v, self._may_be_empty):
                v.low = 1 if v.low is None else max(1, v.low)  # who calls a kernel sees to that (codegen.abi)
        return form

    def fact(self, e: Expr) -> Expr:
        """A comparison of open extents, in the variables that loops are made of."""
        assert isinstance(e, Binary)
        difference = self.linear(e.a, {}, self._atom_of) - self.linear(e.b, {}, self._atom_of)
        whole = self.expression(self._by_sums(difference))
        return Binary(e.op, whole, const(0, whole.dtype))

    def _atom_of(self, e: Expr) -> Linear:
        return Linear({self.intern(e): 1})

    def scaled(self, a: Linear, c: Linear) -> Linear:
        return super().scaled(a, self.unit(c))

    def applied(self, op: str, a: Linear, b: Linear) -> Linear | None:
        """a op b, where a row of n + 2 elements, that indices are multiplied with and divided by, is a variable, and
        digits of one number that stand beside each other are that number before it is divided."""
        a = self.rejoined(a) if op in ("//", "%") else a
        if op in ("*", "//", "%") and not is_of_extents(a) and b.terms and is_of_extents(b) and self.is_at_most(-b, -1):
            b = self.unit(b)
        elif op == "*" and not is_of_extents(b) and a.terms and is_of_extents(a) and self.is_at_most(-a, -1):
            a = self.unit(a)
        return super().applied(op, a, b)

    def unit(self, extent: Linear) -> Linear:
        """The extent as a number or as one product, by which indices are multiplied and divided: a sum of open extents
        gets a variable of its own, which is defined by it."""
        if not extent.terms or place_of(extent) is not None:
            return extent
        extent = self._by_sums(extent)
        if place_of(extent) is not None:
            return extent
        if (g := gcd(extent.content(), extent.constant)) > 1:
            return self.unit(extent.divided(g)) * g
        first, *others = extent.terms
        for x in factors(first) if others and is_of_extents(extent) else ():  # n of m*n - n
            rest, left = self.divided(extent, Linear({x: 1}))
            if left.number == 0:
                return self.scaled(self.unit(rest), Linear({x: 1}))
        return self._named(extent)

    def _by_sums(self, extent: Linear) -> Linear:
        """The extent in variables that are defined as sums, where it is shorter so: 3*n*m + m is e*m where e is 3*n +
        1."""
        for e, parts in self._sums.items():
            for x, k in parts.terms.items():
                simple = cofactor(extent, x, self.intern) if len(factors(x)) == 1 else None
                if simple is None and place_of(Linear({x: 1})) is None:
                    continue  # n * (18 // m), of which nothing is seen to be a multiple
                multiple = simple[0] if simple else self.divided(extent, Linear({x: 1}))[0]
                whole, left = self.divided(multiple, Linear({}, k)) if k > 0 else (ZERO, multiple)
                change = None if left.number != 0 else self.times(whole, Linear({e: 1}) - parts)
                if change is not None and _length(extent + change) < _length(extent):
                    return self._by_sums(extent + change)
        return extent

    def atom(self, op: str, a: Linear, b: Linear) -> Linear:
        """a op b, which cannot be simplified. Of extents it is one itself, with a variable of its own, so that loops,
        sizes and conditions speak of the same."""
        if op == "min" and not a.terms and is_of_extents(b):  # max(0, n) is padding, whose cases proofs look at
            a, b = b, a
        if not (is_of_extents(a) and is_of_extents(b) and a.terms):
            return super().atom(op, a, b)
        found = self.of_extents(op, a, b) if b.number is not None else None
        return found if found is not None else self._named(super().atom(op, a, b))

    def _as_given(self, extent: Linear) -> Linear:
        """The extent with sums in the place of variables that are defined by them: (e + 1) // 2 is (n + 1) // 2 + 2
        where e is n + 4."""
        found = extent
        for v, k in extent.terms.items():
            if (parts := self._sums.get(v)) is not None:
                found = found.without((v,)).plus(parts, k)
        return found

    def _quotient(self, form: Linear) -> tuple[Linear, Linear] | None:
        """Return x and c of x // c."""
        atom = form.single()
        by = None if atom is None else self.divisor(atom, "//")
        return None if atom is None or by is None else (self.dividend(atom), by)

    def _by_another(self, quotient: Linear) -> Linear:
        """(x + c*m) // (c*d) as (x//c + m) // d, where x // c has a variable: what both are then is tied. So are two
        quotients where one is of a variable that is defined as a sum."""
        if (parts := self._quotient(quotient)) is None:
            return quotient
        mine, by = parts
        if (given := self._as_given(mine)) is not mine:
            found = self.floor_divide(given, by)
            # that a sum is 1 at least is taken for granted, and follows from nothing that it is made of
            return quotient if self.form_span(found)[0] < self.form_span(quotient)[0] else found
        whole = by.number or 0
        for c, x, variable in sorted(self._quotients, key=lambda q: -q[0]):
            more = mine - x
            if c < whole and whole % c == 0 and not more.terms and more.constant % c == 0:
                return super().atom("//", variable.offset(more.constant // c), Linear({}, whole // c))
        return quotient

    def _of_root(self, quotient: Linear) -> Linear:
        """(v + n) // d as (x + n*c) // (c*d), where v is the variable of x // c: other ways to the same extent."""
        mine, by = self._quotient(quotient) or (ZERO, ZERO)
        for c, x, variable in self._quotients:
            more = mine - variable
            if by.number and not more.terms:
                return super().atom("//", x.offset(more.constant * c), Linear({}, c * by.number))
        return quotient

    def _named(self, extent: Linear) -> Linear:
        """The variable that is defined as an extent."""
        found = self._defined.get(name := self._of_root(extent).key())
        if found is None:
            definition = self._by_another(extent)
            if isinstance(definition.single(), OpenVar):  # (e + 1) // 2 is n // 2, which has a variable
                return self._defined.setdefault(name, definition)
            low, high = self.form_span(extent)
            least = None if low == -inf else int(low)
            most = None if high == inf else int(high)
            name_of = f"extent{len(self._defined) or ''}"
            found = Linear({OpenVar(name_of, "int32", least, most, self.expression(definition)): 1})
            self._defined[name] = found
            if extent.single() is None:
                self._sums[next(iter(found.terms))] = self._as_given(extent)
            elif (parts := self._quotient(extent)) and (c := parts[1].number):
                self._quotients.append((c, parts[0], found))
        return found

    def size(self, extents: Iterable[Linear]) -> Linear:
        """The product of extents."""
        total = Linear({}, 1)
        for extent in extents:
            total = self.scaled(total, extent)
        return total

    def opaque(self, e: Expr, opaque: OpaqueValue, bounds: Span, name: Hashable) -> Linear:
        """The form of something of the type of `e`, which is known by its bounds only. name: equal for equal ones."""
        found = self._opaque_named.get(name)
        if found is None:
            var = Var("opaque", e.dtype)
            self._opaque[var] = opaque
            if bounds[0] > -inf and bounds[1] < inf:
                self.ranges[var] = int(bounds[0]), int(bounds[1])
            found = self._opaque_named[name] = Linear({var: 1})
        return found

    # -- bounds

    def form_span(self, form: Linear) -> Span:
        return self._intervals.form_span(form)

    def is_at_most(self, form: Linear, n: int) -> bool:
        return self._intervals.is_at_most(form, n)

    def is_below(self, a: Linear, b: Linear) -> bool:
        """Return whether a < b always."""
        return self.is_at_most(a - b, -1)

    def is_index(self, e: Expr) -> bool:
        return True

    def form(self, e: Expr) -> Linear:
        if type(e) is Const:
            return Linear({}, int(e.value))
        # where types meet, an atom has its operands cast; indices never wrap
        if e in self._forms:
            return self._forms[e]
        return self.form(e.a) if type(e) is Cast else linear(e, self.intern)

    def _parts(self, atom: Expr) -> list[Linear]:
        return [self.form(part) for part in children(atom)]

    def free(self, a: Linear) -> frozenset[Var]:
        """Loop variables that a form depends on."""
        return frozenset[Var]().union(*(self._atom_free(atom) for atom in a.terms))

    def _atom_free(self, atom: Expr) -> frozenset[Var]:
        found = self._free.get(atom)
        if found is None:
            if isinstance(atom, OpenVar):
                found = frozenset[Var]()
            elif isinstance(atom, Var):
                opaque = self._opaque.get(atom)
                found = frozenset((atom,)) if opaque is None else opaque.variables or frozenset[Var]()
            else:
                found = frozenset[Var]().union(*(self.free(part) for part in self._parts(atom)))
            self._free[atom] = found
        return found

    def reads_memory(self, a: Linear) -> bool:
        """Return whether elements of tensors have a say in a form."""
        return not all(self._is_fixed(atom, ()) for atom in a.terms)

    def _is_fixed(self, atom: Expr, moving: Collection[Var]) -> bool:
        """Return whether an atom keeps its value while the variables in `moving` run, and reads no memory."""
        if isinstance(atom, Var):
            opaque = self._opaque.get(atom)
            if opaque is None:
                return atom not in moving
            return opaque.variables is not None and opaque.variables.isdisjoint(moving)
        return all(self._is_fixed(x, moving) for part in self._parts(atom) for x in part.terms)

    # -- ranges of values

    def relax(self, a: Linear, moving: Collection[Var]) -> tuple[Linear, Linear]:
        """(low, span): low <= a <= low + span while the variables in `moving` run over their ranges, all others fixed.

        low is a form in the variables that stay; span is one of extents. Exact for forms that are linear in `moving`.
        """
        fixed: dict[Expr, int] = {}
        low, span = Linear({}, a.constant), ZERO
        for atom, k in a.terms.items():
            if self._is_fixed(atom, moving):
                fixed[atom] = k
                continue
            first, unit = self.digit(atom)
            least, width = (self.scaled(end, unit) for end in self._relax_atom(first, moving))
            low = low.plus(least if k > 0 else least + width, k)
            span = span.plus(width, abs(k))
        return Linear(fixed) + low, span

    def _relax_atom(self, atom: Expr, moving: Collection[Var]) -> tuple[Linear, Linear]:
        widest = self._range(atom)
        if not isinstance(atom, Binary):
            return widest
        relaxed = [self.relax(part, moving) for part in self._parts(atom)]
        (base, base_span), (other, other_span) = relaxed
        if atom.op in ("min", "max"):
            found = self.extreme(atom.op, base, other), self._longer(base_span, other_span)
        else:
            c = self.unit(other)
            start = self.applied("%", base, c)
            if start is None:
                return widest
            reach = self.ends(start)[1] + base_span
            whole = self.applied("//", base, c), self.applied("//", reach, c)
            if atom.op == "//" and whole[0] is not None and whole[1] is not None:
                found = whole[0], whole[1]
            elif atom.op == "%" and self.is_below(reach, c):
                found = start, base_span
            else:
                return widest
        return found if self.is_below(found[1], widest[1]) else widest

    def _longer(self, a: Linear, b: Linear) -> Linear:
        """A span that neither of two exceeds."""
        low, high = self.form_span(a - b)
        return b if high < 0 else a if low >= 0 else a + b

    def ends(self, form: Linear) -> tuple[Linear, Linear]:
        """Least and greatest value: as forms of open extents where these have a say, so that a region of n elements has
        n and not as many as n may be; else as numbers."""
        low, high = self._intervals.form_span(form)
        least = most = None
        if self._intervals.is_open(form):
            least, most = self._intervals.least(form), self._intervals.greatest(form)
        if (least is None or most is None) and low > -inf and high < inf:
            return Linear({}, int(low)), Linear({}, int(high))
        if least is None or most is None:
            raise InvalidSchedule(
                f"nothing is known to bound {self.expression(form)}, which a region is made of",
                do="compute what is read at the root, where its region is all of it",
            )
        return least, most

    def _range(self, atom: Expr) -> tuple[Linear, Linear]:
        """(least, width) of all values of an atom."""
        least, most = self.ends(Linear({atom: 1}))
        return least, most - least

    # -- to and from expressions

    def expression(self, form: Linear) -> Expr:
        """The form as an expression: terms from the outermost loop inward, so that partial sums stay invariant."""
        found = self._expressions.get(name := form.key())
        if found is None:
            found = self._expressions[name] = self._sum(form)
            self._forms[found] = form
        return found

    def _sum(self, a: Linear) -> Expr:
        terms = list(a.terms.items())
        if len(terms) > 1:
            terms.sort(key=lambda term: max((self._depth[v] for v in self._atom_free(term[0])), default=-1))
        if terms and terms[0][1] < 0:  # begin with what is added, where there is something
            terms.sort(key=lambda term: term[1] < 0)
        dtype = "int64" if any(self._is_wide(atom) for atom, _ in terms) else "int32"  # one type for all indices
        return expression(Linear(dict(terms), a.constant), dtype)

    def _is_wide(self, atom: Expr) -> bool:
        """Return whether an atom that was read from memory, and maybe clamped, takes 64 bits."""
        first = factors(atom)[0]
        return first.dtype != "int32" and not fits_int32(self._intervals.span(first)) and not self._is_index_of(first)

    def _is_index_of(self, atom: Expr) -> bool:
        """Return whether an atom is at least 0, and less than one open extent, which 32 bits hold."""
        most = self._intervals.greatest(Linear({atom: 1}))
        if most is None or most.constant >= 0:
            return False
        return isinstance(most.offset(-most.constant).single(), OpenVar) and self._intervals.span(atom)[0] >= 0

    def end(self, bound: Linear, dtype: str) -> Expr:
        """A bound of an index in its type, also where it is beyond that: indices are exact in 64 bits."""
        number = bound.number
        return const(number, dtype) if number is not None else cast(dtype, self.expression(bound))

    def value(self, a: Linear) -> Expr:
        """The form as an expression over buffers: with what opaque variables stand for."""
        e = self.expression(a)
        if not self._opaque:
            return e
        if e not in self._values:
            self._values[e] = transform(e, self._built)
        return self._values[e]

    def _built(self, e: Expr) -> Expr | None:
        if not isinstance(e, Var) or e not in self._opaque:
            return None
        if e not in self._values:
            self._values[e] = self._opaque[e].build()
        return self._values[e]

    def linear(self, e: Expr, env: Mapping[Var, Linear], opaque: Callable[[Expr], Linear]) -> Linear:
        """The form of an integer expression; env: what its variables are; opaque: the form of what is not linear."""
        match e:
            case Const():
                return Linear({}, int(e.value))
            case OpenVar():
                return Linear({e: 1})
            case Var():
                return env[e]
            case Cast(a=a) if dtypes.is_int(a.dtype):
                form = self.linear(a, env, opaque)
                return form if holds(e.dtype, *self.form_span(form)) else opaque(e)
            case Call(name="likely", args=(a,)):
                return self.linear(a, env, opaque)
            case Binary(op="+" | "-" | "*" | "//" | "%" | "/" | "min" | "max"):
                form = self.applied(e.op, self.linear(e.a, env, opaque), self.linear(e.b, env, opaque))
                return form if form is not None and holds(e.dtype, *self.form_span(form)) else opaque(e)
            case Select() | Call(name="if_then_else"):
                condition, then, otherwise = children(e)
                known = self.decide(condition, env, opaque)
                return opaque(e) if known is None else self.linear(then if known else otherwise, env, opaque)
            case _:
                return opaque(e)

    def decide(self, e: Expr, env: Mapping[Var, Linear], opaque: Callable[[Expr], Linear]) -> bool | None:
        """Return whether a condition over integers is always true (True), never true (False), or neither (None)."""
        if isinstance(e, Const):
            return bool(e.value)
        if not isinstance(e, Binary):
            return None
        if e.op in ("&&", "||"):
            a, b = self.decide(e.a, env, opaque), self.decide(e.b, env, opaque)
            absorbing = e.op == "||"
            if a is absorbing or b is absorbing:
                return absorbing
            return (not absorbing) if a is not None and b is not None else None
        if e.op not in COMPARISONS or not dtypes.is_int(e.a.dtype):
            return None
        return decided(e.op, self.form_span(self.linear(e.a, env, opaque) - self.linear(e.b, env, opaque)))

    def without_division(self, a: Linear, bound: Linear) -> tuple[Linear, Linear]:
        """(b, n) with a < bound exactly where b < n, and a >= bound exactly where b >= n; b divides nothing if it can.

        r + x // c < n says r*c + x < n*c: conditions on parts of a fused axis become conditions on the axis. Where
        0 <= f < u, u*m + f < u*n says m < n.
        """
        b, n = a, bound
        while True:
            coarse = self.coarsened(b, n) if n.number else None
            if coarse is not None:
                b, n = coarse[1], self.divided(n, coarse[0])[0]
            found = next((x for x, k in b.terms.items() if k == 1 and self.divisor(x, "//")), None)
            if found is None:
                part = b.single()
                if part is not None and (d := self.divisor(part, "%")):
                    inner = self.dividend(part).single()
                    if inner is not None and (c := self.divisor(inner, "//")):  # (x // c) % d < n: x % (c*d) < n*c
                        whole = self.applied("%", self.dividend(inner), self.scaled(c, d))
                        b, n = (b, n) if whole is None else (whole, self.scaled(n, c))
                        part = b.single()
                is_remainder = part is not None and self.divisor(part, "%")
                atoms = self.dividend(part).terms if part is not None and is_remainder else b.terms
                return (b, n) if all(self._is_loop(x) for x in atoms) else (a, bound)
            by = self.divisor(found, "//")
            assert by is not None
            rest = self.scaled(b.without((found,)), by)
            b, n = self.rejoined(rest + self.dividend(found)), self.scaled(n, by)

    def _is_loop(self, atom: Expr) -> bool:
        first = factors(atom)[0]
        return isinstance(first, Var) and first not in self._opaque

    def covers(
        self, low: Linear, span: Linear, extent: Linear, loops: Iterable[tuple[Var, Linear]]
    ) -> tuple[bool, set[Digit]]:
        """Return whether [low, low + span], over all values of the loop variables, covers 0 .. extent - 1 with no gap
        and each value once up to the ends; and the digits of variables that it takes. loops: variables with extents."""
        extents = {var: place for var, n in loops if (place := place_of(n)) is not None}
        parts = [_part(atom, k, extents) for atom, k in low.terms.items()]
        taken = {part[1] for part in parts if part is not None}
        reach = place_of(span.offset(1))
        if low.constant != 0 or len(taken) < len(parts) or reach is None:
            return False, set()
        for unit, digit in sorted((part for part in parts if part is not None), key=lambda part: part[0].key):
            if unit != reach or digit.count is None:
                return False, set()
            reach = reach.times(digit.count)
        return self.form_span(reach.form(self.intern) - extent)[0] >= 0, taken


def _part(atom: Expr, k: int, extents: Mapping[Var, Place]) -> tuple[Place, Digit] | None:
    """Return how far apart neighbours lie, and a digit of a loop variable, counted, where a term is their product; None
    where it is something else."""
    first, *others = factors(atom)
    found = digit_of(first)
    extent = extents.get(found.base) if isinstance(found.base, Var) else None
    if extent is None or k <= 0:
        return None
    count = found.count or extent.over(found.unit)
    if count is None or extent.over(found.unit.times(count)) is None:
        return None
    return Place.of(k, others), found._replace(count=count)


def are_separate(digits: Iterable[Digit]) -> bool:
    """Return whether digits take all combinations of values, each determined by its variable."""
    end: dict[Expr, Place] = {}
    for d in sorted(digits, key=lambda d: d.unit.key):
        if d.count is None or d.unit.over(end.get(d.base, ONES)) is None:
            return False
        end[d.base] = d.unit.times(d.count)
    return True


def is_cut_whole(var: Var, extent: Linear, digits: Iterable[Digit]) -> bool:
    """Return whether separate digits are all that there are of a loop variable."""
    counts = [d.count for d in digits if d.base is var and d.count is not None]
    return reduce(Place.times, counts, ONES) == place_of(extent)


def _length(form: Linear) -> int:
    return len(form.terms) + (form.constant != 0)


def _may_be_0(v: OpenVar, may_be_empty: bool) -> bool:
    """Return whether an extent may be 0 as all that it is made of may: how many parts there are of one, or any."""
    parts = v.definition
    if v.low != 0 or parts is None or not (may_be_empty or (isinstance(parts, Binary) and parts.op == "//")):
        return False
    return all(x.low == 0 for x in variables(parts) if isinstance(x, OpenVar))
