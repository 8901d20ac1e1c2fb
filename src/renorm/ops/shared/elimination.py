"""Gaussian elimination, as loops: rows of a matrix are added to each other until it is triangular, or a unit matrix.

The pivot is the greatest element of what is left of a column, so that no row is multiplied by more than 1. Everything
is float64: what cancels costs digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from renorm import te
from renorm.expr.nodes import cast, const, select
from renorm.topi.transform import unravel

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Loops

WIDE = "float64"


def matrices(x: te.Tensor, inverts: bool) -> te.Tensor:
    """Return what elimination makes of matrices: [A, 1] becomes [1, inverse] (`inverts`), or A a matrix whose first
    element is its determinant."""
    *lead, rows, columns = x.shape

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        _eliminate(loops, inputs[0], output, inverts)

    shape = (*lead, rows, columns * 2 if inverts else columns)
    return te.extern(shape, [x], body, name="eliminated", dtype=WIDE, rounds=math.prod(lead))


def _eliminate(loops: Loops, x: Array, output: Array, inverts: bool) -> None:
    *outer, rows, columns = output.shape
    matrix = unravel(loops.round, outer)
    zero, one = const(0.0, WIDE), const(1.0, WIDE)
    with loops.for_range(0, rows) as i:
        with loops.for_range(0, rows, "j") as j:
            output[(*matrix, i, j)] = cast(WIDE, x[(*matrix, i, j)])
        if inverts:
            with loops.for_range(0, rows, "j") as j:
                output[(*matrix, i, j + rows)] = select(i.equal(j), one, zero)
    place = loops.allocate((1,), "int32", "place")
    most, product = (loops.allocate((1,), WIDE, name) for name in ("most", "product"))
    product[0] = one
    with loops.for_range(0, rows, "k") as k:
        place[0] = k
        most[0] = const(-1.0, WIDE)
        with loops.for_range(k, rows) as i:
            element = loops.let(output[(*matrix, i, k)], "element")
            size = loops.let(select(element < 0, zero - element, element), "size")
            with loops.if_scope(size > most[0]):
                most[0] = size
                place[0] = i
        pivot = loops.let(place[0], "pivot")
        if not isinstance(rows, int) or rows > 1:
            with loops.if_scope(pivot > k, pivot < rows):
                product[0] = zero - product[0]
                with loops.for_range(0, columns, "j") as j:
                    upper = loops.let(output[(*matrix, k, j)], "upper")
                    output[(*matrix, k, j)] = output[(*matrix, pivot, j)]
                    output[(*matrix, pivot, j)] = upper
        held = loops.let(output[(*matrix, k, k)], "held")
        product[0] = product[0] * held
        if inverts:
            with loops.for_range(0, columns, "j") as j:
                output[(*matrix, k, j)] = output[(*matrix, k, j)] / held
        others = loops.for_range(0 if inverts else k, rows)
        with others as i, loops.if_scope(i != k if inverts else i > k, held != zero):
            factor = loops.let(output[(*matrix, i, k)] if inverts else output[(*matrix, i, k)] / held, "factor")
            with loops.for_range(0, columns, "j") as j:
                output[(*matrix, i, j)] = output[(*matrix, i, j)] - factor * output[(*matrix, k, j)]
    if not inverts:
        with loops.if_scope(*([] if isinstance(rows, int) else [rows > 0])):
            output[(*matrix, 0, 0)] = product[0]
