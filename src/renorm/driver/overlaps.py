"""Regions of one buffer, and which of them share bytes with another one: found without looking at all of them.

Single runs are found by where they lie, those in rows of one pitch by their columns (bytes modulo the pitch): parts of
a concat stand side by side in every row, so that each lies between the ends of each other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from renorm.core.intervals import Spans
from renorm.graph.strided_region import StridedRegion


class RegionIndex:
    """Regions of some bytes, each entered once."""

    def __init__(self) -> None:
        # by pitch, 0 for single runs: from the first byte to the last
        self._spans: dict[int, Spans[StridedRegion]] = {}
        self._columns: dict[int, Spans[StridedRegion]] = {}  # by pitch

    def add(self, region: StridedRegion) -> None:
        pitch = region.pitch if region.rows > 1 else 0
        self._spans.setdefault(pitch, Spans()).add(region.offset, region.end, region)
        if pitch:
            begin = region.offset % pitch
            self._columns.setdefault(pitch, Spans()).add(begin, begin + region.run, region)

    def overlapping(self, region: StridedRegion) -> Iterator[StridedRegion]:
        """Yield those that share bytes with a region, each once; where rows of both have different pitches, that
        may."""
        for pitch, spans in self._spans.items():
            near = spans.meeting(region.offset, region.end)
            if pitch and region.run <= pitch and (region.rows == 1 or region.pitch == pitch):
                begin = region.offset % pitch
                turns = (begin - pitch, begin, begin + pitch)  # columns may go on at the next row
                columns = self._columns[pitch]
                near = iter(dict.fromkeys(chain(*(columns.meeting(at, at + region.run) for at in turns))))
            yield from (p for p in near if p.overlaps(region))
