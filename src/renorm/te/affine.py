"""Integer algebra of indices: linear forms over loop variables, floor division, remainder, and their bounds.

    L ::= n + k*a + k*a + ...        Linear: integers n, k; atoms a, each once
    a ::= x                          a loop variable
        | L // n | L % n             Quotient, Remainder: n > 1, and neither can be simplified further
        | min(L, L) | max(L, L)      Extreme
        | e                          Opaque: anything else, known by its bounds only

Atoms are interned, so equal forms have equal terms and differences cancel exactly; that is how an index into a region
becomes an index relative to the region's start. Every rule is exact over the integers (floor semantics, no overflow)
for all values of the variables inside their ranges. Bounds are conservative: they contain every value, maybe more.
expr.simplify rewrites finished expressions; here they are built up, and never taken apart again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Union

from renorm.core import dtypes
from renorm.expr.nodes import Binary, Call, Cast, Const, Expr, Select, Var, binary, cast, const
from renorm.expr.rewrite import key as structural_key

Bounds = tuple[int, int]  # least and greatest value, both included


class Linear:
    """constant + sum of coefficient * atom. Never changed once made; terms keep the order in which they came."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[Atom, int], constant: int):
        self.terms, self.constant = terms, constant

    def key(self) -> tuple[frozenset[tuple[int, int]], int]:
        return frozenset((id(a), k) for a, k in self.terms.items()), self.constant

    def single(self) -> Atom | None:
        """The atom, where the form is one atom and nothing else."""
        if self.constant == 0 and len(self.terms) == 1:
            ((atom, k),) = self.terms.items()
            return atom if k == 1 else None
        return None


class Quotient:
    __slots__ = ("base", "divisor")

    def __init__(self, base: Linear, divisor: int):
        self.base, self.divisor = base, divisor


class Remainder:
    __slots__ = ("base", "divisor")

    def __init__(self, base: Linear, divisor: int):
        self.base, self.divisor = base, divisor


class Extreme:
    __slots__ = ("a", "b", "op")

    def __init__(self, op: str, a: Linear, b: Linear):
        self.op, self.a, self.b = op, a, b


class Opaque:
    """build: makes the expression. variables: what alone fixes its value; None where it reads memory."""

    __slots__ = ("bounds", "build", "variables")

    def __init__(self, build: Callable[[], Expr], bounds: Bounds, variables: frozenset[Var] | None):
        self.build, self.bounds, self.variables = build, bounds, variables


Atom = Union[Var, Quotient, Remainder, Extreme, Opaque]
NUMBER_0 = Linear({}, 0)


def number(n: int) -> Linear:
    return Linear({}, n)


def add(a: Linear, b: Linear) -> Linear:
    if not b.terms:
        return a if b.constant == 0 else Linear(a.terms, a.constant + b.constant)
    if not a.terms and a.constant == 0:
        return b
    terms = dict(a.terms)
    for atom, k in b.terms.items():
        total = terms.get(atom, 0) + k
        if total:
            terms[atom] = total
        else:
            del terms[atom]
    return Linear(terms, a.constant + b.constant)


def scale(a: Linear, factor: int) -> Linear:
    if factor == 1:
        return a
    if factor == 0:
        return NUMBER_0
    return Linear({atom: k * factor for atom, k in a.terms.items()}, a.constant * factor)


def subtract(a: Linear, b: Linear) -> Linear:
    return add(a, scale(b, -1))


def offset(a: Linear, n: int) -> Linear:
    return a if n == 0 else Linear(a.terms, a.constant + n)


