"""Tiles of recurrent networks: how many hidden units, and rows of a batch, have their sums in registers."""

from __future__ import annotations

from renorm.core.dtypes import compute_dtype, itemsize
from renorm.core.machine import Machine
from renorm.core.target import Target

_LANES_OF_GPU = 4  # a thread computes all of a row
_BETTER = 0.98  # of a step's time, for which a larger tile is taken
_ROWS = 4  # from which on products take the time of a step, and not weights that are read


def tile(gates: int, hidden: int, batch: int, dtype: str, target: Target) -> tuple[int, int]:
    """Return units of a tile, and rows, whose steps take the fewest cycles; of those that are as good the fewest:
    threads share rows. Weights are read once for each tile of rows."""
    if target.is_gpu:
        return _LANES_OF_GPU, 1
    machine, width = Machine.of(target), target.lanes(itemsize(compute_dtype(dtype)))
    best, cost = (width, 1), float("inf")
    for vectors in (1, 2, 4):
        units = -(-hidden // (width * vectors)) * width * vectors
        nbytes = float(gates * units * hidden * itemsize(dtype))
        for rows in range(1, min(batch, _ROWS) + 1):
            n = gates * vectors
            if rows > 1 and rows * n > machine.accumulators(n):
                break
            whole, rest = divmod(batch, rows)
            step = whole * machine.step(rows, n, nbytes) + rest * machine.step(1, n, nbytes)
            now = step * units / (width * vectors)
            if now < cost * _BETTER:
                best, cost = (width * vectors, rows), now
    return best
