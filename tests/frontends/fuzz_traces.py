"""Which lines of renorm's readers a file comes to, and after which: what files that go further are known by."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Any

import renorm

_ROOMS = tuple(os.path.join(os.path.dirname(renorm.__file__), room, "") for room in ("frontends", "ops"))
_LINES = 1 << 20  # more than a file has


class Traces:
    """Collects pairs of lines while it is entered, as numbers. known: all there were. new: those of the last file that
    had not been there before."""

    def __init__(self) -> None:
        self.known, self.new = set[int](), set[int]()
        self._places = dict[CodeType, int]()  # a number of a function that is followed, 0 of others

    def __enter__(self) -> None:
        self.new = set()
        sys.settrace(self._called)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _place(self, code: CodeType) -> int:
        name = code.co_filename
        made = hash((name, code.co_qualname)) * _LINES * _LINES if name.startswith(_ROOMS) else 0
        self._places[code] = made
        return made

    def _called(self, frame: FrameType, event: str, given: Any) -> Any:
        code = frame.f_code
        place = self._places.get(code)
        if place is None:
            place = self._place(code)
        if not place:
            return None
        before, known = 0, self.known

        def line(frame: FrameType, event: str, given: Any) -> Any:
            nonlocal before
            if event == "line":
                pair = place + before * _LINES + frame.f_lineno
                before = frame.f_lineno
                if pair not in known:
                    known.add(pair)
                    self.new.add(pair)
            return line

        return line
