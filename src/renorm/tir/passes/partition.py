"""for (x, a, n) { if (x < b) s } -> for (x, a, b - a) s: loops are cut where their conditions change.

A condition inside a loop begins or ends to hold for all values of the loops within: at the ragged end of a split axis,
at the border of padding, between the parts of a concatenation. There the loop is cut in two. Conditions of `if`, of
predicates, of if_then_else and of select count alike; what a cut decides disappears, so the middle part carries no
condition. A parallel loop is not cut, for that would part its threads: it chooses between versions of its body.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from renorm.expr.bounds import Intervals, is_exact, is_finite
from renorm.expr.linear import difference
from renorm.expr.nodes import Binary, Call, Const, Expr, Load, Not, Select, Var
from renorm.expr.rewrite import variables
from renorm.expr.rewrite import walk as walk_expr
from renorm.tir.nodes import (
    For,
    If,
    Kernel,
    Stmt,
    Store,
    children,
    constant,
    expressions,
    rebuild,
    seq,
    walk,
)
from renorm.tir.passes.simplify import is_nothing, simplify_stmt
from renorm.tir.rewrite import fresh_copy
from renorm.tir.scope import Scope

GROWTH = 20_000  # expression nodes that all cuts of a kernel may add, unrolled copies counted
MOST_PARTS = 16  # of one loop


def partition(kernel: Kernel) -> Kernel:
    """The kernel with loops cut where their conditions change."""
    body = _Partition().visit(kernel.body, Scope.of(kernel))
    return kernel.with_body(body)


@dataclass
class _Partition:
    left: int = GROWTH

    def visit(self, s: Stmt, scope: Scope) -> Stmt:
        if isinstance(s, For):
            parts = self._parts(s, scope)
            if len(parts) > 1 and s.kind == "parallel":
                return For(s.var, s.start, s.extent, s.kind, self._choice(s, parts, scope.inside(s)))
            if len(parts) > 1:
                return seq([self._part(s, low, high, scope) for low, high in parts])
        return self._inside(s, scope)

    def _inside(self, s: Stmt, scope: Scope) -> Stmt:
        parts = [self.visit(c, inner) for c, inner in zip(children(s), scope.of_children(s), strict=True)]
        return rebuild(s, parts, expressions(s))

    def _part(self, s: For, low: int, high: int, scope: Scope) -> Stmt:
        var = Var(s.var.name, s.var.dtype)
        body = fresh_copy(s.body, {s.var: var})
        start, extent = Const(low, s.start.dtype), Const(high - low, s.extent.dtype)
        # decided conditions go away here, so that the loops within see what is left
        part = simplify_stmt(For(var, start, extent, s.kind, body), scope)
        # its own conditions are settled, those of the loops within are not
        return self._inside(part, scope) if isinstance(part, For) else self.visit(part, scope)

    def _choice(self, s: For, parts: list[tuple[int, int]], scope: Scope) -> Stmt:
        """The version of the body that fits x: if (x < m) { first } else { ... }."""
        (low, high), *others = parts
        body = simplify_stmt(fresh_copy(s.body), scope.with_bounds(s.var, low, high - 1))
        body = self.visit(body, scope.with_bounds(s.var, low, high - 1))
        if not others:
            return body
        rest = self._choice(s, others, scope)
        return If(Binary("<", s.var, Const(high, s.var.dtype)), body, None if is_nothing(rest) else rest)

    def _parts(self, s: For, scope: Scope) -> list[tuple[int, int]]:
        """The pieces [low, high) to cut a loop into; none where cutting does not pay."""
        start, extent = constant(s.start), constant(s.extent)
        if start is None or extent is None or s.kind not in ("serial", "parallel"):
            return []
        end = start + extent
        cuts = sorted({c for c in _cuts(s, scope) if start < c < end})
        cost = len(cuts) * _size(s.body)
        if not cuts or len(cuts) >= MOST_PARTS or cost > self.left:
            return []
        self.left -= cost
        return list(zip([start, *cuts], [*cuts, end]))


def _size(s: Stmt) -> int:
    """Nodes of the expressions in s, once for each copy that unrolling makes."""
    own = sum(1 for e in expressions(s) for _ in walk_expr(e))
    inner = sum(_size(c) for c in children(s))
    return own + inner * ((constant(s.extent) or 1) if isinstance(s, For) and s.kind == "unrolled" else 1)


def _cuts(loop: For, scope: Scope) -> Iterator[int]:
    """Values of the loop's variable from which on some condition always holds, or never."""
    intervals = Intervals(scope.inside(loop).throughout(loop.body))
    inner = {s.var for s in walk(loop.body) if isinstance(s, For)}
    for condition, is_own in _conditions(loop.body):
        if is_own and loop.kind == "parallel":
            continue  # it stands right in the loop: choosing a version would be no cheaper
        for e in _comparisons(condition):
            yield from _cuts_of(e, loop.var, inner, intervals)


def _conditions(s: Stmt, is_own: bool = True) -> Iterator[tuple[Expr, bool]]:
    """Every condition in s, and whether it stands outside the loops within."""
    if isinstance(s, If):
        yield s.condition, is_own
    if isinstance(s, Store) and s.predicate is not None:
        yield s.predicate, is_own
    for e in expressions(s):
        for x in walk_expr(e):
            match x:
                case Select(condition=condition) | Call(name="if_then_else", args=(condition, _, _)):
                    yield condition, is_own
                case Load(predicate=predicate) if predicate is not None:
                    yield predicate, is_own
                case _:
                    pass
    for c in children(s):
        yield from _conditions(c, is_own and not isinstance(s, For))


def _comparisons(e: Expr) -> Iterator[Binary]:
    match e:
        case Binary(op=("&&" | "||"), a=a, b=b):
            yield from _comparisons(a)
            yield from _comparisons(b)
        case Not(a=a) | Call(name="likely", args=(a,)):
            yield from _comparisons(a)
        case Binary(op=op, a=a, b=b) if op in ("<", "<=", ">", ">=", "==", "!=") and is_exact(a) and is_exact(b):
            yield e
        case _:
            return


def _cuts_of(e: Binary, x: Var, inner: set[Var], intervals: Intervals) -> Iterator[int]:
    form = difference(e.a, e.b, intervals.intern)
    k, rest = 0, form.without((x,))
    for atom, coefficient in form.terms.items():
        if atom is x:
            k = coefficient
        elif any(v not in inner for v in variables(atom)) or any(isinstance(v, Load) for v in walk_expr(atom)):
            return  # a loop further out, or data, has a say: no one place is right for all its values
    low, high = intervals.form_span(rest)
    if k == 0 or not is_finite((low, high)):
        return
    least, most = int(low), int(high)
    # k*x + rest < 0 and <= 0: where they begin or end to hold always, or never; a > b is not (a <= b)
    strict = e.op in ("<", ">=", "==", "!=")
    weak = e.op in ("<=", ">", "==", "!=")
    for bound in (*((0,) if strict else ()), *((1,) if weak else ())):
        for r in (least - bound, most - bound):  # k*x + r < 0 changes at this x
            yield _first_change(k, r)


def _first_change(k: int, r: int) -> int:
    """The x from which on (k*x + r < 0) is the other way round than before it."""
    if k > 0:
        return -(r // k)  # k*x + r >= 0 from ceil(-r/k) on
    return r // -k + 1  # k*x + r < 0 from floor(r/|k|) + 1 on
