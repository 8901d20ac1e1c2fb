"""Reads beyond open extents, of elements that nobody stores: the last row in the place of rows beyond it.

    a[(i*7 + j)*n + k], 7 rows j of which i*7 + j < m are wanted    ->    a[min(i*7 + j, m - 1)*n + k]

What is read in vain may be any element; an address is cheaper than a predicate, and more so as it is made outside of
the loops that do not move the row.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm.expr import mixed_radix
from renorm.expr.linear import Linear
from renorm.expr.nodes import Expr
from renorm.te.bounds import Guard, Nest
from renorm.te.loop_algebra import LoopAlgebra
from renorm.tir.nodes import Buffer


def moved_inside(
    algebra: LoopAlgebra, nest: Nest, indices: Sequence[Linear], guard: Guard, form: Linear
) -> tuple[Linear, ...] | None:
    """Return the indices of a read, with the last row in the place of rows that a guard on `form` excludes. None where
    extents are known, or where the rows are lanes of a vector."""
    lanes = {loop.var for loop in nest.path if loop.kind == "vectorized"}
    moving = algebra.free(form)
    last = guard.bound.offset(-1)
    if guard.bound.number is not None or guard.is_lower or not moving.isdisjoint(lanes):
        return None
    found = list[Linear]()
    for index in indices:
        if not moving.isdisjoint(algebra.free(index)):
            atom, k = next(iter(form.terms.items()))
            times, rest = divmod(index.terms.get(atom, 0), k)
            others = index.plus(form, -times)
            if rest or times <= 0 or not moving.isdisjoint(algebra.free(others)):
                return None
            index = others.plus(algebra.extreme("min", form, last), times)
        found.append(index)
    return tuple(found)


def stays_inside(algebra: LoopAlgebra, position: Expr, conditions: Sequence[Expr], buffer: Buffer) -> bool:
    """Return whether a read is inside its array where conditions hold: those of a body, that a window is not on
    padding, speak of the row beyond, and not of the last one in its place."""
    return mixed_radix.is_within(position, buffer.size, algebra.ranges, conditions)
