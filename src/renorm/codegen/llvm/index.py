"""Index arithmetic: exact in 64 bits, kept as linear forms until an address is needed.

    form ::= constant + coefficient * atom + ...        atom: a loop variable, or what is not linear, as an i64 value

The algebra is that of core.algebra; a value is one object wherever it is seen (Function.pure), so it can be an atom.
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
from renorm.core.algebra import Algebra
from renorm.core.linear import Form
from renorm.core.spans import EVERYTHING, Span, decided, either, span_of
from renorm.expr.linear import INDEX_TYPES
from renorm.expr.nodes import Binary, Broadcast, Call, Cast, Const, Expr, Ramp, Select, Var
from renorm.expr.rewrite import children


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


class Indices(Algebra[Value]):
    """Linear forms of integer expressions, over values of type i64. leaf: emits what is no index arithmetic. bindings:
    what variables stand for."""

    def __init__(self, function: Function, leaf: Callable[[Expr], Value]):
        self._f = function
        self._leaf = leaf
        self.bindings: dict[Var, Form[Value]] = {}
        self._spans: dict[Value, Span] = {}
        self._divisions: dict[Value, tuple[str, Form[Value], Form[Value]]] = {}  # of quotients and remainders: op, x, c

    def form_of(self, value: Value, span: Span = EVERYTHING) -> Form[Value]:
        """The form of a value that lies within the span."""
        if value.number is not None:
            return Form({}, int(value.number))
        low, high = self._spans.get(value, EVERYTHING)
        self._spans[value] = max(low, span[0]), min(high, span[1])
        return Form({value: 1})

    def form_span(self, form: Form[Value]) -> Span:
        return form.span(self._spans.__getitem__)

    def divisor(self, atom: Value, op: str) -> Form[Value] | None:
        found = self._divisions.get(atom)
        return found[2] if found and found[0] == op else None

    def dividend(self, atom: Value) -> Form[Value]:
        return self._divisions[atom][1]

    def atom(self, op: str, a: Form[Value], b: Form[Value]) -> Form[Value]:
        if op in ("min", "max"):
            return self._computed(op, a, b)
        # of terms that are not negative, where it can be: those divide without signs
        quotient, rest = a.reduced(b.constant)
        bucket = self.bucket(rest, b)
        if bucket is not None:
            return quotient.offset(bucket) if op == "//" else rest.plus(b, -bucket)
        found = self._computed(op, rest, b)
        value = found.single()
        if value is not None:
            self._divisions[value] = op, rest, b
        return quotient + found if op == "//" else found

    def _computed(self, op: str, a: Form[Value], b: Form[Value]) -> Form[Value]:
        """a op b as an instruction, or a few of them."""
        f, span, by = self._f, self.form_span(a), self.form_span(b)
        unsigned = span[0] >= 0 and by[0] > 0
        if op in ("//", "%") and unsigned and b.number is None:
            # LLVM leaves a division by what it does not know in its branch, and so in the loops around
            with f.early():
                value = integers.floored(f, self.value(a), self.value(b), remainder=op == "%", unsigned=True)
            return self.form_of(value, span_of(op, span, by))
        x, y = self.value(a), self.value(b)
        match op:
            case "*":
                value = f.op("mul nsw", x, y)
            case "min" | "max":
                value = f.intrinsic(f"s{op}", x, y)
            case "/":
                value = integers.truncated(f, x, y, remainder=False, unsigned=unsigned)
            case _:
                value = integers.floored(f, x, y, remainder=op == "%", unsigned=unsigned)
        return self.form_of(value, span_of(op, span, by))

    # expressions to forms --------------------------------------------------------------------------------------------

    def linear(self, e: Expr, lane: int = 0) -> Form[Value]:
        """The form of lane `lane` of `e`."""
        match e:
            case Const():
                return Form({}, int(e.value))
            case Var() if e in self.bindings:
                return self.bindings[e]
            case Ramp():
                return self.linear(e.base).plus(self.linear(e.stride), lane)
            case Broadcast():
                return self.linear(e.value)
            case Binary(op="+" | "-" | "*" | "//" | "%" | "/" | "min" | "max") if e.dtype in INDEX_TYPES:
                a, b = self.linear(e.a, lane), self.linear(e.b, lane)
                form = self.applied(e.op, a, b)
                if form is None:
                    return self._computed(e.op, a, b)
                return self.rejoined(form) if e.op in "+-" and self._divisions else form
            case Cast() if e.a.dtype == "int32" and e.dtype == "int64":
                return self.linear(e.a, lane)
            case Call(name="likely"):
                return self.linear(e.args[0], lane)
            case Select() if e.lanes == 1:
                return self._choose(self._leaf(e.condition), self.linear(e.then), self.linear(e.otherwise))
            case _:
                value = self._f.extract(self._leaf(e), lane)
                widen = "zext" if dtypes.lookup(e.dtype).kind in ("uint", "bool") else "sext"
                return self.form_of(self._f.convert(widen, value, "i64"))

    def _choose(self, condition: Value, a: Form[Value], b: Form[Value]) -> Form[Value]:
        if condition.number is not None:
            return a if condition.number else b
        value = self._f.select(condition, self.value(a), self.value(b))
        return self.form_of(value, either(self.form_span(a), self.form_span(b)))

    # forms to values -------------------------------------------------------------------------------------------------

    def _by_depth(self, form: Form[Value]) -> list[tuple[Value, int]]:
        return sorted(form.terms.items(), key=lambda term: term[0].depth)  # stable: program order within a depth

    def value(self, form: Form[Value]) -> Value:
        total: Value | None = None
        for atom, k in self._by_depth(form):
            term = atom if k == 1 else self._f.op("mul nsw", atom, constant(I64, k))
            total = term if total is None else self._f.op("add nsw", total, term)
        if total is None:
            return constant(I64, form.constant)
        return total if form.constant == 0 else self._f.op("add nsw", total, constant(I64, form.constant))

    def address(self, pointer: Value, element: str, form: Form[Value]) -> Value:
        """pointer + form elements, with the invariant part outside the loops that do not change it."""
        terms = self._by_depth(form) if len(form.terms) > 1 else list(form.terms.items())
        start = 0
        while start < len(terms):
            stop = start
            while stop < len(terms) and terms[stop][0].depth == terms[start][0].depth:
                stop += 1
            pointer = self._f.offset(pointer, element, self.value(Form(dict(terms[start:stop]))))
            start = stop
        return self._f.offset(pointer, element, constant(I64, form.constant))

    def affine(self, e: Expr) -> tuple[Form[Value], int] | None:
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
            steps.add(following.constant - previous.constant)
            if len(steps) > 1:
                return None
            previous = following
        return first, steps.pop() if steps else 0

    def truth(self, op: str, a: Form[Value], b: Form[Value]) -> bool | None:
        """Return whether `a op b` holds, where the ranges tell."""
        return decided(op, self.form_span(a - b))
