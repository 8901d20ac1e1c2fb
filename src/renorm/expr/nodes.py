"""Scalar expressions, the leaves of both tensor expressions and loops.

    e ::= x                          Var: a loop variable or a let-bound scalar; compared by identity
        | 3 | 1e-05f | true          Const
        | e op e                     Binary: + - * / // % min max pow, == != < <= > >=, && ||
        | !e                         Not
        | select(e, e, e)            Select: both sides may be evaluated
        | float32(e)                 Cast: a dtype as a function
        | exp(e) | if_then_else(...) Call: a name of INTRINSICS
        | A[e, ...]                  Load: from a tensor (te, one index per axis) or a buffer (loops, one flat index)
        | sum(e, axis=[k, ...])      Reduce: only at the root of a te compute
        | ramp(e, k, n)              Ramp: the vector e, e+k, ..., e+k*(n-1)
        | xn(e)                      Broadcast: n copies of a scalar

`/` of integers truncates toward zero as in C; `//` and `%` floor, and are what index arithmetic uses; by zero all three
give 0, as NumPy does. `round` goes to even. `if_then_else` evaluates one side only: the other may hold an access
outside its buffer; `select` may evaluate both. Integer arithmetic of indices never wraps: code generation widens it to
64 bits. All nodes are immutable. Python operators build nodes, `==` too: nodes hash by identity, and `rewrite.same`
compares structure.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from typing import Any, Protocol, Union

import numpy as np

from renorm.core import dtypes
from renorm.core.conversion import converted, limits, truncated, wrapped
from renorm.core.errors import InvalidExpression, suggest
from renorm.core.spans import Span
from renorm.expr.operators import Operators

Scalar = int | float | bool
ExprLike = Union["Expr", int, float, bool]

# name -> number of arguments. All but those of PREDICATES return the type of their first argument.
INTRINSICS = {
    "exp": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "tanh": 1, "sigmoid": 1, "erf": 1, "abs": 1,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1, "sinh": 1, "cosh": 1, "asinh": 1, "acosh": 1,
    "atanh": 1,
    "floor": 1, "ceil": 1, "trunc": 1, "round": 1, "sign": 1, "isnan": 1, "isinf": 1, "likely": 1,
    "fma": 3, "if_then_else": 3, "fmod": 2, "popcount": 1, "bitcast": 1,
    "bitwise_and": 2, "bitwise_or": 2, "bitwise_xor": 2, "shift_left": 2, "shift_right": 2,
}  # fmt: skip
# A shift by a negative number, or by as many bits as there are, gives what the sign alone does: 0, or -1 to the right.
OF_BITS = frozenset({"popcount", "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"})
PREDICATES = frozenset({"isnan", "isinf"})
BITCAST = {"float32": "int32", "float64": "int64", "int32": "float32", "int64": "float64"}  # as what bits are read

INDEX_TYPES = ("int32", "int64")  # the types of index arithmetic, which never wraps
ARITHMETIC = frozenset({"+", "-", "*", "/", "//", "%", "min", "max", "pow"})
COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
LOGICAL = frozenset({"&&", "||"})


class Source(Protocol):
    """The source of a read: a te Tensor, or a buffer of the loop IR."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...


