"""Algebra of indices: floor division, remainder, least and greatest of linear forms, and their bounds.

    (c*q + r) // c -> q + r // c            (c*q + r) % c -> r % c
    (g*x + r) // (g*e) -> x // e            (g*x + r) % (g*e) -> x % e * g + r         where 0 <= r < g
    (x // d + n) // c -> (x + n*d) // (c*d)     x % (c*d) // c -> x // c % d      x % (c*d) % c -> x % c
    c*(x // c) + x % c -> x                 c*(x // c % d) + x % c -> x % (c*d)        with any common factor

Atoms are interned, so equal forms have equal terms and differences cancel exactly. Every rule is exact over the
integers (floor semantics, no overflow) for all values of the variables within their bounds. Here alone it is asked what
numbers coefficients, divisors and constants are.
"""

from __future__ import annotations

from abc import abstractmethod
from math import gcd, inf
from typing import Generic

from renorm.core.linear import Atom, Form, Span


class Algebra(Generic[Atom]):
    """Linear forms over atoms that are kept once each. A subclass says what is known of them, and makes them."""

    @abstractmethod
    def form_span(self, form: Form[Atom]) -> Span:
        """Least and greatest value."""

    def is_at_most(self, form: Form[Atom], n: int) -> bool:
        """Return whether the form never exceeds a number."""
        return self.form_span(form)[1] <= n

    @abstractmethod
    def atom(self, op: str, a: Form[Atom], b: Form[Atom]) -> Form[Atom]:
        """a op b, which cannot be simplified."""

    @abstractmethod
    def divisor(self, atom: Atom, op: str) -> int:
        """c where the atom is x op c and x is index arithmetic, else 0."""

    @abstractmethod
    def dividend(self, atom: Atom) -> Form[Atom]:
        """x of x // c or x % c."""

    def applied(self, op: str, a: Form[Atom], b: Form[Atom]) -> Form[Atom] | None:
        """a op b; None where that is neither linear nor an atom of this algebra."""
        match op:
            case "+" | "-":
                return a.plus(b, 1 if op == "+" else -1)
            case "*":
                return self.times(a, b)
            case "min" | "max":
                return self.extreme(op, a, b)
            case _ if op == "/" and self.form_span(a)[0] < 0:
                return None
            case _ if b.terms:
                return self.divided_openly(op, a, b)
            case _ if b.constant <= 0:
                return None
            case _:
                return self.floor_modulo(a, b.constant) if op == "%" else self.floor_divide(a, b.constant)

    def times(self, a: Form[Atom], b: Form[Atom]) -> Form[Atom] | None:
        """a * b, where one of them is a number; an algebra that knows products of atoms has more."""
        return a * b.constant if not b.terms else b * a.constant if not a.terms else None

    def divided_openly(self, op: str, a: Form[Atom], c: Form[Atom]) -> Form[Atom] | None:
        """a // c or a % c, where c is no number; None where this algebra has no such atoms."""
        return None

    def of_digit(self, op: str, digit: Atom, n: int, c: int) -> Form[Atom] | None:
        """(digit + n) // c or digit % c, where digit is x // d or x % d and d is no number; None where that is an
        atom, or this algebra has no such digits."""
        return None

    def is_digit(self, atom: Atom) -> bool:
        """Return whether the atom is a quotient or a remainder."""
        return self.divisor(atom, "//") > 0 or self.divisor(atom, "%") > 0

    def extreme(self, op: str, a: Form[Atom], b: Form[Atom]) -> Form[Atom]:
        """min or max of two forms; one of them where that is certain."""
        low, high = self.form_span(a - b)
        if high <= 0:
            return a if op == "min" else b
        if low >= 0:
            return b if op == "min" else a
        return self.atom(op, a, b)

    def floor_divide(self, a: Form[Atom], c: int) -> Form[Atom]:
        """floor(a / c), c > 0."""
        if c == 1:
            return a
        multiples, rest = a.split(c)
        quotient = multiples.divided(c)
        bucket = self.bucket(rest, c)
        if bucket is not None:
            return quotient.offset(bucket)
        coarse = self.coarsened(rest, c)
        if coarse is not None:
            unit, multiple, _ = coarse
            return quotient + self.floor_divide(multiple, c // unit)
        inner = rest.offset(-rest.constant).single()
        if inner is not None and (d := self.divisor(inner, "//")):
            return quotient + self.floor_divide(self.dividend(inner).offset(rest.constant * d), c * d)
        if inner is not None and not rest.constant and (d := self.divisor(inner, "%")) and d % c == 0:
            return quotient + self.floor_modulo(self.floor_divide(self.dividend(inner), c), d // c)
        found = None if inner is None else self.of_digit("//", inner, rest.constant, c)
        return quotient + (self.atom("//", rest, Form({}, c)) if found is None else found)

    def floor_modulo(self, a: Form[Atom], c: int) -> Form[Atom]:
        """a - c * floor(a / c), c > 0."""
        if c == 1:
            return Form({})
        rest = Form({x: k if abs(k) < c else k % c for x, k in a.terms.items() if k % c}, a.constant % c)
        bucket = self.bucket(rest, c)
        if bucket is not None:
            return rest.offset(-bucket * c)
        coarse = self.coarsened(rest, c)
        if coarse is not None:
            unit, multiple, fine = coarse
            return self.floor_modulo(multiple, c // unit) * unit + fine
        inner = rest.single()
        if inner is not None and (d := self.divisor(inner, "%")) and d % c == 0:
            return self.floor_modulo(self.dividend(inner), c)
        found = None if inner is None else self.of_digit("%", inner, 0, c)
        return self.atom("%", rest, Form({}, c)) if found is None else found

    def bucket(self, form: Form[Atom], c: int) -> int | None:
        """k where the form always lies in [k*c, (k+1)*c)."""
        low, high = self.form_span(form)
        if low == -inf or high == inf or low // c != high // c:
            return None
        return int(low // c)

    def coarsened(self, a: Form[Atom], c: int) -> tuple[int, Form[Atom], Form[Atom]] | None:
        """(u, m, f) with a = u*m + f, 0 <= f < u, where u > 1 divides c (any does, if c is 0), the greatest that there
        is; or None."""
        for unit in sorted({g for k in a.coefficients if (g := gcd(k, c)) > 1}, reverse=True):
            multiples, fine = a.split(unit)
            bucket = self.bucket(fine, unit)
            if bucket is not None:
                return unit, multiples.divided(unit).offset(bucket), fine.offset(-bucket * unit)
        return None

    def rejoined(self, a: Form[Atom]) -> Form[Atom]:
        """The same value, where quotients and remainders that together make up x (of a fused axis) are x again."""
        for atom, k in a.terms.items():
            if (c := self.divisor(atom, "%")) and (found := self._beside(a, self.dividend(atom), c, k * c)):
                other, together = found
                return self.rejoined(a.without((atom, other)).plus(together, k))
        return a

    def _beside(self, a: Form[Atom], x: Form[Atom], c: int, k: int) -> tuple[Atom, Form[Atom]] | None:
        """(y, z) where y is an atom of a with coefficient k, and c*y + x % c = z."""
        partners = [y for y, m in a.terms.items() if m == k and self.is_digit(y)]
        if not partners:
            return None
        for y in partners:
            if self.divisor(y, "//") == c:  # of x as it was before floor_modulo took multiples of c away
                difference = self.dividend(y) - x
                if all(m % c == 0 for m in (*difference.coefficients, difference.constant)):
                    return y, self.dividend(y)
        upper = self.floor_divide(x, c).single()
        for y in partners if upper is not None else ():
            if y is upper:
                return y, x
            if (d := self.divisor(y, "%")) and self.dividend(y).single() is upper:
                return y, self.floor_modulo(x, c * d)
        return None
