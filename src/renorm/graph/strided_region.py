"""Strided regions: which bytes of a value's memory hold another value.

    region ::= `rows` runs of `run` bytes, `pitch` bytes from the beginning of one to that of the next

So lie the parts of a concat, the pieces of a split, and what is sliced, along any axis: what an axis has after it is a
run, what stands before it makes rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from renorm.core.dims import static
from renorm.core.dtypes import itemsize

if TYPE_CHECKING:
    from renorm.graph.ir import Value, Within


@dataclass(frozen=True)
class StridedRegion:
    """offset: where the first run begins, in bytes. Equal regions are equal objects when they are made by `of`."""

    offset: int
    run: int
    rows: int = 1
    pitch: int = 0

    @staticmethod
    def of(offset: int, run: int, rows: int = 1, pitch: int = 0) -> StridedRegion:
        """Rows without anything between are one run."""
        return (
            StridedRegion(offset, run * rows) if rows == 1 or run == pitch else StridedRegion(offset, run, rows, pitch)
        )

    @staticmethod
    def of_box(whole: Sequence[int], part: Sequence[int], starts: Sequence[int], itemsize: int) -> StridedRegion | None:
        """Of whole[starts[0] : starts[0] + part[0], ...] in row-major memory; None where rows have no single pitch."""
        steps = [itemsize * prod(whole[k + 1 :]) for k in range(len(whole))]
        offset = sum(start * step for start, step in zip(starts, steps))
        if 0 in part:
            return StridedRegion(0, 0)
        cut = next((k for k in reversed(range(len(whole))) if part[k] != whole[k]), 0)
        rows, pitch, is_open = 1, 0, True
        for k in reversed(range(cut)):
            if part[k] == 1:
                is_open = is_open and (rows == 1 or whole[k] == 1)
            elif not is_open:
                return None
            else:
                rows, pitch = rows * part[k], pitch or steps[k]
                is_open = part[k] == whole[k]
        return StridedRegion.of(offset, part[cut] * steps[cut] if part else itemsize, rows, pitch)

    @property
    def nbytes(self) -> int:
        return self.run * self.rows

    @property
    def end(self) -> int:
        """Return where the last run ends."""
        return self.offset + (self.rows - 1) * self.pitch + self.run

    @property
    def begins(self) -> list[int]:
        """Return where each run begins."""
        return [self.offset + row * self.pitch for row in range(self.rows)]

    def shifted(self, offset: int) -> StridedRegion:
        return StridedRegion(self.offset + offset, self.run, self.rows, self.pitch)

    def inside(self, outer: StridedRegion) -> StridedRegion | None:
        """Return where this region of a value is in the memory of another one, in which that value lies at `outer`;
        None where the bytes have no single pitch there."""
        row, at = divmod(self.offset, outer.run) if outer.run else (0, self.offset)
        begin = outer.offset + row * outer.pitch + at
        if outer.rows == 1 or not self.run:
            return self.shifted(outer.offset)
        if at + self.run <= outer.run and (self.rows == 1 or self.pitch % outer.run == 0):
            return StridedRegion.of(begin, self.run, self.rows, self.pitch // outer.run * outer.pitch)
        if at == 0 and self.rows == 1 and self.run % outer.run == 0:
            return StridedRegion.of(begin, outer.run, self.run // outer.run, outer.pitch)
        return None

    def overlaps(self, other: StridedRegion) -> bool:
        """Return whether they share a byte; where rows of both have different pitches, whether they may."""
        if not (self.offset < other.end and other.offset < self.end):
            return False
        if self.rows > 1 < other.rows and self.pitch != other.pitch:
            return True
        pitch = max(self.pitch, other.pitch)
        if not pitch:
            return True
        # row i of this and row i + k of the other share a byte iff -other.run < apart + k * pitch < self.run
        apart = other.offset - self.offset
        first = max(1 - self.rows, (-other.run - apart) // pitch + 1)
        last = min(other.rows - 1, -((apart - self.run) // pitch) - 1)
        return first <= last

    def strides(self, shape: Sequence[int], itemsize: int) -> tuple[int, ...] | None:
        """Elements from one to the next along each axis of what lies here, whose shape in memory that is; None where
        rows do not end where an axis does."""
        found, step, pitch = list[int](), 1, 0
        for extent in reversed(shape):
            if not pitch and self.rows > 1 and step * itemsize == self.run:
                pitch = step = self.pitch // itemsize
            found.insert(0, step)
            step *= extent
        return tuple(found) if pitch or self.rows == 1 else None


def nbytes(v: Value) -> int:
    """Return how many bytes of memory hold a value."""
    return prod(static(v.shape)) * itemsize(v.held_dtype)


def memory_shape(v: Value) -> tuple[int, ...]:
    """Extents as memory has them."""
    shape = static(v.shape)
    return shape if v.layout is None else v.layout.memory(shape, v.layout.lanes)


def root(v: Value) -> tuple[Value, StridedRegion]:
    """The value whose memory holds `v`, and where."""
    way: list[Within] = []
    at = v  # values may lie within values thousands deep
    while at.within is not None and (at.within.root is None or at.within.root[0].within is not None):
        way.append(at.within)
        at = at.within.value
    known = at.within.root if at.within is not None else None
    holder, outer = known or (at, StridedRegion(0, nbytes(at)))
    for within in reversed(way):
        region = within.region.inside(outer)
        assert region is not None, f"{v!r} has no region in {holder!r}"
        within.root = holder, outer = holder, region
    return holder, outer


def strides(v: Value) -> tuple[int, ...] | None:
    """Elements from one to the next along each axis as memory has them, where there are others between; else None."""
    if v.within is None:
        return None
    region = root(v)[1]
    return region.strides(memory_shape(v), itemsize(v.held_dtype)) if region.rows > 1 else None
