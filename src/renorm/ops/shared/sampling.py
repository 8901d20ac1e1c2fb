"""Positions in a tensor that a grid gives, what padding makes of them, and of which elements a mean there is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import te
from renorm.expr.nodes import Expr, all_of, as_expr, cast, const
from renorm.ops.shared.precision import wide
from renorm.ops.shared.resampling import cubic_weight, linear_weight
from renorm.ops.shared.tags import STATISTIC

_COEFFICIENT = -0.75  # of Keys' kernel
_TAPS = {"nearest": (0, 1), "linear": (0, 2), "cubic": (-1, 4)}  # of a mean: the first behind the position, how many


@dataclass(frozen=True)
class Sampling:
    """mode: "nearest", "linear" or "cubic". padding: "zeros", "border" or "reflection". align_corners: -1 and 1 are the
    middles of the outermost elements, not their outer edges. in_elements: positions are numbers of elements."""

    mode: str
    padding: str
    align_corners: bool
    in_elements: bool

    def stages(self, grid: te.Tensor, extents: Sequence[Any], dtype: str) -> tuple[te.Tensor, te.Tensor | None]:
        """Return indices of elements [N, axis, tap, o..], -1 where an element is outside and counts as 0, and their
        weights; None where there is one element, which is no mean. dtype: of positions and weights."""
        rank, (first, count) = len(extents), _TAPS[self.mode]

        def extent(a: Expr) -> Expr:
            found = cast(dtype, as_expr(extents[-1]))
            for k, other in enumerate(extents[:-1]):
                found = te.select(a.equal(k), cast(dtype, as_expr(other)), found)
            return found

        def position(n: Expr, a: Expr, *o: Expr) -> Expr:
            return self._position(cast(dtype, wide(grid[(n, *o, rank - 1 - a)])), extent(a))

        positions = te.compute((*grid.shape[:1], rank, *grid.shape[1:-1]), position, name="positions", tag=STATISTIC)

        def place(n: Expr, a: Expr, tap: Expr, *o: Expr) -> Expr:
            """Of an element that a mean is made of."""
            at = positions[(n, a, *o)]
            return (te.round(at) if self.mode == "nearest" else te.floor(at)) + cast(dtype, tap + first)

        def index(n: Expr, a: Expr, tap: Expr, *o: Expr) -> Expr:
            """Of the element there, in bounds where it is read; -1 where it is outside and counts as 0."""
            at = place(n, a, tap, *o)
            if self.padding == "zeros":
                at = te.select(all_of(at >= 0, at < extent(a)), at, const(-1.0, dtype))
            elif self.mode == "cubic":
                at = self._moved(at, extent(a))
            return cast("int32", at)

        def weight(n: Expr, a: Expr, tap: Expr, *o: Expr) -> Expr:
            distance = positions[(n, a, *o)] - place(n, a, tap, *o)
            return (linear_weight if self.mode == "linear" else cubic_weight(_COEFFICIENT))(distance)

        shape = (grid.shape[0], rank, count, *grid.shape[1:-1])
        places = te.compute(shape, index, name="places", tag=STATISTIC)
        weights = None if count == 1 else te.compute(shape, weight, name="weights", tag=STATISTIC)
        return places, weights

    def _position(self, given: Any, extent: Any) -> Any:
        """Return the position along an axis, in elements."""
        one = 1.0 if not isinstance(given, Expr) else const(1.0, given.dtype)
        n = float(extent) if not isinstance(given, Expr) else cast(given.dtype, as_expr(extent))
        at = (given + one) * (n - one) * 0.5 if self.align_corners else ((given + one) * n - one) * 0.5
        at = given if self.in_elements else at
        return at if self.mode == "cubic" else self._moved(at, n)  # each of four elements is moved there

    def _moved(self, at: Any, n: Any) -> Any:
        """Return a position outside, or of an element outside, where padding has it."""
        least, most, floor, select = _numbers(at)
        if self.padding == "border":
            return least(most(at, 0), n - 1)
        if self.padding == "zeros":
            return at
        low = 0.0 if self.align_corners else 0.5
        span = most(n - 1, 1) if self.align_corners else n
        from_low = select(at + low < 0, -(at + low), at + low)
        times = floor(from_low / span)
        rest = from_low - times * span
        is_turned = times - floor(times * 0.5) * 2 > 0
        return least(most(select(is_turned, span - rest, rest) - low, 0), n - 1)

    def line(self, given: float, extent: int) -> list[tuple[int, float]]:
        """Return elements along an axis and their weights."""
        at = self._position(given, extent)
        if self.mode == "nearest":
            taps = [(np.rint(at), 1.0)]
        else:
            d, a = at - np.floor(at), _COEFFICIENT
            far = [((a * t - 5 * a) * t + 8 * a) * t - 4 * a for t in (1 + d, 2 - d)]
            near = [((a + 2) * t - (a + 3)) * t * t + 1 for t in (d, 1 - d)]
            weights = [1 - d, d] if self.mode == "linear" else [far[0], *near, far[1]]
            first = np.floor(at) - (self.mode == "cubic")
            taps = [(first + k, w) for k, w in enumerate(weights)]
        if self.padding == "zeros":
            return [(int(i), w) for i, w in taps if 0 <= i < extent]
        return [(int(self._moved(i, extent)), w) for i, w in taps]


def _numbers(at: Any) -> tuple[Any, Any, Any, Any]:
    """Return the less and the greater of two, the floor, and a choice: of expressions, or of NumPy's numbers."""
    if not isinstance(at, Expr):
        return min, max, np.floor, lambda c, a, b: a if c else b
    return te.min, te.max, te.floor, te.select