class Expr(Operators):
    """Base of scalar expressions. dtype: element type; lanes: 1, or the number of vector elements. is_open: whether it
    is arithmetic with open extents in it."""

    __slots__ = ("dtype", "lanes")
    dtype: str
    lanes: int
    is_open: bool = False

    def _infix(self, op: str, a: Any, b: Any) -> Any:
        return infix(op, a, b)

    def __neg__(self) -> Expr:
        return (
            binary("-", const(0, self.dtype), self)
            if not dtypes.is_float(self.dtype)
            else binary("*", self, const(-1.0, self.dtype))
        )

    def __eq__(self, other: Any) -> Any:
        return infix("==", self, other)

    def __ne__(self, other: Any) -> Any:
        return infix("!=", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        known = _decider(self)
        if known is not None:
            return known
        raise InvalidExpression(
            f"the truth of the expression {self} is not known while the program is built",
            do="use te.if_then_else, te.all or te.any instead of if, and, or",
        )

    def __index__(self) -> int:
        raise InvalidExpression(
            f"the value of the expression {self} is not known while the program is built",
            do="use a known extent here, or te.compute",
        )

    def equal(self, other: Any) -> Expr:
        return infix("==", self, other)

    def astype(self, dtype: str) -> Expr:
        return cast(dtype, self)

    def __str__(self) -> str:
        return _printer(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


_printer: Callable[[Expr], str] = object.__repr__  # set by expr.text, which imports this module


def set_printer(printer: Callable[[Expr], str]) -> None:
    """Called once, by expr.text: str(expression) prints through it."""
    global _printer
    _printer = printer


def _undecided(_: Expr) -> bool | None:
    return None


_decider: Callable[[Expr], bool | None] = _undecided  # set by expr.bounds, which imports this module


def set_decider(decider: Callable[[Expr], bool | None]) -> None:
    """Called once, by expr.bounds: where an expression of open extents has one truth, bool(expression) is that."""
    global _decider
    _decider = decider


class Var(Expr):
    __slots__ = ("name",)

    def __init__(self, name: str, dtype: str = "int32", lanes: int = 1):
        self.name, self.dtype, self.lanes = name, dtypes.lookup(dtype).name, lanes


class OpenVar(Var):
    """An integer that is known when the function is called (te.open): an open extent, or a number in a body.

    low, high: least and greatest value, None where nobody knows. definition: what it is in terms of other open
    variables; None of what the caller gives. typical: a value for estimates of time, which decide no result. order: of
    making, in which the factors of a product stand.
    """

    is_open = True
    __slots__ = ("definition", "high", "low", "order", "typical")
    _made = count()

    def __init__(
        self,
        name: str,
        dtype: str = "int32",
        low: int | None = None,
        high: int | None = None,
        definition: Expr | None = None,
        typical: int = 64,
    ):
        super().__init__(name, dtype)
        self.typical = typical
        self.low, self.high, self.definition, self.order = low, high, definition, next(OpenVar._made)

    @property
    def span(self) -> Span:
        """Least and greatest value, infinite where nobody knows."""
        return -inf if self.low is None else self.low, inf if self.high is None else self.high


class Const(Expr):
    __slots__ = ("value",)
    value: Scalar

    def __init__(self, value: Scalar, dtype: str):
        self.dtype, self.lanes = dtypes.lookup(dtype).name, 1
        kind = dtypes.lookup(dtype).kind
        self.value = float(value) if kind == "float" else bool(value) if kind == "bool" else int(value)
        if self.dtype in dtypes.FORMATS or self.dtype == "tf32":  # what is written is what there is
            self.value = float(converted(np.asarray(self.value), self.dtype))


class Binary(Expr):
    """Operands have equal dtype and lanes; comparisons and logic give bool. factors: of a product with open extents,
    from when expr.linear has been asked for them on."""

    __slots__ = ("a", "b", "factors", "is_open", "op")

    def __init__(self, op: str, a: Expr, b: Expr):
        self.factors: tuple[Expr, ...] = ()
        self.op, self.a, self.b, self.lanes, self.is_open = op, a, b, a.lanes, a.is_open or b.is_open
        self.dtype = a.dtype if op in ARITHMETIC else "bool"


class Not(Expr):
    __slots__ = ("a",)

    def __init__(self, a: Expr):
        self.a, self.dtype, self.lanes = a, "bool", a.lanes


class Select(Expr):
    __slots__ = ("condition", "otherwise", "then")

    def __init__(self, condition: Expr, then: Expr, otherwise: Expr):
        self.condition, self.then, self.otherwise = condition, then, otherwise
        self.dtype, self.lanes = then.dtype, then.lanes


class Cast(Expr):
    """Float to int truncates toward zero; to bool is `!= 0`; float64 to float32 and to 16 bits rounds to nearest
    even.
    """

    __slots__ = ("a", "is_open")

    def __init__(self, dtype: str, a: Expr):
        self.a, self.dtype, self.lanes, self.is_open = a, dtypes.lookup(dtype).name, a.lanes, a.is_open


class Call(Expr):
    __slots__ = ("args", "name")

    def __init__(self, name: str, args: Sequence[Expr]):
        if name not in INTRINSICS:
            raise InvalidExpression(f"{name!r} is not an intrinsic", [f"nearest: {suggest(name, INTRINSICS)}"])
        if len(args) != INTRINSICS[name]:
            raise InvalidExpression(f"{name} takes {INTRINSICS[name]} arguments, not {len(args)}")
        self.name, self.args = name, tuple(args)
        typed = args[1] if name == "if_then_else" else args[0]
        if name == "bitcast" and typed.dtype not in BITCAST:
            raise InvalidExpression(f"the bits of {typed.dtype} are not read", [f"known: {', '.join(BITCAST)}"])
        self.dtype = "bool" if name in PREDICATES else BITCAST[typed.dtype] if name == "bitcast" else typed.dtype
        self.lanes = max(a.lanes for a in args)


class Load(Expr):
    """A read of one element (or of a vector of elements, where an index is a Ramp).

    predicate: bool, lanes of the index; elements where it is false are not read and count as 0.
    """

    __slots__ = ("indices", "predicate", "source")

    def __init__(self, source: Source, indices: Sequence[Expr], predicate: Expr | None = None):
        self.source, self.indices, self.predicate = source, tuple(indices), predicate
        self.dtype, self.lanes = source.dtype, max((i.lanes for i in indices), default=1)


class Reduce(Expr):
    """A reduction over `axes` (te.IterVar); the whole body of a compute, never inside another expression.

    combiner: "sum", "prod", "max", "min". init: value to start from, None for the identity.
    condition: elements where it is false are left out.
    """

    __slots__ = ("axes", "combiner", "condition", "init", "value")

    def __init__(
        self, combiner: str, value: Expr, axes: Sequence[Any], condition: Expr | None = None, init: Expr | None = None
    ):
        self.combiner, self.value, self.axes = combiner, value, tuple(axes)
        self.condition, self.init = condition, init
        self.dtype, self.lanes = value.dtype, 1


class Ramp(Expr):
    __slots__ = ("base", "stride")

    def __init__(self, base: Expr, stride: Expr, lanes: int):
        self.base, self.stride, self.dtype, self.lanes = base, stride, base.dtype, lanes


class Broadcast(Expr):
    __slots__ = ("value",)

    def __init__(self, value: Expr, lanes: int):
        self.value, self.dtype, self.lanes = value, value.dtype, lanes


def const(value: Scalar | np.generic, dtype: str | None = None) -> Const:
    """A constant; without dtype: int32 (int64 where it does not fit), float32, bool."""
    if isinstance(value, np.generic):
        return const(value.item(), dtype or dtypes.from_numpy(value.dtype))
    if dtype is None:
        if isinstance(value, bool):
            dtype = "bool"
        elif isinstance(value, int):
            dtype = "int32" if -(2**31) <= value < 2**31 else "int64"
        else:
            dtype = "float32"
    is_number = isinstance(value, (int, float))
    if not is_number or (dtypes.is_int(dtype) and not (abs(value) < inf and wrapped(int(value), dtype) == value)):
        raise InvalidExpression(f"{type(value).__name__} {value!r} is no constant of {dtype}")
    try:
        return Const(value, dtype)
    except OverflowError:
        raise InvalidExpression(f"an int of {int(value).bit_length()} bits is no constant of {dtype}") from None


def as_expr(value: Any, like: Expr | None = None) -> Expr:
    """`value` as an expression; a Python number takes the dtype of `like` when that can hold it."""
    if isinstance(value, Expr):
        return value
    if hasattr(value, "as_expr"):  # te.IterVar stands for its variable
        return value.as_expr()
    if isinstance(value, np.generic) and like is None:
        return const(value)
    if isinstance(value, (bool, int, float, np.generic)):
        number = value.item() if isinstance(value, np.generic) else value
        if like is None:
            return const(number)
        kind = dtypes.lookup(like.dtype).kind
        is_held = isinstance(number, int) and (like.dtype == "uint64" or wrapped(number, like.dtype) == number)
        if kind in ("int", "uint") and not is_held:
            return const(number)  # the caller's promotion makes the other side a float, or wider
        return const(number, like.dtype if kind != "bool" or isinstance(number, bool) else None)
    raise InvalidExpression(
        f"{type(value).__name__} {value!r} is not an expression", do="use numbers, variables, tensor elements"
    )


_RANK = {"bool": 0, "uint": 1, "int": 2, "float": 3}


def promote(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Both operands in the wider type: float over int over bool, more bits over fewer, of an int and a uint the int
    that holds both, and uint64 where none does; scalars spread to vectors."""
    if a.dtype != b.dtype:
        if dtypes.is_stored(a.dtype) or dtypes.is_stored(b.dtype):
            raise _not_computed(f"{a.dtype} beside {b.dtype}", a if dtypes.is_stored(a.dtype) else b)
        da, db = dtypes.lookup(a.dtype), dtypes.lookup(b.dtype)
        wider = max((da, db), key=lambda d: (_RANK[d.kind], d.bits)).name
        if {da.kind, db.kind} == {"int", "uint"}:
            bits = max(2 * d.bits if d.kind == "uint" else d.bits for d in (da, db))
            wider = f"int{bits}" if bits <= 64 else "uint64"
        a, b = cast(wider, a), cast(wider, b)
    if a.lanes != b.lanes:
        a = Broadcast(a, b.lanes) if a.lanes == 1 else a
        b = Broadcast(b, a.lanes) if b.lanes == 1 else b
        if a.lanes != b.lanes:
            raise InvalidExpression(f"vectors of {a.lanes} and {b.lanes} lanes do not combine")
    return a, b


def infix(op: str, a: Any, b: Any) -> Any:
    """Return a op b of what Python's operators stand between: expressions, axes and numbers."""
    for operand in (a, b):
        if not isinstance(operand, Expr) and hasattr(operand, "__tensor_operand__"):
            return NotImplemented  # te.Tensor broadcasts: its reflected operator takes over
    x = as_expr(a, like=b) if isinstance(b, Expr) else as_expr(a)
    y = as_expr(b, like=x)
    if op == "/":
        refuse_whole_quotient(x.dtype, y.dtype)
    return binary(op, x, y)


def refuse_whole_quotient(a: str, b: str) -> None:
    """Raise InvalidExpression where `/` stands between integers, whose quotient could be rounded in several ways."""
    if not dtypes.is_float(a) and not dtypes.is_float(b):
        raise InvalidExpression(
            f"{a} / {b} can be rounded in several ways",
            ["te.truncdiv rounds toward zero, as C; te.floordiv, or //, down, as Python"],
            "call one of them, or divide by a float for a quotient with a fraction",
        )


def binary(op: str, a: Expr, b: Expr) -> Expr:
    """a op b, with promotion; two integer constants fold at once, so that shapes stay readable."""
    if dtypes.is_stored(a.dtype) or dtypes.is_stored(b.dtype):
        raise _not_computed(op, a if dtypes.is_stored(a.dtype) else b)
    a, b = promote(cast("bool", a), cast("bool", b)) if op in LOGICAL else promote(a, b)
    if isinstance(a, Const) and isinstance(b, Const) and not dtypes.is_float(a.dtype) and a.dtype != "bool":
        folded = fold_integers(op, int(a.value), int(b.value))
        if folded is not None and op in ARITHMETIC:
            return Const(folded if holds(a.dtype, folded, folded) else wrapped(folded, a.dtype), a.dtype)
        if folded is not None:
            return Const(folded, "bool")
    return Binary(op, a, b)


def _not_computed(what: str, e: Expr) -> InvalidExpression:
    """Return the error of an operation on what is storage only."""
    wide = dtypes.compute_dtype(e.dtype)
    return InvalidExpression(f"{what}: {e.dtype} is storage only", do=f"cast it to {wide} first")


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "min": min, "max": max,
}  # fmt: skip


def fold_integers(op: str, a: int, b: int) -> int | bool | None:
    """a op b over Python integers; None where it has no value (division by zero) or is not integer arithmetic."""
    if op in ("/", "//", "%", "fmod") and b == 0:
        return None
    if op in ("/", "fmod"):
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if op == "/" else a - quotient * b
    if op == "pow":
        return None if b < 0 else a**b if b <= 64 or abs(a) <= 1 else pow(a, b, 1 << 64)  # beyond 64 bits it wraps
    return OPERATIONS[op](a, b) if op in OPERATIONS else None


def cast(dtype: str, a: Expr) -> Expr:
    """`a` as dtype; nothing where it has that type already, folded where it is a constant."""
    dtype = dtypes.lookup(dtype).name
    if a.dtype == dtype:
        return a
    if isinstance(a, Const):
        value = float(converted(np.asarray(a.value), a.dtype)) if isinstance(a.value, float) else a.value
        if dtypes.is_int(dtype):
            return Const(truncated(value, dtype) if isinstance(value, float) else wrapped(int(value), dtype), dtype)
        return Const(float(converted(np.asarray(value), dtype)) if dtypes.is_float(dtype) else value, dtype)
    return Cast(dtype, a)


def select(condition: ExprLike, then: ExprLike, otherwise: ExprLike) -> Expr:
    then_expr, otherwise_expr = _same_type(then, otherwise)
    return Select(cast("bool", as_expr(condition)), then_expr, otherwise_expr)


def if_then_else(condition: ExprLike, then: ExprLike, otherwise: ExprLike) -> Expr:
    then_expr, otherwise_expr = _same_type(then, otherwise)
    return Call("if_then_else", (cast("bool", as_expr(condition)), then_expr, otherwise_expr))


def _same_type(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    ea = as_expr(a, like=b if isinstance(b, Expr) else None)
    return promote(ea, as_expr(b, like=ea))


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    return binary("min", *_same_type(a, b))


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    return binary("max", *_same_type(a, b))


def call(name: str, *args: ExprLike) -> Expr:
    """An intrinsic; integer arguments of a transcendental function become float32."""
    exprs = [as_expr(a) for a in args]
    keeps_integers = {"abs", "sign", "likely", "floor", "ceil", "trunc", "round", "fmod", "bitcast", *OF_BITS}
    if exprs and dtypes.is_stored(exprs[0].dtype) and name != "likely":
        raise _not_computed(name, exprs[0])
    if name not in keeps_integers and name != "if_then_else":
        exprs = [cast("float32", e) if not dtypes.is_float(e.dtype) else e for e in exprs]
    if name in ("floor", "ceil", "trunc", "round", "isnan", "isinf") and not dtypes.is_float(exprs[0].dtype):
        return exprs[0] if name not in PREDICATES else const(False)
    match exprs:
        case [Const(value=a, dtype=dtype), Const(value=b)] if name == "fmod" and dtypes.is_int(dtype):
            return const(fold_integers(name, int(a), int(b)) or 0, dtype)  # 0 by zero
        case _:
            return Call(name, exprs)


def all_of(*conditions: ExprLike) -> Expr:
    """Conjunction; true when there are none."""
    return _fold_logic("&&", conditions, True)


def any_of(*conditions: ExprLike) -> Expr:
    """Disjunction; false when there are none."""
    return _fold_logic("||", conditions, False)


def _fold_logic(op: str, conditions: Sequence[ExprLike], empty: bool) -> Expr:
    if not conditions:
        return const(empty)
    result = cast("bool", as_expr(conditions[0]))
    for c in conditions[1:]:
        result = binary(op, result, as_expr(c))
    return result


def identity_element(combiner: str, dtype: str) -> Const:
    """Return the result of a reduction over nothing: 0, 1, the least or the greatest value of the type."""
    if combiner in ("sum", "prod"):
        return const(0 if combiner == "sum" else 1, dtype)
    if dtypes.is_float(dtype):
        return const(float("-inf") if combiner == "max" else float("inf"), dtype)
    least, greatest = integer_limits(dtype)
    return const(least if combiner == "max" else greatest, dtype)


def integer_limits(dtype: str) -> tuple[int, int]:
    """Least and greatest value of an integer or boolean dtype."""
    if dtype == "bool":
        return 0, 1
    return limits(dtype)


def holds(dtype: str, low: float, high: float) -> bool:
    """Return whether an integer dtype has all numbers from low to high. Those of indices have what 64 bits have, and
    what nobody knows the ends of: extents that are open."""
    is_of_indices = dtype in INDEX_TYPES
    least, most = integer_limits("int64" if is_of_indices else dtype)
    return all(least <= end <= most or (is_of_indices and abs(end) == inf) for end in (low, high))


# combiner of a reduction -> the operator of one step of it
COMBINERS = {"sum": "+", "prod": "*", "max": "max", "min": "min"}


def combine(combiner: str, a: Expr, b: Expr) -> Expr:
    """One step of a reduction."""
    return binary(COMBINERS[combiner], a, b)
