"""for (x, a, n) { A[x] = B[x]/sqrt(c) } -> let t = sqrt(c) { for (x, a, n) { A[x] = B[x]/t } }.

Divisions, roots and transcendental functions that every round of a loop computes alike are computed before it, numbers
and, once they are made (vectorize.py), vectors. A buffer that the loop does not store to keeps its elements: whoever
computes in place overlaps buffers element by element, and what all rounds read alike is no element of what they write.
Only what every round surely reaches moves, so that nothing is computed that was not before. Parallel loops and GPU axes
keep what they compute: each thread its own.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from renorm.core import dtypes
from renorm.expr.bounds import Intervals
from renorm.expr.nodes import Binary, Call, Const, Expr, Load, Var
from renorm.expr.rewrite import children as parts_of
from renorm.expr.rewrite import key
from renorm.expr.rewrite import rebuild as rebuild_expr
from renorm.expr.rewrite import walk as walk_expr
from renorm.tir.nodes import (
    Allocate,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Stmt,
    Store,
    children,
    constant,
    expressions,
    rebuild,
    walk,
)

CHEAP_CALLS = frozenset({"abs", "likely", "fma", "if_then_else", "floor", "ceil", "trunc", "round", "sign"})


def hoist(kernel: Kernel) -> Kernel:
    """The kernel with expensive computations outside the loops that do not change them."""
    return kernel.with_body(_visit(kernel.body)) if _has_expensive(kernel.body) else kernel


def _has_expensive(s: Stmt) -> bool:
    """Return whether there is anything to move: mostly there is not."""
    return any(_is_expensive(x) for inner in walk(s) for e in expressions(inner) for x in walk_expr(e))


def _visit(s: Stmt) -> Stmt:
    s = rebuild(s, [_visit(c) for c in children(s)], expressions(s))
    if isinstance(s, For) and s.kind in ("serial", "vectorized", "unrolled") and _is_repeated(s):
        loop = _Loop(s)
        body = loop.stmt(s.body)
        result: Stmt = For(s.var, s.start, s.extent, s.kind, body) if loop.moved else s
        for var, value in reversed(loop.moved.values()):
            result = Let(var, value, result)
        return result
    return s


def _is_repeated(loop: For) -> bool:
    """Return whether a loop surely has a round, and maybe more."""
    rounds = constant(loop.extent)
    return rounds > 1 if rounds is not None else Intervals().span(loop.extent)[0] >= 1


@dataclass
class _Loop:
    """A loop: variables and buffers that it changes, and what was found in it that it does not."""

    loop: For
    moved: dict[Hashable, tuple[Var, Expr]] = field(default_factory=dict[Hashable, tuple[Var, Expr]])

    def __post_init__(self) -> None:
        inside = list(walk(self.loop.body))
        self.changing: set[Var] = {self.loop.var} | {s.var for s in inside if isinstance(s, (For, Let))}
        self.written: set[Buffer] = {s.buffer for s in inside if isinstance(s, (Store, Allocate))}
        self._kinds: dict[Expr, tuple[bool, bool]] = {}

    def stmt(self, s: Stmt) -> Stmt:
        """`s`, which every round reaches, with variables for what moves out of it."""
        if isinstance(s, For) and (constant(s.extent) or 0) < 1:
            return s
        if isinstance(s, Store) and s.predicate is not None:  # a value that is not stored need not have one
            return rebuild(s, [], [self.expr(s.index), s.value, self.expr(s.predicate)])
        new = [self.expr(e) for e in expressions(s)]
        if isinstance(s, If):
            return If(new[0], s.then, s.otherwise)
        return rebuild(s, [self.stmt(c) for c in children(s)], new)

    def expr(self, e: Expr) -> Expr:
        same, expensive = self._kind(e)
        if same and expensive:
            if isinstance(e, Var):
                return e
            var, _ = self.moved.setdefault(key(e), (Var("hoisted", e.dtype, e.lanes), e))
            return var
        if not expensive:
            return e
        if isinstance(e, Call) and e.name == "if_then_else":
            return Call(e.name, (self.expr(e.args[0]), *e.args[1:]))
        return rebuild_expr(e, tuple(self.expr(c) for c in parts_of(e)))

    def _kind(self, e: Expr) -> tuple[bool, bool]:
        """(equal in all rounds, expensive to compute)."""
        found = self._kinds.get(e)
        if found is None:
            parts = [self._kind(c) for c in parts_of(e)]
            same = all(p[0] for p in parts)
            if isinstance(e, Var):
                same = e not in self.changing
            elif isinstance(e, Load):
                same = same and isinstance(e.source, Buffer) and e.source not in self.written
            found = self._kinds[e] = (same, _is_expensive(e) or any(p[1] for p in parts))
        return found


def _is_expensive(e: Expr) -> bool:
    """Return whether the operation itself, not its operands, takes tens of cycles."""
    if not dtypes.is_float(e.dtype):
        return False
    if isinstance(e, Binary):
        return e.op in ("/", "//", "%", "pow") and not (isinstance(e.a, Const) and isinstance(e.b, Const))
    return isinstance(e, Call) and e.name not in CHEAP_CALLS
