"""Linear forms of integers: k1*x1 + k2*x2 + ... + c, where the atoms x are whatever is not a sum.

Atoms are expressions (expr.linear), values of the code that is generated for them (codegen.llvm.index), or products of
symbols (core.dims). They keep the order in which they first appear, so that ax0*784 + ax1*28 + ax2 stays in row-major
order. Equal atoms are found as keys of a dict, as one object or by their value: differences then cancel exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import gcd
from typing import Generic, TypeVar

from renorm.core.spans import Span

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

    def modulo(self, d: int) -> Form[Atom]:
        """Return a form that differs from this one by multiples of d; coefficients below d stay, negative ones too."""
        return Form({x: k if abs(k) < d else k % d for x, k in self.terms.items() if k % d}, self.constant % d)

    def without(self, gone: Iterable[Atom]) -> Form[Atom]:
        """The form less the terms of some atoms."""
        terms = dict(self.terms)
        for atom in gone:
            terms.pop(atom, None)
        return Form(terms, self.constant)

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
