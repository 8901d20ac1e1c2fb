"""The rules of simplification: for each kind of node, functions tried in order, whose docstrings state their algebra.

A rule takes the Simplifier and a node whose children are simple and interned (equal children are one object), and
returns what the node becomes, or None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm.core import dtypes
from renorm.core.conversion import wrapped
from renorm.core.spans import EVERYTHING, NEGATED, span_of
from renorm.expr.linear import INDEX_TYPES, Linear, is_of_extents
from renorm.expr.nodes import (
    COMPARISONS,
    OPERATIONS,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Ramp,
    Select,
    call,
    fold_integers,
)
from renorm.expr.rewrite import children, rebuild, without_lanes

if TYPE_CHECKING:
    from renorm.expr.simplify import Simplifier

Rule = Callable[["Simplifier", Any], "Expr | None"]

LARGEST_POWER = 16  # x**n with n up to this is multiplied out


# ---- constants


def fold_constants(s: Simplifier, e: Binary) -> Expr | None:
    """c1 op c2 -> c, rounded or wrapped as the type does; integers that divide by zero stay."""
    if type(e.a) is not Const or type(e.b) is not Const:
        return None
    a, b, dtype = e.a.value, e.b.value, e.a.dtype
    if dtypes.is_float(dtype):
        return _fold_floats(s, e.op, float(a), float(b), dtype)
    if dtype == "bool":
        logic = {"&&": a and b, "||": a or b, "==": a == b, "!=": a != b}
        return s.constant(logic[e.op], "bool") if e.op in logic else None
    if e.op == "pow" and (b < 0 or abs(a) ** min(int(b), 64) >= 2**63):
        return None
    value = fold_integers(e.op, int(a), int(b))
    if value is None:
        return None
    return s.constant(value if e.dtype == "bool" else _wrapped(int(value), dtype), e.dtype)


def _wrapped(value: int, dtype: str) -> int:
    """`value` in a type that wraps; index types hold what they are given, because index arithmetic is wide."""
    kind = dtypes.lookup(dtype)
    if kind.bits >= 32 and kind.kind == "int":
        return value
    return wrapped(value, dtype)


def _fold_floats(s: Simplifier, op: str, a: float, b: float, dtype: str) -> Expr | None:
    if dtype not in ("float32", "float64"):
        return None  # 16-bit types compute in float32: their constants need not be values of the type
    number = np.float32 if dtype == "float32" else np.float64
    with np.errstate(all="ignore"):
        x, y = number(a), number(b)
        if op in ("+", "-", "*", "/"):
            return s.constant(float(x / y if op == "/" else OPERATIONS[op](x, y)), dtype)
        if op in ("min", "max") and not (np.isnan(x) or np.isnan(y) or x == y):
            return s.constant(float(OPERATIONS[op](x, y)), dtype)
        return s.constant(bool(OPERATIONS[op](x, y)), "bool") if op in COMPARISONS else None


def _is_number(e: Expr, value: float) -> bool:
    """Return whether e is `value` (in all lanes); 0.0 and -0.0 count as equal."""
    e = without_lanes(e)
    return type(e) is Const and e.dtype != "bool" and e.value == value


def _is_negative_zero(e: Expr) -> bool:
    e = without_lanes(e)
    return type(e) is Const and dtypes.is_float(e.dtype) and repr(e.value) == "-0.0"


def never_negative_zero(e: Expr) -> bool:
    """Return whether a float expression is known not to be -0.0."""
    match e:
        case Const():
            return repr(e.value) != "-0.0"
        case Cast(a=a):
            return not dtypes.is_float(a.dtype) or never_negative_zero(a)
        case Call(name=name):
            return name in ("abs", "exp", "sigmoid", "acos", "cosh")
        case Binary(op="+", a=a, b=b):
            # a sum is -0.0 only where both terms are
            return never_negative_zero(a) or never_negative_zero(b)
        case Binary(op="*", a=a, b=b):
            return a is b
        case Broadcast(value=value):
            return never_negative_zero(value)
        case _:
            return False


# ---- arithmetic


def add_zero(s: Simplifier, e: Binary) -> Expr | None:
    """x + 0 -> x, 0 + x -> x, x - 0 -> x; for floats where that keeps the sign of zero."""
    for x, zero in ((e.a, e.b), (e.b, e.a)):
        if not _is_number(zero, 0):
            continue
        if e.op == "-":
            safe = zero is e.b and not _is_negative_zero(zero)
        else:
            safe = _is_negative_zero(zero)
        if (safe or not dtypes.is_float(e.dtype) or never_negative_zero(x)) and (e.op == "+" or zero is e.b):
            return x
    return None


def multiply_one(s: Simplifier, e: Binary) -> Expr | None:
    """x*1 -> x, 1*x -> x; for integers x*0 -> 0."""
    for x, k in ((e.a, e.b), (e.b, e.a)):
        if _is_number(k, 1):
            return x
        if not dtypes.is_float(e.dtype) and _is_number(k, 0):
            return k
    return None


def divide_one(s: Simplifier, e: Binary) -> Expr | None:
    """x/1 -> x, and x//1 -> x for integers."""
    return e.a if _is_number(e.b, 1) and (e.op == "/" or not dtypes.is_float(e.dtype)) else None


