"""Places of one buffer, and which of them share bytes with another one: found without looking at all of them.

Single runs are found by where they lie, those in rows of one pitch by their columns (bytes modulo the pitch): parts of
a concat stand side by side in every row, so that each lies between the ends of each other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from renorm.core.intervals import Spans
from renorm.graph.place import Place


class Places:
    """Places of some bytes, each entered once."""

    def __init__(self) -> None:
        self._spans: dict[int, Spans[Place]] = {}  # by pitch, 0 for single runs: from the first byte to the last
        self._columns: dict[int, Spans[Place]] = {}  # by pitch

    def add(self, place: Place) -> None:
        pitch = place.pitch if place.rows > 1 else 0
        self._spans.setdefault(pitch, Spans()).add(place.offset, place.end, place)
        if pitch:
            begin = place.offset % pitch
            self._columns.setdefault(pitch, Spans()).add(begin, begin + place.run, place)

    def overlapping(self, place: Place) -> Iterator[Place]:
        """Those that share bytes with a place, each once; where rows of both have different pitches, that may."""
        for pitch, spans in self._spans.items():
            near = spans.meeting(place.offset, place.end)
            if pitch and place.run <= pitch and (place.rows == 1 or place.pitch == pitch):
                begin = place.offset % pitch
                turns = (begin - pitch, begin, begin + pitch)  # columns may go on at the next row
                columns = self._columns[pitch]
                near = iter(dict.fromkeys(chain(*(columns.meeting(at, at + place.run) for at in turns))))
            yield from (p for p in near if p.overlaps(place))
