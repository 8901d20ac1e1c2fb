"""Bins of boxes in given loops (te.extern): what positions in each are interpolated to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from renorm import te, topi
from renorm.core.dtypes import compute_dtype
from renorm.expr.nodes import Expr, all_of, as_expr, cast, const

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Body, Loops

LANES = 16  # channels of one round, for which positions are computed once


def bins(size: tuple[int, int], ratio: int, scale: float, is_half: bool, is_max: bool) -> Body:
    """The loops of one box of some channels. size: how many bins along the height and the width; ratio: positions in
    each, 0: as many as it is long; is_half: coordinates are of corners; is_max: of positions the greatest counts."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        x, rois, batch_indices = inputs
        parts = (x.shape[1] + (LANES - 1)) // LANES
        box, first = (
            loops.let(loops.round // parts % rois.shape[0], "box"),
            loops.let(loops.round % parts * LANES, "first"),
        )
        image = loops.let(topi.within(batch_indices[box], x.shape[0]), "image")
        dtype = compute_dtype(x.dtype)

        def number(value: float) -> Expr:
            return const(value, dtype)

        def along(axis: int, count: int) -> tuple[Expr, Expr, Expr]:
            """Return where the box begins, how large a bin is, and how many positions are in it."""
            start, end = (cast(dtype, rois[box, a]) * scale - number(0.5 * is_half) for a in (axis, axis + 2))
            begin, extent = loops.let(start, "begin"), end - start
            bin_size = loops.let((extent if is_half else te.max(extent, number(1.0))) / number(float(count)), "bin")
            positions = const(ratio) if ratio else te.max(cast("int32", te.ceil(bin_size)), 0)
            return begin, bin_size, loops.let(positions, "positions")

        def position(line: tuple[Expr, Expr, Expr], at: Expr, k: Expr, extent: Any) -> tuple[Any, ...]:
            """Return whether a position is near the image, two elements, and the weight of the second."""
            begin, length, count = line
            step = (cast(dtype, k) + number(0.5)) * length / cast(dtype, count)
            p = loops.let(begin + cast(dtype, at) * length + step, "position")
            n = cast(dtype, as_expr(extent))
            inside = loops.let(te.max(te.min(p, n - number(1.0)), number(0.0)), "inside")
            low = loops.let(te.max(te.min(cast("int32", inside), extent - 1), 0), "low")
            is_near = all_of(p >= number(-1.0), p <= n)
            return is_near, low, te.min(low + 1, extent - 1), loops.let(inside - cast(dtype, low), "fraction")

        rows, columns = along(1, size[0]), along(0, size[1])
        total = loops.allocate((LANES,), dtype, "total")
        with ExitStack() as each:
            h = each.enter_context(loops.for_range(0, size[0], "h"))
            w = each.enter_context(loops.for_range(0, size[1], "w"))
            is_empty = (rows[2] * columns[2]).equal(0)
            with loops.for_range(0, LANES, "lane") as lane:
                total[lane] = te.select(is_empty, number(0.0), number(-math.inf)) if is_max else number(0.0)
            with (
                loops.for_range(0, rows[2], "i") as i,
                loops.for_range(0, columns[2], "j") as j,
            ):
                near_y, top, bottom, v = position(rows, h, i, x.shape[2])
                near_x, left, right, u = position(columns, w, j, x.shape[3])
                is_near = loops.let(all_of(near_y, near_x), "near")
                one = number(1.0)
                weights = [loops.let(a * b, "weight") for a in (one - v, v) for b in (one - u, u)]
                with loops.for_range(0, LANES, "lane") as lane, loops.if_scope(first + lane < x.shape[1]):
                    a, b, d, e = (
                        cast(dtype, x[image, first + lane, p, q]) * weight
                        for weight, (p, q) in zip(weights, [(p, q) for p in (top, bottom) for q in (left, right)])
                    )
                    term = te.max(te.max(a, b), te.max(d, e)) if is_max else a + b + d + e
                    term = te.select(is_near, term, number(0.0))
                    held = total[lane]
                    total[lane] = te.max(held, term) if is_max else held + term
            count = te.max(cast(dtype, rows[2]) * cast(dtype, columns[2]), number(1.0))
            with loops.for_range(0, LANES, "lane") as lane, loops.if_scope(first + lane < x.shape[1]):
                found = total[lane]
                output[box, first + lane, h, w] = found if is_max else found / count

    return body
