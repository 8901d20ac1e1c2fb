"""Extents of axes: integers, or polynomials over named symbols.

A `Dim` is an int or a `Sym`. Arithmetic between them gives an int where the result is constant. `Sym` keeps a canonical
sum of products with integer coefficients, and divides by the algebra of indices, so equality is structural: N*2 + N ==
3*N, and (N - 1)//2 + 1 == (N + 1)//2. A symbol carries between which numbers it lies, so that whoever holds an extent
knows what is known of it; core.stated says how users state that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, reduce
from math import inf
from operator import add, floordiv, index, mod, mul, sub
from typing import Any, SupportsIndex, Union

from renorm.core.algebra import Algebra
from renorm.core.errors import OperandError, UntoldOperand
from renorm.core.linear import Form
from renorm.core.spans import Span, span_of

Factor = Union["Symbol", tuple[str, "Dim", "Dim"]]  # or ("//" | "%" | "min" | "max", a, b), which stays opaque
_Product = tuple[Factor, ...]  # of at least one
_MOST_AXES = 64  # of an array, as of NumPy's


class Symbol(str):
    """The name of an open extent, and between which numbers it lies, both included. Equal to the name."""

    least: int
    most: float

    def __new__(cls, name: str, least: int = 0, most: float = inf) -> Symbol:
        made = super().__new__(cls, name)
        made.least, made.most = least, most
        return made


class Sym:
    """A symbolic extent. Immutable; compares and hashes by value. least, most: of a name, between which numbers it
    lies."""

    __slots__ = ("_hash", "_key", "form")

    def __init__(self, name: str | Form[_Product], least: int = 0, most: float = inf):
        if isinstance(name, str):
            self.form: Form[_Product] = _atomic(name if isinstance(name, Symbol) else Symbol(name, least, most))
        else:
            self.form = name
        self._key = tuple(sorted(terms(self), key=repr))
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sym) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Dim) -> Dim:
        return _dim(self.form + _form(other))

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return _dim(-self.form)

    def __sub__(self, other: Dim) -> Dim:
        return _dim(self.form - _form(other))

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        product: Form[_Product] = Form({})
        for left, k in terms(self):
            for right, c in terms(other):
                product += _multiple(product_of(left + right), k * c)
        return _dim(product)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        if isinstance(other, int) and other > 0:
            return _dim(_EXTENTS.floor_divide(self.form, _form(other)))
        exact = _divide(self, other)
        return exact if exact is not None else Sym(_opaque("//", self, other))

    def __rfloordiv__(self, other: int) -> Dim:
        return Sym(_opaque("//", other, self))

    def __rmod__(self, other: int) -> Dim:
        return Sym(_opaque("%", other, self))

    def __mod__(self, other: Dim) -> Dim:
        if isinstance(other, int) and other > 0:
            return _dim(_EXTENTS.floor_modulo(self.form, _form(other)))
        return 0 if _divide(self, other) is not None else Sym(_opaque("%", self, other))

    def __str__(self) -> str:
        def atom(a: Factor) -> str:
            if isinstance(a, Symbol):
                return a
            return f"({a[1]}){a[0]}({a[2]})" if a[0] in ("//", "%") else f"{a[0]}({a[1]}, {a[2]})"

        def term(product: tuple[Factor, ...], k: int) -> str:
            names = "*".join(atom(a) for a in product)
            return str(k) if not names else names if k == 1 else f"{k}*{names}"

        return " + ".join(term(m, k) for m, k in reversed(self._key))

    __repr__ = __str__

    @staticmethod
    def of(products: Mapping[_Product, int]) -> Sym:
        """The sum of products (`product_of`, that of nothing being 1), each with a coefficient that is not 0."""
        return Sym(Form({p: k for p, k in products.items() if p}, products.get((), 0)))

    def symbols(self) -> set[Symbol]:
        """Names that occur in this extent."""
        found: set[Symbol] = set()
        for product in self.form.terms:
            for a in product:
                if isinstance(a, Symbol):
                    found.add(a)
                else:
                    found |= symbols_of(a[1]) | symbols_of(a[2])
        return found


Dim = Union[int, Sym]
Shape = tuple[Dim, ...]
Sizes = Union[Mapping[str, Dim], Mapping[Symbol, Dim], Mapping[Factor, Dim]]  # what symbols, or other factors, are


def symbols_of(dim: Dim) -> set[Symbol]:
    """Names that occur in an extent; none in an integer."""
    return dim.symbols() if isinstance(dim, Sym) else set()


def _form(dim: Dim) -> Form[_Product]:
    return dim.form if isinstance(dim, Sym) else Form({}, dim)


def _dim(form: Form[_Product]) -> Dim:
    return form.constant if not form.terms else Sym(form)


def product_of(atoms: Iterable[Factor]) -> _Product:
    """Atoms in the one order that products have them in."""
    return tuple(sorted(atoms, key=repr))


def factors_of(dim: Dim) -> set[Factor]:
    """Symbols, quotients, remainders and choices of whose products an extent is the sum."""
    return {a for product in _form(dim).terms for a in product}


def terms(dim: Dim) -> list[tuple[tuple[Factor, ...], int]]:
    """Return products with their coefficients, and the constant, where it is not 0, with the product of nothing."""
    form = _form(dim)
    return [*form.terms.items(), *([((), form.constant)] if form.constant else [])]


def _multiple(product: tuple[Factor, ...], k: int) -> Form[_Product]:
    return Form({product: k} if k else {}) if product else Form({}, k)


def _atomic(a: Factor) -> Form[_Product]:
    product: _Product = (a,)
    return Form({product: 1})


def _opaque(op: str, a: Dim, b: Dim) -> Form[_Product]:
    return _atomic((op, a, b))


class _Extents(Algebra[_Product]):
    """Quotients and remainders of extents by numbers: what cannot be divided is a factor of its own."""

    def form_span(self, form: Form[_Product]) -> Span:
        return bounds(_dim(form))

    def atom(self, op: str, a: Form[_Product], b: Form[_Product]) -> Form[_Product]:
        found = self.of_extents(op, a, b)
        return found if found is not None else _opaque(op, _dim(a), _dim(b))

    def divisor(self, atom: _Product, op: str) -> Form[_Product] | None:
        first = atom[0]
        if len(atom) > 1 or isinstance(first, Symbol) or first[0] != op:
            return None
        c = _form(first[2])
        return c if self.is_divisor(c) else None

    def dividend(self, atom: _Product) -> Form[_Product]:
        first = atom[0]
        assert not isinstance(first, Symbol)
        return _form(first[1])


_EXTENTS = _Extents()


def bounds(dim: Dim) -> Span:
    """Return the least and the greatest value, where symbols are independent of each other."""
    return _form(dim).span(_product_span)


def _product_span(product: _Product) -> Span:
    return reduce(partial(span_of, "*"), map(_atom_span, product))


def _atom_span(a: Factor) -> Span:
    if isinstance(a, Symbol):
        return a.least, a.most
    op, of, (least, most) = a[0], bounds(a[1]), bounds(a[2])
    if op in ("//", "%") and least == 0 < most:
        least = 1  # nothing is divided by 0
    return span_of(op, of, (least, most))


def minimum(a: Dim, b: Dim) -> Dim:
    """The lesser one of two extents."""
    return _extreme("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The greater one of two extents."""
    return _extreme("max", a, b)


