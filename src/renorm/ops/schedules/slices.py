"""Which parts of a result are normalized by statistics of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from renorm import te
from renorm.ops.schedules import structure

# Fewer slices than this, each larger than that many elements, are too few to share out and too long for one thread.
FEW, LONG = 16, 1 << 17


@dataclass(frozen=True)
class Slices:
    """Which axes of a result name a slice. blocks: for each axis, 0: it runs inside a slice; 1: each of its values is
    another slice; k: each k neighbours are inside one, and the blocks of k name slices."""

    shape: tuple[int, ...]
    blocks: tuple[int, ...]

    @staticmethod
    def of(out: te.Tensor, reductions: Sequence[te.Tensor]) -> Slices | None:
        """None where statistics are read in another way, or `out` is a statistic itself."""
        if structure.is_reduction(out) or structure.is_statistic(out) or 0 in out.shape or not reductions:
            return None
        found: list[set[int | None]] = [set() for _ in out.shape]
        for load in structure.reached(out, reductions.__contains__):
            if load.source in reductions:
                for axis, seen in zip(out.op.axis, found):
                    seen.update(structure.blocks(i, axis.var) for i in load.indices)
        blocks: list[int] = []
        for extent, seen in zip(out.shape, found):
            moving = seen - {0}
            if None in moving or len(moving) > 1:
                return None
            k = moving.pop() if moving else 0
            blocks.append(1 if extent == 1 and k else k or 0)
        if any(k and e % k for k, e in zip(blocks, out.shape)) or not _agree(reductions):
            return None
        return Slices(out.shape, tuple(blocks))

    @property
    def count(self) -> int:
        return prod(e // k for e, k in zip(self.shape, self.blocks) if k)

    @property
    def size(self) -> int:
        return prod(self.shape) // self.count

    @property
    def are_too_few(self) -> bool:
        """To share out, and each too long for one thread."""
        return self.count < FEW and self.size > LONG

    @property
    def are_interleaved(self) -> bool:
        """Return whether each has a few of the neighbours along the last axis, again and again."""
        return bool(self.blocks) and 1 < self.blocks[-1] < self.shape[-1]

    @property
    def run_across_memory(self) -> bool:
        return bool(self.blocks) and self.blocks[-1] == 1 and self.shape[-1] > 1


def _agree(reductions: Sequence[te.Tensor]) -> bool:
    """Return whether reductions read each other only at their own slice, or at parts of it: k neighbours of which each
    slice has its own."""
    for t in reductions:
        for load in structure.reached(t, reductions.__contains__):
            if load.source in reductions and not all(structure.is_apart(i, t) for i in load.indices):
                return False
    return True