class Algebra:
    """The loop variables in sight, with their ranges, and the atoms made of them. One per lowering."""

    def __init__(self) -> None:
        self.ranges: dict[Var, Bounds] = {}
        self._depth: dict[Var, int] = {}
        self._atoms: dict[object, Atom] = {}
        self._bounds: dict[Atom, Bounds] = {}
        self._free: dict[Atom, frozenset[Var]] = {}
        self._built: dict[Atom, Expr] = {}
        self._exprs: dict[object, Expr] = {}

    def declare(self, var: Var, extent: int, depth: int) -> Linear:
        """The form of a loop variable with values 0 .. extent - 1; depth: how many loops enclose its loop."""
        self.ranges[var] = (0, max(0, extent - 1))
        self._depth[var] = depth
        return NUMBER_0 if extent == 1 else Linear({var: 1}, 0)

    # -- bounds

    def bounds(self, a: Linear) -> Bounds:
        low = high = a.constant
        for atom, k in a.terms.items():
            least, most = self._atom_bounds(atom)
            if k > 0:
                low += k * least
                high += k * most
            else:
                low += k * most
                high += k * least
        return low, high

    def _atom_bounds(self, atom: Atom) -> Bounds:
        if isinstance(atom, Var):
            return self.ranges[atom]
        if isinstance(atom, Opaque):
            return atom.bounds
        found = self._bounds.get(atom)
        if found is None:
            if isinstance(atom, Extreme):
                (al, ah), (bl, bh) = self.bounds(atom.a), self.bounds(atom.b)
                found = (min(al, bl), min(ah, bh)) if atom.op == "min" else (max(al, bl), max(ah, bh))
            else:
                low, high = self.bounds(atom.base)
                if isinstance(atom, Quotient):
                    found = low // atom.divisor, high // atom.divisor
                else:
                    found = 0, atom.divisor - 1
            self._bounds[atom] = found
        return found

    def free(self, a: Linear) -> frozenset[Var]:
        """Loop variables that a form depends on."""
        if len(a.terms) == 1:
            return self._atom_free(next(iter(a.terms)))
        return frozenset().union(*(self._atom_free(atom) for atom in a.terms))

    def _atom_free(self, atom: Atom) -> frozenset[Var]:
        found = self._free.get(atom)
        if found is None:
            if isinstance(atom, Var):
                found = frozenset((atom,))
            elif isinstance(atom, Opaque):
                found = atom.variables or frozenset()
            elif isinstance(atom, Extreme):
                found = self.free(atom.a) | self.free(atom.b)
            else:
                found = self.free(atom.base)
            self._free[atom] = found
        return found

    def atoms(self, a: Linear) -> Iterator[Atom]:
        """All atoms of a form, and those inside them."""
        for atom in a.terms:
            yield atom
            if isinstance(atom, Extreme):
                yield from self.atoms(atom.a)
                yield from self.atoms(atom.b)
            elif isinstance(atom, (Quotient, Remainder)):
                yield from self.atoms(atom.base)

    def _fixed(self, atom: Atom, moving: Collection[Var]) -> bool:
        """Return whether an atom keeps its value while the variables in `moving` run, and reads no memory."""
        if isinstance(atom, Var):
            return atom not in moving
        if isinstance(atom, Opaque):
            return atom.variables is not None and not any(v in moving for v in atom.variables)
        parts = (atom.a, atom.b) if isinstance(atom, Extreme) else (atom.base,)
        return all(self._fixed(x, moving) for part in parts for x in part.terms)

    # -- division

    def floordiv(self, a: Linear, divisor: int) -> Linear:
        """floor(a / divisor), divisor > 0."""
        if divisor == 1:
            return a
        whole: dict[Atom, int] = {}
        rest: dict[Atom, int] = {}
        for atom, k in a.terms.items():
            if k % divisor == 0:
                whole[atom] = k // divisor
            else:
                rest[atom] = k
        quotient = Linear(whole, a.constant // divisor)
        remaining = Linear(rest, a.constant % divisor)
        low, high = self.bounds(remaining)
        if low // divisor == high // divisor:
            return offset(quotient, low // divisor)
        coarse = self._coarsen(remaining, divisor)
        if coarse is not None:
            unit, multiple, _ = coarse
            return add(quotient, self.floordiv(multiple, divisor // unit))
        atom = remaining.single()
        if len(rest) == 1 and next(iter(rest.values())) == 1:
            inner = next(iter(rest))
            if isinstance(inner, Quotient):  # (x // d + n) // c = (x + n*d) // (c*d)
                shifted = offset(inner.base, remaining.constant * inner.divisor)
                return add(quotient, self.floordiv(shifted, divisor * inner.divisor))
            if isinstance(inner, Remainder) and atom is inner and inner.divisor % divisor == 0:
                return add(quotient, self.modulo(self.floordiv(inner.base, divisor), inner.divisor // divisor))
        return add(quotient, self._intern(("//", remaining.key(), divisor), lambda: Quotient(remaining, divisor)))

    def modulo(self, a: Linear, divisor: int) -> Linear:
        """a - divisor * floor(a / divisor), divisor > 0."""
        if divisor == 1:
            return NUMBER_0
        rest = {atom: (k if abs(k) < divisor else k % divisor) for atom, k in a.terms.items() if k % divisor}
        remaining = Linear(rest, a.constant % divisor)
        low, high = self.bounds(remaining)
        if low // divisor == high // divisor:
            return offset(remaining, -(low // divisor) * divisor)
        coarse = self._coarsen(remaining, divisor)
        if coarse is not None:
            unit, multiple, fine = coarse
            return add(scale(self.modulo(multiple, divisor // unit), unit), fine)
        atom = remaining.single()
        if isinstance(atom, Remainder) and atom.divisor % divisor == 0:
            return self.modulo(atom.base, divisor)
        return self._intern(("%", remaining.key(), divisor), lambda: Remainder(remaining, divisor))

    def _coarsen(self, a: Linear, divisor: int) -> tuple[int, Linear, Linear] | None:
        """(u, m, f) with a = u*m + f, 0 <= f < u, u > 1 a divisor of `divisor`, the greatest there is; or None."""
        for unit in sorted({math.gcd(k, divisor) for k in a.terms.values()}, reverse=True):
            if unit == 1:
                break
            fine = Linear({x: k for x, k in a.terms.items() if k % unit}, a.constant % unit)
            low, high = self.bounds(fine)
            if low >= 0 and high < unit:
                multiple = {x: k // unit for x, k in a.terms.items() if k % unit == 0}
                return unit, Linear(multiple, a.constant // unit), fine
        return None

    def recombine(self, a: Linear) -> Linear:
        """The same value, where x // c and x % c (of a fused axis) that together make up x are written as x again."""
        while True:
            for atom, k in a.terms.items():
                if not isinstance(atom, Remainder):
                    continue
                beside = self._quotient_beside(a, atom)
                upper = beside or self.floordiv(atom.base, atom.divisor).single()
                if upper is None:
                    continue
                if a.terms.get(upper) == k * atom.divisor:  # c*(x // c) + x % c = x
                    together = beside.base if beside else atom.base
                else:  # c*((x // c) % d) + x % c = x % (c*d)
                    found = [
                        y for y, m in a.terms.items()
                        if isinstance(y, Remainder) and m == k * atom.divisor and y.base.single() is upper
                    ]  # fmt: skip
                    if not found:
                        continue
                    upper = found[0]
                    together = self.modulo(atom.base, atom.divisor * found[0].divisor)
                rest = Linear({x: m for x, m in a.terms.items() if x is not atom and x is not upper}, a.constant)
                a = add(rest, scale(together, k))
                break
            else:
                return a

    def _quotient_beside(self, a: Linear, part: Remainder) -> Quotient | None:
        """x // c in a form that has y % c, where x and y differ by multiples of c: y is x as `modulo` left it."""
        for y, k in a.terms.items():
            if isinstance(y, Quotient) and y.divisor == part.divisor and k == a.terms[part] * part.divisor:
                difference = subtract(y.base, part.base)
                if all(m % part.divisor == 0 for m in (*difference.terms.values(), difference.constant)):
                    return y
        return None

    def extreme(self, op: str, a: Linear, b: Linear) -> Linear:
        """min or max of two forms; one of them where that is certain."""
        low, high = self.bounds(subtract(a, b))
        if high <= 0:
            return a if op == "min" else b
        if low >= 0:
            return b if op == "min" else a
        return self._intern((op, a.key(), b.key()), lambda: Extreme(op, a, b))

    def opaque(
        self, build: Callable[[], Expr], bounds: Bounds, variables: frozenset[Var] | None, key: object
    ) -> Linear:
        return self._intern(("opaque", key), lambda: Opaque(build, bounds, variables))

    def _intern(self, key: object, make: Callable[[], Atom]) -> Linear:
        atom = self._atoms.get(key)
        if atom is None:
            atom = self._atoms[key] = make()
        return Linear({atom: 1}, 0)

    # -- ranges of values

    def relax(self, a: Linear, moving: Collection[Var]) -> tuple[Linear, int]:
        """(low, span): low <= a <= low + span while the variables in `moving` run over their ranges, all others fixed.

        low is a form in the variables that stay; span is a constant. Exact for forms that are linear in `moving`.
        """
        fixed: dict[Atom, int] = {}
        low, span = number(a.constant), 0
        for atom, k in a.terms.items():
            if self._fixed(atom, moving):
                fixed[atom] = k
                continue
            least, width = self._relax_atom(atom, moving)
            low = add(low, scale(least if k > 0 else offset(least, width), k))
            span += abs(k) * width
        return add(Linear(fixed, 0), low), span

    def _relax_atom(self, atom: Atom, moving: Collection[Var]) -> tuple[Linear, int]:
        least, most = self._atom_bounds(atom)
        widest = number(least), most - least
        if isinstance(atom, (Var, Opaque)):
            return widest
        if isinstance(atom, Extreme):
            (a, a_span), (b, b_span) = self.relax(atom.a, moving), self.relax(atom.b, moving)
            found = self.extreme(atom.op, a, b), max(a_span, b_span)
        else:
            base, base_span = self.relax(atom.base, moving)
            start = self.modulo(base, atom.divisor)
            reach = self.bounds(start)[1] + base_span
            if isinstance(atom, Quotient):
                found = self.floordiv(base, atom.divisor), reach // atom.divisor
            elif reach < atom.divisor:
                found = start, base_span
            else:
                return widest
        return found if found[1] < widest[1] else widest

    # -- to and from expressions

    def expr(self, a: Linear) -> Expr:
        """The form as an expression: terms from the outermost loop inward, so that partial sums stay invariant."""
        key = a.key()
        found = self._exprs.get(key)
        if found is None:
            found = self._exprs[key] = self._build(a)
        return found

    def _build(self, a: Linear) -> Expr:
        terms = list(a.terms.items())
        if len(terms) > 1:
            terms.sort(key=lambda term: max((self._depth[v] for v in self._atom_free(term[0])), default=-1))
        if terms and terms[0][1] < 0:  # begin with what is added, where there is something
            terms.sort(key=lambda term: term[1] < 0)
        total: Expr | None = None
        for atom, k in terms:
            e = self._atom_expr(atom)
            if e.dtype == "int64" and self._fits_int32(atom):
                e = cast("int32", e)  # read from memory and clamped: one type for all indices
            if total is None:
                total = e if k == 1 else binary("*", e, const(k, e.dtype))
            else:
                part = e if abs(k) == 1 else binary("*", e, const(abs(k), e.dtype))
                total = binary("+" if k > 0 else "-", total, part)
        if total is None:
            return const(a.constant)
        if a.constant:
            total = binary("+" if a.constant > 0 else "-", total, const(abs(a.constant), total.dtype))
        return total

    def _fits_int32(self, atom: Atom) -> bool:
        low, high = self._atom_bounds(atom)
        least, most = dtype_bounds("int32")
        return least <= low and high <= most

    def _atom_expr(self, atom: Atom) -> Expr:
        if isinstance(atom, Var):
            return atom
        found = self._built.get(atom)
        if found is None:
            if isinstance(atom, Opaque):
                found = atom.build()
            elif isinstance(atom, Extreme):
                found = binary(atom.op, self.expr(atom.a), self.expr(atom.b))
            else:
                base = self.expr(atom.base)
                op = "//" if isinstance(atom, Quotient) else "%"
                found = binary(op, base, const(atom.divisor, base.dtype))
            self._built[atom] = found
        return found

    def linear(self, e: Expr, env: Mapping[Var, Linear], opaque: Callable[[Expr], Linear]) -> Linear:
        """The form of an integer expression; env: what its variables are; opaque: the form of what is not linear."""
        if isinstance(e, Const):
            return number(int(e.value))
        if isinstance(e, Var):
            return env[e]
        if isinstance(e, Cast) and dtypes.is_int(e.a.dtype):
            return self.linear(e.a, env, opaque)  # indices never wrap
        if isinstance(e, Call) and e.name == "likely":
            return self.linear(e.args[0], env, opaque)
        if isinstance(e, Binary):
            if e.op in ("+", "-"):
                a, b = self.linear(e.a, env, opaque), self.linear(e.b, env, opaque)
                return add(a, b) if e.op == "+" else subtract(a, b)
            if e.op in ("*", "//", "%", "/"):
                a, b = self.linear(e.a, env, opaque), self.linear(e.b, env, opaque)
                if e.op == "*":
                    if not b.terms:
                        return scale(a, b.constant)
                    if not a.terms:
                        return scale(b, a.constant)
                elif not b.terms and b.constant > 0 and (e.op != "/" or self.bounds(a)[0] >= 0):
                    return self.modulo(a, b.constant) if e.op == "%" else self.floordiv(a, b.constant)
            elif e.op in ("min", "max"):
                return self.extreme(e.op, self.linear(e.a, env, opaque), self.linear(e.b, env, opaque))
        if isinstance(e, Select) or (isinstance(e, Call) and e.name == "if_then_else"):
            condition, then, otherwise = (e.condition, e.then, e.otherwise) if isinstance(e, Select) else e.args
            known = self.decide(condition, env, opaque)
            if known is not None:
                return self.linear(then if known else otherwise, env, opaque)
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
        if e.op not in ("<", "<=", ">", ">=", "==", "!=") or not dtypes.is_int(e.a.dtype):
            return None
        low, high = self.bounds(subtract(self.linear(e.a, env, opaque), self.linear(e.b, env, opaque)))
        return _decided(e.op, low, high)

    def without_division(self, a: Linear, bound: int) -> tuple[Linear, int]:
        """(b, n) with a < bound exactly where b < n, and a >= bound exactly where b >= n; b divides nothing if it can.

        r + x // c < n says r*c + x < n*c: conditions on parts of a fused axis become conditions on the axis. Where
        0 <= f < u, u*m + f < u*n says m < n.
        """
        b, n = a, bound
        while True:
            coarse = self._coarsen(b, n) if n else None
            if coarse is not None:
                b, n = coarse[1], n // coarse[0]
            found = next((x for x, k in b.terms.items() if isinstance(x, Quotient) and k == 1), None)
            if found is None:
                part = b.single()
                inner = part.base.single() if isinstance(part, Remainder) else None
                if isinstance(part, Remainder) and isinstance(inner, Quotient):  # (x // c) % d < n says x % (c*d) < n*c
                    b, n = self.modulo(inner.base, inner.divisor * part.divisor), n * inner.divisor
                    part = b.single()
                atoms = part.base.terms if isinstance(part, Remainder) else b.terms
                return (b, n) if all(isinstance(x, Var) for x in atoms) else (a, bound)
            rest = Linear({x: k for x, k in b.terms.items() if x is not found}, b.constant)
            b, n = self.recombine(add(scale(rest, found.divisor), found.base)), n * found.divisor

    def covers(self, low: Linear, span: int, extent: int, loops: Iterable[tuple[Var, int]]) -> tuple[bool, set[Digit]]:
        """Return whether [low, low + span], over all values of the loop variables, covers 0 .. extent - 1 with no gap
        and each value once up to the ends; and the digits of variables that it takes. loops: variables with extents."""
        extents = dict(loops)
        parts = [(k, self._digit(atom, extents)) for atom, k in low.terms.items()]
        taken = {digit for _, digit in parts if digit is not None}
        if low.constant != 0 or len(taken) < len(parts):
            return False, set()
        reach = span + 1
        for k, digit in sorted(((k, d) for k, d in parts if d is not None), key=lambda part: part[0]):
            if k != reach:
                return False, set()
            reach *= digit.count
        return reach >= extent, taken

    def _digit(self, atom: Atom, extents: Mapping[Var, int]) -> Digit | None:
        """An atom as a digit of a loop variable; None where it is something else."""
        if isinstance(atom, Var):
            return Digit(atom, 1, extents[atom]) if atom in extents else None
        base = atom.base.single() if isinstance(atom, (Quotient, Remainder)) else None
        whole = self._digit(base, extents) if base is not None else None
        if whole is None or not isinstance(atom, (Quotient, Remainder)) or whole.count % atom.divisor:
            return None
        if isinstance(atom, Quotient):
            return Digit(whole.var, whole.unit * atom.divisor, whole.count // atom.divisor)
        return Digit(whole.var, whole.unit, atom.divisor)


@dataclass(frozen=True)
class Digit:
    """(var // unit) % count: a digit of a loop variable; a fused loop has one for each of the loops it is made of."""

    var: Var
    unit: int
    count: int


def are_separate(digits: Iterable[Digit]) -> bool:
    """Return whether digits take all combinations of values, each determined by its variable."""
    end: dict[Var, int] = {}
    for d in sorted(digits, key=lambda d: d.unit):
        if d.unit % end.get(d.var, 1):
            return False
        end[d.var] = d.unit * d.count
    return True


def _decided(op: str, low: int, high: int) -> bool | None:
    """The truth of `d op 0` for all low <= d <= high, or None."""
    match op:
        case "<":
            return True if high < 0 else False if low >= 0 else None
        case "<=":
            return True if high <= 0 else False if low > 0 else None
        case ">":
            return True if low > 0 else False if high <= 0 else None
        case ">=":
            return True if low >= 0 else False if high < 0 else None
        case "==":
            return True if low == high == 0 else False if low > 0 or high < 0 else None
        case _:
            return False if low == high == 0 else True if low > 0 or high < 0 else None


def dtype_bounds(dtype: str) -> Bounds:
    """Least and greatest value of an integer or boolean dtype."""
    record = dtypes.lookup(dtype)
    if record.kind == "bool":
        return 0, 1
    return (0, 2**record.bits - 1) if record.kind == "uint" else (-(2 ** (record.bits - 1)), 2 ** (record.bits - 1) - 1)


def expr_key(e: Expr) -> object:
    """Structural key, for interning opaque expressions."""
    return structural_key(e)