def _extreme(op: str, a: Dim, b: Dim) -> Dim:
    first, second = sorted((a, b), key=repr)  # so that equal ones have one form
    return _dim(_EXTENTS.extreme(op, _form(first), _form(second)))


def _divide(a: Sym, b: Dim) -> Dim | None:
    """a / b where that is a sum of products of the same factors, found term by term: 2*(n + 2) / (n + 2); else None."""
    if isinstance(b, int) and not b:
        return None
    names, k = max(terms(b), key=_degree)  # one of no greater degree is left by what is taken away
    quotient, left = Form[_Product]({}), a.form
    for _ in range(len(a.form.terms) + 1):
        product, coefficient = max(terms(_dim(left)), key=_degree)
        rest = list(product)
        for name in names:
            if name not in rest:
                return None
            rest.remove(name)
        if coefficient % k:
            return None
        term = _multiple(tuple(rest), coefficient // k)
        quotient += term
        left -= _form(_dim(term) * b)
        if left.number == 0:
            return _dim(quotient)
    return None


def _degree(term: tuple[_Product | tuple[()], int]) -> tuple[int, str]:
    return len(term[0]), repr(term[0])


def substitute(dim: Dim, values: Sizes, applied: Mapping[str, Callable[[Any, Any], Any]] | None = None) -> Dim:
    """`dim` with symbols, and other factors, replaced by the extents of `values`; what is not named there stays.
    applied: what to compute with, by operator, where values count as extents and are neither ints nor Syms."""
    if isinstance(dim, int):
        return dim
    known: Mapping[Any, Dim] = values
    total: Dim = 0
    for factors, k in terms(dim):
        product: Dim = k
        for a in factors:
            if (factor := known.get(a)) is None:
                is_name = isinstance(a, Symbol)
                parts = () if is_name else (substitute(x, values, applied) for x in a[1:])
                factor = Sym(a) if is_name else (applied or APPLIED)[a[0]](*parts)
            product = product * factor
        total = total + product
    return total


APPLIED: dict[str, Callable[[Any, Any], Dim]] = {
    "+": add, "-": sub, "*": mul, "//": floordiv, "%": mod, "min": minimum, "max": maximum,
}  # fmt: skip


def substitute_shape(shape: Iterable[Dim], values: Sizes) -> Shape:
    return tuple(substitute(d, values) for d in shape)


def linear(extent: Dim) -> tuple[Symbol, int, int] | None:
    """Return (s, k, c) of an extent k*s + c of one symbol; None for other extents."""
    if isinstance(extent, int) or len(extent.form.terms) != 1:
        return None
    ((product, k),) = extent.form.terms.items()
    symbol = product[0]
    return (symbol, k, extent.form.constant) if len(product) == 1 and isinstance(symbol, Symbol) else None


def solved(extent: Dim, value: Dim) -> tuple[Symbol, Dim] | None:
    """Return the symbol of an extent k*s + c, and what it is where the extent is a value; None for other extents, and
    where it cannot be."""
    if (found := linear(extent)) is None:
        return None
    symbol, k, c = found
    return (symbol, (value - c) // k) if (value - c) % k == 0 else None


TAKEN: ContextVar[list[tuple[Dim, str, Dim]] | None] = ContextVar("taken", default=None)


def take(a: Dim, relation: str, b: Dim) -> None:
    """Take it to be so that a == b, or a <= b: what core.conditions collects. Numbers are compared by the caller."""
    taken = TAKEN.get()
    if taken is not None and not (isinstance(a, int) and isinstance(b, int)):
        taken.append((a, relation, b))


def format_facts(extent: Dim) -> str:
    """Return an extent as text, its symbols with between which numbers they lie."""
    bounded = (s for s in symbols_of(extent) if (s.least, s.most) != (0, inf))
    return str(substitute(extent, {s: Sym(f"{s}:{format_range(s.least, s.most)}") for s in bounded}))


def format_range(least: float, most: float) -> str:
    """Return numbers from the least to the most as text, `1..64`, without an end that is open."""
    return f"{least if least != -inf else ''}..{most if most != inf else ''}"


def as_shape(given: Iterable[Any]) -> Shape:
    """Return extents as Dims: integers that are not negative, Syms, and names, which become Syms. Raises
    OperandError."""

    def extent(d: Any) -> Dim:
        if isinstance(d, Sym):
            return d
        if isinstance(d, str) and d.isidentifier():
            return Sym(d)
        with suppress(TypeError):  # arrays say that they have an index, and may have none
            if isinstance(d, SupportsIndex) and not isinstance(d, bool) and index(d) >= 0:
                return index(d)
        do = "an extent is an integer that is not negative, a Sym, or the name of one"
        raise OperandError(f"{d!r} is no extent", [f"in the shape {given}"], do)

    return tuple(extent(d) for d in given)


def is_static(shape: Iterable[Dim]) -> bool:
    return all(isinstance(d, int) for d in shape)


def static(shape: Iterable[Dim], what: str = "shape") -> tuple[int, ...]:
    """`shape` as integers; OperandError names the symbols that are still open."""
    shape = tuple(shape)
    if not is_static(shape):
        raise OperandError(
            f"{what} {format_shape(shape)} is not known yet", do="give the shapes of the inputs (shapes=)"
        )
    return tuple(int(d) for d in shape if isinstance(d, int))


def axes_said(shape: Iterable[Dim], what: str) -> int:
    """Return how many axes a tensor has whose extents are the elements of an operand of that shape. OperandError where
    there are more than arrays can have, or where it is not known yet."""
    (count,) = static(shape, what)
    if count > _MOST_AXES:
        raise OperandError(f"{what} [{count}] says as many axes, at most {_MOST_AXES} are possible")
    return count


def integer(dim: Dim) -> int:
    """An extent that is known to be an integer."""
    assert isinstance(dim, int), f"{dim} is open"
    return dim


@dataclass(frozen=True)
class Quotient:
    """A known element of a float tensor: one extent over another, as scales are that exporters compute of sizes."""

    extent: Dim
    over: Dim


def extents_among(known: Iterable[Any]) -> Iterator[Sym]:
    """Yield the open extents that known elements are, or are made of."""
    for e in known:
        yield from (d for d in ((e.extent, e.over) if isinstance(e, Quotient) else (e,)) if isinstance(d, Sym))


def size(shape: Iterable[Dim]) -> Dim:
    """Number of elements."""
    total: Dim = 1
    for d in shape:
        total = total * d
    return total


def format_shape(shape: Iterable[Dim]) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"


def number(element: Any, what: str) -> int:
    """Return a known element as an integer. UntoldOperand where it is an extent, which is not known yet."""
    if isinstance(element, Sym):
        do = f"give the inputs that {element} depends on (inputs=, shapes=)"
        raise UntoldOperand(f"{what} {element} is computed when the network runs", do=do, operand=element)
    return int(element)
