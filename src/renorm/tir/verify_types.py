"""Types and lanes of one statement, its expressions included."""

from __future__ import annotations

from collections.abc import Iterator

from renorm.core import dtypes
from renorm.expr.nodes import (
    ARITHMETIC,
    LOGICAL,
    PREDICATES,
    Binary,
    Broadcast,
    Call,
    Expr,
    Load,
    Not,
    Ramp,
    Reduce,
    Select,
)
from renorm.expr.rewrite import walk
from renorm.tir.nodes import Allocate, Buffer, For, If, Let, Prefetch, Stmt, Store, expressions

_OF_BOOLS = ("min", "max")  # arithmetic that conditions may take part in: "any" and "all" as reductions


def type_problems(s: Stmt) -> Iterator[str]:
    """Yield what is ill-typed in a statement; its inner statements are not looked at."""
    for e in expressions(s):
        for x in walk(e):
            problem = _problem(x)
            if problem:
                yield f"{problem}, in {x}"
    match s:
        case For():
            for what, e in (("start", s.start), ("extent", s.extent)):
                if not dtypes.is_int(e.dtype) or e.lanes != 1:
                    yield f"the {what} of loop {s.var.name} is {type_text(e)}, not an integer"
            if not dtypes.is_int(s.var.dtype) or s.var.lanes != 1:
                yield f"the variable of loop {s.var.name} is {type_text(s.var)}, not an integer"
        case Let():
            if type_text(s.var) != type_text(s.value):
                yield f"{s.var.name} is {type_text(s.var)}, but its value {s.value} is {type_text(s.value)}"
        case If():
            if s.condition.dtype != "bool" or s.condition.lanes != 1:
                yield f"the condition {s.condition} is {type_text(s.condition)}, not bool"
        case Store():
            if s.value.dtype != s.buffer.dtype:
                yield f"{s.buffer.name} holds {s.buffer.dtype}, but {s.value.dtype} is stored to it: {s.value}"
            if s.value.lanes != s.index.lanes:
                yield f"store to {s.buffer.name}: the index has {s.index.lanes} lanes, the value {s.value.lanes}"
            yield from _access(s.buffer.name, s.index, s.predicate)
        case Prefetch():
            yield from _access(s.buffer.name, s.index, None)
            if s.index.lanes != 1:
                yield f"prefetch of {s.buffer.name}: the index has {s.index.lanes} lanes"
        case Allocate():
            if dtypes.itemsize(s.buffer.dtype) <= 0:
                yield f"{s.buffer.name} has elements of no size"
        case _:
            pass


def type_text(e: Expr) -> str:
    return e.dtype if e.lanes == 1 else f"{e.dtype}x{e.lanes}"


def _access(name: str, index: Expr, predicate: Expr | None) -> Iterator[str]:
    if not dtypes.is_int(index.dtype):
        yield f"the index of {name} is {index.dtype}, not an integer: {index}"
    if predicate is not None and (predicate.dtype != "bool" or predicate.lanes != index.lanes):
        yield f"the predicate of {name} is {type_text(predicate)}, its index {type_text(index)}: {predicate}"


def _problem(e: Expr) -> str | None:
    match e:
        case Binary(op=op, a=a, b=b):
            if type_text(a) != type_text(b):
                return f"operands of {op} are {type_text(a)} and {type_text(b)}"
            if dtypes.is_stored(a.dtype):
                return f"operands of {op} are {type_text(a)}, which is storage only"
            if op in LOGICAL and a.dtype != "bool":
                return f"operands of {op} are {type_text(a)}, not bool"
            if op in ARITHMETIC and a.dtype == "bool" and op not in _OF_BOOLS:
                return f"operands of {op} are bool"
        case Not(a=a):
            return None if a.dtype == "bool" else f"operand of ! is {type_text(a)}, not bool"
        case Select(condition=condition, then=then, otherwise=otherwise):
            return _choice("select", condition, then, otherwise)
        case Call(name="if_then_else", args=(condition, then, otherwise)):
            return _choice("if_then_else", condition, then, otherwise)
        case Call(name=name, args=args):
            if len({type_text(a) for a in args}) > 1:
                return f"arguments of {name} are {', '.join(type_text(a) for a in args)}"
            if name != "likely" and dtypes.is_stored(args[0].dtype):
                return f"arguments of {name} are {type_text(args[0])}, which is storage only"
            if name in PREDICATES and not dtypes.is_float(args[0].dtype):
                return f"the argument of {name} is {args[0].dtype}, not a float"
        case Load():
            if not isinstance(e.source, Buffer):
                return f"{e.source.name} is not a buffer"
            if len(e.indices) != 1:
                return f"an access takes one flat index, not {len(e.indices)}"
            return next(_access(e.source.name, e.indices[0], e.predicate), None)
        case Ramp(base=base, stride=stride):
            if base.lanes != 1 or not dtypes.is_int(base.dtype) or type_text(base) != type_text(stride):
                return f"ramp of {type_text(base)} by {type_text(stride)}"
        case Broadcast(value=value):
            return None if value.lanes == 1 else f"copies of a vector {type_text(value)}"
        case Reduce():
            return "a reduction does not belong in loops"
        case _:
            pass
    return None


def _choice(name: str, condition: Expr, then: Expr, otherwise: Expr) -> str | None:
    if condition.dtype != "bool" or condition.lanes not in (1, then.lanes):
        return f"the condition of {name} is {type_text(condition)}, its values {type_text(then)}"
    return (
        None
        if type_text(then) == type_text(otherwise)
        else f"{name} chooses between {type_text(then)} and {type_text(otherwise)}"
    )
