"""unrolled (x, a, n) { s } -> s[x := a]; s[x := a + 1]; ...; s[x := a + n - 1].

Indices that are linear in the unrolled variables become one common expression plus a constant, so that thousands of
copies share their parts. A loop whose copies would be too many stays a serial loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from renorm.core.linear import Form
from renorm.expr.linear import INDEX_TYPES, Linear, cofactor, expression, linear
from renorm.expr.nodes import Binary, Const, Expr, Var
from renorm.expr.rewrite import children as parts_of
from renorm.expr.rewrite import rebuild as rebuild_expr
from renorm.expr.rewrite import without_lanes
from renorm.expr.simplify import Simplifier
from renorm.tir.nodes import (
    NOTHING,
    For,
    If,
    Kernel,
    Let,
    Seq,
    Stmt,
    Store,
    children,
    constant,
    expressions,
    rebuild,
    seq,
    walk,
)
from renorm.tir.passes.simplify import is_nothing
from renorm.tir.scope import Scope

LARGEST = 4096  # statements that one nest of unrolled loops may become

_Values = Mapping[Var, int]


def unroll(kernel: Kernel) -> Kernel:
    """The kernel without unrolled loops."""
    body = _Unrolling(kernel.body).stmt(kernel.body, {})
    return kernel.with_body(body)


@dataclass(frozen=True)
class _Affine:
    """base + moving + the sum of x * slopes[x]: base holds no unrolled variable, moving is linear in them, slopes are
    polynomials of open extents."""

    base: Expr | None
    moving: Form[Var]
    slopes: dict[Var, Linear]


class _Unrolling:
    def __init__(self, body: Stmt):
        self._simple = Simplifier(Scope().throughout(body))
        self._unrolled = frozenset(s.var for s in walk(body) if isinstance(s, For) and s.kind == "unrolled")
        self._free: dict[Expr, tuple[Var, ...]] = {}
        self._affine: dict[Expr, _Affine | None] = {}
        self._copies: dict[int, int] = {}
        self._made: dict[tuple[object, ...], Expr] = {}

    def stmt(self, s: Stmt, values: _Values) -> Stmt:
        match s:
            case Seq(stmts=stmts):
                return seq([self.stmt(x, values) for x in stmts])
            case For(kind="unrolled"):
                return self._expand(s, values)
            case Store():
                predicate = None if s.predicate is None else self.expr(s.predicate, values)
                truth = _truth(predicate)
                if truth is False:
                    return NOTHING
                index, value = self.expr(s.index, values), self.expr(s.value, values)
                return Store(s.buffer, index, value, None if truth else predicate, s.nontemporal)
            case If():
                condition = self.expr(s.condition, values)
                truth = _truth(condition)
                if truth is not None:
                    taken = s.then if truth else s.otherwise
                    return NOTHING if taken is None else self.stmt(taken, values)
                otherwise = None if s.otherwise is None else self.stmt(s.otherwise, values)
                return If(condition, self.stmt(s.then, values), otherwise)
            case _:
                body = [self.stmt(c, values) for c in children(s)]
                if body and all(is_nothing(b) for b in body):
                    return NOTHING
                return rebuild(s, body, [self.expr(e, values) for e in expressions(s)])

    def _expand(self, s: For, values: _Values) -> Stmt:
        start, extent = constant(self.expr(s.start, values)), constant(self.expr(s.extent, values))
        if start is None or extent is None or self._copies_of(s) > LARGEST:
            self._unrolled -= {s.var}
            kept = For(s.var, s.start, s.extent, "serial", s.body)
            return self.stmt(kept, values)
        return seq([self.stmt(s.body, {**values, s.var: start + i}) for i in range(extent)])

    def _copies_of(self, s: Stmt) -> int:
        """Statements that `s` becomes."""
        found = self._copies.get(id(s))
        if found is None:
            found = sum(self._copies_of(c) for c in children(s)) + isinstance(s, (Store, If, Let))
            if isinstance(s, For) and s.kind == "unrolled":
                found *= constant(s.extent) or 1
            self._copies[id(s)] = found
        return found

    # ---- expressions

    def expr(self, e: Expr, values: _Values) -> Expr:
        """`e` where the unrolled variables have these values."""
        free = self._variables(e)
        if not free:
            return e
        affine = self._affine_of(e) if e.dtype in INDEX_TYPES and e.lanes == 1 else None
        if affine is not None:
            moving = affine.moving
            offset = moving.constant + sum(k * values[x] for x, k in moving.terms.items())
            key: tuple[object, ...] = (id(e), offset, *(values[x] for x in affine.slopes))
            made = self._made.get(key)
            if made is None:
                made = self._made[key] = _plus(self._moved(affine, values, e.dtype), offset, e.dtype)
            return made
        key = (id(e), *(values[v] for v in free))
        made = self._made.get(key)
        if made is None:
            parts = tuple(self.expr(c, values) for c in parts_of(e))
            made = self._made[key] = self._simple.node(rebuild_expr(e, parts))
        return made

    def _variables(self, e: Expr) -> tuple[Var, ...]:
        """The unrolled variables that e depends on."""
        found = self._free.get(e)
        if found is None:
            found = (e,) if isinstance(e, Var) and e in self._unrolled else ()
            found = self._free[e] = found or tuple(dict.fromkeys(v for c in parts_of(e) for v in self._variables(c)))
        return found

    def _moved(self, affine: _Affine, values: _Values, dtype: str) -> Expr | None:
        """Return the base with what open slopes add to it; None for 0."""
        steps = [slope * values[x] for x, slope in affine.slopes.items()]
        if not any(step.terms for step in steps):
            return affine.base
        form = sum(steps, Linear({}) if affine.base is None else self._simple.form(affine.base))
        return self._simple.expression(form, dtype) if form.terms else None

    def _affine_of(self, e: Expr) -> _Affine | None:
        """Return e as a sum of what unrolled variables change and what they do not; None where it is no such sum."""
        if e not in self._affine:
            form = linear(e)
            unrolled = {x: k for x, k in form.terms.items() if isinstance(x, Var) and x in self._unrolled}
            rest, slopes = form.offset(-form.constant).without(unrolled), dict[Var, Linear]()
            for x in self._variables(e) if e.is_open else ():
                slope, rest = cofactor(rest, x, self._simple.intern) or (Linear({}), rest)
                if slope.terms:
                    slopes[x] = self._simple.form(expression(slope, e.dtype))
            affine = None
            if not any(self._variables(x) for x in rest.terms):
                base = self._simple(expression(rest, e.dtype)) if rest.terms else None
                affine = _Affine(base, Form(unrolled, form.constant), slopes)
            self._affine[e] = affine
        return self._affine[e]


def _plus(base: Expr | None, offset: int, dtype: str) -> Expr:
    if base is None:
        return Const(offset, dtype)
    if isinstance(base, Const):
        return Const(int(base.value) + offset, dtype)
    return Binary("+" if offset > 0 else "-", base, Const(abs(offset), dtype)) if offset else base


def _truth(e: Expr | None) -> bool | None:
    """Return whether a condition is always or never true; None: neither. No condition is always true."""
    if e is None:
        return True
    e = without_lanes(e)
    return bool(e.value) if isinstance(e, Const) else None
