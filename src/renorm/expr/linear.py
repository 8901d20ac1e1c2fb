"""Linear forms of integer expressions: k1*x1 + k2*x2 + ... + c, where the atoms x are whatever is not a sum.

Atoms keep the order in which they first appear, so that ax0*784 + ax1*28 + ax2 stays in row-major order. Forms are
mutable while they are built, and not changed after that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import gcd

from renorm.expr.nodes import Binary, Const, Expr
from renorm.expr.rewrite import key

INDEX_TYPES = ("int32", "int64")  # the types of index arithmetic, which never wraps


class Form:
    """A linear form. terms: identity of an atom -> (atom, coefficient); no coefficient is 0."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[Hashable, tuple[Expr, int]] | None = None, constant: int = 0):
        self.terms = terms if terms is not None else {}
        self.constant = constant

    def add_atom(self, identity: Hashable, atom: Expr, k: int) -> None:
        """Adds k*atom in place."""
        old = self.terms.get(identity)
        total = k if old is None else old[1] + k
        if total:
            self.terms[identity] = (atom, total)
        elif old is not None:
            del self.terms[identity]

    def add(self, other: Form, k: int = 1) -> None:
        """Adds k*other in place."""
        for identity, (atom, coefficient) in other.terms.items():
            self.add_atom(identity, atom, k * coefficient)
        self.constant += k * other.constant

    def copy(self) -> Form:
        return Form(dict(self.terms), self.constant)

    def times(self, k: int) -> Form:
        if k == 0:
            return Form()
        return Form({i: (atom, c * k) for i, (atom, c) in self.terms.items()}, self.constant * k)

    def divided(self, d: int) -> Form:
        """Exact division; every coefficient and the constant are multiples of d."""
        return Form({i: (atom, c // d) for i, (atom, c) in self.terms.items()}, self.constant // d)

    def split(self, g: int) -> tuple[Form, Form]:
        """(terms whose coefficient g divides, the rest); the constant c goes as g*(c // g) and c % g."""
        multiples, rest = Form({}, self.constant // g * g), Form({}, self.constant % g)
        for i, term in self.terms.items():
            (multiples if term[1] % g == 0 else rest).terms[i] = term
        return multiples, rest

    @property
    def coefficients(self) -> list[int]:
        return [k for _, k in self.terms.values()]

    def content(self) -> int:
        """Greatest common divisor of the coefficients (0 when there are none)."""
        return gcd(*self.coefficients)


def collect(e: Expr, k: int, into: Form, atom: Callable[[Expr, int, Form], None]) -> None:
    """Adds k*e to `into`; `atom(x, k, into)` adds what is not a sum or a multiple."""
    if type(e) is Const:
        into.constant += k * int(e.value)
        return
    if type(e) is Binary and e.dtype in INDEX_TYPES:
        op, a, b = e.op, e.a, e.b
        if op == "+" or op == "-":
            collect(a, k, into, atom)
            collect(b, k if op == "+" else -k, into, atom)
            return
        if op == "*":
            if type(b) is Const:
                return collect(a, k * int(b.value), into, atom)
            if type(a) is Const:
                return collect(b, k * int(a.value), into, atom)
    atom(e, k, into)


def form_of(e: Expr, identity: Callable[[Expr], Hashable] = key) -> Form:
    """The linear form of an integer expression, taken as it stands."""
    form = Form()
    collect(e, 1, form, lambda x, k, into: into.add_atom(identity(x), x, k) if k else None)
    return form


def expression(form: Form, dtype: str) -> Expr:
    """The form as an expression: terms in order, subtraction for negative coefficients, the constant last."""
    terms = list(form.terms.values())
    constant = form.constant
    result: Expr | None = None
    if terms and terms[0][1] < 0:
        # begin with something positive: `5 - x` and `y - x` read better than `x*-1 + 5`
        first = next((i for i, t in enumerate(terms) if t[1] > 0), None)
        if first is not None:
            terms.insert(0, terms.pop(first))
        elif constant > 0:
            result, constant = Const(constant, dtype), 0
    for atom, k in terms:
        if result is None:
            result = atom if k == 1 else Binary("*", atom, Const(k, dtype))
        else:
            size = atom if abs(k) == 1 else Binary("*", atom, Const(abs(k), dtype))
            result = Binary("+" if k > 0 else "-", result, size)
    if result is None:
        return Const(constant, dtype)
    if constant:
        result = Binary("+" if constant > 0 else "-", result, Const(abs(constant), dtype))
    return result
