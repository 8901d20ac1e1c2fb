"""Notation for formulas: a Lanes is an SSA value with Python's operators, so that an algorithm reads as in a book.

Numbers take the type of the operand they meet. Comparisons are ordered (false for NaN) and give truth values; `!=` is
not provided: `is_nan` and `differs` say which of its two readings is meant. Nothing is contracted unless `fma` says
so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Self, TypeVar, Union

from renorm.codegen.llvm.ssa import Function, Type, Value, constant

Operand = Union["Lanes", float, int]
L = TypeVar("L", bound="Lanes")


class Lanes:
    """A value of any number of lanes; float, integer or i1."""

    __slots__ = ("f", "value")

    def __init__(self, f: Function, value: Value):
        self.f, self.value = f, value

    @property
    def type(self) -> Type:
        return self.value.type

    def _new(self, value: Value) -> Self:
        return type(self)(self.f, value)

    def like(self, other: Operand) -> Self:
        """A number as a constant of this type; a Lanes as it is."""
        return self._new(other.value if isinstance(other, Lanes) else constant(self.type, other))

    def _op(self, name: str, other: Operand) -> Self:
        return self._new(self.f.op(name, self.value, self.like(other).value))

    def _arithmetic(self, name: str, other: Operand) -> Self:
        return self._op(("f" if self.type.is_float else "") + name, other)

    def __add__(self, other: Operand) -> Self:
        return self._arithmetic("add", other)

    def __sub__(self, other: Operand) -> Self:
        return self._arithmetic("sub", other)

    def __mul__(self, other: Operand) -> Self:
        return self._arithmetic("mul", other)

    def __radd__(self, other: Operand) -> Self:
        return self.like(other) + self

    def __rsub__(self, other: Operand) -> Self:
        return self.like(other) - self

    def __rmul__(self, other: Operand) -> Self:
        return self.like(other) * self

    def __truediv__(self, other: Operand) -> Self:
        return self._op("fdiv", other)

    def __rtruediv__(self, other: Operand) -> Self:
        return self.like(other) / self

    def __neg__(self) -> Self:
        return self._new(self.f.negate(self.value)) if self.type.is_float else self.like(0) - self

    def __and__(self, other: Operand) -> Self:
        return self._op("and", other)

    def __or__(self, other: Operand) -> Self:
        return self._op("or", other)

    def __xor__(self, other: Operand) -> Self:
        return self._op("xor", other)

    def __invert__(self) -> Self:
        return self ^ (1 if self.type.element == "i1" else -1)

    def __lshift__(self, other: Operand) -> Self:
        return self._op("shl", other)

    def __rshift__(self, other: Operand) -> Self:
        """Arithmetic: keeps the sign."""
        return self._op("ashr", other)

    def logical_shift(self, other: Operand) -> Self:
        """To the right, with zeros."""
        return self._op("lshr", other)

    def _compare(self, name: str, other: Operand) -> Self:
        kind = f"fcmp o{name}" if self.type.is_float else f"icmp {name if name in ('eq', 'ne') else 's' + name}"
        return self._new(self.f.compare(kind, self.value, self.like(other).value))

    def __lt__(self, other: Operand) -> Self:
        return self._compare("lt", other)

    def __le__(self, other: Operand) -> Self:
        return self._compare("le", other)

    def __gt__(self, other: Operand) -> Self:
        return self._compare("gt", other)

    def __ge__(self, other: Operand) -> Self:
        return self._compare("ge", other)

    def equals(self, other: Operand) -> Self:
        return self._compare("eq", other)

    def differs(self, other: Operand) -> Self:
        """Less or greater; false for NaN."""
        return self._compare("ne", other)

    def below(self, other: Operand) -> Self:
        """Less, as unsigned integers."""
        return self._new(self.f.compare("icmp ult", self.value, self.like(other).value))

    @property
    def is_nan(self) -> Self:
        return self._new(self.f.compare("fcmp uno", self.value, self.value))

    @property
    def any(self) -> Self:
        """Of a truth value: whether it holds in any lane."""
        return self._new(self.f.any(self.value))

    # conversions ---------------------------------------------------------------------------------------------------

    @property
    def bits(self) -> Self:
        """The representation of floats as integers of their size."""
        return self.convert("bitcast", f"i{self.type.bits}")

    @property
    def floats(self) -> Self:
        """The floats with this representation."""
        return self.convert("bitcast", {32: "float", 64: "double"}[self.type.bits])

    def convert(self, name: str, element: str) -> Self:
        return self._new(self.f.convert(name, self.value, element))

    def intrinsic(self, name: str) -> Self:
        return self._new(self.f.intrinsic(name, self.value))

    def with_sign_of(self, other: Lanes) -> Self:
        return self._new(self.f.intrinsic("copysign", self.value, other.value))


class Variable(Generic[L]):
    """A variable of a function: memory on the stack, until LLVM makes SSA values of it."""

    def __init__(self, start: L):
        self._kind, self._f, self._type = type(start), start.f, start.type
        self._address = self._f.allocate_one(self._type)
        self.value = start

    @property
    def value(self) -> L:
        return self._kind(self._f, self._f.effect(f"load {self._type}, {self._address.typed}", self._type))

    @value.setter
    def value(self, now: L) -> None:
        self._f.effect(f"store {now.value.typed}, {self._address.typed}")


def fma(a: Operand, b: Operand, c: Operand) -> Lanes:
    """a*b + c, rounded once."""
    first = next(x for x in (a, b, c) if isinstance(x, Lanes))
    return Lanes(first.f, first.f.intrinsic("fma", *(first.like(x).value for x in (a, b, c))))


def where(condition: Lanes, a: L | float, b: L | float) -> L:
    first = a if isinstance(a, Lanes) else b
    assert isinstance(first, Lanes)
    return type(first)(first.f, first.f.select(condition.value, first.like(a).value, first.like(b).value))


def polynomial(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """c0 + c1*x + c2*x**2 + ..., by Horner's rule."""
    result = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, c)
    return result
