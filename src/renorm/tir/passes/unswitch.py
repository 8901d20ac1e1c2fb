"""for (k) { for (i) { if (c[i]) s } } -> if (c[0] && .. && c[n - 1]) { for (k) { for (i) s } } else { as it was }

where i is unrolled, from 0 to n - 1, and c does not depend on k. Conditions of padding hold for most tiles as a whole:
without a branch round each row of a tile, all rows use a vector that is loaded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm.expr.bounds import is_exact
from renorm.expr.linear import difference, slope
from renorm.expr.nodes import Binary, Const, Expr, Var, all_of
from renorm.expr.rewrite import conjuncts, depends_on, loads, substitute
from renorm.tir.nodes import For, If, Kernel, Prefetch, Seq, Stmt, children, constant, expressions, rebuild, seq
from renorm.tir.rewrite import fresh_copy


def unswitch(kernel: Kernel) -> Kernel:
    """The kernel with a version of such loops for tiles that are whole."""
    return kernel.with_body(_visit(kernel.body))


def _visit(s: Stmt) -> Stmt:
    match s:
        case For(kind="serial"):
            *before, last = s.body.stmts if isinstance(s.body, Seq) and s.body.stmts else (s.body,)
            match last:
                case For(kind="unrolled", body=If(otherwise=None) as branch) as rows if _are_hints(before):
                    found = _for_all(branch.condition, rows, s.var)
                    if found is not None:
                        whole, own = found
                        of_row = If(all_of(*own), branch.then) if own else branch.then
                        of_tile = seq([*before, For(rows.var, rows.start, rows.extent, rows.kind, of_row)])
                        return If(all_of(*whole), fresh_copy(For(s.var, s.start, s.extent, s.kind, of_tile)), s)
                case _:
                    pass
        case _:
            pass
    return rebuild(s, [_visit(c) for c in children(s)], expressions(s))


def _are_hints(stmts: Sequence[Stmt]) -> bool:
    return all(isinstance(s, Prefetch) for s in stmts)


def _for_all(condition: Expr, rows: For, round_: Var) -> tuple[list[Expr], list[Expr]] | None:
    """Return what holds where the condition does for all of `rows`, and what a row alone decides, which is no branch;
    None where that cannot be said before the loop."""
    first, extent = constant(rows.start), constant(rows.extent)
    if first is None or extent is None or extent < 2 or depends_on(condition, round_):
        return None
    found, own = list[Expr](), list[Expr]()
    for e in conjuncts(condition):
        if not isinstance(e, Binary) or e.op not in ("<", "<=", ">", ">=") or not (is_exact(e.a) and is_exact(e.b)):
            return None
        form = difference(e.a, e.b)
        growth = slope(form, rows.var)
        if growth is None or any(loads(atom) for atom in form.terms):
            return None
        if condition.is_open and set(form.terms) == {rows.var}:
            own.append(e)
            continue
        hardest = first + extent - 1 if (growth > 0) == (e.op in ("<", "<=")) else first
        found.append(substitute(e, {rows.var: Const(hardest, rows.var.dtype)}))
    # of one comparison the other version holds a row that is never reached: little beside a branch round each row where
    # an open extent decides
    return (found, own) if len(found) > 1 or any(e.is_open for e in found) else None
