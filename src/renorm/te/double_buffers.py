"""Double buffers: what round k + 1 of a loop reads is computed in round k, into the other half of its memory.

    for (k, 0, n) { P = f(k); T += P }
    ->  P[0] = f(0); for (k, 0, n) { if (k + 1 < n) P[(k + 1) % 2] = f(k + 1); T += P[k % 2] }

Where threads share P, round k begins with a barrier, the only one: it orders what is read of P[k % 2] behind its
stores, and the stores to P[(k + 1) % 2] behind what round k - 1 read of that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from renorm.core.errors import InvalidSchedule
from renorm.expr.nodes import Binary, Expr, Var, as_expr, const
from renorm.expr.rewrite import loads
from renorm.expr.simplify import simplify
from renorm.te.bounds import GPU_AXES
from renorm.te.stage import Stage
from renorm.te.tensor import Tensor
from renorm.tir.nodes import (
    STAGED,
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Produce,
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
from renorm.tir.nodes import transform as transform_stmt
from renorm.tir.rewrite import fresh_copy, relocated


def ahead(s: Stmt, stages: Iterable[Stage], buffers: Mapping[Tensor, Buffer]) -> Stmt:
    """Return loops in which what stages ask for is stored one round ahead, where a serial loop allocates their buffers.
    Raises InvalidSchedule for a stage at root, and for what needs what the round before it stores."""
    wanted = [x for x in stages if x.is_double_buffered and not x.is_inline]
    for stage in wanted:
        if stage.attach is None:
            raise InvalidSchedule(f"{stage.name}: double_buffer of a stage at root", do="compute_at a loop")
    return _ahead(s, {buffers[x.tensor] for x in wanted if x.tensor in buffers}, False) if wanted else s


def _ahead(s: Stmt, wanted: Collection[Buffer], is_repeated: bool) -> Stmt:
    """is_repeated: whether a serial loop is around."""
    inside = is_repeated or (isinstance(s, For) and s.kind not in GPU_AXES)
    s = rebuild(s, [_ahead(c, wanted, inside) for c in children(s)], expressions(s))
    if not isinstance(s, For) or s.kind not in ("serial", "unrolled"):
        return s
    allocated, body = list[Buffer](), s.body
    while isinstance(body, Allocate):
        allocated.append(body.buffer)
        body = body.body
    stmts = body.stmts if isinstance(body, Seq) else (body,)
    moved = {b: _both_halves(b, stmts) for b in allocated if b in wanted}
    if not moved:
        return s
    stmts = [relocated(x, moved, _at_half(s.var)) for x in stmts]
    before, within = _in_turns(s.var, s.extent, stmts, [*moved.values()])
    first, rounds = _in_round(before, s.var, const(0, s.var.dtype)), constant(s.extent)
    if rounds is None:
        first = If(Binary("<", const(0, s.var.dtype), s.extent), first)
    # the last of an odd number of rounds read what lies where the next round of the loop around stores
    is_behind_readers = is_repeated and (rounds is None or rounds % 2 == 1)
    barriers = [Barrier()] if is_behind_readers and _has_barrier([within]) else []
    loop = For(s.var, s.start, s.extent, s.kind, _allocated([b for b in allocated if b not in moved], within))
    return _allocated(moved.values(), seq([*barriers, first, loop]))


def _in_turns(k: Var, rounds: Expr, stmts: Sequence[Stmt], halves: Sequence[Buffer]) -> tuple[Stmt, Stmt]:
    """Return what stores the halves of a round, and the round, with that of the next one in it."""
    stored = [_stored(s) for s in stmts]
    at = [i for i, s in enumerate(stmts) if isinstance(s, Produce) and not stored[i].isdisjoint(halves)]
    others = set[Buffer]().union(*(found for i, found in enumerate(stored) if i not in at))
    before, held = list[Stmt](), set[Buffer]()
    for i in at:
        read = _read(stmts[i])
        needed = [b.name for b in others if b in read]
        if needed:
            raise InvalidSchedule(
                f"{', '.join(b.name for b in halves)}: double_buffer of what reads {', '.join(needed)}, "
                f"which each round over {k.name} stores",
                do="call double_buffer on that too, or compute it outside of that loop",
            )
        if not held.isdisjoint(read) and _has_barrier(stmts[at[0] : i]):
            before.append(Barrier())
            held.clear()
        before.append(stmts[i])
        held |= stored[i]
    following, rest = Binary("+", k, const(1, k.dtype)), list[Stmt]()
    for i, s in enumerate(stmts):
        is_needless = isinstance(s, Barrier) and (not rest or isinstance(rest[-1], Barrier))
        if i not in at and not is_needless:
            rest.append(s)
    next_round = If(Binary("<", following, rounds), _in_round(seq(before), k, following))
    return seq(before), seq([*([Barrier()] if _has_barrier(stmts) else []), next_round, *rest])


def _in_round(s: Stmt, k: Var, number: Expr) -> Stmt:
    return transform_stmt(fresh_copy(s, {k: number}), on_expr=simplify)


def _has_barrier(stmts: Sequence[Stmt]) -> bool:
    return any(isinstance(x, Barrier) for s in stmts for x in (s.stmts if isinstance(s, Seq) else (s,)))


def _stored(s: Stmt) -> set[Buffer]:
    return {x.buffer for x in walk(s) if isinstance(x, Store)}


def _read(s: Stmt) -> set[Any]:
    return {x.source for part in walk(s) for e in expressions(part) for x in loads(e)}


def _both_halves(b: Buffer, stmts: Sequence[Stmt]) -> Buffer:
    size = b.size * 2 if isinstance(b.size, int) else Binary("*", b.size, const(2, b.size.dtype))
    is_summed = any(b in _stored(s) and b in _read(s) for s in stmts if isinstance(s, Produce))
    return Buffer(b.name, b.dtype, size, STAGED if b.scope == "shared" and not is_summed else b.scope)


def _at_half(k: Var) -> Callable[[Buffer, Expr], Expr]:
    """Return where an element of a buffer is in the half that is a round's."""
    half = Binary("%", k, const(2, k.dtype))
    return lambda b, i: Binary("+", Binary("*", half, as_expr(b.size)), i)


def _allocated(buffers: Iterable[Buffer], s: Stmt) -> Stmt:
    for b in reversed([*buffers]):
        s = Allocate(b, s)
    return s
