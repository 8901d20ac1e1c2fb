"""CPU: sums over the rows of a tall matrix, of which memory holds the rows one after the other.

    parallel for each piece of rows                how many depends on the shape alone
      part = 0
      for each block of rows
        for each tile of columns
          sums = 0; for each row of the block: sums += f(row)    in registers; several sums of the same data together
          part += sums
    for each vector of columns: total = sum of those of the pieces, in order

A block is whole where one tile has all columns. Else it has few rows, one from each part of the piece, so that memory
is read along several runs side by side.
"""

from __future__ import annotations

from math import prod

from renorm import te
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, cpu_window, structure
from renorm.te.tensor import source_of

# Bytes of a piece; but its rows at least, so that its sums are few beside its data.
PIECE, ROWS = 256 * 1024, 64

# Runs of memory that are read at once. Each goes on from block to block, so that prefetchers follow it: with rows of a
# block one behind the other, the runs were of one row each, and 256 columns took twice as long.
STREAMS = 8

# Registers that accumulators may take: half of those that there are with AVX-512.
REGISTERS = 16


def takes(t: te.Tensor) -> bool:
    """Return whether `t` is several sums of columns that are tall, or of several matrices: one sum alone is finished in
    its reader."""
    terms = structure.terms(t)
    rows = prod(a.extent for a in t.op.reduce_axis) * prod(e for k, e in enumerate(t.shape[:-1]) if k not in terms)
    return bool(terms) and rows >= 2 * ROWS and structure.work(t) >= cpu_injective.PARALLEL_FROM


def schedule(s: te.Schedule, t: te.Tensor, target: Target) -> tuple[te.Tensor, te.IterVar]:
    """`t`, whose last axis runs along memory. Gives the loop over rows, and whose it is."""
    terms = structure.terms(t)
    lanes, columns = structure.lanes_of(t, target), t.shape[-1]
    sums = prod(t.shape[k] for k in terms)
    vectors = max(n for n in range(1, max(1, REGISTERS // sums) + 1) if n == 1 or columns % (n * lanes) == 0)
    rows = cpu_injective.fuse(s, t, list(s[t].op.reduce_axis))
    streams = _streams(t, rows.extent * columns)
    piece, rest = s[t].split(rows, factor=_rows_of_piece(rows.extent, columns, streams))
    part = s.rfactor(t, piece)
    (inside,) = s[part].op.reduce_axis
    _, block = s[part].split(inside, nparts=streams if columns > vectors * lanes else rest.extent)
    held = s.rfactor(part, block)
    s[held].set_scope("register")
    first, *own = s[part].op.axis
    tile, beside = _tiles(s, part, own, terms, vectors, lanes)
    others = [a for k, a in enumerate(own[:-1]) if k not in terms]
    s[part].reorder(first, *others, *s[part].op.reduce_axis, tile, *beside)
    cpu_injective.share(s, part, [first, *others])
    s[held].compute_at(s[part], tile)
    number, first, *own = s[held].op.axis
    tile, beside = _tiles(s, held, own, terms, vectors, lanes)
    others = [a for k, a in enumerate(own[:-1]) if k not in terms]
    (row,) = s[held].op.reduce_axis
    s[held].reorder(number, first, *others, tile, row, *beside)
    cpu_window.schedule(s, t, t, target)
    return held, row


def _tiles(
    s: te.Schedule, t: te.Tensor, own: list[te.IterVar], terms: list[int], vectors: int, lanes: int
) -> tuple[te.IterVar, list[te.IterVar]]:
    """The loop over tiles of columns, and those inside of one: over its vectors, the sums beside each other, lanes."""
    tile, inside = s[t].split(own[-1], factor=vectors * lanes)
    vector, lane = s[t].split(inside, factor=lanes)
    beside = [vector, *(own[k] for k in terms)]
    s[t].vectorize(lane)
    for axis in beside:
        s[t].unroll(axis)
    return tile, [*beside, lane]


def _streams(t: te.Tensor, size: int) -> int:
    """Rows of a block. size: elements of the matrix."""
    read = structure.stored_reads(t)
    matrices = {id(load.source) for load in read if prod(source_of(load).shape) == size}
    return max(1, STREAMS // max(1, len(matrices)))


def _rows_of_piece(rows: int, columns: int, streams: int) -> int:
    """A multiple of the rows of a block, so that pieces are apart; as many in each where they can be."""
    wanted = max(1, min(rows // ROWS, -(-rows * columns * 4 // PIECE)))
    pieces = next((n for n in range(wanted, 2 * wanted + 1) if rows % (n * streams) == 0), wanted)
    return -(-rows // (pieces * streams)) * streams
