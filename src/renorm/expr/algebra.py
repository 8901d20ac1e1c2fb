"""The algebra of indices (core.algebra) over expressions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable

from renorm.core.algebra import Algebra
from renorm.expr.linear import Linear
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