def index_division(s: Simplifier, e: Binary) -> Expr | None:
    """x // c, x % c, and x / c where it is x // c, by the rules of core.algebra: (c*q + r) // c -> q + r // c, ... c: a
    number, or open."""
    if not s.is_index(e.a):
        return None
    by = Linear({}, int(e.b.value)) if type(e.b) is Const else s.form(e.b)
    form = s.applied(e.op, s.form(e.a), by) if is_of_extents(by) else None
    return None if form is None else s.expression(form, e.dtype)


def small_power(s: Simplifier, e: Binary) -> Expr | None:
    """pow(x, n) -> 1, x, x*x, x*x*x, ... for a constant integer n up to LARGEST_POWER; pow(x, -1) -> 1/x for floats."""
    exponent_of = without_lanes(e.b)
    if type(exponent_of) is not Const or not np.isfinite(n := exponent_of.value) or n != int(n):
        return None
    if n == -1 and dtypes.is_float(e.dtype):
        return Binary("/", _like(1, e.a), e.a)
    if not 0 <= n <= LARGEST_POWER:
        return None
    if n == 0:
        return _like(1, e.a)
    power: Expr | None = None
    square = e.a
    exponent = int(n)
    while True:  # by repeated squaring, the factors in the order of the bits of n
        if exponent & 1:
            power = square if power is None else Binary("*", power, square)
        exponent >>= 1
        if not exponent:
            return power
        square = Binary("*", square, square)


def _like(value: float, e: Expr) -> Expr:
    """The constant in the type and lanes of e."""
    scalar = Const(value, e.dtype)
    return scalar if e.lanes == 1 else Broadcast(scalar, e.lanes)


def least_or_greatest(s: Simplifier, e: Binary) -> Expr | None:
    """min(x, y) -> x where x <= y is known; min(min(x, c1), c2) -> min(x, min(c1, c2)); max likewise."""
    if e.a is e.b:
        return e.a
    low, high = EVERYTHING
    if s.is_index(e.a) and s.is_index(e.b):
        low, high = s.form_span(s.form(e.a) - s.form(e.b))
    elif e.lanes > 1 and e.dtype in INDEX_TYPES and not s.reads(e):
        low, high = span_of("-", s.span(e.a), s.span(e.b))
    if high <= 0:
        return e.a if e.op == "min" else e.b
    if low >= 0:
        return e.b if e.op == "min" else e.a
    match e.a, e.b:
        case Binary(op=op, a=x, b=Const(value=c)), Const(value=d) if op == e.op and not dtypes.is_float(e.dtype):
            return Binary(op, x, s.constant((min if op == "min" else max)(c, d), e.dtype))
        case _:
            return None


# ---- conditions


