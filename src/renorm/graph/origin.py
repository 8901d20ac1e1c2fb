"""Names of the source model's nodes, or values, that one of the graph stands for, put together as rewrites go on.

A long row of nodes becomes one in as many steps; names are listed when somebody asks, not after each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class Origin(Sequence[str]):
    """The names of all parts in order, each once; equal to a tuple of these names."""

    def __init__(self, *parts: Sequence[str]):
        self._parts: tuple[Sequence[str], ...] = tuple(p for p in parts if p)
        self._names: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        if self._names is None:
            self._names, self._parts = self._listed(), ()
        return self._names

    def _listed(self) -> tuple[str, ...]:
        found, seen, waiting = dict[str, None](), set[int](), list[Sequence[str]]([self])
        while waiting:  # parts may have parts thousands deep
            part = waiting.pop()
            if not isinstance(part, Origin):
                found.update(dict.fromkeys(part))
            elif part._names is not None:
                found.update(dict.fromkeys(part._names))
            elif id(part) not in seen:
                seen.add(id(part))
                waiting += reversed(part._parts)
        return tuple(found)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __bool__(self) -> bool:
        return bool(self._parts or self._names)  # no need to list them

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self.names[index]

    def __eq__(self, other: object) -> bool:
        return self.names == (other.names if isinstance(other, Origin) else other)

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return repr(self.names)
