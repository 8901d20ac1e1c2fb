"""Linear forms (core.linear) of integer expressions, over what is not a sum in them.

Each atom is one object in all forms that meet (`one_of_each`, or an Algebra's `intern`). Products with open extents
are multiplied out: (i*8 + j)*n is 8*(i*n) + j*n, whose atoms are i*n and j*n, the extents last, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from renorm.core.linear import Form
from renorm.expr.nodes import INDEX_TYPES, Binary, Cast, Const, Expr, OpenVar, Var, cast
from renorm.expr.rewrite import depends_on, key, walk

Intern = Callable[[Expr], Expr]

if TYPE_CHECKING:
    Linear = Form[Expr]
else:
    Linear = Form  # calling what stands for Form[Expr] would take twice the time


def one_of_each() -> Intern:
    """Return a function that gives one object for all expressions of equal structure."""
    known: dict[Hashable, Expr] = {}
    seen: dict[Expr, Expr] = {}

    def name(e: Expr) -> int:
        return id(one(e))

    def one(e: Expr) -> Expr:
        found = seen.get(e)
        if found is None:
            found = seen[e] = known.setdefault(key(e, name), e)
        return found

    return one


def linear(e: Expr, intern: Intern | None = None) -> Linear:
    """The form of an integer expression, taken as it stands. intern: by default knows the atoms of this form only."""
    one = intern or one_of_each()
    return linear_in_parts(e, lambda x: Linear({one(x): 1}), one)


def linear_in_parts(e: Expr, part: Callable[[Expr], Linear], intern: Intern) -> Linear:
    """The form of an integer expression. part: gives that of what is not a sum or a multiple."""
    terms, constant = dict[Expr, int](), 0
    stack = [(e, 1)]
    while stack:
        x, k = stack.pop()
        if type(x) is Const:
            constant += k * int(x.value)
            continue
        if type(x) is Cast and x.is_open and _is_extent(x.a):
            x = x.a
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
            if op == "*" and x.is_open:
                form = times(linear_in_parts(a, part, intern), linear_in_parts(b, part, intern), intern)
                if form is not None:
                    constant += k * form.constant
                    _add(terms, form, k)
                    continue
        if k == 0:
            continue
        form = part(x)
        constant += k * form.constant
        _add(terms, form, k)
    return Linear(terms, constant)


def _is_extent(e: Expr) -> bool:
    """Return whether an expression is made of open extents alone."""
    return type(e) is OpenVar or (type(e) is Binary and all(type(x) in (OpenVar, Const, Binary) for x in walk(e)))


def _add(terms: dict[Expr, int], form: Linear, k: int) -> None:
    """Add k times the terms of a form."""
    for atom, c in form.terms.items():
        total = terms.get(atom, 0) + k * c
        if total:
            terms[atom] = total
        else:
            terms.pop(atom, None)


def extent_in(e: Expr) -> OpenVar | None:
    """Return the open extent that an expression is, maybe in a wider type; None for what is none."""
    e = e.a if type(e) is Cast else e
    return e if type(e) is OpenVar else None


def factors(atom: Expr) -> tuple[Expr, ...]:
    """Return x and the open extents in order, where the atom is their product; x may be one itself."""
    if type(atom) is not Binary:
        extent = extent_in(atom) if atom.is_open else None
        return (atom if extent is None else extent,)
    if not atom.factors:
        last = extent_in(atom.b) if atom.op == "*" else None
        atom.factors = (atom,) if last is None else (*factors(atom.a), last)
    return atom.factors


def is_of_extents(form: Linear) -> bool:
    """Return whether a form is a polynomial of open extents."""
    return all(type(x) is OpenVar for atom in form.terms for x in factors(atom))


def product(parts: Iterable[Expr], intern: Intern) -> Expr | None:
    """Return the atom that is the product of these factors, of which at most one is no open extent; None for others,
    and where there are none."""
    extents: list[OpenVar] = []
    others: list[Expr] = []
    for x in parts:
        if type(x) is OpenVar:
            extents.append(x)
        else:
            others.append(x)
    if len(others) > 1 or not (others or extents):
        return None
    extents.sort(key=lambda v: v.order)
    first, *rest = (*others, *extents)
    for v in rest:
        first = intern(Binary("*", first, intern(cast(first.dtype, v))))
    return first


@dataclass(eq=False, slots=True)
class Place:
    """A number times open extents, in their order: what is divided by, the unit of a digit, how many there are."""

    number: int = 1
    extents: tuple[OpenVar, ...] = ()

    @property
    def key(self) -> tuple[int, ...]:
        """Equal for equal places, less for those that divide a place: extents are compared by what they are."""
        return (len(self.extents), self.number, *(x.order for x in self.extents))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @staticmethod
    def of(number: int, extents: Iterable[Expr]) -> Place:
        return Place(number, tuple(sorted((x for x in extents if isinstance(x, OpenVar)), key=lambda x: x.order)))

    def times(self, other: Place) -> Place:
        return Place.of(self.number * other.number, (*self.extents, *other.extents))

    def over(self, other: Place) -> Place | None:
        """The quotient, where there is no remainder."""
        if self.number % other.number:
            return None
        left = list(self.extents)
        for x in other.extents:
            at = next((i for i, y in enumerate(left) if y is x), None)
            if at is None:
                return None
            del left[at]
        return Place(self.number // other.number, tuple(left))

    def form(self, intern: Intern) -> Linear:
        unit = product(self.extents, intern)
        return Linear({}, self.number) if unit is None else Linear({unit: self.number})

    def expression(self, dtype: str) -> Expr:
        found: Expr | None = None
        for x in self.extents:
            found = cast(dtype, x) if found is None else Binary("*", found, cast(dtype, x))
        if found is None:
            return Const(self.number, dtype)
        return found if self.number == 1 else Binary("*", found, Const(self.number, dtype))


ONES = Place()


def place_of(form: Linear) -> Place | None:
    """Return what is positive and a number, or a number times open extents, as a place; None for the rest."""
    if form.number is not None:
        return Place(form.number) if form.number > 0 else None
    if form.constant or len(form.terms) != 1 or not is_of_extents(form):
        return None
    ((unit, k),) = form.terms.items()
    return Place.of(k, factors(unit)) if k > 0 else None


def apart(atom: Expr, intern: Intern) -> tuple[Expr, Linear]:
    """(x, u) with atom = x*u, where u is a product of open extents, or 1; x may be one itself."""
    first, *extents = factors(atom)
    return first, Place.of(1, extents).form(intern)


def times(a: Linear, b: Linear, intern: Intern) -> Linear | None:
    """Return a * b, multiplied out, where at least one is a polynomial of open extents; None of other products."""
    if not b.terms:
        return a * b.constant
    if not a.terms:
        return b * a.constant
    if not is_of_extents(b) and not is_of_extents(a):
        return None
    terms: dict[Expr, int] = {}
    for x, k in a.terms.items():
        for y, c in b.terms.items():
            atom = product((*factors(x), *factors(y)), intern)
            if atom is None:
                return None
            _add(terms, Linear({atom: k * c}), 1)
    found = Linear(terms, a.constant * b.constant)
    return found.plus(Linear(a.terms), b.constant).plus(Linear(b.terms), a.constant)


def cofactor(form: Linear, x: Expr, intern: Intern) -> tuple[Linear, Linear] | None:
    """(p, q) with form = x*p + q, where q has no factor x; None where x stands in a square."""
    multiples, rest, constant = dict[Expr, int](), dict[Expr, int](), 0
    for atom, k in form.terms.items():
        all_parts = factors(atom)
        parts = [y for y in all_parts if y is not x]
        if len(parts) == len(all_parts):
            rest[atom] = k
            continue
        if len(parts) + 1 < len(all_parts):
            return None
        other = product(parts, intern)
        if other is None:
            constant = k
        else:
            multiples[other] = k
    return Linear(multiples, constant), Linear(rest, form.constant)


def difference(a: Expr, b: Expr, intern: Intern | None = None) -> Linear:
    """The form of a - b."""
    intern = intern or one_of_each()
    return linear(a, intern) - linear(b, intern)


def slope(form: Linear, x: Var) -> int | None:
    """Return how far the form moves when x grows by one; None where that is no constant."""
    if any(atom is not x and depends_on(atom, x) for atom in form.terms):
        return None
    return form.terms.get(x, 0)


def expression(form: Linear, dtype: str, infix: Callable[[str, Expr, Expr], Expr] = Binary) -> Expr:
    """The form as an expression: terms in order, subtraction for negative coefficients, the constant last. infix: makes
    a op b."""
    terms = [(x if x.dtype == dtype else _of_type(dtype, x, infix), k) for x, k in form.terms.items()]
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
            result = atom if k == 1 else infix("*", atom, Const(k, dtype))
        else:
            size = atom if abs(k) == 1 else infix("*", atom, Const(abs(k), dtype))
            result = infix("+" if k > 0 else "-", result, size)
    if result is None:
        return Const(constant, dtype)
    if constant:
        result = infix("+" if constant > 0 else "-", result, Const(abs(constant), dtype))
    return result


def _of_type(dtype: str, atom: Expr, infix: Callable[[str, Expr, Expr], Expr]) -> Expr:
    """The atom in a type; of a product with open extents, of whose type forms do not speak, each factor."""
    return reduce(partial(infix, "*"), (cast(dtype, x) for x in factors(atom)))


def divided(form: Linear, by: Linear, intern: Intern) -> tuple[Linear, Linear] | None:
    """(q, r) with form = q*by + r, where r has no multiples of `by`, a place; None for other divisors."""
    if by.number is not None:
        multiples, rest = form.split(by.number)
        return multiples.divided(by.number), rest
    if (place := place_of(by)) is None:
        return None
    quotient, rest = Linear({}), dict[Expr, int]()
    for atom, k in form.terms.items():
        parts = factors(atom)
        left = Place.of(k, parts).over(place) if type(parts[-1]) is OpenVar else None
        if left is None:
            rest[atom] = k
            continue
        other = product((*(x for x in parts if type(x) is not OpenVar), *left.extents), intern)
        quotient += Linear({}, left.number) if other is None else Linear({other: left.number})
    return quotient, Linear(rest, form.constant)
