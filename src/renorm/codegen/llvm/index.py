"""Index arithmetic: exact in 64 bits, kept as linear forms until an address is needed.

    Linear ::= constant + coefficient * atom + ...      atom: a loop variable, or what is not linear, as an i64 value

Emitting a form adds its terms from the outermost region inwards and the constant last. So the part that a loop does
not change is computed outside it, accesses that differ by a constant share one base, and the constant becomes the
displacement of the instruction. A vector index has one form for each lane; neighbours then show as constants that
differ by one.

Division floors for `//` and `%`, truncates for `/`. A zero divisor gives 0, as in NumPy, never a trap.
"""

from __future__ import annotations

from collections.abc import Callable

from renorm.codegen.llvm import integers
from renorm.codegen.llvm.ssa import I64, Function, Value, constant
from renorm.core import dtypes
from renorm.expr.linear import INDEX_TYPES
from renorm.expr.nodes import Binary, Broadcast, Call, Cast, Const, Expr, Ramp, Select, Var
from renorm.expr.rewrite import children

Terms = dict[str, tuple[Value, int]]
Range = tuple[int, int]
Key = tuple[tuple[tuple[str, int], ...], int]


class Linear:
    """A linear form; never changed once made. terms: atom and coefficient by the atom's text; no coefficient is 0."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: Terms, const: int = 0):
        self.terms, self.const = terms, const

    @property
    def number(self) -> int | None:
        """Its value where it is constant."""
        return None if self.terms else self.const

    def plus(self, other: Linear, times: int = 1) -> Linear:
        if not other.terms:
            return Linear(self.terms, self.const + other.const * times)
        terms = dict(self.terms)
        for text, (atom, k) in other.terms.items():
            total = terms[text][1] + k * times if text in terms else k * times
            if total:
                terms[text] = (atom, total)
            else:
                terms.pop(text, None)
        return Linear(terms, self.const + other.const * times)

    def times(self, k: int) -> Linear:
        return Linear({t: (a, c * k) for t, (a, c) in self.terms.items()}, self.const * k) if k else Linear({})

    def is_parallel(self, other: Linear) -> bool:
        """Return whether both differ by a constant only."""
        return {t: c for t, (_, c) in self.terms.items()} == {t: c for t, (_, c) in other.terms.items()}

    def split(self, divisor: int) -> tuple[Linear, Linear]:
        """(q, r), self = q * divisor + r: r takes the terms that `divisor` does not divide; 0 <= r.const < divisor."""
        whole = {t: (a, c // divisor) for t, (a, c) in self.terms.items() if c % divisor == 0}
        rest = {t: v for t, v in self.terms.items() if t not in whole}
        return Linear(whole, self.const // divisor), Linear(rest, self.const % divisor)

    def reduced(self, divisor: int) -> tuple[Linear, Linear]:
        """(q, r), self = q * divisor + r, where all coefficients of r lie in [0, divisor)."""
        whole = {t: (a, c // divisor) for t, (a, c) in self.terms.items() if c // divisor}
        rest = {t: (a, c % divisor) for t, (a, c) in self.terms.items() if c % divisor}
        return Linear(whole, self.const // divisor), Linear(rest, self.const % divisor)

    @property
    def key(self) -> Key:
        """Equal for equal forms."""
        return tuple(sorted((t, c) for t, (_, c) in self.terms.items())), self.const


def is_index(e: Expr) -> bool:
    """Return whether `e` is made of loop variables and constants only, so that it is computed in 64 bits everywhere."""
    match e:
        case Const() | Var():
            return e.dtype in INDEX_TYPES
        case Binary():
            return e.op != "pow" and e.dtype in INDEX_TYPES and is_index(e.a) and is_index(e.b)
        case Ramp() | Broadcast():
            return all(is_index(c) for c in children(e))
        case _:
            return False


class Indices:
    """Linear forms of integer expressions. leaf: emits what is not one. bindings: what variables stand for."""

    def __init__(self, function: Function, leaf: Callable[[Expr], Value]):
        self._f = function
        self._leaf = leaf
        self.bindings: dict[Var, Linear] = {}
        self._ranges: dict[str, Range] = {}
        self._quotients: dict[tuple[Key, int], str] = {}  # (dividend, divisor) -> atom
        self._remainders: dict[str, tuple[Linear, int]] = {}  # atom -> (dividend, divisor)

    def atom(self, value: Value, bounds: Range | None = None) -> Linear:
        if value.number is not None:
            return Linear({}, int(value.number))
        if bounds is not None:
            self._ranges[value.text] = bounds
        return Linear({value.text: (value, 1)})

    def range(self, form: Linear) -> Range | None:
        """Least and greatest value, where they are known."""
        low = high = form.const
        for text, (_, k) in form.terms.items():
            if text not in self._ranges:
                return None
            a, b = self._ranges[text]
            low, high = low + min(a * k, b * k), high + max(a * k, b * k)
        return low, high

    # expressions to forms --------------------------------------------------------------------------------------------

    def linear(self, e: Expr, lane: int = 0) -> Linear:
        """The form of lane `lane` of `e`."""
        match e:
            case Const():
                return Linear({}, int(e.value))
            case Var() if e in self.bindings:
                return self.bindings[e]
            case Ramp():
                return self.linear(e.base).plus(self.linear(e.stride), lane)
            case Broadcast():
                return self.linear(e.value)
            case Binary(op="+" | "-") if e.dtype in INDEX_TYPES:
                return self._joined(self.linear(e.a, lane).plus(self.linear(e.b, lane), 1 if e.op == "+" else -1))
            case Binary(op="*" | "//" | "%" | "/" | "min" | "max") if e.dtype in INDEX_TYPES:
                return self._binary(e.op, self.linear(e.a, lane), self.linear(e.b, lane))
            case Cast() if e.a.dtype == "int32" and e.dtype == "int64":
                return self.linear(e.a, lane)
            case Call(name="likely"):
                return self.linear(e.args[0], lane)
            case Select() if e.lanes == 1:
                return self._choose(self._leaf(e.condition), self.linear(e.then), self.linear(e.otherwise))
            case _:
                value = self._f.extract(self._leaf(e), lane)
                widen = "zext" if dtypes.lookup(e.dtype).kind in ("uint", "bool") else "sext"
                return self.atom(self._f.convert(widen, value, "i64"))

    def _binary(self, op: str, a: Linear, b: Linear) -> Linear:
        match op:
            case "*":
                if a.number is not None or b.number is not None:
                    return b.times(a.number) if a.number is not None else a.times(b.const)
                return self._bounded(self._f.op("mul nsw", self.value(a), self.value(b)), op, a, b)
            case "min" | "max":
                difference = self.range(a.plus(b, -1))
                if difference is not None and (difference[1] <= 0 or difference[0] >= 0):
                    return a if (difference[1] <= 0) == (op == "min") else b
                return self._bounded(self._f.intrinsic(f"s{op}", self.value(a), self.value(b)), op, a, b)
            case "//" | "%":
                return self._floor(op, a, b)
            case _:
                ra, rb = self.range(a), self.range(b)
                if ra and rb and ra[0] >= 0 and rb[0] > 0:
                    return self._floor("//", a, b)
                return self.atom(integers.truncated(self._f, self.value(a), self.value(b), remainder=False))

    def _bounded(self, value: Value, op: str, a: Linear, b: Linear) -> Linear:
        ra, rb = self.range(a), self.range(b)
        if ra is None or rb is None:
            return self.atom(value)
        if op == "*":
            corners = [x * y for x in ra for y in rb]
            return self.atom(value, (min(corners), max(corners)))
        choose = min if op == "min" else max
        return self.atom(value, (choose(ra[0], rb[0]), choose(ra[1], rb[1])))

    def _floor(self, op: str, a: Linear, b: Linear) -> Linear:
        divisor = b.number
        if divisor is None or divisor <= 0:
            return self.atom(integers.floored(self._f, self.value(a), self.value(b), remainder=op == "%"))
        # (q*d + r) // d = q + r // d and (q*d + r) % d = r % d, whatever the signs
        for whole, rest in (a.split(divisor), a.reduced(divisor)):
            bounds = self.range(rest)
            if bounds is not None and bounds[0] // divisor == bounds[1] // divisor:
                quotient = Linear({}, bounds[0] // divisor)
                return whole.plus(quotient) if op == "//" else rest.plus(quotient, -divisor)
        not_negative = bounds is not None and bounds[0] >= 0
        dividend, by = self.value(rest), constant(I64, divisor)
        value = integers.floored(self._f, dividend, by, remainder=op == "%", unsigned=not_negative)
        if op == "//":
            self._quotients[rest.key, divisor] = value.text
            return whole.plus(self.atom(value, (bounds[0] // divisor, bounds[1] // divisor) if bounds else None))
        self._remainders[value.text] = rest, divisor
        return self.atom(value, (0, divisor - 1))

    def _joined(self, form: Linear) -> Linear:
        """(x // d) * d + x % d is x, with any common factor: what is left of fused loops that are taken apart again."""
        if not self._remainders:
            return form
        for text, (atom, k) in form.terms.items():
            if text in self._remainders:
                dividend, divisor = self._remainders[text]
                quotient = self._quotients.get((dividend.key, divisor))
                if quotient in form.terms and form.terms[quotient][1] == k * divisor:
                    both = Linear({text: (atom, k), quotient: form.terms[quotient]})
                    return self._joined(form.plus(both, -1).plus(dividend, k))
        return form

    def _choose(self, condition: Value, a: Linear, b: Linear) -> Linear:
        if condition.number is not None:
            return a if condition.number else b
        ra, rb = self.range(a), self.range(b)
        bounds = (min(ra[0], rb[0]), max(ra[1], rb[1])) if ra and rb else None
        return self.atom(self._f.select(condition, self.value(a), self.value(b)), bounds)

    # forms to values -------------------------------------------------------------------------------------------------

    def _by_depth(self, form: Linear) -> list[tuple[Value, int]]:
        return sorted(form.terms.values(), key=lambda term: term[0].depth)  # stable: program order within a depth

    def value(self, form: Linear) -> Value:
        total: Value | None = None
        for atom, k in self._by_depth(form):
            term = atom if k == 1 else self._f.op("mul nsw", atom, constant(I64, k))
            total = term if total is None else self._f.op("add nsw", total, term)
        if total is None:
            return constant(I64, form.const)
        return total if form.const == 0 else self._f.op("add nsw", total, constant(I64, form.const))

    def address(self, pointer: Value, element: str, form: Linear) -> Value:
        """pointer + form elements, with the invariant part outside the loops that do not change it."""
        terms = self._by_depth(form) if len(form.terms) > 1 else list(form.terms.values())
        start = 0
        while start < len(terms):
            stop = start
            while stop < len(terms) and terms[stop][0].depth == terms[start][0].depth:
                stop += 1
            level = Linear({a.text: (a, k) for a, k in terms[start:stop]})
            pointer = self._f.offset(pointer, element, self.value(level))
            start = stop
        return self._f.offset(pointer, element, constant(I64, form.const))

    def affine(self, e: Expr) -> tuple[Linear, int] | None:
        """(base, stride) where lane k of the index expression `e` is base + k * stride."""
        if not is_index(e):
            return None
        first = self.linear(e, 0)
        steps = set[int]()
        previous = first
        for k in range(1, e.lanes):
            following = self.linear(e, k)
            if not following.is_parallel(previous):
                return None
            steps.add(following.const - previous.const)
            if len(steps) > 1:
                return None
            previous = following
        return first, steps.pop() if steps else 0

    def truth(self, op: str, a: Linear, b: Linear) -> bool | None:
        """Return whether `a op b` holds, where the ranges tell."""
        bounds = self.range(a.plus(b, -1))
        if bounds is None:
            return None
        low, high = bounds
        always = {"<": high < 0, "<=": high <= 0, ">": low > 0, ">=": low >= 0, "==": low == high == 0}
        never = {"<": low >= 0, "<=": low > 0, ">": high <= 0, ">=": high < 0, "==": low > 0 or high < 0}
        if op == "!=":
            return True if never["=="] else False if always["=="] else None
        return True if always[op] else False if never[op] else None
