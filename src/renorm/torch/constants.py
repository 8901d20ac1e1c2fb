"""Constants of a part: parameters and buffers where they lie, seen whether somebody writes to them.

Dynamo captures a function once for all modules that call it (blocks that are compiled one by one, layers behind a break
of the graph): of such a part each module has a set of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from ctypes import c_uint8, c_uint16, c_uint32, c_uint64
from typing import Any
from weakref import ref

from torch import Tensor

from renorm.torch.gpus import is_on_host

SETS = 64  # of constants of one part; of more modules they are inputs
CHANGES = 1  # of a constant, until it is an input
_BITS = {1: c_uint8, 2: c_uint16, 4: c_uint32, 8: c_uint64}  # by bytes of an element
LOG = logging.getLogger("renorm.torch")


class ConstantSet:
    """Constants of a part, and what runs the part with them.

    which: of what the part is given. changes: how often each was written to. calls: of `run`, counted by who calls."""

    def __init__(
        self, given: Sequence[Any], which: Sequence[int], run: Callable[..., Any], changes: Sequence[int] = ()
    ):
        self.which, self.run, self.changes, self.calls = which, run, changes, 0
        self._tensors = [given[i].detach() for i in which]  # what lies in these places stays there
        self._objects = [ref(given[i]) for i in which]
        self._probes = [*map(_middle, self._tensors)]
        self._seen = self._versions(given)

    def is_as_read(self, given: Sequence[Any]) -> bool:
        """Return whether nobody has written to what lies in the places of these constants."""
        return self._seen == self._versions(given)

    def is_held(self) -> bool:
        """Return whether anybody else has all of these tensors."""
        return all(o() is not None for o in self._objects)

    def moved_to(self, given: Sequence[Any]) -> bool:
        """Return whether these are the same tensors, in other places (p.data = q)."""
        return all(o() is given[i] for o, i in zip(self._objects, self.which))

    def written(self, given: Sequence[Any]) -> list[int]:
        """Return how often each was written to, given what they are now."""
        has_moved = (x.data_ptr() != given[i].data_ptr() for x, i in zip(self._tensors, self.which))
        is_other = (a != b for a, b in zip(self._seen, self._versions(given)))
        return [n + (a or b) for n, a, b in zip(self.changes, has_moved, is_other)]

    def _versions(self, given: Sequence[Any]) -> list[Any]:
        """Return what changes when somebody writes to one: no count does for those of inference_mode, and for what goes
        through x.data; the bits of an element in its middle may."""
        tensors = [given[i] for i in self.which]
        return [(0 if x.is_inference() else x._version, p and p.value) for x, p in zip(tensors, self._probes)]


class ConstantSets:
    """The sets of a part, by places. which: of what it is given, as long as they are constants."""

    def __init__(self, which: Sequence[int]):
        self.which = which
        self._sets: dict[tuple[int, ...], ConstantSet] = {}
        self._passing = 0  # sets that were gone before a second call

    def __len__(self) -> int:
        return len(self._sets)

    def _places(self, given: Sequence[Any]) -> tuple[int, ...]:
        return tuple([given[i].data_ptr() for i in self.which])

    def find(self, given: Sequence[Any]) -> ConstantSet | None:
        """Return the set of what is given; None where the part is not compiled for it, as it is now."""
        found = self._sets.get(self._places(given))
        return found if found is not None and found.is_as_read(given) else None

    def begin(self, given: Sequence[Any]) -> list[int]:
        """Let go of sets in the way of one of what is given; return how often its constants were written to. Those that
        are written to often are inputs from now on, as all are where modules are too many, or pass."""
        before = self._sets.pop(self._places(given), None)
        if before is None and self.which:
            place = next((p for p, s in self._sets.items() if s.moved_to(given)), None)
            before = None if place is None else self._sets.pop(place)
        self._passing += sum(s.calls == 1 and not s.is_held() for s in self._sets.values())
        self._sets = {p: s for p, s in self._sets.items() if s.is_held()}
        changes = before.written(given) if before else [0] * len(self.which)
        often = {i for i, n in zip(self.which, changes) if n > CHANGES}
        if before:
            LOG.info("parameters were written to: compiled anew, with %d of them as inputs from now on", len(often))
        elif len(self) >= SETS or self._passing > CHANGES:
            often = set(self.which)
            LOG.info("many modules call one part: their %d parameters are inputs from now on", len(often))
        if often:
            changes = [n for i, n in zip(self.which, changes) if i not in often]
            self.which, self._sets = [i for i in self.which if i not in often], {}
        return changes

    def add(self, given: Sequence[Any], run: Callable[..., Any], changes: Sequence[int]) -> ConstantSet:
        """Keep what runs the part with the constants among what is given; return their set."""
        made = self._sets[self._places(given)] = ConstantSet(given, self.which, run, changes)
        return made


def _middle(x: Tensor) -> Any:
    """Return the bits of an element as an object of ctypes; None of no elements, and where the host does not see it."""
    kind = _BITS.get(x.element_size())
    if kind is None or x.numel() == 0 or not is_on_host(x):
        return None
    at = sum(n // 2 * step for n, step in zip(x.shape, x.stride()))
    return kind.from_address(x.data_ptr() + at * x.element_size())