def compare_integers(s: Simplifier, e: Binary) -> Expr | None:
    """x < y -> true or false where bounds decide; g*x + r < g*y -> x < y for 0 <= r < g; terms to one side each."""
    if e.a is e.b and not dtypes.is_float(e.a.dtype):
        return s.constant(e.op in ("==", "<=", ">="), "bool")
    if e.a.lanes > 1:
        low, high = s.span(e)
        return _truth_like(bool(low), e) if low == high else None
    if not (s.is_index(e.a) and s.is_index(e.b)):
        return None
    low, high = s.span(e)
    if low == high:
        return s.constant(bool(low), "bool")
    form = s.form(e.a) - s.form(e.b)
    if e.op in ("==", "!="):
        return _equality(s, e, form)
    if e.op in (">", ">="):
        form = -form
    if e.op in ("<=", ">="):
        form = form.offset(-1)
    return _negative(s, _divided_inequality(s, form), e.a.dtype)


def _divided_inequality(s: Simplifier, form: Linear) -> Linear:
    """The simplest form that is negative exactly where `form` is."""
    while coarse := s.coarsened(form, Linear({})):
        form = coarse[1]
    return form.divided(form.content() or 1)


def _sides(form: Linear) -> tuple[Linear, Linear]:
    """form = left - right, with positive coefficients only and no constant."""
    left = Linear({x: k for x, k in form.terms.items() if k > 0})
    right = Linear({x: -k for x, k in form.terms.items() if k < 0})
    return left, right


def _negative(s: Simplifier, form: Linear, dtype: str) -> Expr:
    """form < 0, as a reader would write it."""
    left, right = _sides(form)
    c = form.constant
    if not left.terms:  # -x + c < 0
        return s.intern(Binary(">=", s.expression(right, dtype), s.constant(c + 1, dtype)))
    op = "<"
    if right.terms and c == -1:  # x - y - 1 < 0
        op, c = "<=", 0
    return _compared(s, op, left, right, c, dtype)


def _equality(s: Simplifier, e: Binary, form: Linear) -> Expr | None:
    g = form.content()
    if g > 1:
        if form.constant % g:
            return s.constant(e.op == "!=", "bool")
        form = form.divided(g)
    left, right = _sides(form)
    if not left.terms:
        left, right, form = right, left, -form
    return _compared(s, e.op, left, right, form.constant, e.a.dtype)


def _compared(s: Simplifier, op: str, left: Linear, right: Linear, c: int, dtype: str) -> Expr:
    """left + c op right, the constant where it is positive."""
    if right.terms and c > 0:
        left = left.offset(c)
    else:
        right = right.offset(-c)
    return s.intern(Binary(op, s.expression(left, dtype), s.expression(right, dtype)))


def logic(s: Simplifier, e: Binary) -> Expr | None:
    """true && x -> x, false && x -> false, x && x -> x, x && !x -> false; || likewise."""
    deciding = e.op == "||"
    for x, y in ((e.a, e.b), (e.b, e.a)):
        if _is_truth(x, deciding):
            return x
        if _is_truth(x, not deciding):
            return y
        if type(y) is Not and y.a is x:
            return _truth_like(deciding, e)
    if e.a is e.b:
        return e.a
    return None


def _is_truth(e: Expr, value: bool) -> bool:
    e = without_lanes(e)
    return type(e) is Const and e.dtype == "bool" and e.value is value


def _truth_like(value: bool, e: Expr) -> Expr:
    scalar = Const(value, "bool")
    return scalar if e.lanes == 1 else Broadcast(scalar, e.lanes)


def negation(s: Simplifier, e: Not) -> Expr | None:
    """!true -> false, !!x -> x, !(x < y) -> x >= y for integers (for floats only == and !=: NaN)."""
    match e.a:
        case Const(value=value):
            return s.constant(not value, "bool")
        case Not(a=a):
            return a
        case Binary(op=op, a=a, b=b) if op in COMPARISONS and (op in ("==", "!=") or not dtypes.is_float(a.dtype)):
            return Binary(NEGATED[op], a, b)
        case _:
            return None


