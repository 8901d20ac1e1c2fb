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
from renorm.ops.schedules import cpu_window, nesting, structure
from renorm.te.tensor import source_of

# Bytes of a piece; but its rows at least, so that its sums are few beside its data.
PIECE, ROWS = 256 * 1024, 64

# Runs of memory that are read at once. Each goes on from block to block, so that prefetchers follow it: with rows of a
# block one behind the other, the runs were of one row each, and 256 columns took twice as long.
STREAMS = 8

# Part of the vector registers that accumulators may take: others hold what is added, and what rows are reckoned with.
REGISTERS = 2

# Bytes of a piece, and its rows at least, where results of its rows are computed before its sums: it is read from the
# second-level cache again.
AGAIN, ROWS_AGAIN = 384 * 1024, 16


def takes(t: te.Tensor) -> bool:
    """Return whether `t` is several sums of columns that are tall, or of several matrices: one sum alone is finished in
    its reader."""
    beside = structure.beside(t)
    rows = structure.terms(t) * prod(e for k, e in enumerate(t.shape[:-1]) if k not in beside)
    return bool(beside) and rows >= 2 * ROWS and structure.work(t) >= nesting.PARALLEL_FROM


def schedule(s: te.Schedule, t: te.Tensor, target: Target) -> tuple[te.Tensor, te.IterVar]:
    """`t`, whose last axis runs along memory. Gives the loop over rows, and whose it is."""
    _, held, row = _pieces(s, t, target, _streams(t), PIECE, ROWS)
    return held, row


def takes_rows_of(t: te.Tensor, rows: te.Tensor) -> bool:
    """Return whether `t` adds up what each row of a matrix is computed from, so that pieces of both go together."""
    is_ready = not any(structure.is_reduction(u) for u in structure.stages([t]) if u is not t)
    return is_ready and takes(t) and len(rows.shape) == 2 and any(u.shape == rows.shape for u in _matrices(t))


def after_rows(s: te.Schedule, t: te.Tensor, rows: te.Tensor, target: Target) -> None:
    """As `schedule`, where the rows of each piece are computed before it is summed up, and what both read before
    these."""
    read, inner = _matrices(t), [u for u in structure.stages([t]) if structure.is_statistic(u)]
    (part, piece), *_ = _pieces(s, t, target, ROWS_AGAIN, AGAIN // len(read), ROWS_AGAIN)
    s[rows].compute_with(s[part], piece, next(u for u in read if u.shape == rows.shape))
    for u in inner:
        s[u].compute_at(s[part], piece)


def _pieces(
    s: te.Schedule, t: te.Tensor, target: Target, streams: int, size: int, least: int
) -> tuple[tuple[te.Tensor, te.IterVar], te.Tensor, te.IterVar]:
    """The loop over pieces and whose it is; the sums of a tile, and their loop over rows. streams: rows of a block;
    size: bytes of a matrix in a piece; least: its rows at least."""
    terms = structure.beside(t)
    lanes, columns = structure.lanes_of(t, target), t.shape[-1]
    sums, registers = prod(t.shape[k] for k in terms), target.vector_registers // REGISTERS
    vectors = max(n for n in range(1, max(1, registers // sums) + 1) if n == 1 or columns % (n * lanes) == 0)
    rows = s[t].fuse(*s[t].op.reduce_axis)
    piece, rest = s[t].split(rows, factor=_rows_of_piece(rows.extent, columns, streams, size, least))
    part = s.rfactor(t, piece)
    (inside,) = s[part].op.reduce_axis
    _, block = s[part].split(inside, nparts=streams if columns > vectors * lanes else rest.extent)
    held = s.rfactor(part, block)
    s[held].set_scope("register")
    first, *own = s[part].op.axis
    tile, beside = _tiles(s, part, own, terms, vectors, lanes)
    others = [a for k, a in enumerate(own[:-1]) if k not in terms]
    s[part].reorder(first, *others, *s[part].op.reduce_axis, tile, *beside)
    piece, *_ = nesting.share(s, part, [first, *others])
    s[held].compute_at(s[part], tile)
    number, first, *own = s[held].op.axis
    tile, beside = _tiles(s, held, own, terms, vectors, lanes)
    others = [a for k, a in enumerate(own[:-1]) if k not in terms]
    (row,) = s[held].op.reduce_axis
    s[held].reorder(number, first, *others, tile, row, *beside)
    cpu_window.schedule(s, t, t, target)
    return (part, piece), held, row


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


def _streams(t: te.Tensor) -> int:
    """Rows of a block."""
    return max(1, STREAMS // max(1, len(_matrices(t))))


def _matrices(t: te.Tensor) -> list[te.Tensor]:
    """What `t` reads each element of."""
    size = structure.terms(t) * t.shape[-1]
    read = dict.fromkeys(source_of(load) for load in structure.stored_reads(t))
    return [u for u in read if prod(u.shape) == size]


def _rows_of_piece(rows: int, columns: int, streams: int, size: int, least: int) -> int:
    """A multiple of the rows of a block, so that pieces are apart; as many in each where they can be."""
    wanted = max(1, min(rows // least, -(-rows * columns * 4 // size)))
    pieces = next((n for n in range(wanted, 2 * wanted + 1) if rows % (n * streams) == 0), wanted)
    return -(-rows // (pieces * streams)) * streams
