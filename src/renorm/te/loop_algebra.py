"""Indices of one lowering, as linear forms over its loop variables; ranges of values while some of them run.

What is no index arithmetic (an element that is read, a product of variables, a choice) is an opaque variable with the
bounds of its type or of its parts. Here forms are built up, and never taken apart again: an index into a region becomes
an index relative to the region's start by a difference, which cancels exactly. Bounds contain every value, maybe more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import NamedTuple

from renorm.core import dtypes
from renorm.core.linear import Span
from renorm.expr.algebra import ExprAlgebra
from renorm.expr.bounds import Intervals, decided, fits_int32
from renorm.expr.linear import Linear, expression
from renorm.expr.mixed_radix import Digit, digit_of
from renorm.expr.nodes import COMPARISONS, Binary, Call, Cast, Const, Expr, Select, Var, cast
from renorm.expr.rewrite import children, transform

IntRange = tuple[int, int]  # least and greatest value, both included
ZERO = Linear({})


class OpaqueValue(NamedTuple):
    """build: makes the expression. variables: what alone fixes its value; None where it reads memory."""

    build: Callable[[], Expr]
    variables: frozenset[Var] | None


class LoopAlgebra(ExprAlgebra):
    """The loop variables in sight, with their ranges, and the atoms made of them. One per lowering."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: dict[Var, IntRange] = {}
        self._intervals = Intervals(self.ranges, (), lambda e: e)
        self._depth: dict[Var, int] = {}
        self._free: dict[Expr, frozenset[Var]] = {}
        self._opaque: dict[Var, OpaqueValue] = {}
        self._opaque_named: dict[Hashable, Linear] = {}
        self._expressions: dict[Hashable, Expr] = {}
        self._values: dict[Expr, Expr] = {}

    def declare(self, var: Var, extent: int, depth: int) -> Linear:
        """The form of a loop variable with values 0 .. extent - 1; depth: how many loops enclose its loop."""
        self.ranges[var] = (0, max(0, extent - 1))
        self._depth[var] = depth
        return ZERO if extent == 1 else Linear({var: 1})

    def opaque(self, e: Expr, opaque: OpaqueValue, bounds: Span, name: Hashable) -> Linear:
        """The form of something of the type of `e`, which is known by its bounds only. name: equal for equal ones."""
        found = self._opaque_named.get(name)
        if found is None:
            var = Var("opaque", e.dtype)
            self.ranges[var], self._opaque[var] = (int(bounds[0]), int(bounds[1])), opaque
            found = self._opaque_named[name] = Linear({var: 1})
        return found

    # -- bounds

    def form_span(self, form: Linear) -> Span:
        return self._intervals.form_span(form)

    def bounds(self, form: Linear) -> IntRange:
        """Least and greatest value: everything has finite ones here."""
        low, high = self._intervals.form_span(form)
        return int(low), int(high)

    def is_index(self, e: Expr) -> bool:
        return True

    def form(self, e: Expr) -> Linear:
        if type(e) is Const:
            return Linear({}, int(e.value))
        # where types meet, an atom has its operands cast; indices never wrap
        return self.form(e.a) if type(e) is Cast and e not in self._forms else self._forms[e]

    def _parts(self, atom: Expr) -> list[Linear]:
        return [self.form(part) for part in children(atom)]

    def free(self, a: Linear) -> frozenset[Var]:
        """Loop variables that a form depends on."""
        return frozenset[Var]().union(*(self._atom_free(atom) for atom in a.terms))

    def _atom_free(self, atom: Expr) -> frozenset[Var]:
        found = self._free.get(atom)
        if found is None:
            if isinstance(atom, Var):
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

    def relax(self, a: Linear, moving: Collection[Var]) -> tuple[Linear, int]:
        """(low, span): low <= a <= low + span while the variables in `moving` run over their ranges, all others fixed.

        low is a form in the variables that stay; span is a constant. Exact for forms that are linear in `moving`.
        """
        fixed: dict[Expr, int] = {}
        low, span = Linear({}, a.constant), 0
        for atom, k in a.terms.items():
            if self._is_fixed(atom, moving):
                fixed[atom] = k
                continue
            least, width = self._relax_atom(atom, moving)
            low = low.plus(least if k > 0 else least.offset(width), k)
            span += abs(k) * width
        return Linear(fixed) + low, span

    def _relax_atom(self, atom: Expr, moving: Collection[Var]) -> tuple[Linear, int]:
        least, most = self.bounds(Linear({atom: 1}))
        widest = Linear({}, least), most - least
        if not isinstance(atom, Binary):
            return widest
        relaxed = [self.relax(part, moving) for part in self._parts(atom)]
        (base, base_span), (other, other_span) = relaxed
        if atom.op in ("min", "max"):
            found = self.extreme(atom.op, base, other), max(base_span, other_span)
        else:
            start = self.floor_modulo(base, other.constant)
            reach = self.bounds(start)[1] + base_span
            if atom.op == "//":
                found = self.floor_divide(base, other.constant), reach // other.constant
            elif reach < other.constant:
                found = start, base_span
            else:
                return widest
        return found if found[1] < widest[1] else widest

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
        return expression(Linear({cast(dtype, atom): k for atom, k in terms}, a.constant), dtype)

    def _is_wide(self, atom: Expr) -> bool:
        """Return whether an atom that was read from memory, and maybe clamped, takes 64 bits."""
        return atom.dtype != "int32" and not fits_int32(self._intervals.span(atom))

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
            case Var():
                return env[e]
            case Cast(a=a) if dtypes.is_int(a.dtype):
                return self.linear(a, env, opaque)  # indices never wrap
            case Call(name="likely", args=(a,)):
                return self.linear(a, env, opaque)
            case Binary(op="+" | "-" | "*" | "//" | "%" | "/" | "min" | "max"):
                form = self.applied(e.op, self.linear(e.a, env, opaque), self.linear(e.b, env, opaque))
                return opaque(e) if form is None else form
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
        return decided(e.op, self.bounds(self.linear(e.a, env, opaque) - self.linear(e.b, env, opaque)))

    def without_division(self, a: Linear, bound: int) -> tuple[Linear, int]:
        """(b, n) with a < bound exactly where b < n, and a >= bound exactly where b >= n; b divides nothing if it can.

        r + x // c < n says r*c + x < n*c: conditions on parts of a fused axis become conditions on the axis. Where
        0 <= f < u, u*m + f < u*n says m < n.
        """
        b, n = a, bound
        while True:
            coarse = self.coarsened(b, n) if n else None
            if coarse is not None:
                b, n = coarse[1], n // coarse[0]
            found = next((x for x, k in b.terms.items() if k == 1 and self.divisor(x, "//")), None)
            if found is None:
                part = b.single()
                if part is not None and (d := self.divisor(part, "%")):
                    inner = self.dividend(part).single()
                    if inner is not None and (c := self.divisor(inner, "//")):  # (x // c) % d < n: x % (c*d) < n*c
                        b, n = self.floor_modulo(self.dividend(inner), c * d), n * c
                        part = b.single()
                is_remainder = part is not None and self.divisor(part, "%")
                atoms = self.dividend(part).terms if part is not None and is_remainder else b.terms
                return (b, n) if all(self._is_loop(x) for x in atoms) else (a, bound)
            c = self.divisor(found, "//")
            b, n = self.rejoined(b.without((found,)) * c + self.dividend(found)), n * c

    def _is_loop(self, atom: Expr) -> bool:
        return isinstance(atom, Var) and atom not in self._opaque

    def covers(self, low: Linear, span: int, extent: int, loops: Iterable[tuple[Var, int]]) -> tuple[bool, set[Digit]]:
        """Return whether [low, low + span], over all values of the loop variables, covers 0 .. extent - 1 with no gap
        and each value once up to the ends; and the digits of variables that it takes. loops: variables with extents."""
        extents = dict(loops)
        parts = [(k, _digit(atom, extents)) for atom, k in low.terms.items()]
        taken = {digit for _, digit in parts if digit is not None}
        if low.constant != 0 or len(taken) < len(parts):
            return False, set()
        reach = span + 1
        for k, digit in sorted(((k, d) for k, d in parts if d is not None), key=lambda part: part[0]):
            if k != reach:
                return False, set()
            reach *= digit.count
        return reach >= extent, taken


def _digit(atom: Expr, extents: Mapping[Var, int]) -> Digit | None:
    """Return an atom as a digit of a loop variable, counted; None where it is something else."""
    found = digit_of(atom)
    extent = extents.get(found.base) if isinstance(found.base, Var) else None
    if extent is None:
        return None
    count = found.count or extent // found.unit
    return found._replace(count=count) if count and extent % (found.unit * count) == 0 else None


def are_separate(digits: Iterable[Digit]) -> bool:
    """Return whether digits take all combinations of values, each determined by its variable."""
    end: dict[Expr, int] = {}
    for d in sorted(digits, key=lambda d: d.unit):
        if d.unit % end.get(d.base, 1):
            return False
        end[d.base] = d.unit * d.count
    return True
