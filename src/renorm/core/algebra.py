"""Algebra of indices: floor division, remainder, least and greatest of linear forms, and their bounds.

    (c*q + r) // c -> q + r // c            (c*q + r) % c -> r % c
    (g*x + r) // (g*e) -> x // e            (g*x + r) % (g*e) -> x % e * g + r         where 0 <= r < g
    (x // d + n) // c -> (x + n*d) // (c*d)     x % (c*d) // c -> x // c % d      x % (c*d) % c -> x % c
    c*(x // c) + x % c -> x                 c*(x // c % d) + x % c -> x % (c*d)        with any common factor
    c*((x // c + n) % d) + x % c -> (x + n*c) % (c*d)                     where that has its quotient beside
    -x // c -> -((x + c - 1) // c)          (k*(x % (c*d)) + r) % c -> (k*x + r) % c        of extents

Divisors are forms: positive numbers or, in an algebra that has products of atoms, positive products. Atoms are
interned, so equal forms have equal terms and differences cancel exactly. Every rule is exact over the integers (floor
semantics, no overflow) for all values of the variables within their bounds. Here alone it is asked what numbers
coefficients, divisors and constants are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from math import gcd, inf
from typing import Generic

from renorm.core.linear import Atom, Form
from renorm.core.spans import Span


class Algebra(Generic[Atom]):
    """Linear forms over atoms that are kept once each. A subclass says what is known of them, and makes them."""

    @abstractmethod
    def form_span(self, form: Form[Atom]) -> Span:
        """Least and greatest value."""

    @abstractmethod
    def atom(self, op: str, a: Form[Atom], b: Form[Atom]) -> Form[Atom]:
        """a op b, which cannot be simplified."""

    @abstractmethod
    def divisor(self, atom: Atom, op: str) -> Form[Atom] | None:
        """c where the atom is x op c, x is index arithmetic and c a divisor, else None."""

    @abstractmethod
    def dividend(self, atom: Atom) -> Form[Atom]:
        """x of x // c or x % c."""

    # what is true of numbers; an algebra that has products of atoms says what is true of these

    def is_divisor(self, c: Form[Atom]) -> bool:
        """Return whether the rules hold for a divisor: it is known to be positive."""
        return not c.terms and c.constant > 0

    def times(self, a: Form[Atom], b: Form[Atom]) -> Form[Atom] | None:
        """a * b, where one of them is a number."""
        return a * b.constant if not b.terms else b * a.constant if not a.terms else None

    def scaled(self, a: Form[Atom], c: Form[Atom]) -> Form[Atom]:
        """a * c, c being a divisor."""
        found = self.times(a, c)
        assert found is not None  # products with divisors are there
        return found

    def divided(self, a: Form[Atom], c: Form[Atom]) -> tuple[Form[Atom], Form[Atom]]:
        """(q, r) with a = q*c + r, where r has no multiples of c."""
        multiples, rest = a.split(c.constant)
        return multiples.divided(c.constant), rest

    def bucket(self, form: Form[Atom], c: Form[Atom]) -> int | None:
        """k where the form always lies in [k*c, (k + 1)*c)."""
        low, high = self.form_span(form)
        if low == -inf or high == inf or low // c.constant != high // c.constant:
            return None
        return int(low // c.constant)

    def units(self, a: Form[Atom], c: Form[Atom]) -> Iterable[Form[Atom]]:
        """Divisors of c of which the form has multiples, but for 1; of all forms, if c is 0."""
        found = {g for k in a.coefficients if (g := gcd(k, c.constant)) > 1}
        return (Form[Atom]({}, g) for g in sorted(found, reverse=True))

    def digit(self, atom: Atom) -> tuple[Atom, Form[Atom]]:
        """(x, u) with atom = x*u, where u is a divisor, the greatest that there is."""
        return atom, Form({}, 1)

    # rules

    def applied(self, op: str, a: Form[Atom], b: Form[Atom]) -> Form[Atom] | None:
        """a op b; None where that is neither linear nor an atom of this algebra."""
        match op:
            case "+" | "-":
                return a.plus(b, 1 if op == "+" else -1)
            case "*":
                return self.times(a, b)
            case "min" | "max":
                return self.extreme(op, a, b)
            case _ if not self.is_divisor(b) or (op == "/" and self.form_span(a)[0] < 0):
                return None
            case _:
                return self.floor_modulo(a, b) if op == "%" else self.floor_divide(a, b)

    def extreme(self, op: str, a: Form[Atom], b: Form[Atom]) -> Form[Atom]:
        """min or max of two forms; one of them where that is certain."""
        low, high = self.form_span(a - b)
        if high <= 0:
            return a if op == "min" else b
        if low >= 0:
            return b if op == "min" else a
        return self.atom(op, a, b)

    def floor_divide(self, a: Form[Atom], c: Form[Atom]) -> Form[Atom]:
        """floor(a / c), c being a divisor."""
        if c.number == 1:
            return a
        quotient, rest = self.divided(a, c)
        bucket = self.bucket(rest, c)
        if bucket is not None:
            return quotient.offset(bucket)
        coarse = self.coarsened(rest, c)
        if coarse is not None:
            unit, multiple, _ = coarse
            return quotient + self.floor_divide(multiple, self.divided(c, unit)[0])
        inner = rest.offset(-rest.constant).single()
        if inner is not None and (d := self.divisor(inner, "//")):
            whole = self.dividend(inner) + d * rest.constant
            return quotient + self.floor_divide(whole, self.scaled(d, c))
        if inner is not None and not rest.constant and (d := self._multiple(inner, c)):
            return quotient + self.floor_modulo(self.floor_divide(self.dividend(inner), c), d)
        return quotient + self.atom("//", rest, c)

    def floor_modulo(self, a: Form[Atom], c: Form[Atom]) -> Form[Atom]:
        """a - c * floor(a / c), c being a divisor."""
        if c.number == 1:
            return Form({})
        rest = self.divided(a, c)[1] if c.terms else a.modulo(c.constant)
        bucket = self.bucket(rest, c)
        if bucket is not None:
            return rest.plus(c, -bucket)
        coarse = self.coarsened(rest, c)
        if coarse is not None:
            unit, multiple, fine = coarse
            return self.scaled(self.floor_modulo(multiple, self.divided(c, unit)[0]), unit) + fine
        inner = rest.single()
        if inner is not None and self._multiple(inner, c):
            return self.floor_modulo(self.dividend(inner), c)
        return self.atom("%", rest, c)

    def of_extents(self, op: str, a: Form[Atom], c: Form[Atom]) -> Form[Atom] | None:
        """a // c or a % c by rules that lead equal extents to one form, where code would only get longer; None where
        there is none: sums of remainders, and one quotient for both signs."""
        for x, k in a.terms.items() if op == "%" else ():
            if self._multiple(x, c):
                return self.floor_modulo(a.without((x,)) + self.dividend(x) * k, c)
        if op not in ("//", "%") or any(k > 0 for k in a.coefficients):
            return None
        quotient = -self.floor_divide((-a) + c.offset(-1), c)
        return quotient if op == "//" else a - self.scaled(quotient, c)

    def _multiple(self, atom: Atom, c: Form[Atom]) -> Form[Atom] | None:
        """d where the atom is x % (c*d), else None."""
        whole = self.divisor(atom, "%")
        d, rest = self.divided(whole, c) if whole else (None, c)
        return d if rest.number == 0 else None

    def coarsened(self, a: Form[Atom], c: Form[Atom]) -> tuple[Form[Atom], Form[Atom], Form[Atom]] | None:
        """(u, m, f) with a = u*m + f, 0 <= f < u, where u divides c, and is the greatest of `units`; or None."""
        for unit in self.units(a, c):
            multiple, fine = self.divided(a, unit)
            bucket = self.bucket(fine, unit)
            if bucket is not None:
                return unit, multiple.offset(bucket), fine.plus(unit, -bucket)
        return None

    def rejoined(self, a: Form[Atom]) -> Form[Atom]:
        """The same value, where quotients and remainders that together make up x (of a fused axis) are x again."""
        for atom, k in a.terms.items():
            low, unit = self.digit(atom)
            if (c := self.divisor(low, "%")) and (found := self._beside(a, self.dividend(low), c, unit * k)):
                other, together = found
                return self.rejoined(a.without((atom, other)) + self.scaled(together, unit * k))
        return a

    def _beside(self, a: Form[Atom], x: Form[Atom], c: Form[Atom], unit: Form[Atom]) -> tuple[Atom, Form[Atom]] | None:
        """(y*u, z) where y*u*k is a term of a, u*k = c*unit, and c*y + x % c = z."""
        place, partners = self.scaled(c, unit), list[tuple[Atom, Atom]]()
        for atom, k in a.terms.items():
            y, u = self.digit(atom)
            if (u * k - place).number == 0 and (self.divisor(y, "//") or self.divisor(y, "%")):
                partners.append((atom, y))
        for atom, y in partners:  # of x before floor_modulo took multiples of c away
            is_quotient = (d := self.divisor(y, "//")) is not None and (d - c).number == 0
            if is_quotient and self.divided(self.dividend(y) - x, c)[1].number == 0:
                return atom, self.dividend(y)
        if not partners:
            return None
        quotient = self.floor_divide(x, c)
        upper = quotient.single()
        for atom, y in partners if upper is not None else ():
            if y is upper:
                return atom, x
            if (d := self.divisor(y, "%")) and self.dividend(y).single() is upper:
                return atom, self.floor_modulo(x, self.scaled(c, d))
        for atom, y in partners:
            if d := self.divisor(y, "%"):
                beyond = self.scaled(self.dividend(y) - quotient, c)
                together = self.floor_modulo(beyond + x, self.scaled(c, d))
                if (digit := together.single()) is not None and self._has_quotient(a, digit, unit):
                    return atom, together
        return None

    def _has_quotient(self, a: Form[Atom], digit: Atom, unit: Form[Atom]) -> bool:
        """Return whether a digit x % c, which u is to be multiplied with, becomes x by a term c*u*(x // c) of a."""
        c = self.divisor(digit, "%")
        return c is not None and self._beside(a, self.dividend(digit), c, unit) is not None
