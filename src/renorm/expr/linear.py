"""Linear forms of integers: k1*x1 + k2*x2 + ... + c, where the atoms x are whatever is not a sum.

Atoms are expressions (`Linear`), or values of the code that is generated for them (codegen.llvm.index). They keep the
order in which they first appear, so that ax0*784 + ax1*28 + ax2 stays in row-major order. Each is one object in all
forms that meet (`one_of_each`, or an Algebra's `intern`): differences then cancel exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import gcd
from typing import TYPE_CHECKING, Generic, TypeVar

from renorm.expr.nodes import Binary, Const, Expr, Var
from renorm.expr.rewrite import depends_on, key

INDEX_TYPES = ("int32", "int64")  # the types of index arithmetic, which never wraps

Intern = Callable[[Expr], Expr]
Span = tuple[float, float]  # least and greatest value, or infinities; finite ends are Python integers
Atom = TypeVar("Atom", bound=Hashable)


class Form(Generic[Atom]):
    """constant + sum of coefficient * atom; never changed once made. terms: atom -> coefficient, which is not 0."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[Atom, int], constant: int = 0):
        self.terms, self.constant = terms, constant

    def plus(self, other: Form[Atom], times: int = 1) -> Form[Atom]:
        """self + times * other."""
        if not other.terms:
            return self.offset(times * other.constant)
        if not self.terms and not self.constant and times == 1:
            return other
        terms = dict(self.terms)
        for atom, k in other.terms.items():
            total = terms.get(atom, 0) + times * k
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return Form(terms, self.constant + times * other.constant)

    def __add__(self, other: Form[Atom]) -> Form[Atom]:
        return self.plus(other)

    def __sub__(self, other: Form[Atom]) -> Form[Atom]:
        return self.plus(other, -1)

    def __mul__(self, k: int) -> Form[Atom]:
        if k == 1:
            return self
        return Form({atom: c * k for atom, c in self.terms.items()} if k else {}, self.constant * k)

    def __neg__(self) -> Form[Atom]:
        return self * -1

    def offset(self, n: int) -> Form[Atom]:
        return Form(self.terms, self.constant + n) if n else self

    def divided(self, d: int) -> Form[Atom]:
        """Exact division; every coefficient and the constant are multiples of d."""
        return Form({atom: c // d for atom, c in self.terms.items()}, self.constant // d)

    def split(self, g: int) -> tuple[Form[Atom], Form[Atom]]:
        """(terms whose coefficient g divides, the rest); the constant c goes as g*(c // g) and c % g."""
        multiples, rest = dict[Atom, int](), dict[Atom, int]()
        for atom, k in self.terms.items():
            (multiples if k % g == 0 else rest)[atom] = k
        return Form(multiples, self.constant // g * g), Form(rest, self.constant % g)

    def reduced(self, d: int) -> tuple[Form[Atom], Form[Atom]]:
        """(q, r) with self = q*d + r, where the coefficients and the constant of r lie in [0, d)."""
        quotient = Form({atom: k // d for atom, k in self.terms.items() if k // d}, self.constant // d)
        return quotient, Form({atom: k % d for atom, k in self.terms.items() if k % d}, self.constant % d)

    def without(self, gone: Iterable[Atom]) -> Form[Atom]:
        """The form less the terms of some atoms."""
        return Form({x: k for x, k in self.terms.items() if not any(x is g for g in gone)}, self.constant)

    def single(self) -> Atom | None:
        """The atom, where the form is one atom and nothing else."""
        if self.constant == 0 and len(self.terms) == 1:
            ((atom, k),) = self.terms.items()
            return atom if k == 1 else None
        return None

    @property
    def number(self) -> int | None:
        """Its value where that is constant."""
        return None if self.terms else self.constant

    def is_parallel(self, other: Form[Atom]) -> bool:
        """Return whether both differ by a constant only."""
        return self.terms == other.terms

    def span(self, of_atom: Callable[[Atom], Span]) -> Span:
        """Least and greatest value, where those of the atoms are independent of each other."""
        least: float = self.constant
        most: float = self.constant
        for atom, k in self.terms.items():
            low, high = of_atom(atom)
            least += k * (low if k > 0 else high)
            most += k * (high if k > 0 else low)
        return least, most

    def key(self) -> Hashable:
        """Equal for equal forms, whatever the order of their terms."""
        return frozenset((id(x), k) for x, k in self.terms.items()), self.constant

    @property
    def coefficients(self) -> list[int]:
        return list(self.terms.values())

    def content(self) -> int:
        """Greatest common divisor of the coefficients (0 when there are none)."""
        return gcd(*self.terms.values())


if TYPE_CHECKING:
    Linear = Form[Expr]
else:
    Linear = Form  # calling what stands for Form[Expr] would take twice the time


def one_of_each() -> Intern:
    """Return a function that gives one object for all expressions of equal structure."""
    known: dict[Hashable, Expr] = {}
    return lambda e: known.setdefault(key(e), e)


def linear(e: Expr, intern: Intern | None = None) -> Linear:
    """The form of an integer expression, taken as it stands. intern: by default knows the atoms of this form only."""
    one = intern or one_of_each()
    return linear_in_parts(e, lambda x: Linear({one(x): 1}))


def linear_in_parts(e: Expr, part: Callable[[Expr], Linear]) -> Linear:
    """The form of an integer expression. part: gives that of what is not a sum or a multiple."""
    terms, constant = dict[Expr, int](), 0
    stack = [(e, 1)]
    while stack:
        x, k = stack.pop()
        if type(x) is Const:
            constant += k * int(x.value)
            continue
        if type(x) is Binary and x.dtype in INDEX_TYPES:
            op, a, b = x.op, x.a, x.b
            if op == "+" or op == "-":
                stack += ((b, k if op == "+" else -k), (a, k))
                continue
            if op == "*" and type(b) is Const:
                stack.append((a, k * int(b.value)))
                continue
            if op == "*" and type(a) is Const:
                stack.append((b, k * int(a.value)))
                continue
        if k == 0:
            continue
        form = part(x)
        constant += k * form.constant
        for atom, c in form.terms.items():
            total = terms.get(atom, 0) + k * c
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
    return Linear(terms, constant)


def difference(a: Expr, b: Expr, intern: Intern | None = None) -> Linear:
    """The form of a - b."""
    intern = intern or one_of_each()
    return linear(a, intern) - linear(b, intern)


def slope(form: Linear, x: Var) -> int | None:
    """Return how far the form moves when x grows by one; None where that is no constant."""
    if any(atom is not x and depends_on(atom, x) for atom in form.terms):
        return None
    return form.terms.get(x, 0)


def expression(form: Linear, dtype: str) -> Expr:
    """The form as an expression: terms in order, subtraction for negative coefficients, the constant last."""
    terms = list(form.terms.items())
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
