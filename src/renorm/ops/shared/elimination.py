"""Gaussian elimination, as loops: rows of a matrix are added to each other until it is triangular, or a unit matrix.

The pivot is the greatest element of what is left of a column, so that no row is multiplied by more than 1. Everything
is float64: what cancels costs digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from renorm import te
from renorm.expr.nodes import call, cast, const, select
from renorm.topi.transform import unravel

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Loops

WIDE = "float64"


def inverses(x: te.Tensor) -> te.Tensor:
    """Return what elimination makes of matrices beside unit ones: [A, 1] becomes [1, inverse of A]."""
    *lead, rows, columns = x.shape

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        *outer, rows, columns = output.shape
        matrix = tuple(unravel(loops.round, outer))
        with loops.for_range(0, rows) as i, loops.for_range(0, rows, "j") as j:
            output[(*matrix, i, j)] = cast(WIDE, inputs[0][(*matrix, i, j)])
            output[(*matrix, i, j + rows)] = select(i.equal(j), const(1.0, WIDE), const(0.0, WIDE))
        _eliminate(loops, output, matrix, (rows, columns))

    return te.extern((*lead, rows, columns * 2), [x], body, name="eliminated", dtype=WIDE, rounds=math.prod(lead))


def determinants(x: te.Tensor) -> te.Tensor:
    """Return of each matrix the sign of its determinant, log |determinant|, which is the sum of those of pivots, and
    the determinant, which may be beyond all floats."""
    lead = x.shape[:-2]

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        *outer, rows, columns = inputs[0].shape
        matrix = tuple(unravel(loops.round, outer))
        held, found = loops.allocate((rows, columns), WIDE, "rows"), loops.allocate((3,), WIDE, "found")
        found[0], found[1], found[2] = const(1.0, WIDE), const(0.0, WIDE), const(1.0, WIDE)
        with loops.for_range(0, rows) as i, loops.for_range(0, rows, "j") as j:
            held[i, j] = cast(WIDE, inputs[0][(*matrix, i, j)])
        _eliminate(loops, held, (), (rows, columns), found)
        for part in range(3):
            output[(*matrix, part)] = found[part]

    return te.extern((*lead, 3), [x], body, name="determinants", dtype=WIDE, rounds=math.prod(lead))


def _eliminate(
    loops: Loops, held: Array, matrix: Sequence[Any], shape: tuple[int, int], found: Array | None = None
) -> None:
    """Make a matrix of float64 triangular, and note what `determinants` returns; without `found` a unit matrix in
    front. matrix: where in `held` it begins."""
    rows, columns = shape
    zero, inverts = const(0.0, WIDE), found is None
    place, most = loops.allocate((1,), "int32", "place"), loops.allocate((1,), WIDE, "most")
    with loops.for_range(0, rows, "k") as k:
        place[0] = k
        most[0] = const(-1.0, WIDE)
        with loops.for_range(k, rows) as i:
            element = loops.let(held[(*matrix, i, k)], "element")
            size = loops.let(select(element < 0, zero - element, element), "size")
            with loops.if_scope(size > most[0]):
                most[0] = size
                place[0] = i
        pivot = loops.let(place[0], "pivot")
        if not isinstance(rows, int) or rows > 1:
            with loops.if_scope(pivot > k, pivot < rows):
                if found is not None:
                    found[0], found[2] = zero - found[0], zero - found[2]
                with loops.for_range(0, columns, "j") as j:
                    upper = loops.let(held[(*matrix, k, j)], "upper")
                    held[(*matrix, k, j)] = held[(*matrix, pivot, j)]
                    held[(*matrix, pivot, j)] = upper
        own = loops.let(held[(*matrix, k, k)], "own")
        if found is not None:
            found[0] = select(own > zero, found[0], select(own < zero, zero - found[0], own * found[0]))
            found[1] = found[1] + call("log", select(own < zero, zero - own, own))
            found[2] = found[2] * own
        else:
            with loops.for_range(0, columns, "j") as j:
                held[(*matrix, k, j)] = held[(*matrix, k, j)] / own
        others = loops.for_range(0 if inverts else k, rows)
        with others as i, loops.if_scope(i != k if inverts else i > k, own != zero):
            factor = loops.let(held[(*matrix, i, k)] if inverts else held[(*matrix, i, k)] / own, "factor")
            with loops.for_range(0, columns, "j") as j:
                held[(*matrix, i, j)] = held[(*matrix, i, j)] - factor * held[(*matrix, k, j)]
