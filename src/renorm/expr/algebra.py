"""The algebra of indices (core.algebra) over expressions, and its rules where a divisor is made of open extents.

(c*q + r) // c -> q,  (c*q + r) % c -> r                             where 0 <= r < c
(x // d) // c -> x // (c*d)         x % (c*d) // c -> x // c % d     x % (c*d) % c -> x % c
c*(x // c) + x % c -> x             c*(x // c % d) + x % c -> x % (c*d)
(n*x + r) // (n*e) -> x // e        (n*x + r) % (n*e) -> x % e * n + r         where 0 <= r < n
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable

from renorm.core.algebra import Algebra
from renorm.expr.linear import Linear, divided, factors, product, times
from renorm.expr.nodes import Binary, Const, Expr, promote


class ExprAlgebra(Algebra[Expr]):
    """Forms over expressions, which they are written as. A subclass says how, and what is known of atoms."""

    def __init__(self) -> None:
        self._forms: dict[Expr, Linear] = {}
        self._atoms: dict[Hashable, Expr] = {}

    @abstractmethod
    def expression(self, form: Linear) -> Expr:
        """The form as an expression, of which `form` gives it again."""

    @abstractmethod
    def form(self, e: Expr) -> Linear:
        """The form of an expression that this algebra made."""

    @abstractmethod
    def is_index(self, e: Expr) -> bool:
        """Return whether e is index arithmetic, which never wraps."""

    @abstractmethod
    def intern(self, e: Expr) -> Expr:
        """The one object that stands for all expressions equal to `e`, whose parts are such objects."""

    def times(self, a: Linear, b: Linear) -> Linear | None:
        return times(a, b, self.intern)

    def divided_openly(self, op: str, a: Linear, c: Linear) -> Linear | None:
        if c.constant or len(c.terms) > 1 or not self.is_at_most(-c, -1):
            return None
        parts = divided(a, c, self.intern)
        if parts is None:
            return None
        return self._open_quotient(*parts, c) if op != "%" else self._open_remainder(parts[1], c)

    def _open_quotient(self, quotient: Linear, rest: Linear, c: Linear) -> Linear | None:
        """quotient + rest // c."""
        bucket = self._open_bucket(rest, c)
        if bucket is not None:
            return quotient.offset(bucket)
        coarse = self._coarsened_openly(rest, c)
        if coarse is not None:
            _, multiple, _, left = coarse
            below = self.applied("//", multiple, left)
            return None if below is None else quotient + below
        inner = rest.single()
        if inner is not None and (d := self.open_divisor(inner, "//")):
            together = times(d, c, self.intern)
            below = None if together is None else self.applied("//", self.dividend(inner), together)
            return None if below is None else quotient + below
        if inner is not None and (d := self.open_divisor(inner, "%")) and (e := self._exactly(d, c)):
            digits = self.applied("//", self.dividend(inner), c)
            below = None if digits is None else self.applied("%", digits, e)
            return None if below is None else quotient + below
        return quotient + self.atom("//", rest, c)

    def of_digit(self, op: str, digit: Expr, n: int, c: int) -> Linear | None:
        if op == "//" and (d := self.open_divisor(digit, "//")):
            return self.applied("//", self.dividend(digit) + d * n, d * c)
        if not n and (d := self.open_divisor(digit, "%")) and (e := self._exactly(d, Linear({}, c))):
            below = self.floor_divide(self.dividend(digit), c) if op == "//" else None
            return self.floor_modulo(self.dividend(digit), c) if below is None else self.applied("%", below, e)
        return None

    def is_digit(self, atom: Expr) -> bool:
        return type(atom) is Binary and atom.op in ("//", "%") and self.is_index(atom)

    def _open_remainder(self, rest: Linear, c: Linear) -> Linear | None:
        """rest % c."""
        bucket = self._open_bucket(rest, c)
        if bucket is not None:
            return rest - c * bucket
        coarse = self._coarsened_openly(rest, c)
        if coarse is not None:
            unit, multiple, fine, left = coarse
            digits = self.applied("%", multiple, left)
            high = None if digits is None else times(digits, unit, self.intern)
            return None if high is None else high + fine
        inner = rest.single()
        if inner is not None and (d := self.open_divisor(inner, "%")) and self._exactly(d, c):
            return self.applied("%", self.dividend(inner), c)
        return self.atom("%", rest, c)

    def _exactly(self, d: Linear, c: Linear) -> Linear | None:
        """d / c, where that leaves no rest."""
        parts = divided(d, c, self.intern)
        return parts[0] if parts and parts[1].number == 0 else None

    def _open_bucket(self, form: Linear, c: Linear) -> int | None:
        """k, 0 or -1, where the form always lies in [k*c, (k + 1)*c)."""
        for k in (0, -1):
            above = form - c * k
            if self.is_at_most(-above, 0) and self.is_at_most(above - c, -1):
                return k
        return None

    def _coarsened_openly(self, a: Linear, c: Linear) -> tuple[Linear, Linear, Linear, Linear] | None:
        """(u, m, f, c / u) with a = u*m + f, 0 <= f < u, where u > 1 divides c: one of its factors."""
        ((unit, k),) = c.terms.items()
        parts = factors(unit)
        for i, x in enumerate(parts):
            u = Linear({x: 1})
            rest = product([*parts[:i], *parts[i + 1 :]], self.intern) if len(parts) > 1 else None
            left = Linear({}, k) if rest is None else Linear({rest: k})
            found = divided(a, u, self.intern) if left.number != 1 else None
            if found and (found[0].terms or found[0].constant) and self._open_bucket(found[1], u) == 0:
                return u, found[0], found[1], left
        return None

    def rejoined(self, a: Linear) -> Linear:
        found = super().rejoined(a)
        return self._rejoined_openly(found) if len(found.terms) > 1 else found

    def _rejoined_openly(self, a: Linear) -> Linear:
        """x % c beside c*(x // c), with any common factor, is x again; beside c*(x // c % d) it is x % (c*d)."""
        for atom, k in a.terms.items():
            first, *extents = factors(atom)
            if not (c := self.open_divisor(first, "%")):
                continue
            x = self.dividend(first)
            upper = self.applied("//", x, c)
            y = None if upper is None else upper.single()
            for other in a.terms:
                z = factors(other)[0]
                e = self.open_divisor(z, "%") or self._number_divisor(z, "%")
                whole = z is y
                if not whole and not (e and self.dividend(z).single() is y and y is not None):
                    continue
                scaled = times(Linear({z: 1}), c, self.intern)
                unit = product(extents, self.intern) if extents else None
                factor = Linear({}, k) if unit is None else Linear({unit: k})
                scaled = None if scaled is None else times(scaled, factor, self.intern)
                if scaled is None or scaled.terms != {other: a.terms[other]}:
                    continue
                together: Linear | None = x
                if not whole:
                    assert e
                    product_of = times(c, e, self.intern)
                    together = None if product_of is None else self.applied("%", x, product_of)
                joined = None if together is None else times(together, factor, self.intern)
                if joined is not None:
                    return self.rejoined(a.without((atom, other)) + joined)
        return a

    def open_divisor(self, atom: Expr, op: str) -> Linear | None:
        """c where the atom is x op c and c is a product of open extents, else None."""
        if type(atom) is Binary and atom.op == op and type(atom.b) is not Const and self.is_index(atom):
            form = self.form(atom.b)
            return form if form.terms and not form.constant and len(form.terms) == 1 else None
        return None

    def _number_divisor(self, atom: Expr, op: str) -> Linear | None:
        c = self.divisor(atom, op)
        return Linear({}, c) if c else None

    def atom(self, op: str, a: Linear, b: Linear) -> Linear:
        name = (op, a.key(), b.key())
        found = self._atoms.get(name)
        if found is None:
            left = self.expression(a)
            right = self.expression(b) if b.terms else Const(b.constant, left.dtype)
            found = self._atoms[name] = self.made(Binary(op, *promote(left, right)))
        return Linear({found: 1})

    def made(self, e: Binary) -> Expr:
        """The object that stands for a new atom."""
        return e

    def divisor(self, atom: Expr, op: str) -> int:
        if type(atom) is Binary and atom.op == op and type(atom.b) is Const and self.is_index(atom):
            return max(0, int(atom.b.value))
        return 0

    def dividend(self, atom: Expr) -> Linear:
        assert type(atom) is Binary
        return self.form(atom.a)