def choice(s: Simplifier, e: Select | Call) -> Expr | None:
    """select(true, x, y) -> x, select(false, x, y) -> y, select(c, x, x) -> x; if_then_else likewise."""
    condition, then, otherwise = children(e)
    while type(condition) is Call and condition.name == "likely":
        condition = condition.args[0]
    if _is_truth(condition, True) or then is otherwise:
        return then
    return otherwise if _is_truth(condition, False) else None


def likely_constant(s: Simplifier, e: Call) -> Expr | None:
    """likely(true) -> true, likely(false) -> false."""
    return e.args[0] if type(e.args[0]) is Const else None


# ---- types, intrinsics, accesses


def remainder(s: Simplifier, e: Call) -> Expr | None:
    """fmod(c1, c2) -> c of integers, and fmod(x, y) -> x % y of index arithmetic that is not negative."""
    a, b = e.args
    if type(a) is Const and type(b) is Const and dtypes.is_int(e.dtype):
        return call("fmod", a, b)
    if s.is_index(a) and s.is_index(b) and s.span(a)[0] >= 0 and s.span(b)[0] > 0:
        return Binary("%", a, b)
    return None


def double_cast(s: Simplifier, e: Cast) -> Expr | None:
    """cast(T, x) -> x and cast(T, cast(U, x)) -> cast(T, x) for x of a type that U and T hold all of; constants
    fold."""
    if e.a.dtype == e.dtype:
        return e.a
    if type(e.a) is Const:
        value = e.a.value
        if not dtypes.is_float(e.a.dtype):
            return Const(_wrapped(int(value), e.dtype) if dtypes.is_int(e.dtype) else value, e.dtype)
        if dtypes.is_float(e.dtype) and e.a.dtype == "float32" and e.dtype == "float64":
            return Const(float(np.float32(value)), e.dtype)
        return None
    if type(e.a) is Cast and _holds(e.a.dtype, e.a.a.dtype):
        inner = e.a.a
        if inner.dtype == e.dtype:
            return inner
        if _holds(e.dtype, inner.dtype) and not dtypes.is_stored(inner.dtype):
            return Cast(e.dtype, inner)
    return None


def _holds(wide: str, narrow: str) -> bool:
    """Return whether every value of `narrow` is a value of `wide`."""
    w, n = dtypes.lookup(wide), dtypes.lookup(narrow)
    if dtypes.is_stored(wide):  # of as many bits, but other numbers
        return False
    if w.kind == n.kind == "float" and not dtypes.is_stored(narrow):
        return all(f(wide) <= f(narrow) for f in (dtypes.unit_roundoff, dtypes.smallest_number))
    if w.kind == n.kind:
        return w.bits >= n.bits
    if n.kind == "bool":
        return True
    if w.kind == "int" and n.kind == "uint":
        return w.bits > n.bits
    # 53 bits of significand in float64, 24 in float32
    return w.kind == "float" and n.kind in ("int", "uint") and n.bits <= {"float64": 32, "float32": 16}.get(wide, 8)


_EXACT_CALLS: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
}


def fold_exact_call(s: Simplifier, e: Call) -> Expr | None:
    """sqrt(c), abs(c), floor(c), ceil(c), trunc(c) -> constants: these are correctly rounded everywhere."""
    x = e.args[0]
    if type(x) is not Const or x.dtype not in ("float32", "float64"):
        return None
    number = np.float32 if x.dtype == "float32" else np.float64
    with np.errstate(all="ignore"):
        return Const(float(_EXACT_CALLS[e.name](number(x.value))), x.dtype)


