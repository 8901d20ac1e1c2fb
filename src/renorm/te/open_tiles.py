"""Tiles at the end of open extents: what is left out there, and what is read in its place.

A tile is chosen at typical extents, and has rows beyond one that is small. Rounds of loops that compute no element are
skipped, and sums in registers have shorter versions. What is read in vain: te.last_rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from renorm.expr.linear import Linear
from renorm.expr.nodes import Expr
from renorm.te.bounds import Guard, Loop, Nest
from renorm.te.loop_algebra import LoopAlgebra
from renorm.te.stage import Stage
from renorm.tir.nodes import THREAD_AXES, If, Stmt
from renorm.tir.rewrite import fresh_copy

_SHORTER = 2  # versions of sums in registers, each half as long as the one before

Condition = Callable[[Guard, Linear], Expr]


def lengths(tile: int) -> list[int]:
    """Return how many elements along an open extent versions of a sum in registers have, that of the whole tile
    first."""
    found = [tile]
    while len(found) <= _SHORTER and found[-1] > 2:
        found.append(-(-found[-1] // 2))
    return found


def idle_rounds(
    algebra: LoopAlgebra, nest: Nest, end: int, inside: Sequence[Nest], guests: Mapping[Stage, Sequence[Nest]]
) -> Iterator[tuple[int, Guard, Linear]]:
    """Yield when a round of a loop before number `end` computes an element at all, with the number of the loop: a block
    of 8 rows has rows beyond an open extent. Where each element has a condition of its own and nothing is computed
    besides, that suffices. inside: what else is computed in these loops; guests: in those of each stage. Threads that
    wait for each other there leave out no round by themselves."""
    deepest = max((child.position for child in inside), default=-1)
    is_met = any(_waits(child, guests) for child in inside)
    threads = {loop.var for loop in nest.path if loop.kind in THREAD_AXES and is_met}
    for g in (*(nest.domain if nest.is_speculative else ()), *nest.guards):
        is_speculative = nest.is_speculative and g in nest.domain
        if g.is_lower or g.is_reduce or (is_speculative and g.bound.number is not None):
            continue
        for position, loop in enumerate(nest.loops[:end]):
            if loop.kind != "serial" or not loop.is_emitted or not (is_speculative or position <= deepest):
                continue
            least, _ = algebra.relax(g.form, {inner.var for inner in nest.loops[position + 1 :]})
            free = algebra.free(least)
            if loop.var in free and not algebra.is_below(least, g.bound) and threads.isdisjoint(free):
                yield position, g, least


def _waits(nest: Nest, guests: Mapping[Stage, Sequence[Nest]]) -> bool:
    """Return whether threads share what a stage stores, or one in its loops."""
    return nest.scope == "shared" or nest.is_argument or any(_waits(n, guests) for n in guests.get(nest.stage, ()))


def for_fewer(
    algebra: LoopAlgebra, nest: Nest, whole: Stmt, made: Callable[[Sequence[Loop]], Stmt], condition: Condition
) -> Stmt:
    """A sum in registers, and versions of it with a half and a quarter of the elements along the axis that has most of
    them, where no more are inside of an open extent: if (i + 4 < n) { 8 rows } else if (i + 2 < n) { 4 } else { 2 }."""
    found = _widest(algebra, nest)
    if found is None:
        return whole
    loop, guard = found
    least, _ = algebra.relax(guard.form, {x.var for x in nest.loops if x is not loop})
    step, versions, stmt = least.terms.get(loop.var, 0), list[tuple[Expr, Stmt]](), whole
    for rounds in lengths(loop.extent.constant)[1:] if step > 0 else ():
        # the first element that the next version leaves out
        versions.append((condition(guard, least.without((loop.var,)).offset(step * rounds)), stmt))
        shorter = replace(loop, extent=Linear({}, rounds))
        stmt = fresh_copy(made([shorter if x is loop else x for x in nest.loops]))
    for needed, version in reversed(versions):
        stmt = If(needed, version, stmt)
    return stmt


def _widest(algebra: LoopAlgebra, nest: Nest) -> tuple[Loop, Guard] | None:
    """Return the unrolled loop that has most rounds, of those along open extents that a speculative sum in registers
    may leave; the innermost one of those that have as many."""
    found: tuple[Loop, Guard] | None = None
    if nest.scope == "register" and nest.is_speculative:
        for g in nest.domain:
            for loop in nest.loops:
                rounds = loop.extent.number
                is_open = g.bound.number is None and not g.is_lower and loop.var in algebra.free(g.form)
                if (
                    is_open
                    and loop.kind == "unrolled"
                    and rounds
                    and rounds >= (found[0].extent.constant if found else 0)
                ):
                    found = loop, g
    return found
