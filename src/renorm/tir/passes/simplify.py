"""for (x, a, 1) { s } -> s[x := a];  if (true) { s } -> s;  for (x, a, 0) { s } -> nothing;  expressions simplified.

Expressions are simplified under the bounds of the loops around them and the conditions they stand under.
"""

from __future__ import annotations

from renorm.expr.nodes import Const, Var
from renorm.expr.simplify import Simplifier
from renorm.tir.nodes import (
    BLOCK_AXES,
    NOTHING,
    THREAD_AXES,
    Allocate,
    For,
    If,
    Kernel,
    Let,
    Prefetch,
    Produce,
    Seq,
    Stmt,
    Store,
    constant,
    seq,
)
from renorm.tir.rewrite import replace
from renorm.tir.scope import Scope


def simplify(kernel: Kernel) -> Kernel:
    """The kernel with simple expressions, and without loops of one round, decided conditions and empty statements."""
    return kernel.with_body(simplify_stmt(kernel.body, Scope.of(kernel)))


def simplify_stmt(s: Stmt, scope: Scope) -> Stmt:
    """`s` simplified at a place where `scope` is known."""
    return _simplified(s, scope, scope.simplifier())


def is_nothing(s: Stmt) -> bool:
    return isinstance(s, Seq) and not s.stmts


def _simplified(s: Stmt, scope: Scope, simple: Simplifier) -> Stmt:
    match s:
        case Seq(stmts=stmts):
            return seq([_simplified(x, scope, simple) for x in stmts])
        case Store():
            predicate = None if s.predicate is None else simple(s.predicate)
            if isinstance(predicate, Const):
                if not predicate.value:
                    return NOTHING
                predicate = None
            return Store(s.buffer, simple(s.index), simple(s.value), predicate, s.nontemporal)
        case Prefetch():
            return Prefetch(s.buffer, simple(s.index))
        case For():
            return _loop(s, scope, simple)
        case If():
            return _branch(s, scope, simple)
        case Let():
            value = simple(s.value)
            if isinstance(value, (Const, Var)):
                return _simplified(replace(s.body, s.var, value), scope, simple)
            inner = scope.binding(Let(s.var, value, s.body))
            body = simplify_stmt(s.body, inner)
            return body if is_nothing(body) else Let(s.var, value, body)
        case Allocate() | Produce():
            body = _simplified(s.body, scope, simple)
            if is_nothing(body):
                return NOTHING
            return Allocate(s.buffer, body) if isinstance(s, Allocate) else Produce(s.name, body)
        case _:
            return s


def _loop(s: For, scope: Scope, simple: Simplifier) -> Stmt:
    start, extent = simple(s.start), simple(s.extent)
    rounds = constant(extent)
    if rounds is not None and rounds <= 0:
        return NOTHING
    is_axis = s.kind in BLOCK_AXES + THREAD_AXES  # a GPU axis stays, for it says that the stage is bound
    if rounds == 1 and not is_axis:
        return _simplified(replace(s.body, s.var, start), scope, simple)
    body = simplify_stmt(s.body, scope.inside(For(s.var, start, extent, s.kind, s.body)))
    return NOTHING if is_nothing(body) else For(s.var, start, extent, s.kind, body)


def _branch(s: If, scope: Scope, simple: Simplifier) -> Stmt:
    condition = simple(s.condition)
    if isinstance(condition, Const):
        taken = s.then if condition.value else s.otherwise
        return NOTHING if taken is None else _simplified(taken, scope, simple)
    then = simplify_stmt(s.then, scope.assuming(condition))
    otherwise = None
    if s.otherwise is not None:
        otherwise = simplify_stmt(s.otherwise, scope.assuming(condition, holds=False))
        otherwise = None if is_nothing(otherwise) else otherwise
    return NOTHING if is_nothing(then) and otherwise is None else If(condition, then, otherwise)
