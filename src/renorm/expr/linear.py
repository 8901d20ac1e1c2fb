"""Linear forms of integer expressions: k1*x1 + k2*x2 + ... + c, where the atoms x are whatever is not a sum.

Atoms keep the order in which they first appear, so that ax0*784 + ax1*28 + ax2 stays in row-major order. Each is one
object in all forms that meet (`one_of_each`, or an Algebra's `intern`): differences then cancel exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import gcd

from renorm.expr.nodes import Binary, Const, Expr
from renorm.expr.rewrite import key

INDEX_TYPES = ("int32", "int64")  # the types of index arithmetic, which never wraps

Intern = Callable[[Expr], Expr]


class Linear:
    """constant + sum of coefficient * atom; never changed once made. terms: atom -> coefficient, which is not 0."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[Expr, int], constant: int = 0):
        self.terms, self.constant = terms, constant

    def plus(self, other: Linear, times: int = 1) -> Linear:
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
        return Linear(terms, self.constant + times * other.constant)

    def __add__(self, other: Linear) -> Linear:
        return self.plus(other)

    def __sub__(self, other: Linear) -> Linear:
        return self.plus(other, -1)

    def __mul__(self, k: int) -> Linear:
        if k == 1:
            return self
        return Linear({atom: c * k for atom, c in self.terms.items()} if k else {}, self.constant * k)

    def __neg__(self) -> Linear:
        return self * -1

    def offset(self, n: int) -> Linear:
        return Linear(self.terms, self.constant + n) if n else self

    def divided(self, d: int) -> Linear:
        """Exact division; every coefficient and the constant are multiples of d."""
        return Linear({atom: c // d for atom, c in self.terms.items()}, self.constant // d)

    def split(self, g: int) -> tuple[Linear, Linear]:
        """(terms whose coefficient g divides, the rest); the constant c goes as g*(c // g) and c % g."""
        multiples, rest = dict[Expr, int](), dict[Expr, int]()
        for atom, k in self.terms.items():
            (multiples if k % g == 0 else rest)[atom] = k
        return Linear(multiples, self.constant // g * g), Linear(rest, self.constant % g)

    def without(self, gone: Iterable[Expr]) -> Linear:
        """The form less the terms of some atoms."""
        return Linear({x: k for x, k in self.terms.items() if not any(x is g for g in gone)}, self.constant)

    def single(self) -> Expr | None:
        """The atom, where the form is one atom and nothing else."""
        if self.constant == 0 and len(self.terms) == 1:
            ((atom, k),) = self.terms.items()
            return atom if k == 1 else None
        return None

    def key(self) -> Hashable:
        """Equal for equal forms, whatever the order of their terms."""
        return frozenset((id(x), k) for x, k in self.terms.items()), self.constant

    @property
    def coefficients(self) -> list[int]:
        return list(self.terms.values())

    def content(self) -> int:
        """Greatest common divisor of the coefficients (0 when there are none)."""
        return gcd(*self.terms.values())


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
