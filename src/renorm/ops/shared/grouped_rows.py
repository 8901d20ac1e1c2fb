"""Rows times the matrix of the group that they are of, as layers of experts multiply them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from renorm.core.dims import Dim, Shape, minimum
from renorm.graph.ir import Value
from renorm.ops.shared import builders
from renorm.ops.shared.reshaping import extents_of, reshaped_to

# Rows of a block, which shares what is read of a matrix; a group's last block is half empty. Emerald Rapids, 512 x 512,
# one thread: blocks of 1, 4, 8 and 16 of 256 rows made 53, 120, 125 and 127 GFLOP/s. Layers of 8 and of 64 experts, 16
# to 512 tokens, two threads, AVX-512: 4 rows took 0.8 to 1.1 of the time of 8.
ROWS = 4


def grouped_product(x: Any, w: Any, ends: Any, told: Callable[[Shape], Value] | None = None) -> Any:
    """Return x[s] @ w[g] for the group g of row s. ends: int64, where the rows of each group end; told: as reshaped_to
    has it."""
    find, tell = builders.find, told or (lambda shape: extents_of(x.graph, shape))
    add, sub, mul, gather = (find(name) for name in ("add", "sub", "mul", "gather"))
    rows, groups = x.shape[0], w.shape[0]
    blocks = minimum(rows, rows // ROWS + groups)
    begins = find("concat")([np.array([0]), find("slice")(ends, np.array([0]), tell((groups - 1,)))], axis=0)
    filled = find("div")(add(sub(ends, begins), np.array(ROWS - 1)), np.array(ROWS))  # blocks of each group
    last = find("cum_sum")(filled, np.array(0))
    first = sub(last, filled)

    block = positions(tell, blocks)
    own = _group(tell, block, last, groups)
    at = add(gather(begins, own), mul(sub(block, gather(first, own)), np.array(ROWS)))
    places = add(find("unsqueeze")(at, axes=(1,)), np.arange(ROWS))  # beyond a group are rows of others, unread
    inside = find("min")([places, _number(tell, rows - 1)])
    made = find("gather_matmul")(gather(x, inside), w, own)

    row = positions(tell, rows)
    group = _group(tell, row, ends, groups)
    within = add(sub(row, gather(begins, group)), mul(gather(first, group), np.array(ROWS)))
    return gather(reshaped_to(made, (blocks * ROWS, w.shape[2]), told), within)


def positions(tell: Callable[[Shape], Value], n: Dim) -> Any:
    """Return 0, 1, ..., n - 1."""
    return builders.find("range")(np.asarray(0), _number(tell, n), np.asarray(1))


def places_among(boundaries: Any, x: Any, right: bool) -> Any:
    """Return how many sorted boundaries [*S, B], or [B], are below each number of x [*S, K], or equal to it (right), as
    int64; NaN is above all."""
    find = builders.find
    each = find("unsqueeze")(x, axes=(x.rank,))
    held = boundaries if boundaries.rank == 1 else find("unsqueeze")(boundaries, axes=(boundaries.rank - 1,))
    is_above = find("greater" if right else "greater_or_equal")(held, each)
    counted = find("cast")(find("logical_not")(is_above), to="int64")
    return find("reduce_sum")(counted, axes=(x.rank,), keepdims=False)


def _group(tell: Callable[[Shape], Value], places: Any, ends: Any, groups: Dim) -> Any:
    """Return of which group each place is, the last one for those behind all."""
    return builders.find("min")([places_among(ends, places, right=True), _number(tell, groups - 1)])


def _number(tell: Callable[[Shape], Value], n: Dim) -> Any:
    """Return an extent as a scalar."""
    return builders.find("gather")(tell((n,)), np.asarray(0))
