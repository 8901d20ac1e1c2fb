"""Axes of a stage: extents and values of all of them, from those that its relations begin or end with."""

from __future__ import annotations

from collections.abc import Mapping

from renorm.core.errors import InvalidSchedule
from renorm.expr.linear import Linear
from renorm.te.loop_algebra import ONE, LoopAlgebra
from renorm.te.relations import Fuse, Split
from renorm.te.stage import Stage
from renorm.te.tensor import IterVar


def axis_extents(stage: Stage, roots: Mapping[IterVar, Linear], algebra: LoopAlgebra) -> dict[IterVar, Linear]:
    """Extents of all axes of a stage from those of its data and reduce axes."""
    extents = dict(roots)
    for relation in stage.relations:
        if isinstance(relation, Split):
            extents[relation.outer], extents[relation.inner] = _split(relation, extents[relation.parent], algebra)
        elif isinstance(relation, Fuse):
            extents[relation.fused] = algebra.scaled(extents[relation.outer], extents[relation.inner])
        else:
            extents[relation.axis] = ONE
    return extents


def _split(relation: Split, extent: Linear, algebra: LoopAlgebra) -> tuple[Linear, Linear]:
    """Extents of outer and inner."""
    if extent.number is not None:
        outer, inner = relation.extents(extent.number)
        return Linear({}, outer), Linear({}, inner)
    by = relation.factor or relation.nparts or 1
    rest = algebra.unit(algebra.floor_divide(extent.offset(by - 1), Linear({}, by)))
    return (rest, Linear({}, by)) if relation.factor else (Linear({}, by), rest)


def axis_values(
    stage: Stage, extents: Mapping[IterVar, Linear], leaves: Mapping[IterVar, Linear], algebra: LoopAlgebra
) -> dict[IterVar, Linear]:
    """Values of all axes, each counted from 0, from those of the loops."""
    values = dict(leaves)
    for relation in reversed(stage.relations):
        if isinstance(relation, Split):
            scaled = algebra.scaled(values[relation.outer], extents[relation.inner])
            values[relation.parent] = algebra.rejoined(scaled + values[relation.inner])
        elif isinstance(relation, Fuse):
            width = extents[relation.inner]
            width = ONE if width.number == 0 else algebra.unit(width)
            fused = values[relation.fused]
            quotient, rest = algebra.applied("//", fused, width), algebra.applied("%", fused, width)
            if quotient is None or rest is None:
                raise InvalidSchedule(
                    f"{stage.name}: {relation.inner.name} may have no rounds, and is fused with the loop around it",
                    [f"its extent is {algebra.expression(extents[relation.inner])}"],
                )
            values[relation.outer], values[relation.inner] = quotient, rest
    return values


def layout(stage: Stage, scope: str) -> tuple[int, ...]:
    """The order of a stage's axes in its memory.

    What is private to a thread is laid out as its loops run, the innermost loop contiguous: a tile of accumulators is
    then a run of vectors, whichever axis is vectorized. Other memory is row-major.
    """
    if scope not in ("register", "local", "tile"):
        return tuple(range(len(stage.op.axis)))
    place: dict[IterVar, int] = {axis: i for i, axis in enumerate(stage.leaf_iter_vars)}
    for relation in reversed(stage.relations):
        if isinstance(relation, Split):
            place[relation.parent] = max(place[relation.outer], place[relation.inner])
        elif isinstance(relation, Fuse):
            place[relation.outer] = place[relation.inner] = place[relation.fused]
    return tuple(sorted(range(len(stage.op.axis)), key=lambda i: place[stage.op.axis[i]]))
