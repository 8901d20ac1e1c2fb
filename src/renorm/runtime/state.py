"""State of a module: arrays that each run reads and, when it has succeeded, replaces by what they became.

There is no lock, so that nobody who interrupts a run (a handler of a signal, an exception that comes from outside)
meets one or leaves one behind: a version of the state, once replaced, names the one that follows it, in one step that
cannot be halved. A run that finds another run's version after the one that it read has computed in vain, and begins
anew. Arrays that were set meanwhile are no obstacle: they were set after the run.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import static
from renorm.core.errors import InvalidArtifact, InvalidInput, StatisticsWarning, suggest
from renorm.runtime.program import TensorSpec

Array = np.ndarray[Any, Any]


class Version:
    """The arrays between two moments. given: where they were set, those of them, by index; None: a run made them.
    followed: holds the version after this one, once there is one."""

    __slots__ = ("arrays", "followed", "given")

    def __init__(self, arrays: tuple[Array, ...], given: Mapping[int, Array] | None = None):
        self.arrays, self.given, self.followed = arrays, given, dict[None, Version]()

    def follow(self, after: Version) -> bool:
        """Makes `after` the version after this one, unless there is one."""
        return self.followed.setdefault(None, after) is after  # one call, which nothing comes between


class State(Mapping[str, Array]):
    """Arrays by name, such as the running statistics of a network in training.

    Arrays are never changed, only replaced: those that are read stay what they are, and are read-only. Setting one or
    more replaces them all at once; a run in progress counts as one that came before. Runs of one state follow each
    other, from whichever threads they are called. Handlers of signals may do all of that in the middle of a run.

    changes: a word that is another one after each run that has replaced the arrays.
    """

    def __init__(self, specs: Sequence[TensorSpec], arrays: Sequence[Array]):
        self.specs = tuple(specs)
        self._version = Version(tuple(_frozen(np.array(a)) for a in arrays))
        self._places = {s.name: i for i, s in enumerate(self.specs)}
        self.changes, self._counted = ctypes.c_int64(), count(1)

    @property
    def version(self) -> Version:
        """The last one."""
        last = self._version
        while last.followed:
            last = last.followed[None]
        self._version = last  # where to look from next time; one before the last does as well
        return last

    def __getitem__(self, name: str) -> Array:
        return self.version.arrays[self._place(name)]

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
        return dict(zip(self._places, self.version.arrays))

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
        last = self.version
        while not last.follow(Version(_over(last.arrays, given), given)):
            last = self.version

    def replace(self, before: Version, after: Sequence[Array]) -> bool:
        """Replaces the arrays of `before` by what a run made of them, unless another run did so first."""
        arrays, last = tuple(map(_frozen, after)), before
        while True:
            while last.followed:
                last = last.followed[None]
                if last.given is None:
                    return False
                arrays = _over(arrays, last.given)
            if last.follow(Version(arrays)):
                self.changes.value = next(self._counted)
                return True

    def fresh(self) -> tuple[Array, ...]:
        """Arrays of the same types, to be written."""
        return tuple(np.empty(static(s.shape), dtypes.numpy_dtype(s.dtype)) for s in self.specs)

    def _place(self, name: str) -> int:
        if name not in self._places:
            raise KeyError(f"{name!r} is not part of the state; nearest: {suggest(name, self._places)}")
        return self._places[name]

    def __repr__(self) -> str:
        return f"<State {', '.join(map(str, self.specs)) or 'of nothing'}>"


def _over(arrays: Sequence[Array], given: Mapping[int, Array]) -> tuple[Array, ...]:
    return tuple(given.get(i, a) for i, a in enumerate(arrays))


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


def arrays_of(specs: Sequence[TensorSpec], state: Sequence[Array | bytes]) -> list[Array]:
    """Return arrays of state, of which an artifact has the elements. Raises InvalidArtifact where they are too few."""
    if len(state) != len(specs):
        raise InvalidArtifact(f"{len(state)} arrays of state, expected {len(specs)}")
    return [_array(s, a) if isinstance(a, bytes) else a for s, a in zip(specs, state)]


def _array(spec: TensorSpec, data: bytes) -> Array:
    if len(data) != spec.nbytes:
        raise InvalidArtifact(f"state {spec} has {len(data)} bytes, not {spec.nbytes}")
    return np.frombuffer(data, dtypes.numpy_dtype(spec.dtype)).reshape(static(spec.shape))
