"""Reading tensorized loops: the store that they hold, slopes of its indices, and factors."""

from __future__ import annotations

from collections.abc import Sequence

from renorm.core.dots import Dot
from renorm.expr.linear import linear
from renorm.expr.nodes import Binary, Cast, Const, Expr, Load, Var
from renorm.expr.rewrite import depends_on, same, substitute
from renorm.tir.nodes import For, Store
from renorm.tir.nodes import constant as number


def nest(s: For) -> tuple[list[For], Store | None]:
    """Return the tensorized loops from `s` on, and what they hold."""
    loops, body = [s], s.body
    while isinstance(body, For) and body.kind == "tensorized":
        loops.append(body)
        body = body.body
    return loops, body if isinstance(body, Store) and body.predicate is None else None


def factors_of(store: Store, dot: Dot) -> tuple[Expr, Expr] | None:
    """Return a and b, data and weight of an instruction, where `store` is C[i] = C[i] + wide(a) * wide(b), in the dtype
    of its sums; else None. Where both are of one dtype, either may be the data."""
    match store.value:
        case Binary(op="+", a=Load() as c, b=Binary(op="*", a=Cast(a=a), b=Cast(a=b))):
            pass
        case Binary(op="+", a=Binary(op="*", a=Cast(a=a), b=Cast(a=b)), b=Load() as c):
            pass
        case _:
            return None
    if c.source is not store.buffer or store.buffer.dtype != dot.sums or not same(c.indices[0], store.index):
        return None
    return next(((x, y) for x, y in ((a, b), (b, a)) if (x.dtype, y.dtype) == (dot.data, dot.weight)), None)


def slopes_of(index: Expr, loops: Sequence[For]) -> dict[Var, int] | None:
    """Return how far an index moves with each loop; None where it is not linear in them."""
    form = linear(index)
    found = {loop.var: 0 for loop in loops}
    for atom, k in form.terms.items():
        if isinstance(atom, Var) and atom in found:
            found[atom] = k
        elif any(depends_on(atom, v) for v in found):
            return None
    return found


def first(index: Expr, loops: Sequence[For]) -> Expr:
    """Return the index where all loops begin."""
    return substitute(index, {loop.var: loop.start for loop in loops})


def count(loop: For) -> int:
    """Return how many rounds a loop has; 0 where that is open."""
    return number(loop.extent) or 0


def is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0
