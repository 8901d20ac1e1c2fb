"""The algebra of indices (core.algebra) over expressions, where products of open extents are divisors as well."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable

from renorm.core.algebra import Algebra
from renorm.expr.linear import Linear, apart, divided, factors, place_of, times
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

    @abstractmethod
    def is_at_most(self, form: Linear, n: int) -> bool:
        """Return whether the form never exceeds a number."""

    def is_divisor(self, c: Linear) -> bool:
        return c.constant > 0 if not c.terms else place_of(c) is not None and self.is_at_most(-c, -1)

    def times(self, a: Linear, b: Linear) -> Linear | None:
        return times(a, b, self.intern)

    def divided(self, a: Linear, c: Linear) -> tuple[Linear, Linear]:
        parts = divided(a, c, self.intern)
        assert parts is not None  # a divisor is a number or a product
        return parts

    def bucket(self, form: Linear, c: Linear) -> int | None:
        if not c.terms:
            return super().bucket(form, c)
        below = (k for k in (0, -1) if self.is_at_most(c * k - form, 0) and self.is_at_most(form - c * (k + 1), -1))
        return next(below, None)

    def units(self, a: Linear, c: Linear) -> Iterable[Linear]:
        if not c.terms:
            return super().units(a, c)
        found = (Linear({x: 1}) for extents in c.terms for x in factors(extents))
        return (u for u in found if u.terms != c.terms and self.divided(a, u)[0].number != 0)

    def digit(self, atom: Expr) -> tuple[Expr, Linear]:
        return apart(atom, self.intern)

    def atom(self, op: str, a: Linear, b: Linear) -> Linear:
        name = (op, a.key(), b.key())
        found = self._atoms.get(name)
        if found is None:
            dtype = self.expression(a if a.terms else b).dtype
            left, right = (self.expression(f) if f.terms else Const(f.constant, dtype) for f in (a, b))
            found = self._atoms[name] = self.made(Binary(op, *promote(left, right)))
        return Linear({found: 1})

    def made(self, e: Binary) -> Expr:
        """The object that stands for a new atom."""
        return e

    def divisor(self, atom: Expr, op: str) -> Linear | None:
        if type(atom) is Binary and atom.op == op and self.is_index(atom):
            c = self.form(atom.b)
            return c if self.is_divisor(c) else None
        return None

    def dividend(self, atom: Expr) -> Linear:
        assert type(atom) is Binary
        return self.form(atom.a)