def constant_predicate(s: Simplifier, e: Load) -> Expr | None:
    """A[i if true] -> A[i], A[i if false] -> 0, A[xn(i)] -> xn(A[i])."""
    if e.predicate is not None:
        if _is_truth(e.predicate, True):
            return Load(e.source, e.indices)
        if _is_truth(e.predicate, False):
            zero = Const(0, e.dtype)
            return zero if e.lanes == 1 else Broadcast(zero, e.lanes)
        return None
    if e.lanes > 1 and all(type(i) is Broadcast for i in e.indices):
        return Broadcast(Load(e.source, [i.value for i in e.indices if type(i) is Broadcast]), e.lanes)
    return None


# ---- vectors


def ramp_of_nothing(s: Simplifier, e: Ramp) -> Expr | None:
    """ramp(x, 0, n) -> xn(x), ramp(x, k, 1) -> x."""
    if e.lanes == 1:
        return e.base
    return Broadcast(e.base, e.lanes) if _is_number(e.stride, 0) else None


def broadcast_of_one(s: Simplifier, e: Broadcast) -> Expr | None:
    """x1(x) -> x."""
    return e.value if e.lanes == 1 else None


def lift_broadcast(s: Simplifier, e: Expr) -> Expr | None:
    """f(xn(a), xn(b)) -> xn(f(a, b))."""
    if e.lanes == 1:
        return None
    parts = children(e)
    if not all(type(p) is Broadcast for p in parts):
        return None
    return Broadcast(rebuild(e, tuple(p.value for p in parts if type(p) is Broadcast)), e.lanes)


def move_ramp(s: Simplifier, e: Binary) -> Expr | None:
    """ramp(x, k, n) + xn(y) -> ramp(x + y, k, n), ramp(x, k, n)*xn(c) -> ramp(x*c, k*c, n); sums of ramps."""
    if e.lanes == 1 or not all(type(p) in (Ramp, Broadcast) for p in (e.a, e.b)):
        return None
    (base_a, stride_a), (base_b, stride_b) = _ramp_parts(s, e.a), _ramp_parts(s, e.b)
    if e.op in ("+", "-"):
        return Ramp(Binary(e.op, base_a, base_b), Binary(e.op, stride_a, stride_b), e.lanes)
    if type(e.b) is Broadcast:
        return Ramp(Binary("*", base_a, base_b), Binary("*", stride_a, base_b), e.lanes)
    if type(e.a) is Broadcast:
        return Ramp(Binary("*", base_a, base_b), Binary("*", base_a, stride_b), e.lanes)
    return None


def _ramp_parts(s: Simplifier, e: Expr) -> tuple[Expr, Expr]:
    if type(e) is Ramp:
        return e.base, e.stride
    assert type(e) is Broadcast
    return e.value, s.constant(0, e.dtype)


_COMPARISON: tuple[Rule, ...] = (fold_constants, compare_integers, lift_broadcast)

RULES: dict[str, tuple[Rule, ...]] = {
    "+": (fold_constants, add_zero, lift_broadcast, move_ramp),
    "-": (fold_constants, add_zero, lift_broadcast, move_ramp),
    "*": (fold_constants, multiply_one, lift_broadcast, move_ramp),
    "/": (fold_constants, divide_one, index_division, lift_broadcast),
    "//": (fold_constants, divide_one, index_division, lift_broadcast),
    "%": (fold_constants, index_division, lift_broadcast),
    "pow": (fold_constants, small_power, lift_broadcast),
    "min": (fold_constants, least_or_greatest, lift_broadcast),
    "max": (fold_constants, least_or_greatest, lift_broadcast),
    **dict.fromkeys(sorted(COMPARISONS), _COMPARISON),
    "&&": (fold_constants, logic, lift_broadcast),
    "||": (fold_constants, logic, lift_broadcast),
    "Not": (negation, lift_broadcast),
    "Select": (choice, lift_broadcast),
    "if_then_else": (choice,),
    "likely": (likely_constant,),
    "Cast": (double_cast, lift_broadcast),
    **dict.fromkeys(_EXACT_CALLS, (fold_exact_call, lift_broadcast)),
    "fmod": (remainder, lift_broadcast),
    "Load": (constant_predicate,),
    "Ramp": (ramp_of_nothing,),
    "Broadcast": (broadcast_of_one,),
}
