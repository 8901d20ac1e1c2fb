"""CPU: sums over the rows of a tall matrix, of which memory holds the rows one after the other.

    parallel for each piece of rows                a few per thread; how many depends on the shape alone
      for each tile of columns
        sums = 0; for each row of the piece: sums += f(row)      in registers; several sums of the same data together
    for each vector of columns: total = sum of those of the pieces, in order

Pieces fit the second-level cache, so that rows come from memory as a whole, whatever part of them a tile takes.
"""

from __future__ import annotations

from math import prod

from renorm import te
from renorm.core.dtypes import compute_dtype, itemsize
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, cpu_window, structure

# Bytes of a piece, a quarter of a second-level cache; but its rows at least, so that its sums are few beside its data.
PIECE, ROWS = 256 * 1024, 128

# Registers that accumulators may take: half of those that there are with AVX-512.
REGISTERS = 16


def takes(t: te.Tensor) -> bool:
    """Whether `t` is several sums of columns that are tall and many: one sum alone is finished in its reader."""
    assert isinstance(t.op, te.ComputeOp)
    rows = prod(a.extent for a in t.op.reduce_axis)
    return bool(structure.terms(t)) and rows >= 2 * ROWS and structure.work(t) >= cpu_injective.PARALLEL_FROM


def schedule(s: te.Schedule, t: te.Tensor, target: Target) -> None:
    """`t`, whose last axis runs along memory."""
    terms = structure.terms(t)
    lanes = target.lanes(itemsize(compute_dtype(t.dtype)))
    reduced = list(s[t].op.reduce_axis)
    rows = cpu_injective.fuse(s, t, reduced)
    piece, _ = s[t].split(rows, nparts=_pieces(rows.extent, t.shape[-1]))
    part = s.rfactor(t, piece)
    held = s.cache_write(part, "register")
    sums = prod(t.shape[k] for k in terms)
    width = max(n for n in range(1, max(1, REGISTERS // sums) + 1) if n == 1 or t.shape[-1] % (n * lanes) == 0) * lanes
    for stage in (part, held):
        first, *own = s[stage].op.axis
        beside = [own[k] for k in terms]
        others = [a for k, a in enumerate(own[:-1]) if k not in terms]
        tile, inside = s[stage].split(own[-1], factor=width)
        vector, lane = s[stage].split(inside, factor=lanes)
        s[stage].reorder(first, *others, tile, *s[stage].op.reduce_axis, vector, *beside, lane)
        s[stage].vectorize(lane)
        for axis in (vector, *beside):
            s[stage].unroll(axis)
        if stage is part:
            s[held].compute_at(s[part], cpu_injective.share(s, part, [first, *others, tile])[-1])
    cpu_window.schedule(s, t, t, target)


def _pieces(rows: int, columns: int) -> int:
    """How many pieces; alike in size where they can be."""
    wanted = max(1, min(rows // ROWS, -(-rows * columns * 4 // PIECE)))
    return next((n for n in range(wanted, min(rows, 2 * wanted) + 1) if rows % n == 0), wanted)
