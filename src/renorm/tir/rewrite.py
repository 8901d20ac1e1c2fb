"""Rewriting of statements: replacing variables, and copies that share no binder with the original."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace as with_fields

from renorm.expr.nodes import Expr, Load, Var
from renorm.expr.rewrite import substitute
from renorm.expr.rewrite import transform as transform_expr
from renorm.tir.nodes import (
    Allocate,
    Buffer,
    For,
    Let,
    Prefetch,
    Stmt,
    Store,
    children,
    expressions,
    rebuild,
    transform,
)


def replace(s: Stmt, var: Var, value: Expr) -> Stmt:
    """`s` with a variable replaced everywhere."""
    return transform(s, on_expr=lambda e: substitute(e, {var: value}))


def relocated(s: Stmt, moved: Mapping[Buffer, Buffer], index: Callable[[Buffer, Expr], Expr]) -> Stmt:
    """`s` with elements of some buffers in others: `b[i]` as moved[b][index(b, i)]."""

    def on_load(e: Expr) -> Expr | None:
        if isinstance(e, Load) and isinstance(b := e.source, Buffer) and b in moved:
            return Load(moved[b], (index(b, e.indices[0]),), e.predicate)
        return None

    def on_stmt(x: Stmt) -> Stmt | None:
        if isinstance(x, (Store, Prefetch)) and x.buffer in moved:
            return with_fields(x, buffer=moved[x.buffer], index=index(x.buffer, x.index))
        return None

    return transform(s, on_stmt, lambda e: transform_expr(e, on_load))


def fresh_copy(s: Stmt, values: Mapping[Var, Expr] | None = None) -> Stmt:
    """`s` with new variables and buffers wherever it binds some, and with free variables replaced by `values`.

    Two copies may stand side by side under different bounds: no variable of one occurs in the other.
    """
    return _copy(s, dict(values or {}), {})


def _copy(s: Stmt, variables: dict[Var, Expr], buffers: dict[Buffer, Buffer]) -> Stmt:
    def in_expr(x: Expr) -> Expr | None:
        if isinstance(x, Var):
            return variables.get(x)
        if isinstance(x, Load) and isinstance(x.source, Buffer) and x.source in buffers:
            return Load(buffers[x.source], x.indices, x.predicate)
        return None

    def copied(e: Expr) -> Expr:
        return transform_expr(e, in_expr)

    match s:
        case For():
            start, extent, var = copied(s.start), copied(s.extent), Var(s.var.name, s.var.dtype)
            return For(var, start, extent, s.kind, _copy(s.body, {**variables, s.var: var}, buffers))
        case Let():
            value, var = copied(s.value), Var(s.var.name, s.var.dtype, s.var.lanes)
            return Let(var, value, _copy(s.body, {**variables, s.var: var}, buffers))
        case Allocate(buffer=old):
            new = Buffer(old.name, old.dtype, old.size, old.scope)
            return Allocate(new, _copy(s.body, variables, {**buffers, old: new}))
        case Store():
            predicate = None if s.predicate is None else copied(s.predicate)
            stored = buffers.get(s.buffer, s.buffer)
            return Store(stored, copied(s.index), copied(s.value), predicate, s.nontemporal)
        case Prefetch():
            return Prefetch(buffers.get(s.buffer, s.buffer), copied(s.index))
        case _:
            parts = [_copy(c, variables, buffers) for c in children(s)]
            return rebuild(s, parts, [copied(e) for e in expressions(s)])
