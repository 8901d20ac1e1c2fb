"""Rounds of inner loops that are written out at a time.

    for (k, 0, 16) r*n products        ->        for (k, 0, 4) r*n products, r*n products, r*n products, r*n products

Counting, addresses and the jump back take ports on which Intel's CPUs begin operations on vectors, too: of the peak of
a core of Sapphire Rapids, sums in 4 x 4 registers reach 0.66 a round at a time, 0.78 with four (operands in the second
cache). Vectors of 32 bytes leave it a port: there a network takes 2 % less time kernel by kernel, and 6 % more as a
whole (resnet50, one thread).
"""

from __future__ import annotations

from renorm.core import dtypes
from renorm.tir.nodes import For, Prefetch, Seq, Stmt, Store
from renorm.tir.nodes import constant as number

WIDE = 64  # bytes of vectors beside which counting costs
MOST = 128  # operations: what is longer leaves the cache of decoded instructions (of 28 products: 4 rounds, not 8)


def written_out(s: For, vector_bytes: int) -> int:
    """Return how many rounds of a loop stand one after the other: several of sums in registers, where they divide half
    of all rounds."""
    rounds, operations = number(s.extent), _operations(s.body, vector_bytes)
    if s.kind != "serial" or rounds is None or not operations or vector_bytes < WIDE:
        return 1
    most = min(MOST // operations, rounds // 2)
    return next((n for n in range(most, 1, -1) if rounds % n == 0), 1)


def _operations(s: Stmt, vector_bytes: int) -> int:
    """Return how many vectors a round stores in registers; 0 where it does anything else."""
    parts = s.stmts if isinstance(s, Seq) else (s,)
    stores = [x for x in parts if isinstance(x, Store) and x.buffer.scope == "register"]
    if not all(x in stores or isinstance(x, Prefetch) for x in parts):
        return 0
    return sum(max(1, x.index.lanes * dtypes.itemsize(x.buffer.dtype) // vector_bytes) for x in stores)
