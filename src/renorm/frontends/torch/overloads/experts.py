"""Overloads that multiply rows by the matrix of the group that they are of, as layers of experts do."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import minimum
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call, Given
from renorm.frontends.torch.overloads.comparing import places_among
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value

# Rows of a block, which shares what is read of a matrix; a group's last block is half empty. Emerald Rapids, 512 x 512,
# one thread: blocks of 1, 4, 8 and 16 of 256 rows made 53, 120, 125 and 127 GFLOP/s. Layers of 8 and of 64 experts, 16
# to 512 tokens, two threads, AVX-512: 4 rows took 0.8 to 1.1 of the time of 8.
ROWS = 4


@reads("_grouped_mm", "transformers.grouped_mm_fallback.default")
def _grouped_mm(
    c: Call, x: Value, w: Value, offs: Given = None, bias: Given = None, out_dtype: Any = None, **_: Any
) -> Any:
    """x[s] w[g] for the group g of row s; offs: where the rows of each group end."""
    if offs is None:
        return ops.matmul(x, w)
    if (x.rank, w.rank) != (2, 3) or bias is not None:
        raise UnsupportedOp(f"grouped products of rank {x.rank} and {w.rank}, or with a bias")
    rows, groups = x.shape[0], w.shape[0]
    blocks = minimum(rows, rows // ROWS + groups)
    ends = c.cast(offs, "int64")
    begins = ops.concat([np.array([0]), c.sliced(ends, 0, 0, groups - 1)], axis=0)
    count = np.array(ROWS)
    filled = ops.div(ops.add(ops.sub(ends, begins), np.array(ROWS - 1)), count)  # blocks of each group
    last = ops.cum_sum(filled, np.array(0))
    first = ops.sub(last, filled)

    block = c.positions(blocks)
    own = _group(c, block, last)  # of a block
    at = ops.add(ops.gather(begins, own), ops.mul(ops.sub(block, ops.gather(first, own)), count))
    places = ops.add(c.reshaped(at, (blocks, 1)), np.arange(ROWS))  # those beyond a group are rows of others, unread
    made = ops.gather_matmul(ops.gather(x, ops.min([places, c.number(rows - 1, "int64")])), w, own)

    row = c.positions(rows)
    group = _group(c, row, ends)
    within = ops.add(ops.sub(row, ops.gather(begins, group)), ops.mul(ops.gather(first, group), count))
    return ops.gather(c.reshaped(made, (blocks * ROWS, w.shape[2])), within)


def _group(c: Call, places: Value, ends: Value) -> Value:
    """Return of which group each place is, the last one for those behind all."""
    return ops.min([places_among(c, ends, places, right=True), c.number(ends.shape[0] - 1, "int64")])
