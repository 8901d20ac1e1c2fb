"""State of a module: arrays that each run reads and, when it has succeeded, replaces by what they became."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidInput, StatisticsWarning, suggest
from renorm.core.locks import Lock, Rank
from renorm.runtime.program import TensorSpec

Array = np.ndarray[Any, Any]


class State(Mapping[str, Array]):
    """Arrays by name, such as the running statistics of a network in training.

    Arrays are never changed, only replaced: those that are read stay what they are, and are read-only. Setting one or
    more replaces them all at once, and waits for the run in progress. Runs of one state follow each other, from
    whichever threads they are called. A signal handler in the middle of a run may read it; what would wait for that run
    raises ReentrancyError. A child of fork() has it as it was before the runs of other threads.
    """

    def __init__(self, specs: Sequence[TensorSpec], arrays: Sequence[Array]):
        self.specs = tuple(specs)
        self._arrays = tuple(_frozen(np.array(a)) for a in arrays)
        self._places = {s.name: i for i, s in enumerate(self.specs)}
        self._lock = Lock("the state of a network", Rank.STATE)

    def __getitem__(self, name: str) -> Array:
        return self._arrays[self._place(name)]

    def __setitem__(self, name: str, array: Any) -> None:
        self.update({name: array})

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def copy(self) -> dict[str, Array]:
        """All arrays as they are between two runs."""
        return dict(zip(self._places, self._arrays))

    def update(self, arrays: Mapping[str, Any]) -> None:
        """Replaces some of the arrays by copies of these, which have their dtypes and shapes: all, or none.

        Raises InvalidInput that lists everything that does not fit.
        """
        problems, given = list[str](), dict[int, Array]()
        for name, value in arrays.items():
            if name not in self._places:
                problems.append(f"{name!r} is not part of the state; nearest: {suggest(name, self._places)}")
                continue
            array, spec = np.asarray(value), self.specs[self._places[name]]
            if array.shape != spec.shape or array.dtype != dtypes.numpy_dtype(spec.dtype):
                problems.append(
                    f"{name}: {array.dtype.name}{list(array.shape)}, expected {spec.dtype}{list(spec.shape)}"
                )
            else:
                given[self._places[name]] = _frozen(np.array(array, order="C"))
        if problems:
            raise InvalidInput("the arrays given do not fit the state", problems)
        with self._lock:
            self._arrays = tuple(given.get(i, a) for i, a in enumerate(self._arrays))

    @contextmanager
    def replacing(self) -> Generator[tuple[tuple[Array, ...], tuple[Array, ...]]]:
        """Gives the arrays and as many fresh ones, which take their place when the block ends without an error."""
        with self._lock:
            fresh = self.fresh()
            yield self._arrays, fresh
            self._arrays = tuple(map(_frozen, fresh))

    def fresh(self) -> tuple[Array, ...]:
        """Arrays of the same types, to be written."""
        return tuple(np.empty(s.shape, dtypes.numpy_dtype(s.dtype)) for s in self.specs)

    def _place(self, name: str) -> int:
        if name not in self._places:
            raise KeyError(f"{name!r} is not part of the state; nearest: {suggest(name, self._places)}")
        return self._places[name]

    def __repr__(self) -> str:
        return f"<State {', '.join(map(str, self.specs)) or 'of nothing'}>"


def beyond(new: Array, old: Array, what: str, stacklevel: int) -> None:
    """Warns of elements of a statistic that have just become infinite. what: its name; stacklevel: whose call it is."""
    if not np.isinf(new).any():
        return
    found = np.flatnonzero(np.isinf(new) & np.isfinite(old))
    if found.size:
        shown = ", ".join(map(str, found[:8])) + (", ..." if found.size > 8 else "")
        text = f"{what} of channel {shown} is beyond {new.dtype.name} and becomes inf"
        warnings.warn(text, StatisticsWarning, stacklevel=stacklevel)


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array
