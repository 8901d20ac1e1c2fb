"""Linear forms (core.linear) of integer expressions, over what is not a sum in them.

Each atom is one object in all forms that meet (`one_of_each`, or an Algebra's `intern`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from renorm.core.linear import Form
from renorm.expr.nodes import Binary, Const, Expr, Var
from renorm.expr.rewrite import depends_on, key

INDEX_TYPES = ("int32", "int64")  # the types of index arithmetic, which never wraps

Intern = Callable[[Expr], Expr]

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


def expression(form: Linear, dtype: str, infix: Callable[[str, Expr, Expr], Expr] = Binary) -> Expr:
    """The form as an expression: terms in order, subtraction for negative coefficients, the constant last. infix: makes
    a op b."""
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
            result = atom if k == 1 else infix("*", atom, Const(k, dtype))
        else:
            size = atom if abs(k) == 1 else infix("*", atom, Const(abs(k), dtype))
            result = infix("+" if k > 0 else "-", result, size)
    if result is None:
        return Const(constant, dtype)
    if constant:
        result = infix("+" if constant > 0 else "-", result, Const(abs(constant), dtype))
    return result
